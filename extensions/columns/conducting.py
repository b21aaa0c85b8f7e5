"""The protocol of a run over split columns, as who carries its messages leads it: match, train, have all keep.

Parties' words are passed on unread. A stage holds all that its exchange is made of: a killed leader asks it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsmall.errors import DataError, ReplyError
from fedsmall.extensions.columns.intersection import common_places
from fedsmall.extensions.columns.messages import Arrays, Message, Talk
from fedsmall.extensions.columns.plan import Boosting

COORDINATOR = "coordinator"
LEAST_ROWS = 10
MEET, KEYS = "meet", "keys"  # what goes before a matching, where parties write envelopes
BLIND, HOP, PLACES, MATCHED = "blind", "hop", "places", "matched"  # where a matching stands
ASKED, REPLIED, ENDED, DONE = "asked", "replied", "ended", "done"  # what follows on a matching


@dataclass(frozen=True)
class Stage:
    """What came of the exchanges so far; ``words`` are what JSON can hold."""

    phase: str
    words: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """What is asked at every stage, and what is made of the answers: from ``MEET``, or ``BLIND``, to ``DONE``.

    In a matching each party's points go round to every other. Once all have multiplied, the coordinator, who has no
    identifiers and no number, tells each party the places of its points that all have. No party ever holds two lists
    under the same numbers, so of the others it learns the intersection, and how many rows each has.

    The first of the ``parties``, the active one, is then asked ``opening``, with ``least`` common patients or more.
    """

    parties: tuple[str, ...]
    opening: Message | None = None
    least: int = LEAST_ROWS

    def asks(self, stage: Stage) -> list[Message]:
        """The next messages; DataError for too few common patients."""
        phase, words, active, ring = stage.phase, stage.words, self.parties[0], list(self.parties)
        if phase == KEYS:
            return self._to_all(KEYS, {"announced": dict(words)})
        if phase == BLIND:
            return self._to_all(BLIND, {"parties": ring})
        if phase == HOP:
            hop = {"parties": ring, "hop": words["hop"]}
            return [
                Message(COORDINATOR, to, "blind again", hop, _of_owner(stage.arrays, owner))
                for to, owner in self._route(words["hop"])
            ]
        if phase == PLACES:
            return [Message(COORDINATOR, party, MATCHED, {}, {"places": stage.arrays[party]}) for party in ring]
        if phase == MATCHED:
            check_common(words["common"], self.least)
            return [] if self.opening is None else [self.opening]
        if phase == ASKED:
            turn, carried = {"from": active, "t": words["t"]}, enumerate(words["to"])
            return [Message(COORDINATOR, to, "carry", turn, {"m0": stage.arrays[f"m{k}"]}) for k, to in carried]
        if phase == REPLIED:
            return [Message(COORDINATOR, active, "go on", {}, stage.arrays)]
        return self._to_all("keep" if phase == ENDED else MEET)

    def takes(self, stage: Stage, replies: Sequence[Message]) -> Stage:
        """The stage that the replies lead to; ReplyError for what is none."""
        phase, words = stage.phase, stage.words
        if phase == MEET:
            return Stage(KEYS, {reply.sender: reply.words["announced"] for reply in replies})
        if phase == KEYS:
            return Stage(BLIND)
        if phase == BLIND:
            rows = {reply.sender: int(reply.words["rows"]) for reply in replies}
            return Stage(HOP, {"hop": 1, "rows": rows}, _by_owner(self.parties, replies))
        if phase == HOP:
            arrays = _by_owner([owner for _, owner in self._route(words["hop"])], replies)
            if (after := words["hop"] + 1) < len(self.parties):
                return Stage(HOP, {**words, "hop": after}, arrays)
            points = {owner: _of_owner(arrays, owner).get("points") for owner in self.parties}
            return Stage(PLACES, {"rows": words["rows"]}, common_places(points, words["rows"]))
        if phase == PLACES:
            return Stage(MATCHED, {**words, "common": len(stage.arrays[self.parties[0]])})
        if phase == ASKED:
            return Stage(REPLIED, words, {f"m{k}": reply.arrays["m0"] for k, reply in enumerate(replies)})
        if phase == ENDED:
            return Stage(DONE, {**words, "splits": {reply.sender: reply.words["splits"] for reply in replies}})
        return self._take_wish(stage, replies[0])

    def _take_wish(self, stage: Stage, reply: Message) -> Stage:
        active, *passives = self.parties
        words = {key: stage.words[key] for key in ("rows", "common")}
        if reply.words["done"]:
            return Stage(ENDED, {**words, "worth": reply.words["worth"]})
        wants = {key: reply.words[key] for key in ("to", "t", "round")}
        if any(party not in passives for party in wants["to"]):
            raise ReplyError(f"{active} asked for a party that is not in this run")
        return Stage(ASKED, {**words, **wants}, dict(reply.arrays))

    def _to_all(self, kind: str, words: Mapping[str, Any] | None = None) -> list[Message]:
        return [Message(COORDINATOR, party, kind, words or {}) for party in self.parties]

    def _route(self, hop: int) -> list[tuple[str, str]]:
        return [(self.parties[(k + hop) % len(self.parties)], owner) for k, owner in enumerate(self.parties)]


def lead(protocol: Protocol, stage: Stage, until: str) -> Talk[Stage]:
    """Lead from a stage to the phase ``until``."""
    while stage.phase != until:
        stage = protocol.takes(stage, (yield protocol.asks(stage)))
    return stage


def match_parties(parties: Sequence[str]) -> Talk[int]:
    """Match all parties' identifiers; returns how many all of them have."""
    stage = yield from lead(Protocol(tuple(parties)), Stage(BLIND), MATCHED)
    return int(stage.words["common"])


def grow_message(parties: Sequence[str], settings: Boosting, test: float) -> Message:
    """The message by which a forest is begun; ``parties`` are all names, that of the active party first."""
    words = {"passives": list(parties[1:]), "settings": settings.model_dump(), "test": test}
    return Message(COORDINATOR, parties[0], "grow", words)


def _by_owner(owners: Sequence[str], replies: Sequence[Message]) -> Arrays:
    pairs = zip(owners, replies, strict=True)
    return {f"{owner}/{kind}": array for owner, reply in pairs for kind, array in reply.arrays.items()}


def _of_owner(arrays: Arrays, owner: str) -> Arrays:
    return {key.rpartition("/")[2]: array for key, array in arrays.items() if key.rpartition("/")[0] == owner}


def check_common(common: int, least: int = LEAST_ROWS) -> None:
    """Raise DataError where so few patients are at all parties that there is nothing to learn, to judge or to say."""
    if not common and least == 1:
        raise DataError("no patient is at all parties")
    if common < least:
        raise DataError(f"{common} patients are at all parties; at least {least} are needed to learn and to judge")
