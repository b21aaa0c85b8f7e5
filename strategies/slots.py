"""What the server holds for each traveller: the model, what goes with it, and what its last training said."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from fedsmall.aggregation.combiners import Updates
from strategies.records import stacked


class Report(NamedTuple):
    """The numbers of a traveller's last training: they are its own, wherever it goes."""

    examples: float
    steps: float
    rule: ArrayRecord | None = None


@dataclass(frozen=True, eq=False)
class Slot:
    """The traveller that a site is sent next. ``common``: it is the last common model, untouched since.

    ``report`` is there if it was trained since the last aggregation; then it counts in the next, wherever it is. ``by``
    is the site that trained last what is in it, moments among them; empty for none.
    """

    model: ArrayRecord
    carried: ArrayRecord | None = None
    common: bool = False
    report: Report | None = None
    by: str = ""


def updates_of(slots: Mapping[str, Slot], weighted: bool, sites_in_all: int) -> Updates:
    """What counts in an aggregation: every traveller that was trained since the last, in the order of the sites."""
    counted = {site: slot.report for site, slot in sorted(slots.items()) if slot.report is not None}
    rules = [report.rule for report in counted.values()]
    return Updates(
        sites=tuple(counted),
        stack=stacked([slots[site].model for site in counted]),
        weights=np.array([report.examples for report in counted.values()]) if weighted else None,
        steps=np.array([report.steps for report in counted.values()]),
        rule=stacked([rule for rule in rules if rule]) if all(rules) else {},
        sites_in_all=sites_in_all,
    )
