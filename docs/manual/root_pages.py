"""Pages of the site from files of the project's root."""

from pathlib import Path
from typing import NamedTuple


class Shown(NamedTuple):
    """A file of the root as a page, and its readers."""

    source: str
    readers: str


EVERYONE = "hospital data scientists, coordinators, researchers and Flower developers"
SHOWN = {
    "project/contributing.md": Shown("CONTRIBUTING.md", "researchers and Flower developers"),
    "project/changes.md": Shown("CHANGELOG.md", EVERYONE),
    "project/security.md": Shown("SECURITY.md", "coordinators and Flower developers"),
    "project/containers.md": Shown("docker/README.md", "coordinators"),
}


def pages(root: Path) -> dict[str, str]:
    """The pages by their place."""
    return {place: _page(shown, (root / shown.source).read_text(encoding="utf-8")) for place, shown in SHOWN.items()}


def _page(shown: Shown, text: str) -> str:
    title, _, body = text.partition("\n")
    return f"{title}\n\n*For {shown.readers}.*\n\n{body.strip()}\n"
