"""Pages are short, say what the field says, and quote messages that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.manual.words import ARCHIVES, counted, prose
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OF_FLOWER = ("Failed to start local SuperLink within 15s",)


def test_words_are_those_of_the_text_and_not_of_tables_and_code():
    page = "# A title\n\nTwo `words`.\n\n| not | these |\n|---|---|\n\n```bash\nnor these\n```\n"

    assert prose(page) == 5  # with the mark of the heading


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(ARCHIVES)])
def test_a_page_is_at_most_1500_words_long(page):
    assert prose((DOCS / page).read_text(encoding="utf-8")) <= 1500


def test_all_pages_together_are_at_most_40000_words_long():
    assert sum(counted().values()) <= 40_000


ROOMS = ("fedsmall", "strategies", "clients", "sim", "extensions")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def strings() -> str:
    """Every piece of text in the product's code, one a line; a value within one ends it."""
    found = []
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


MESSAGES = re.findall(r"^\| `([^|]+)` (?:\(Flower's\) )?\|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)


def test_the_page_of_messages_has_some():
    assert len(MESSAGES) > 40


@pytest.mark.parametrize("message", [message for message in MESSAGES if message not in OF_FLOWER])
def test_a_message_that_is_explained_is_in_the_source(message):
    assert [part for part in message.split("...") if part.strip() not in strings()] == []


REPLACED = {  # by what the field says; the glossary has both
    r"common models?": "global model",
    r"sites' own models": "local models",
    r"contacts?": "communication round",
    r"that comes? along": "bundled",
    r"set anew": "changed",
    r"(?:keep|keeps|kept) back(?! for)": "held out",
    r"called what": "confusion matrix",
    r"always the commonest class": "majority class",
    r"not shown to differ": "cannot be told apart",
    r"anew": "again",
    r"(?:is|are|was|were) told(?! apart)": "receives; is sent, said or reported",
    r"came of": "results",
    r"pass(?:es)? on": "forwards",
    r"mends?": "corrects",
    r"stations?": "data process",
    r"residents?": "site agent",
    r"keeper": "supervisor",
    r"roll(?! ?=|\))": "key list; handshake",
    r"(?<!startup )(?<!-)kits?(?!\.)": "startup kit",
    r"gates?": "reverse proxy; update filter",
    r"(?<!-)visitors(?! of )": "received models",
    r"travell?ers?": "circulating model",
    r"letters?(?!,| at most| and digits| that is not|; its svg|\))": "encrypted message",
    r"(?<!re-)dealt": "split over sites",
    r"answers? together": "ensemble",
    r"hand(?:s|ed)? on": "handed over",
    r"spread(?! over\b)": "standard deviation",
}


OF_REPORTS = {  # in messages and templates, what clinicians and statisticians did not understand
    r"site alone reaches": "models trained at a single site reach",
    r"stands? beside": "ran once beside",
    r"does as well as": "equals",
    r"record could be read": "record could be reconstructed",
    r"decide their scaling": "did not contribute to standardising",
    r"brought back": "back-transformed",
    r"names stand over": "duplicate column names",
    r"upright": "vertical",
    r"none to judge": "not estimable",
    r"observed share": "observed frequency",
    r"who took part": "participants",
    r"holds 1 different": "is constant",
}


def said(page: str) -> str:
    """What a page says in its own words: no headings, code, targets of links, or tables that are made."""
    for left_out in (r"<!-- table .*?<!-- end -->", r"^```.*?^```", r"^(?:#|    ).*?$", r"`[^`\n]*`", r"\]\([^)]*\)"):
        page = re.sub(left_out, " ", page, flags=re.DOTALL | re.MULTILINE)
    return page


@pytest.mark.parametrize(
    "page", ["../README.md", *(page for page in PAGES if not page.startswith((*ARCHIVES, "glossary")))]
)
def test_a_page_says_what_the_field_says(page):
    text = said((DOCS / page).read_text(encoding="utf-8"))

    assert replaced_in(text) == {}


def replaced_in(text: str, words: dict[str, str] = REPLACED) -> dict[str, str]:
    return {word: better for word, better in words.items() if re.search(rf"\b{word}\b", text, re.IGNORECASE)}


def messages(tree: ast.Module) -> str:
    """What a module says to users: its strings of several words, and the help of commands; no other docstrings."""
    bodies = (ast.Module, ast.ClassDef, ast.FunctionDef)
    documented = [node.body[0].value for node in ast.walk(tree) if isinstance(node, bodies) and ast.get_docstring(node)]
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    said_to_users = [text.value for text in texts if text not in documented and " " in text.value.strip()]
    said_to_users = [re.sub(r"`[^`]*`", " ", text) for text in said_to_users]
    return "\n".join(text for text in said_to_users if text != "kept back")  # which is the name of a random stream


OF_CODE = {  # parts of the names of functions, classes, arguments and variables, in the singular
    "bookmark": "checkpoint",
    "commons": "global_models",
    "contact": "comm_round",
    "desk": "client",
    "errand": "task",
    "helper": "decryptor",
    "leg": "phase",
    "letter": "envelope, or character",
    "parcel": "sent_model",
    "resident": "site_agent",
    "seat": "index",
    "traveller": "model",
    "waybill": "routing_table",
}
KEYS = {"contacts"}  # of the files of packages, which older releases wrote


def names_in(tree: ast.Module) -> set[str]:
    """The names that a module gives to functions, classes, arguments and variables."""
    given = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            given.add(node.attr)
    return given


def parts_of(name: str) -> set[str]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return {*words, *(word.removesuffix("s") for word in words)}


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_name_in_the_code_says_what_the_field_says(path):
    names = names_in(tree_of(path)) - KEYS

    assert {name: OF_CODE[word] for name in sorted(names) for word in parts_of(name) & OF_CODE.keys()} == {}


def test_a_word_of_ours_is_found_in_every_kind_of_name():
    code = "class Seats:\n    def send_letter(self, leg):\n        self._contacts = parcel = leg\n"

    words = set().union(*map(parts_of, names_in(ast.parse(code))))
    assert {"seat", "letter", "leg", "contact", "parcel"} <= words


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_message_says_what_the_field_says(path):
    assert replaced_in(messages(tree_of(path)), REPLACED | OF_REPORTS) == {}


TEMPLATES = sorted(path for room in ROOMS for kind in ("html", "md") for path in (ROOT / room).rglob(f"*.{kind}"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_template_says_what_the_field_says(path):
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)

    assert replaced_in(text, REPLACED | OF_REPORTS) == {}


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith((*ARCHIVES, "glossary"))])
def test_a_heading_says_what_the_field_says(page):
    headings = re.findall(r"^#+ .*$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)

    assert replaced_in("\n".join(headings)) == {}


@pytest.mark.parametrize("path", sorted((ROOT / "tests/sim/report/golden").iterdir()), ids=lambda path: path.name)
def test_a_report_says_what_the_field_says(path):
    text = path.read_text(encoding="utf-8").replace("| roll |", "").replace("\nroll: ", "")  # a kind, as in the logs

    assert replaced_in(text, REPLACED | OF_REPORTS) == {}
