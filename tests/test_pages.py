"""What the pages and the workflows name is there: files, folders, targets of make, markers of pytest."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from docs.manual import made
from tests import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/**/*.md", "docker/*.md") for path in ROOT.glob(pattern)
)
MADE = {ROOT / "docs" / place for place in made.pages()}  # as the site is built
MACHINES = [
    ".ci/run",
    ".pre-commit-config.yaml",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github" / "workflows").glob("*.yml")),
]
ROOMS = r"(?:tests|docs|fedsmall|strategies|clients|sim|extensions|research|docker|examples|\.github|\.ci)"
PATH = rf"{ROOMS}/[\w./-]*|pyproject\.toml|constraints\.txt|CITATION\.cff|[A-Z]+\.md|Makefile"


def code(page: str) -> str:
    """The lines of a page that are code: all of a script, the blocks and spans of a text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page in MACHINES:
        return text
    blocks = re.findall(r"^```[^`\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*blocks, *spans])


def files_named(page: str) -> set[Path]:
    """The files and folders of this project that a page names in its code or links to."""
    here = (ROOT / page).parent
    paths = set(re.findall(rf"(?<![\w./-])({PATH})(?![\w/-])", code(page)))
    links = re.findall(r"\]\(\s*([^)\s#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    return {ROOT / path for path in paths} | {(here / link).resolve() for link in links if "://" not in link}


def targets_called(page: str) -> set[str]:
    """What a page asks make for."""
    calls = re.findall(r"^\s*(?:- run: |\$ )?(?:\S*without\S* .*?)?make((?: [\w=.-]+)+)", code(page), re.MULTILINE)
    return {word for call in calls for word in call.split() if "=" not in word}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, *MACHINES])
def test_every_file_that_a_page_names_is_there(page):
    assert [str(path) for path in sorted(files_named(page) - MADE) if not path.exists()] == []


def names_missing(page: str) -> list[str]:
    """The dotted names of our modules, and of what is in them, that a page has as a span of code and nothing bears."""
    names = re.findall(
        r"`(?:fedsmall\.(?=(?:strategies|clients|sim|extensions)\b))?((?:fedsmall|strategies|clients|sim|extensions)\.[\w.]+)`",
        (ROOT / page).read_text(encoding="utf-8"),
    )
    return [name for name in names if not _is_there(name.split("."))]


def _is_there(parts: list[str]) -> bool:
    place, inside = ROOT / parts[0], parts[1:]
    while inside and (place / inside[0]).is_dir():
        place, inside = place / inside[0], inside[1:]
    if inside and (place / f"{inside[0]}.py").is_file():
        module, inside = place / f"{inside[0]}.py", inside[1:]
    else:
        module = place / "__init__.py"
    return all(re.search(rf"\b{name}\b", module.read_text(encoding="utf-8")) for name in inside)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_name_of_a_module_that_a_page_has_is_there(page):
    assert names_missing(page) == []


@pytest.mark.parametrize("page", [*PAGES, *MACHINES])
def test_every_target_that_a_page_calls_is_in_the_makefile(page):
    assert targets_called(page) <= targets()


def test_the_architecture_is_read_in_ten_minutes():
    assert len((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()) <= 2000


HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """What a link may send a reader to on a page: its headings as GitHub and MkDocs write them, and its own anchors."""
    text = path.read_text(encoding="utf-8")
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip() for heading in HEADING.findall(text)]
    return {re.sub(r"[^\w -]", "", one).replace(" ", "-") for one in words} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES)
def test_every_heading_that_a_page_links_to_is_there(page):
    here = ROOT / page
    links = re.findall(r"\]\(\s*([^)\s#]*)#([\w-]+)\)", here.read_text(encoding="utf-8"))
    own = [(here.parent / file if file else here, anchor) for file, anchor in links if "://" not in file]

    assert [(str(path), anchor) for path, anchor in own if path.is_file() and anchor not in anchors(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_line_behind_a_table_is_no_row_of_it(page):
    lines = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S).splitlines()

    behind = [then for line, then in pairwise(lines) if line.startswith("|") and not then.startswith(("|", "<!--"))]

    assert not list(filter(None, behind))


def test_the_readers_of_pages_see_what_they_should():
    assert {ROOT / "constraints.txt", ROOT / "tests/test_layers.py", ROOT / "docs/data.md"} <= (
        files_named("README.md") | files_named("CONTRIBUTING.md")
    )
    assert targets_called("CONTRIBUTING.md") >= {"install", "lint", "coverage", "test-slow", "release"}
    assert targets_called(".ci/run") == {"install", "lint"}
    assert targets_called(".github/workflows/ci.yml") == {"lint", "coverage", "install", "test"}


def test_help_tells_of_every_target():
    told = set(re.findall(r'@echo "make ([a-z-]+)', (ROOT / "Makefile").read_text()))

    assert told == targets() - {"help"}


def test_the_workflows_run_every_python_and_every_end_of_flowers_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    pythons = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    flower = next(one for one in project["dependencies"] if one.startswith("flwr>"))
    oldest, beyond = re.findall(r"1\.(\d+)", flower)

    assert jobs["quick"]["strategy"]["matrix"]["python"] == pythons
    assert jobs["flower"]["strategy"]["matrix"]["flwr"] == [f"1.{oldest}.*", f"1.{int(beyond) - 1}.*"]


FORMS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml"))


@pytest.mark.parametrize("page", ["CITATION.cff", ".pre-commit-config.yaml", *FORMS])
def test_what_other_programs_read_is_yaml(page):
    assert isinstance(yaml.safe_load((ROOT / page).read_text()), dict)


def test_what_is_new_is_read_in_minutes():
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]

    assert len(newest.split()) <= 1500


def test_a_release_is_made_of_a_tag_of_the_version_and_attested():
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    steps = release["jobs"]["release"]["steps"]
    ran = [step.get("run") or step.get("uses") for step in steps]

    assert release[True]["push"]["tags"] == ["v*"]  # YAML reads "on" as true
    (checked,) = [n for n, step in enumerate(steps) if step.get("name") == "The tag is the version"]
    assert checked < ran.index("make release")
    assert any(each.startswith("actions/attest-build-provenance@") for each in ran)


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


WITHDRAWN = (
    "It needs no trust in the server",
    "against the floating-point attack",
    "at an average it learns the mean and nothing else",
    "nobody read a record in any scenario",
    "Blur is against reading alone",
    "so no budget is had twice",
    "all but that one beat the hospital that trains alone",
    "no tree beats a network",
    "no tree beat a network",
    "hides records from the server and from other hospitals",
)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_no_page_says_what_was_found_untrue(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())

    assert not [sentence for sentence in WITHDRAWN if sentence in text]


def test_every_page_that_a_language_model_is_told_of_is_there():
    pages = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8"))

    assert len(pages) > 15
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []


def test_the_oldest_versions_are_tried_of_all_that_the_quick_tests_use():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"^LOWEST_EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    used = {name for line in (*extras["dev"], *extras["sim"]) for name in re.findall(r"fedsmall\[(.+)\]", line)}
    used = {name for names in used for name in names.split(",")}

    assert used - set(asked) == {"sim", "ray", "survival", "examples", "docs"}  # Ray and pages are of other tests
