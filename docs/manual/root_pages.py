"""Pages of the site from files of the project's root, or sections of README."""

import re
from pathlib import Path
from typing import NamedTuple


class Shown(NamedTuple):
    """A file of the root as a page: its readers, and which section under what title; all of it without."""

    source: str
    readers: str
    section: str = ""
    title: str = ""


EVERYONE = "hospital data scientists, coordinators, researchers and Flower developers"
SHOWN = {
    "tutorials/install.md": Shown("README.md", EVERYONE, "Install"),
    "tutorials/own-table.md": Shown("README.md", "hospital data scientists", "Your own table in ten minutes"),
    "tutorials/python.md": Shown("README.md", "researchers and hospital data scientists", "From Python"),
    "tutorials/flower-app.md": Shown("README.md", "Flower developers", "In a Flower app of your own"),
    "tutorials/three-hospitals.md": Shown(
        "README.md",
        "coordinators and hospital data scientists",
        "Across real hospitals",
        "Three hospitals on one machine, then real ones",
    ),
    "speed.md": Shown("README.md", "researchers", "Speed"),
    "project/contributing.md": Shown("CONTRIBUTING.md", "researchers and Flower developers"),
    "project/changes.md": Shown("CHANGELOG.md", EVERYONE),
    "project/security.md": Shown("SECURITY.md", "coordinators and Flower developers"),
    "project/containers.md": Shown("docker/README.md", "coordinators"),
}


def pages(root: Path) -> dict[str, str]:
    """The pages by their place; ValueError where README has no such section any more."""
    return {place: _page(shown, (root / shown.source).read_text(encoding="utf-8")) for place, shown in SHOWN.items()}


def _page(shown: Shown, text: str) -> str:
    title, _, body = text.partition("\n")
    if shown.section:
        title, body = f"# {shown.title or shown.section}", section(text, shown.section)
    return f"{title}\n\n*For {shown.readers}.*\n\n{body.strip()}\n"


def section(text: str, heading: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(
            f"README has no section {heading!r}, which is a page of the site; name the new one in {__name__}"
        )
    return found[1]
