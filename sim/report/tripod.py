"""TRIPOD+AI, item by item: where a report answers it, or that it does not.

Source: Collins et al. 2024, "TRIPOD+AI statement: updated guidance for reporting clinical prediction models that use
regression or machine learning methods", BMJ 385:e078378. The items are abridged.
"""

from collections.abc import Sequence
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
    """The list for a run, whose clinical half is ``shown``."""
    dealt = any(plan.sites for plan in run.plans)
    real = "Over real hospitals" if run.real else ""
    counts = "Who took part" if participants(run) else real
    errors = "Model at thresholds; Ranking and calibration" if shown else real
    by_site = "Hospital by hospital" if shown and at_sites(shown) else real
    groups = bool(shown and shown.said.groups)
    scenario = "Plan, versions, and how to repeat this"
    return [
        Item("1", "title: prediction model, population, outcome", "Title of the page, as the scenario names it"),
        Item("2", "abstract"),
        Item("3a-c", "healthcare context, target population, known health inequalities"),
        Item("4", "objectives", "The question" if run.scenario.about else ""),
        Item("5a-b", "sources and dates of data", ""),
        Item("6a", "setting: number and place of centres", counts),
        Item("6b-c", "eligibility of participants, treatments", ""),
        Item("7", "data preparation and quality checks", "docs/data.md: agreed scaling, categories, missing values"),
        Item("8a", "outcome: definition and horizon", "The question: names of the classes only" if shown else ""),
        Item("8b-c", "who assessed the outcome, blinding", ""),
        Item("9a-c", "predictors: choice, definition, assessors", ""),
        Item("10", "sample size: how it was arrived at", ""),
        Item("11", "missing data", "docs/data.md: a missing value becomes the mean of the training samples"),
        Item("12a", "how data were split for development and evaluation", f"Who took part; {scenario}"),
        Item("12b-c", "predictors in the model, type of model, how it was built", scenario),
        Item("12d", "heterogeneity between clusters", by_site),
        Item("12e", "measures of performance", "Ranking and calibration" if shown else real or "How to read this"),
        Item("12f", "updating of the model", "Not done"),
        Item("12g", "how predictions are calculated in the evaluation", errors and "The model that is shown"),
        Item("13", "class imbalance", _imbalance(run)),
        Item(
            "14",
            "fairness: what was done for subgroups",
            "Nothing but to look at them: Subgroup by subgroup" if groups else "",
        ),
        Item("15", "output: probability or class, and thresholds", errors and "Model at thresholds"),
        Item("16", "differences of training and evaluation data", counts + " (counts of classes)" if counts else ""),
        Item("17", "ethical approval", ""),
        Item("18a-c", "funding, conflicts of interest, protocol", ""),
        Item("18d-e", "registration, availability of data", ""),
        Item("18f", "availability of code", scenario),
        Item("19", "involvement of patients and the public", ""),
        Item("20a", "flow of participants", ""),
        Item("20b", "characteristics of participants", (counts + ": classes only") if counts else ""),
        Item("20c", "evaluation data beside development data", (counts + ": classes only") if counts else ""),
        Item("21", "numbers of participants and events in each analysis", counts),
        Item("22", "the full model", _models(run)),
        Item("23a", "performance with confidence intervals, also of key subgroups", _with_groups(errors, groups)),
        Item("23b", "performance by cluster", by_site),
        Item("24", "results of updating", "Not done"),
        Item("25", "interpretation", "The result in one sentence; no clinical interpretation"),
        Item("26", "limitations", "How to read this" + ("; sites were dealt from one table" if dealt else "")),
        Item("27a-c", "use of the model in care, and what is next", ""),
    ]


def _models(run: Run) -> str:
    folders = [f"{name}/" for name in (PACKAGES, "models") if run.folder and (run.folder / name).is_dir()]
    return f"The run's folder, {' and '.join(folders)}" if folders else ""


def _with_groups(errors: str, groups: bool) -> str:
    named = "; Subgroup by subgroup" if groups else "; of no subgroup (subgroups in the task names some)"
    return errors + named if errors else ""


def _imbalance(run: Run) -> str:
    weights = {getattr(plan_run.plan.recipe, "class_weights", None) for plan_run in run.done}
    how = "class weights: " + ", ".join(sorted(map(str, weights))) if weights - {None} else "no class weights"
    return f"Judged by {run.scenario.metric or 'accuracy'}, beside always the commonest class; {how}"
