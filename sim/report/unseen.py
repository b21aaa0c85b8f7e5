"""What to expect at a hospital that took no part, where models travel by routes: a sentence and a row each.

Where folds were of samples it is what to expect at these hospitals, for patients who took no part.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsmall.evaluation.unseen import OF_PATIENTS
from fedsmall.sim.report.sentences import named
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import Run

SHARES = ("auc", "accuracy", "mae")  # the metrics of the sentence: the first two of these that there are
METRICS = ("auc", "accuracy", "loss", "brier", "ece")
WHERE = {False: "at a hospital that took no part", True: "at these hospitals, for patients who took no part"}
WORDS = {"loss": "negative log-likelihood", "brier": "Brier score", "ece": "calibration error"}


class Expected(NamedTuple):
    """One method: in words its metrics, the worst and best hospital, on how much all that rests, and of whom it is."""

    label: str
    cells: tuple[str, ...]
    hospitals: str
    rests_on: str
    where: str


def unseen_heads() -> list[str]:
    """The columns of the table, after the method's name."""
    return [WORDS.get(name, named(name)) for name in METRICS]


def unseen_rows(run: Run) -> list[Expected]:
    """A row for each method of a run that was validated by routes, over its seeds."""
    rows = []
    for label, found in _by_method(run).items():
        cells = tuple(_over_seeds(name, [each["metrics"].get(name) for each in found]) for name in METRICS)
        rows.append(Expected(label, cells, _hospitals(found), _rests_on(found), _where(found)))
    return rows


def unseen_sentences(run: Run) -> list[str]:
    """A sentence for each method of a run that was validated by routes."""
    return [f"{label}: {expectation(found)}" for label, found in _by_method(run).items()]


def expectation(found: Sequence[Mapping[str, Any]]) -> str:
    """What to expect where, by what was ``found`` with each seed."""
    known = [name for name in SHARES if all(name in each["metrics"] for each in found)][:2] or ["loss"]
    told = [
        f"{WORDS.get(name, named(name))} {_over_seeds(name, [each['metrics'][name] for each in found])}"
        for name in known
    ]
    return f"{_where(found)}, expect {', '.join(told)}; {_rests_on(found)}."


def _where(found: Sequence[Mapping[str, Any]]) -> str:
    return WHERE[_of_patients(found)]


def _of_patients(found: Sequence[Mapping[str, Any]]) -> bool:
    return any(each.get("folds") == OF_PATIENTS for each in found)


def _by_method(run: Run) -> dict[str, list[dict[str, Any]]]:
    found = {
        label: [one.row["validation"] for one in done if one.row.get("validation")]
        for label, done in by_label(run.done).items()
    }
    return {label: each for label, each in found.items() if each}


def _over_seeds(name: str, metrics: Sequence[Mapping[str, float | None] | None]) -> str:
    """Value and interval, the means of those of the seeds: the interval speaks of hospitals, not of seeds."""
    known = [metric for metric in metrics if metric is not None]
    if not known:
        return "-"
    mean = _number(name, [metric["value"] for metric in known])
    if any(metric["low"] is None for metric in known):
        return mean
    low, high = (_number(name, [metric[end] for metric in known]).rstrip("%") for end in ("low", "high"))
    return f"{mean} ({low} to {high})"


def _number(name: str, values: Sequence[float | None]) -> str:
    mean = float(np.mean(np.array(values, dtype=np.float64)))
    return f"{100 * mean:.1f}%" if name in ("auc", "accuracy") else f"{mean:.3f}"


def _hospitals(found: Sequence[Mapping[str, Any]]) -> str:
    """The accuracy of the worst and of the best hospital of those that are shown, each a mean over the seeds."""
    shown = [[own["accuracy"] for own in each["hospitals"].values() if "accuracy" in own] for each in found]
    if not all(shown):
        return "-"
    ends = ([end(each) for each in shown] for end in (min, max))
    return " to ".join(_number("accuracy", values) for values in ends)


def _rests_on(found: Sequence[Mapping[str, Any]]) -> str:
    patients, sites = (round(float(np.mean([each[name] for each in found]))) for name in ("samples", "sites"))
    over = f", mean over {len(found)} seeds" if len(found) > 1 else ""
    hospitals = "hospital" + "s" * (sites != 1)
    whom = "the patient" if _of_patients(found) else "its hospital"
    return f"{patients} patients of {sites} {hospitals}, each judged by models that never saw {whom}{over}"
