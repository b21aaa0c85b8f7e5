"""The notebooks of examples/notebooks as pages, with the outputs that they hold; nothing is run."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
READERS = "hospital data scientists and researchers"  # where a notebook does not say in a line of its own


def found() -> list[Path]:
    """All notebooks, by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def place(path: Path) -> str:
    """Where in the site a notebook's page is."""
    return f"tutorials/notebooks/{path.stem}.md"


def title(path: Path) -> str:
    """A notebook's title: its first heading, or its name."""
    heading = re.search(r"^# (.+)$", "\n".join(_text(cell) for cell in _cells(path)), re.MULTILINE)
    return heading[1] if heading else path.stem.replace("_", " ").capitalize()


def pages() -> dict[str, str]:
    """Every notebook's page by its place."""
    return {place(path): page(path) for path in found()}


def page(path: Path) -> str:
    """A notebook as markdown; its title and for whom it is come first."""
    body = "\n\n".join(part for cell in _cells(path) for part in _cell(cell))
    body = re.sub(r"\A\s*# .+\n", "", body).strip()
    own = re.match(r"\*For [^*]+\.\*", body)
    readers = own[0] if own else f"*For {READERS}.*"
    download = f'This page is <a href="{path.name}" download>a notebook</a>: save it, and run it cell by cell.'
    return "\n\n".join([f"# {title(path)}", readers, download, body[own.end() if own else 0 :].strip()]) + "\n"


def _cells(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def _text(cell: Mapping[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    if cell["cell_type"] != "code":
        yield _text(cell)
        return
    yield _code(_text(cell))
    for output in [] if _text(cell).startswith("%%writefile") else cell.get("outputs", []):
        yield from _output(output)


def _code(text: str) -> str:
    """A code cell as a block; one that writes a file, or is a shell's, as its content."""
    first, _, rest = text.partition("\n")
    written = re.fullmatch(r"%%writefile (\S+)", first)
    if written:
        return f'```{Path(written[1]).suffix[1:] or "text"} title="{written[1]}"\n{rest}\n```'
    if first in ("%%bash", "%%sh"):
        return f"```bash\n{rest}\n```"
    if text.startswith("!") and "\n" not in text:
        return f"```bash\n{text[1:]}\n```"
    return f"```python\n{text}\n```"


def _output(output: Mapping[str, Any]) -> Iterator[str]:
    """What a cell's output shows best: a table, a drawing, a picture, or else its words."""
    data = {kind: "".join(given) for kind, given in output.get("data", {}).items() if isinstance(given, str | list)}
    if "text/html" in data and "<script" not in data["text/html"]:
        yield f"<div>{_plain(data['text/html'])}</div>"
    elif "image/svg+xml" in data:  # as a picture, so that its styles stay within
        yield f"![output](data:image/svg+xml;base64,{b64encode(data['image/svg+xml'].encode()).decode()})"
    elif "image/png" in data:
        yield f"![output](data:image/png;base64,{data['image/png'].strip()})"
    elif "text/plain" in data or "text" in output:
        yield f"```text\n{data.get('text/plain') or ''.join(output['text'])}\n```"


def _plain(html: str) -> str:
    return re.sub(r"<style scoped>.*?</style>|(?<=<table) [^>]*", "", html, flags=re.DOTALL)
