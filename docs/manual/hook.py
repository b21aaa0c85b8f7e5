"""MkDocs' hooks: they add the generated pages, and mend links that leave docs/."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.manual import made, notebooks
from docs.manual.links import relinked

ASSETS = Path(__file__).with_name("assets")
BOOSTS = (  # what a search shows first, by the beginnings of places; 1 for the others
    ("reference/", 2),
    ("howto/", 2),
    ("tutorials/", 1.5),
    ("evidence", 0.5),
    ("findings", 0.5),
    ("decisions", 0.5),
    ("project/changes", 0.2),
)
NOTEBOOKS = "Notebooks"  # the section of the nav that every notebook of examples/notebooks stands in


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every notebook into the nav, where its section is."""
    for section in _sections(config.nav or []):
        if NOTEBOOKS in section:
            section[NOTEBOOKS] = [{notebooks.title(path): notebooks.place(path)} for path in notebooks.found()]
    return config


def _sections(nav: list[Any]) -> list[dict[str, Any]]:
    here = [entry for entry in nav if isinstance(entry, dict)]
    within = [value for entry in here for value in entry.values() if isinstance(value, list)]
    return [*here, *(section for each in within for section in _sections(each))]


def titles(nav: list[Any]) -> dict[str, str]:
    """What the nav calls pages, by their places."""
    return {place: name for section in _sections(nav) for name, place in section.items() if isinstance(place, str)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the notebooks themselves, and the site's scripts and styles."""
    for place, text in made.pages().items():
        files.append(File.generated(config, place, content=text))
    copied = {str(Path(notebooks.place(path)).with_suffix(".ipynb")): path for path in notebooks.found()}
    copied |= {f"assets/{path.relative_to(ASSETS).as_posix()}": path for path in ASSETS.rglob("*") if path.is_file()}
    for place, path in copied.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to the site's own pages; home stands in no section."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS if page.file.src_uri.startswith(start)), 1)}
    return relinked(markdown, page.file.src_uri, titles(config.nav or []))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings without Sphinx's roles."""
    plain = re.sub(r":(?:mod|func|class|data|meth|attr):(?=<code>)", "", html)
    return re.sub(r"<code>~[\w.]*?(\w+)</code>", r"<code>\1</code>", plain)
