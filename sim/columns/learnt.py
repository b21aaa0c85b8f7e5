"""What each party learns of the others in a run over split columns, in sentences: for the report and the terminal."""

from collections.abc import Mapping
from typing import NamedTuple

from fedsmall.vertical.plan import Boosting


class Learnt(NamedTuple):
    """One party: what it learns, and what it does not."""

    party: str
    learns: str
    not_learnt: str


class Facts(NamedTuple):
    """What it depends on: the parties, the active one first, their common patients, and each one's splits.

    ``sums`` is how many sums the active party has read, None where it tells nobody; ``sealed`` whether parties write
    letters.
    """

    parties: tuple[str, ...]
    common: int
    splits: Mapping[str, int]
    settings: Boosting
    sums: int | None = None
    sealed: bool = False


def learnt(facts: Facts) -> list[Learnt]:
    """What every party, and the one who carries messages, learns from one forest."""
    return [_active(facts), *(_passive(facts, party) for party in facts.parties[1:]), _carrier(facts)]


def learnt_predicting(facts: Facts) -> list[Learnt]:
    """What every party, and the one who carries messages, learns where a forest is asked about new patients."""
    active, *others = facts.parties
    found = [
        Learnt(
            f"{active} (has the labels)",
            f"which {facts.common} new patients all parties have, and what the forest says of them; which of them go "
            "left at the splits of other parties that they come to",
            "a value, a name or a cut of another party's columns",
        )
    ]
    for party in others:
        found.append(
            Learnt(
                party,
                f"which {facts.common} new patients all parties have; which of them come to which of its splits",
                "what the forest says of them; another party's columns, cuts and values",
            )
        )
    return [*found, _carrier(facts)]


def _active(facts: Facts) -> Learnt:
    others = sum(count for party, count in facts.splits.items() if party != facts.parties[0])
    least = facts.settings.least_samples
    alone = "of one patient where a side holds no more" if least == 1 else f"each of {least} patients or more"
    sums = "sums" if facts.sums is None else f"{facts.sums:,} sums"
    return Learnt(
        f"{facts.parties[0]} (has the labels)",
        f"which {facts.common} patients all parties have; {sums} of its own gradients, each over the patients on one "
        f"side of a cut that it does not know, {alone}; which patients go left at {others} splits of other parties: "
        "so something of the order of patients in columns that it has no name for",
        "a value, a name or a cut of another party's columns; which column a sum or a split is of",
    )


def _passive(facts: Facts, party: str) -> Learnt:
    settings = facts.settings
    nodes = {
        "joint": "which patients are together at every node of every tree",
        "mixed": "which patients are together at the nodes of the trees that are grown on its columns",
        "layered": f"which patients are together at the first {settings.passive_levels} levels of every tree",
    }[settings.trees]
    drawn = "; which patients a tree is grown on, of which some have large gradients" if settings.goss else ""
    return Learnt(
        party,
        f"which {facts.common} patients all parties have; {nodes}, which says that they are alike in the label and not "
        f"which label; which {facts.splits.get(party, 0)} of its own cuts were taken{drawn}",
        "a label, a gradient, a leaf's weight, a prediction; another party's columns, cuts and values",
    )


def _carrier(facts: Facts) -> Learnt:
    pairs = ", and how many patients any of them have in common" if len(facts.parties) > 2 else ""
    if facts.sealed:
        return Learnt(
            "who carries messages",
            f"how many rows each party has, and how many patients all have{pairs}; how many messages go between which "
            "parties, when, and how large; how many splits each party has",
            "which row numbers are together or go left anywhere, or what any message between parties says",
        )
    return Learnt(
        "who carries messages",
        f"how many rows each party has{pairs}; which row numbers are together at which nodes, and which go left there",
        "an identifier, a label, a gradient, a value, a cut",
    )
