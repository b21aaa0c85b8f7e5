"""Pages are short, say what the field says, and quote messages that there are."""

import ast
import re
from functools import cache

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


@cache
def strings() -> str:
    """Every piece of text in the product's code, one a line; a value within one ends it."""
    found = []
    for room in ("fedsmall", "strategies", "clients", "sim", "extensions"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


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

    assert {word: better for word, better in REPLACED.items() if re.search(rf"\b{word}\b", text)} == {}
