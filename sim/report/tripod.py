"""TRIPOD+AI, item by item: where a report answers it, or that it does not.

Source: Collins et al. 2024, "TRIPOD+AI statement: updated guidance for reporting clinical prediction models that use
regression or machine learning methods", BMJ 385:e078378. The items are abridged.
"""

import csv
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from fedsmall.sim.report.model import MOST_SITES, Clinical, at_sites
from fedsmall.sim.runs.folder import PACKAGES, Run


class Item(NamedTuple):
    """An item of the list, what it asks, and where a report answers it; an empty ``answer`` says that it does not."""

    number: str
    asks: str
    answer: str = ""


class Participant(NamedTuple):
    """A site that took part: how many of each class it trains on and holds out."""

    name: str
    train: Sequence[int]
    held_out: Sequence[int]


def participants(run: Run) -> list[Participant]:
    """Who took part, with how many of each class; none where a folder does not say, or too many to read."""
    counts: dict[str, dict[str, Any]] = run.about.get("class_counts") or {}
    found = [Participant(name, count["train"], count["held_out"]) for name, count in sorted(counts.items())]
    return found if len(found) <= MOST_SITES else []


def tripod(run: Run, shown: Clinical | None) -> list[Item]:
    """The list for a run, whose clinical half is ``shown``: the rows of tripod.csv, filled with what there is."""
    real = "Over real hospitals" if run.real else ""
    counts = "Who took part" if participants(run) else real
    errors = "Model at thresholds; Ranking and calibration" if shown else real
    groups = bool(shown and shown.said.groups)
    of_groups = "; Subgroup by subgroup" if groups else "; of no subgroup (subgroups in the task names some)"
    folders = [f"{name}/" for name in (PACKAGES, "models") if run.folder and (run.folder / name).is_dir()]
    weights = {getattr(plan_run.plan.recipe, "class_weights", None) for plan_run in run.done}
    how = "class weights: " + ", ".join(sorted(map(str, weights))) if weights - {None} else "no class weights"
    answers = {
        "counts": counts,
        "counts_only": counts and f"{counts}: classes only",
        "counts_of_classes": counts and f"{counts} (counts of classes)",
        "outcome": "The question: names of the classes only" if shown else "",
        "objectives": "The question" if run.scenario.about else "",
        "measures": "Ranking and calibration" if shown else real or "How to read this",
        "model": errors and "The model that is shown",
        "thresholds": errors and "Model at thresholds",
        "by_site": "Hospital by hospital" if shown and at_sites(shown) else real,
        "groups": "Nothing but to look at them: Subgroup by subgroup" if groups else "",
        "of_groups": errors and errors + of_groups,
        "dealt": "; sites were dealt from one table" if any(plan.sites for plan in run.plans) else "",
        "folders": f"The run's folder, {' and '.join(folders)}" if folders else "",
        "imbalance": f"Judged by {run.scenario.metric or 'accuracy'}, beside always the commonest class; {how}",
        "scenario": "Plan, versions, and how to repeat this",
    }
    text = (files(__package__) / "tripod.csv").read_text(encoding="utf-8")
    return [Item(number, asks, answer.format_map(answers)) for number, asks, answer in csv.reader(text.splitlines())]
