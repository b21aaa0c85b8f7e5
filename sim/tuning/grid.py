"""`fedsmall tune --try`: other settings of methods than the learning rate, each searched with all rates.

A method whose table has the key stands in the search once for each of its values (of several keys, each combination),
under a label of its own. One that boosts stands there with each depth and number of trees. Of those that are not shown
to be worse than the best, each at its own best rate, the first named is taken: so name the cheap ones first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import Try, best_row, choose, is_tried, plans_of, table_of

Settings = dict[str, Any]
DEPTHS, TREES = (1, 3), (40, 70, 100)  # of boosting


@dataclass(frozen=True)
class Grid:
    """A ``scenario`` in which every setting is a method (``of``: method and setting by label), and the ``plain``."""

    plain: Scenario
    scenario: Scenario
    of: dict[str, tuple[str, Settings]]

    def taken(self, tries: Sequence[Try]) -> dict[str, tuple[Settings, float]]:
        """The settings and the rate that are taken for each method, by its label."""
        choices, found = choose(tries), {}
        for method in dict.fromkeys(label for label, _ in self.of.values()):
            labels = [label for label, (whose, _) in self.of.items() if whose == method]
            scores = [[t.score for t in tries if (t.label, t.lr) == (label, choices[label].lr)] for label in labels]
            best = labels[best_row(np.array(scores))]
            found[method] = (self.of[best][1], choices[best].lr)
        return found

    def with_taken(self, tries: Sequence[Try]) -> Scenario:
        """The scenario that was asked about, with what is taken."""
        table, taken, entries = table_of(self.plain), self.taken(tries), []
        for entry, plan in zip(table["method"], plans_of(self.plain), strict=True):
            settings, lr = taken.get(plan.method.label, ({}, 0.0))  # of a regression nothing is tried
            rate = {"recipe": {**entry.get("recipe", {}), "lr": lr}} if plan.method.trains_networks else {}
            entries.append({**entry, **settings, **rate})
        return build({**table, "method": entries})


def grid(scenario: Scenario, tried: Mapping[str, Sequence[Any]]) -> Grid:
    """Every method of a scenario with every value of the keys that its own table has; PlanError for others."""
    table, of = table_of(scenario), {}
    entries, found = list[Settings](), set[str]()
    for entry, plan in zip(table["method"], plans_of(scenario), strict=True):
        if not is_tried(plan):
            entries.append(entry)
            continue
        places, label = {key: key.partition(".") for key in tried}, plan.method.label
        keys = [key for key, (table, _, inner) in places.items() if key in entry or inner in entry.get(table, ())]
        found |= set(keys)
        for values, trees in product(product(*(tried[key] for key in keys)), trees_of(plan)):
            settings = dict(zip(keys, values, strict=True))
            given = _nested(entry, settings)
            named = ", ".join([label, *(f"{key} = {value}" for key, value in {**settings, **trees}.items())])
            given |= {"boosting": {**entry.get("boosting", {}), **trees}} if trees else {}
            entries.append({**entry, **given, "label": named})
            of[named] = (label, given)
    if unknown := [key for key in tried if key not in found]:
        raise PlanError(f"--try {unknown[0]}: no method of the scenario sets it, so none is tried with other values")
    return Grid(scenario, build({**table, "method": entries}), of)


def trees_of(plan: Plan) -> list[dict[str, int]]:
    """The depths and numbers of trees to try of a method that boosts, small ones first; one empty setting of others.

    A number is left out that the plan's rounds do not allow: histograms take a round for each level.
    """
    boosting = plan.method.boosting
    if boosting is None:
        return [{}]
    rounds = {depth: (plan.rounds - 1) // depth if boosting.histogram else plan.rounds for depth in DEPTHS}
    found = [{"depth": depth, "trees": trees} for depth in DEPTHS for trees in TREES if trees <= rounds[depth]]
    return found or [{"depth": depth} for depth in DEPTHS if rounds[depth]]


def settings_in(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """What ``--try`` was given, as in "aggregate_every=50,10": the values to try, by key. PlanError for other texts."""
    settings: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not (all(part.isidentifier() for part in key.split(".")) and values):
            raise PlanError(f"--try takes a key of a method and its values, as in aggregate_every=50,10; got {text!r}")
        settings[key] = tuple(dict.fromkeys(map(_number, values.split(","))))
    return settings


def _nested(entry: Settings, settings: Settings) -> Settings:
    """Settings as an entry has them: "privacy.exposure" is in its table "privacy"."""
    found: Settings = {}
    for key, value in settings.items():
        outer, _, inner = key.partition(".")
        found[outer] = {**entry[outer], **found.get(outer, {}), inner: value} if inner else value
    return found


def _number(word: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word.strip()
