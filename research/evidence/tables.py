"""Generated tables between two marks in pages that are written by hand."""

import re
from collections.abc import Callable
from pathlib import Path

from fedsmall.sim.runs.files import write

TABLE = re.compile(r"<!-- table (?P<name>[\w-]+) -->\n.*?<!-- end -->", flags=re.DOTALL)


def filled(text: str, table_of: Callable[[str], str | None]) -> str:
    """The page with every table made anew, ``<!-- table NAME -->`` to ``<!-- end -->``.

    ``table_of`` gives a table by its name; None leaves it.
    """

    def one(match: re.Match[str]) -> str:
        table = table_of(match["name"])
        return match[0] if table is None else f"<!-- table {match['name']} -->\n{table.strip()}\n<!-- end -->"

    return TABLE.sub(one, text)


def fill(docs: Path, table_of: Callable[[str], str | None]) -> None:
    """:func:`filled` for all pages in a folder; unchanged ones are not touched."""
    for page in docs.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (fresh := filled(text, table_of)) != text:
            write(page, fresh.encode())
