"""How long pages are: ``python -m docs.manual.words`` prints the words of each, and of all together."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
ARCHIVES = ("evidence", "findings", "decisions", "licences")  # which nobody reads from top to bottom


def prose(page: str) -> int:
    """The words of a page's text, without its tables and blocks of code."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return sum(len(line.split()) for line in text.splitlines() if not line.startswith("|"))


def counted() -> dict[str, int]:
    """The words of README and of every page of ``docs/`` that is no archive, by its place."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    read = {"../README.md": DOCS.parent / "README.md", **pages}
    return {
        place: prose(path.read_text(encoding="utf-8")) for place, path in read.items() if not place.startswith(ARCHIVES)
    }


if __name__ == "__main__":
    words = counted()
    for place, number in sorted(words.items(), key=lambda each: -each[1]):
        print(f"{number:6,}  {place}")
    print(f"{sum(words.values()):6,}  all together")
