"""Links between pages: one to a file outside docs/ leads to that file's page in the site, or to none."""

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath, relpath

from docs.manual import notebooks, root_pages

NO_TITLES: Mapping[str, str] = {}
NOTEBOOKS = "examples/notebooks"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(\s*([^)\s]+)\s*\)")


def relinked(markdown: str, place: str, titles: Mapping[str, str] = NO_TITLES) -> str:
    """The text of the page at ``place`` with its links as they are in the site; code blocks are left alone.

    A link worded as its file becomes worded as the page's title, by ``titles``. A source file without a page loses its
    link.
    """
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _of_text(part, place, titles) for part in parts)


def _of_text(text: str, place: str, titles: Mapping[str, str]) -> str:
    def follow(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        file, hash_, anchor = target.partition("#")
        if "://" in target or target.startswith(("mailto:", "data:")) or not file:
            return match[0]
        source = normpath(join(dirname(source_of(place)), file))
        uri = uri_of(source)
        if uri is None:
            return f"{words} (`{source}`)"
        shown = titles.get(uri, words) if words in (file, target) else words
        return (
            f"{mark}[{shown}]({relpath(uri, dirname(place) or '.')}{'' if source == 'README.md' else hash_ + anchor})"
        )

    return LINK.sub(follow, text)


def source_of(place: str) -> str:
    """The file of the source tree that the links of a page are relative to."""
    notebook = next((path for path in notebooks.found() if notebooks.place(path) == place), None)
    if notebook:
        return f"{NOTEBOOKS}/{notebook.name}"
    shown = root_pages.SHOWN.get(place)
    return shown.source if shown else f"docs/{place}"


def uri_of(source: str) -> str | None:
    """The place in the site of a file of the source tree; None where it has none."""
    known = {"README.md": "index.md", **{shown.source: place for place, shown in root_pages.SHOWN.items()}}
    known |= {f"{NOTEBOOKS}/{path.name}": notebooks.place(path) for path in notebooks.found()}
    return source.removeprefix("docs/") if source.startswith("docs/") else known.get(source)
