"""The protocol of a run over split columns, as who carries its messages leads it: match, train, have all keep.

Parties' words are passed on unread. A stage holds all that the next exchange is made of: a leader that is killed asks
the same bytes again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsmall.errors import DataError, ReplyError
from fedsmall.extensions.columns.intersection import common_places
from fedsmall.extensions.columns.messages import Arrays, Carrier, Message, Talk
from fedsmall.extensions.columns.plan import Boosting

COORDINATOR = "coordinator"
LEAST_ROWS = 10
MEET, KEYS = "meet", "keys"  # what goes before a matching, where parties write letters
BLIND, HOP, PLACES, MATCHED = "blind", "hop", "places", "matched"  # where a matching stands
ASKED, REPLIED, ENDED, DONE = "asked", "replied", "ended", "done"  # what follows on a matching


@dataclass(frozen=True)
class Stage:
    """What came of the exchanges so far; ``words`` are what JSON can hold."""

    phase: str
    words: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """One kind of exchange: questions of a stage, and the stage that the replies lead to; both are pure functions."""

    asks: Callable[[Stage], list[Message]]
    takes: Callable[[Stage, Sequence[Message]], Stage]


Phases = Mapping[str, Phase]


def lead(phases: Phases, stage: Stage, until: str) -> Talk[Stage]:
    """Lead from a stage to the phase ``until``."""
    while stage.phase != until:
        phase = phases[stage.phase]
        stage = phase.takes(stage, (yield phase.asks(stage)))
    return stage


def advance(phases: Phases, stage: Stage, carry: Carrier) -> Stage:
    """The stage after one exchange."""
    phase = phases[stage.phase]
    return phase.takes(stage, carry(phase.asks(stage)))


def match_parties(parties: Sequence[str]) -> Talk[int]:
    """Match all parties' identifiers; returns how many all of them have."""
    stage = yield from lead(matching_phases(parties), Stage(BLIND), MATCHED)
    return int(stage.words["common"])


def grow_message(parties: Sequence[str], settings: Boosting, test: float) -> Message:
    """The message by which a forest is begun; ``parties`` are all names, that of the active party first."""
    words = {"passives": list(parties[1:]), "settings": settings.model_dump(), "test": test}
    return Message(COORDINATOR, parties[0], "grow", words)


def predict_message(parties: Sequence[str]) -> Message:
    """The message by which a forest is asked about the common patients; ``parties`` as in :func:`grow_message`."""
    return Message(COORDINATOR, parties[0], "predict", {"passives": list(parties[1:])})


def meeting_phases(parties: Sequence[str]) -> Phases:
    """How parties come to know the keys that they write letters to: from ``MEET`` to the beginning of a matching."""

    def ask_keys(_: Stage) -> list[Message]:
        return [Message(COORDINATOR, party, MEET) for party in parties]

    def take_keys(_: Stage, replies: Sequence[Message]) -> Stage:
        return Stage(KEYS, {reply.sender: reply.words["announced"] for reply in replies})

    def tell_keys(stage: Stage) -> list[Message]:
        return [Message(COORDINATOR, party, KEYS, {"announced": dict(stage.words)}) for party in parties]

    return {MEET: Phase(ask_keys, take_keys), KEYS: Phase(tell_keys, lambda *_: Stage(BLIND))}


def matching_phases(parties: Sequence[str]) -> Phases:
    """What is asked in a matching, and what is made of the answers; it begins with ``BLIND`` and ends with ``MATCHED``.

    Each party's points go round to every other. Once all have multiplied, the coordinator, who has no identifiers and
    no number, tells each party the places of its points that all have. No party ever holds two lists under the same
    numbers, so of the others it learns the intersection, and how many rows each has.
    """
    ring = list(parties)

    def route(hop: int) -> list[tuple[str, str]]:
        """Who multiplies whose points at a hop."""
        return [(ring[(k + hop) % len(ring)], owner) for k, owner in enumerate(ring)]

    def ask_points(_: Stage) -> list[Message]:
        return [Message(COORDINATOR, party, "blind", {"parties": ring}) for party in ring]

    def take_points(_: Stage, replies: Sequence[Message]) -> Stage:
        rows = {reply.sender: int(reply.words["rows"]) for reply in replies}
        return Stage(HOP, {"hop": 1, "rows": rows}, _by_owner(ring, replies))

    def pass_on(stage: Stage) -> list[Message]:
        words = {"parties": ring, "hop": stage.words["hop"]}
        return [
            Message(COORDINATOR, to, "blind again", words, _of_owner(stage.arrays, owner))
            for to, owner in route(stage.words["hop"])
        ]

    def take_hop(stage: Stage, replies: Sequence[Message]) -> Stage:
        arrays, rows = _by_owner([owner for _, owner in route(stage.words["hop"])], replies), stage.words["rows"]
        if (after := stage.words["hop"] + 1) < len(ring):
            return Stage(HOP, {**stage.words, "hop": after}, arrays)
        points = {owner: _of_owner(arrays, owner).get("points") for owner in ring}
        return Stage(PLACES, {"rows": rows}, common_places(points, rows))

    def tell_places(stage: Stage) -> list[Message]:
        return [Message(COORDINATOR, party, "matched", {}, {"places": stage.arrays[party]}) for party in ring]

    def end(stage: Stage, _: Sequence[Message]) -> Stage:
        return Stage(MATCHED, {**stage.words, "common": len(stage.arrays[ring[0]])})

    return {BLIND: Phase(ask_points, take_points), HOP: Phase(pass_on, take_hop), PLACES: Phase(tell_places, end)}


def _by_owner(owners: Sequence[str], replies: Sequence[Message]) -> Arrays:
    pairs = zip(owners, replies, strict=True)
    return {f"{owner}/{kind}": array for owner, reply in pairs for kind, array in reply.arrays.items()}


def _of_owner(arrays: Arrays, owner: str) -> Arrays:
    return {key.rpartition("/")[2]: array for key, array in arrays.items() if key.rpartition("/")[0] == owner}


def conducting_phases(parties: Sequence[str], opening: Message, least: int = LEAST_ROWS) -> Phases:
    """From ``BLIND`` to ``DONE``; the active party is asked ``opening`` where there are ``least`` common patients."""
    active, *passives = parties

    def open_run(stage: Stage) -> list[Message]:
        check_common(stage.words["common"], least)
        return [opening]

    def take_wish(stage: Stage, replies: Sequence[Message]) -> Stage:
        """What the active party wants next."""
        [reply], words = replies, {key: stage.words[key] for key in ("rows", "common")}
        if reply.words["done"]:
            return Stage(ENDED, {**words, "worth": reply.words["worth"]})
        wants = {key: reply.words[key] for key in ("to", "t", "round")}
        if any(party not in passives for party in wants["to"]):
            raise ReplyError(f"{active} asked for a party that is not in this run")
        return Stage(ASKED, {**words, **wants}, dict(reply.arrays))

    def carry(stage: Stage) -> list[Message]:
        words = {"from": active, "t": stage.words["t"]}
        return [
            Message(COORDINATOR, to, "carry", words, {"m0": stage.arrays[f"m{k}"]})
            for k, to in enumerate(stage.words["to"])
        ]

    def take_replies(stage: Stage, replies: Sequence[Message]) -> Stage:
        return Stage(REPLIED, stage.words, {f"m{k}": reply.arrays["m0"] for k, reply in enumerate(replies)})

    def go_on(stage: Stage) -> list[Message]:
        return [Message(COORDINATOR, active, "go on", {}, stage.arrays)]

    def ask_to_keep(_: Stage) -> list[Message]:
        return [Message(COORDINATOR, party, "keep") for party in parties]

    def take_counts(stage: Stage, replies: Sequence[Message]) -> Stage:
        return Stage(DONE, {**stage.words, "splits": {reply.sender: reply.words["splits"] for reply in replies}})

    return {
        **matching_phases(parties),
        MATCHED: Phase(open_run, take_wish),
        ASKED: Phase(carry, take_replies),
        REPLIED: Phase(go_on, take_wish),
        ENDED: Phase(ask_to_keep, take_counts),
    }


def check_common(common: int, least: int = LEAST_ROWS) -> None:
    """Raise DataError where so few patients are at all parties that there is nothing to learn, to judge or to say."""
    if not common and least == 1:
        raise DataError("no patient is at all parties")
    if common < least:
        raise DataError(f"{common} patients are at all parties; at least {least} are needed to learn and to judge")
