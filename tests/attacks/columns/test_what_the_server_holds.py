"""Split columns over real sites, as the server could look at it: all that it carries and keeps, searched and changed.

What cannot be read or done is shown beside the same attempt on a run in the open, where it succeeds.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.errors import PlanError
from fedsmall.extensions.columns.intersection import Blinding, hash_to_curve
from fedsmall.extensions.columns.messages import Message
from fedsmall.extensions.columns.party import Party
from fedsmall.extensions.columns.plan import COLUMNS, MESSAGE
from fedsmall.extensions.columns.server import prepare
from tests.extensions.columns.test_server import KilledError, desk, gone_on, led, open_desk, scenario

__all__ = ["desk", "open_desk", "scenario"]
SLICE = 24  # bytes of a ciphertext, or of row numbers, that would be found by no accident
KEY = f"{COLUMNS}/{MESSAGE}"

Tamper = Callable[[str, Message, bool], Message]  # the site, what goes to it (or comes), whether it comes


def between(monkeypatch: Any, desk: Any, tamper: Tamper) -> list[bytes]:
    """Put the attacker where the server is: it sees all that goes through, and may change it."""
    held: list[bytes] = []
    honest = desk.answer

    def answer(name: str, kind: str, config: dict[str, Any], arrays: Any) -> Any:
        question = tamper(name, Message.from_bytes(arrays[KEY].tobytes()), False)
        header, came = honest(name, kind, config, {KEY: question.as_array()})
        if KEY in came:
            reply = tamper(name, Message.from_bytes(came[KEY].tobytes()), True)
            held.extend([question.to_bytes(), reply.to_bytes()])
            came = {KEY: reply.as_array()}
        return header, came

    monkeypatch.setattr(desk, "answer", answer)
    return held


def as_it_is(name: str, message: Message, comes: bool) -> Message:
    return message


def said_between(monkeypatch: Any) -> list[Message]:
    """All that parties have said to each other, as they read it."""
    said: list[Message] = []
    honest = Party.open

    def opened(party: Party, sender: str, carried: np.ndarray) -> Message:
        said.append(honest(party, sender, carried))
        return said[-1]

    monkeypatch.setattr(Party, "open", opened)
    return said


@pytest.mark.thorough
@pytest.mark.parametrize("sealed", [True, False], ids=["in encrypted messages", "in the open"])
def test_nothing_that_parties_say_to_each_other_is_in_what_the_server_holds(desk, scenario, monkeypatch, sealed):
    held, said = between(monkeypatch, desk, as_it_is), said_between(monkeypatch)

    led(desk, scenario.model_copy(update={"sealed": sealed}))

    home = desk.folder / "runs" / "outcome"
    everything = b"".join([*held, *(path.read_bytes() for path in home.rglob("*") if path.is_file())])
    kinds = found_in(everything, said)
    wanted = {"begin", "gradients", "sums", "split", "sides"}
    assert {one.kind for one in said} == wanted
    assert kinds == (set() if sealed else wanted)


def found_in(everything: bytes, said: list[Message]) -> set[str]:
    """The kinds of messages of which some array or word stands in it."""
    found = set()
    for one in said:
        arrays = [np.ascontiguousarray(array).tobytes()[:SLICE] for array in one.arrays.values()]
        needles = [array for array in arrays if len(array) == SLICE and len(set(array)) > 3]
        needles += [json.dumps([one.sender, one.to, one.kind]).encode()[:-1]]
        if any(needle in everything for needle in needles):
            found.add(one.kind)
    return found


def test_the_journal_of_an_interrupted_run_holds_envelopes(desk, scenario, monkeypatch):
    said, sums = said_between(monkeypatch), []

    def dies(name: str, message: Message, comes: bool) -> Message:
        sums.append(message.kind)
        if sums.count("carry") > 4:
            raise KilledError
        return message

    between(monkeypatch, desk, dies)
    with pytest.raises(KilledError):
        led(desk, scenario)

    journal = desk.folder / "runs" / "outcome" / "journal"
    everything = b"".join(path.read_bytes() for path in journal.iterdir())
    assert len(everything) > 10_000
    assert found_in(everything, said) == set()


@pytest.mark.parametrize("sealed", [True, False], ids=["in encrypted messages", "in the open"])
def test_a_server_cannot_have_record_numbers_multiplied(desk, scenario, monkeypatch, sealed):
    """With a site's number on a guessed identifier it would see whether the site has that patient."""
    guess = np.frombuffer(hash_to_curve("p7"), np.uint8)[None]
    found: dict[str, np.ndarray] = {}

    def asks(name: str, message: Message, comes: bool) -> Message:
        if name == "hospital" and message.kind == "blind" and comes:
            found.update(message.arrays)
        if name == "hospital" and message.kind == "blind again":
            if comes:
                found["guess"] = message.arrays["points"]
            else:
                kind = "letter" if sealed else "points"
                arrays = {kind: guess if kind == "points" else np.concatenate([guess[0], np.zeros(2000, np.uint8)])}
                return Message(message.sender, message.to, message.kind, message.words, arrays)
        return message

    between(monkeypatch, desk, asks)
    reason = "the points message of round 1" if sealed else "another number of identifiers"
    with pytest.raises((PlanError, ValueError), match=reason):
        led(desk, scenario.model_copy(update={"sealed": sealed}))

    assert ("guess" in found) != sealed
    if not sealed:
        assert found["guess"][0].tobytes() in {row.tobytes() for row in found["points"]}  # p7 is at the hospital


def changed(message: Message, **arrays: np.ndarray) -> Message:
    return Message(message.sender, message.to, message.kind, message.words, {**message.arrays, **arrays})


def flips_a_bit(name: str, message: Message, comes: bool) -> Message:
    if message.kind == "carry" and not comes:
        turned = message.arrays["m0"].copy()
        turned[-1] ^= 1
        return changed(message, m0=turned)
    return message


class Repeats:
    """Carries the first envelope again in place of a later one."""

    def __init__(self) -> None:
        self.first: Message | None = None

    def __call__(self, name: str, message: Message, comes: bool) -> Message:
        if message.kind != "carry" or comes:
            return message
        self.first = self.first or message
        return changed(message, m0=self.first.arrays["m0"])


def swaps_keys(name: str, message: Message, comes: bool) -> Message:
    """A key of the server's own in place of the hospital's."""
    if message.kind == "meet" and comes and name == "hospital":
        key = message.words["announced"]["sealing"]
        said = {**message.words["announced"], "sealing": key[:-2] + ("00" if key[-2:] != "00" else "11")}
        return Message(message.sender, message.to, message.kind, {"announced": said})
    return message


def tells_no_keys(name: str, message: Message, comes: bool) -> Message:
    if message.kind == "keys" and not comes:
        return Message(message.sender, message.to, "keys", {"announced": {}})
    return message


def asks_in_the_open(name: str, message: Message, comes: bool) -> Message:
    if message.kind == "carry" and not comes:
        inner = Message("laboratory", "hospital", "sides", {"records": []})
        return changed(message, m0=inner.as_array())
    return message


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (flips_a_bit, "the columns message of round 1, said to be from laboratory, does not open"),
        (Repeats(), "the columns message of round 2, said to be from laboratory, does not open"),
        (swaps_keys, "what hospital announces is not signed by its identity for this run"),
        (tells_no_keys, "what was announced is not of the sites of this run"),
        (asks_in_the_open, "the columns message of round 1, said to be from laboratory, does not open"),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_a_server_that_changes_what_it_carries_ends_the_run(desk, scenario, monkeypatch, tamper, reason):
    between(monkeypatch, desk, tamper)

    with pytest.raises(PlanError, match=reason):
        led(desk, scenario)


def test_another_plan_for_each_site_closes_their_envelopes(desk, scenario, monkeypatch):
    """One that tells the passive party of other settings than the active one was told of."""
    honest = desk.answer

    def answer(name: str, kind: str, config: dict[str, Any], arrays: Any) -> Any:
        if name == "hospital":
            plan = json.loads(config[COLUMNS])
            plan["settings"]["rounds"] = 99
            config = {**config, COLUMNS: json.dumps(plan)}
        return honest(name, kind, config, arrays)

    monkeypatch.setattr(desk, "answer", answer)

    with pytest.raises(PlanError, match="the two sites received different things"):
        led(desk, scenario)


def test_a_run_in_envelopes_goes_on_in_envelopes(desk, scenario, monkeypatch):
    """A server that was killed, and comes back with a sheet that says nothing of envelopes."""
    home = prepare(desk.folder, "outcome", scenario)

    def dies(name: str, message: Message, comes: bool) -> Message:
        if message.kind == "carry":
            raise KilledError
        return message

    with monkeypatch.context() as attacked:
        between(attacked, desk, dies)
        with pytest.raises(KilledError):
            gone_on(desk, "outcome")
    sheet = json.loads((home / "columns.json").read_text())
    sheet["columns"]["sealed"] = False
    (home / "columns.json").write_text(json.dumps(sheet))

    with pytest.raises(PlanError, match="the plan is another than that with which this run was begun here"):
        gone_on(desk, "outcome")


def test_of_three_parties_points_are_opened_to_the_leader_when_all_have_multiplied():
    """The hop is not the leader's to choose: an envelope of one hop does not open as that of another."""
    asked = Blinding(["a"]).points()

    class Sealed:
        def write(self, kind: str, t: int, to: str, content: bytes) -> bytes:
            return f"{kind} {t} {to} ".encode() + content

        def open(self, kind: str, t: int, sender: str, envelope: bytes) -> bytes:
            assert envelope.startswith(f"{kind} {t} ".encode()), "an encrypted message of another hop"
            return envelope.split(b" ", 3)[3]

    from fedsmall.extensions.columns.party import Table

    party = Party("b", Table(("a",), (), np.zeros((1, 1))), parties=("a", "b", "c"), envelopes=Sealed())
    words = {"parties": ["a", "b", "c"]}
    party.answer(Message("coordinator", "b", "blind", words))
    envelope = {"letter": np.frombuffer(b"points 1 b " + asked.tobytes(), np.uint8)}

    again = party.answer(Message("coordinator", "b", "blind again", {**words, "hop": 1}, envelope))
    with pytest.raises(AssertionError, match="an encrypted message of another hop"):
        party.answer(Message("coordinator", "b", "blind again", {**words, "hop": 2}, envelope))

    assert list(again.arrays) == ["letter"]
