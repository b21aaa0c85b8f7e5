"""The site builds without a warning and without a network, and opens without one."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from docs.manual import made
from docs.manual.root_pages import SHOWN
from tests import ROOT

NOWHERE = "http://127.0.0.1:9"  # a proxy that nobody runs: whatever would fetch something fails
FETCHING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
READERS = ("hospital data scientist", "coordinator", "researcher", "Flower developer")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it. No test may change it."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    proxies = {name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
    line = re.search(r"mkdocs build (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *line[1].split(), "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **proxies, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "WARNING" not in told
    assert "Documentation built" in told  # whoever is quiet about this counts no warning
    return folder


class _Fetched(HTMLParser):
    """What a browser fetches to show a page, and the ids that it can be sent to."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.classes |= set((given.get("class") or "").split())
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            return
        if given.get(FETCHING.get(tag, "")):
            self.fetched.append(given[FETCHING[tag]])


def pages(site: Path) -> dict[str, _Fetched]:
    read = {}
    for path in sorted(site.rglob("*.html")):
        read[str(path.relative_to(site))] = _Fetched()
        read[str(path.relative_to(site))].feed(path.read_text(encoding="utf-8"))
    return read


@pytest.mark.slow
def test_no_page_fetches_anything_from_elsewhere(site):
    read = pages(site)

    elsewhere = {
        page: [url for url in one.fetched if "//" in url and not url.startswith("data:")] for page, one in read.items()
    }

    assert len(read) > 40
    assert {page: urls for page, urls in elsewhere.items() if urls} == {}
    assert not any("mermaid" in one.classes for one in read.values())  # for which the theme would fetch a script


@pytest.mark.thorough
def test_what_pages_fetch_is_in_the_site(site):
    missing = {
        (page, url)
        for page, one in pages(site).items()
        if page != "404.html"
        for url in one.fetched
        if not url.startswith("data:") and not (site / page).parent.joinpath(url.partition("?")[0]).is_file()
    }

    assert missing == set()


@pytest.mark.thorough
def test_no_style_fetches_anything_from_elsewhere(site):
    urls = [
        url
        for path in site.rglob("*.css")
        for url in re.findall(r"(?:url\(|@import)[\s\"']*([^\"')]*)", path.read_text())
    ]

    assert [url for url in urls if "//" in url and not url.startswith("data:")] == []


@pytest.mark.thorough
def test_the_search_works_from_the_disk(site):
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    assert all("assets/javascripts/iframe-worker.js" in " ".join(one.fetched) for one in pages(site).values())


def nav() -> list[str]:
    """Every page that the nav names, in its order."""

    def places(entry) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [place for each in (entry.values() if isinstance(entry, dict) else entry) for place in places(each)]

    return places(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


def written() -> dict[str, str]:
    """The text of every page, written or generated, by its place."""
    docs = ROOT / "docs"
    texts = {path.relative_to(docs).as_posix(): path.read_text(encoding="utf-8") for path in docs.rglob("*.md")}
    return {**texts, **made.pages()}


@pytest.mark.thorough
def test_every_page_is_in_the_nav_once_and_every_place_of_the_nav_is_a_page(site):
    named = nav()
    notebooks = {place for place in written() if place.startswith("tutorials/notebooks/")}

    assert sorted(named) == sorted({*written()} - notebooks)
    home = (site / "index.html").read_text(encoding="utf-8")
    assert all(Path(place).with_suffix(".html").as_posix() in home for place in [*named, *notebooks])


def test_every_page_says_at_its_top_for_whom_it_is():
    tops = {place: text.split("\n\n")[:2] for place, text in written().items()}

    assert {place for place, top in tops.items() if not top[0].startswith("# ")} == set()
    silent = {
        place
        for place, top in tops.items()
        if not re.fullmatch(r"\*For [^*]+\.\*\n?", top[-1]) or not _readers(top[-1])
    }
    assert silent == set()


def _readers(line: str) -> list[str]:
    return [reader for reader in READERS if reader in line]


def test_each_reader_has_a_tutorial_and_a_how_to():
    texts = written()
    for room in ("tutorials/", "howto/"):
        tops = "\n".join(text.split("\n\n")[1] for place, text in texts.items() if place.startswith(room))
        assert _readers(tops) == list(READERS)


@pytest.mark.thorough
def test_pages_of_the_root_are_shown_and_not_copied(site):
    for place, shown in SHOWN.items():
        text = (site / place).with_suffix(".html").read_text(encoding="utf-8")
        assert f"For {shown.readers}." in text
    assert "three hospitals, TLS" in (site / "tutorials/three-hospitals.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_notebook_can_be_saved_from_its_page(site):
    for path in (site / "tutorials" / "notebooks").glob("*.html"):
        saved = path.with_suffix(".ipynb")
        assert f'href="{saved.name}"' in path.read_text(encoding="utf-8")
        assert saved.read_bytes() == (ROOT / "examples" / "notebooks" / saved.name).read_bytes()


@pytest.mark.thorough
def test_docstrings_are_shown_without_the_roles_of_sphinx(site):
    shown = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))

    assert not re.search(r":(?:mod|func|class|data|meth|attr):", shown)
