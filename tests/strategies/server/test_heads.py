"""What the coordinator holds of its sites' logs: an answer goes on from what its order held, and the last one stays."""

import json

import pytest

from fedsmall.ends import Statement, signer
from fedsmall.errors import ReplyError
from fedsmall.plan import Method, Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.strategies.server.heads import FILE, Heads, read
from tests.fedsmall.test_ends import key_pair

DIGEST, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "essen.pub").write_bytes(key_pair(tmp_path / "essen"))
    return tmp_path


def heads(folder, run="r"):
    plan = Plan(name="p", task="t", method=Method(name="FedDC"))
    return Heads(folder, RunSheet(run=run, id="0", plan=plan, sites=("essen", "bonn")))


def entry(n):
    return {"n": n, "digest": DIGEST}


def said(folder, line, seen=3, **more):
    words = {"site": "essen", "run": "r", "id": "0", "line": line, "head": OTHER, "seen": seen, "seen_head": DIGEST}
    return Statement(**{**words, **more}).signed(signer(folder / "essen")).model_dump()


def test_an_answer_is_held_and_goes_out_with_the_next_order_of_any_run(folder):
    first = heads(folder)
    first.order("essen", entry(3))
    first.check_statement("essen", said(folder, 7))
    first.keep()

    told = json.loads(heads(folder, "s").order("essen", entry(1)))

    assert told["held"]["line"] == 7
    assert (told["line"], told["head"]) == (1, DIGEST)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seen": 2}, "another order"),
        ({"seen_head": OTHER}, "another order"),
        ({"run": "s"}, "another run"),
        ({"id": "1"}, "another run"),
        ({"site": "bonn"}, "another site's log"),
        ({"line": 7}, "it signed line 7 before, and line 7 now"),
        ({"line": 6}, "it signed line 7 before, and line 6 now"),
    ],
)
def test_a_signed_word_on_something_else_is_set_aside(folder, change, why):
    known = heads(folder)
    known.order("essen", entry(1))
    known.check_statement("essen", said(folder, 7, seen=1))
    known.order("essen", entry(3))

    with pytest.raises(ReplyError, match=why):
        known.check_statement("essen", said(folder, **{"line": 8, **change}))

    assert known.held["essen"].line == 7


def test_who_has_a_key_here_must_sign_and_who_has_none_need_not(folder):
    known = heads(folder)

    with pytest.raises(ReplyError, match="does not say where its log stands"):
        known.check_statement("essen", None)

    assert known.check_statement("bonn", None) is None


def test_two_runs_at_once_may_bring_their_answers_in_any_order_and_the_later_line_stays(folder):
    one, two = heads(folder, "r"), heads(folder, "s")
    for each in (one, two):
        each.order("essen", entry(3))

    two.check_statement("essen", said(folder, 9, run="s"))
    two.keep()
    one.check_statement("essen", said(folder, 8))
    one.keep()

    assert read(folder)["essen"].line == 9
    assert one.held["essen"].line == 9


def test_what_is_held_is_not_begun_anew_where_it_is_damaged(folder):
    (folder / FILE).write_text("{")

    with pytest.raises(ValueError, match=r"heads.json, which holds what sites signed of their logs, is damaged"):
        heads(folder)
