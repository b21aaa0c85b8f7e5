"""What the patients by whom methods are judged leave open: seeds that share them are not so many strangers."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedsmall.data.dealing import HELD_OUT
from fedsmall.evaluation.sampling import (
    constant_beside,
    error_over_constant,
    jackknife,
    p_of_samples,
    patients_behind,
    worth_without,
)
from fedsmall.evaluation.statistics import NOTHING, Interval, Scale, Shared, interval
from fedsmall.sim.runs.folder import PlanRun, Run, prediction_key

Values = Mapping[tuple[int, int], float]  # by seed and fold


def has_one_test_set(run: Run) -> bool:
    """Whether all seeds are judged by the same patients, as far as their outcomes tell; unknown ones are redrawn."""
    told = [run.predictions_of(one) for one in run.done if one.label == run.done[0].label]
    labels = [each["labels"] for each in told if "labels" in each]
    return len(labels) == len(told) > 1 and all(np.array_equal(each, labels[0]) for each in labels)


def mean_of(run: Run, group: Sequence[PlanRun], values: Values, metric: str, scale: Scale) -> Interval:
    """The common models' mean over runs with its interval, by the test patients and by seeds.

    The patients are those of one test set, even where each run draws its own. By seeds alone where no predictions of
    the ``group`` are kept.
    """
    mean, mine = list(values.values()), [one for one in group if (one.plan.seed, one.plan.fold) in values]
    told = [run.predictions_of(one) for one in mine]
    if not told or not all("labels" in each for each in told):
        return interval(mean, scale=scale, shared=Shared(patients=run.about.get("test_samples") if group else None))
    patients = patients_behind(metric, told[0]["labels"])
    without = np.array([_without(run, one, metric, scale) for one in mine])
    if has_one_test_set(run):
        without = without.mean(axis=0, keepdims=True)
    errors, freedom = zip(*map(jackknife, without), strict=True)
    error = float(np.sqrt(np.mean(np.square(errors)))) * (float(np.mean(mean)) if scale == "positive" else 1.0)
    shared = Shared(0.0, error, freedom[0], patients) if np.isfinite(error) else Shared(patients=patients)
    return interval(mean, scale=scale, shared=shared)


def behind_difference(
    run: Run, pairs: Sequence[tuple[PlanRun, PlanRun]], metric: str, scale: Scale, kept: bool = True
) -> Shared:
    """What the differences between two methods share, for each seed the two runs of ``pairs``.

    The error by patients, by leaving out groups: of one test set in all runs at once. Where each seed draws its own,
    that of one of them counts by the share of patients that two have in common. Where predictions were not ``kept``,
    the error by one test set is unknown, and runs on several are corrected by that share alone.
    """
    if not kept or not all("labels" in run.predictions_of(one) for pair in pairs for one in pair):
        return _of_unkept(run, pairs[0][0])
    gaps = [_without(run, a, metric, scale) - _without(run, b, metric, scale) for a, b in pairs]
    return _of_gaps(run, gaps, pairs[0][0])


def behind_lead(run: Run, group: Sequence[PlanRun], metric: str, scale: Scale, kept: bool = True) -> Shared:
    """What the differences of a method from the trivial predictor share, as in :func:`behind_difference`.

    Nothing where :func:`p_over_constant` asks the patients besides.
    """
    if kept and all(_over_constant(run, one, metric) is not None for one in group):
        return NOTHING
    told = [run.predictions_of(one) for one in group]
    if not kept or not all("labels" in each and "probabilities" not in each for each in told):
        return _of_unkept(run, group[0])
    gaps = [_without(run, one, metric, scale) - _without(run, one, metric, scale, constant=True) for one in group]
    return _of_gaps(run, gaps, group[0])


def _of_unkept(run: Run, one: PlanRun) -> Shared:
    return Shared(error=np.inf) if has_one_test_set(run) else Shared(overlap=_overlap(run, one))


def _of_gaps(run: Run, gaps: Sequence[np.ndarray], one: PlanRun) -> Shared:
    """What differences share by how they change without groups of patients, (groups,) for each run."""
    if has_one_test_set(run):
        return Shared(0.0, *jackknife(np.mean(gaps, axis=0)))
    errors, freedom = zip(*map(jackknife, gaps), strict=True)
    error = float(np.sqrt(_overlap(run, one) * np.mean(np.square(errors))))
    return Shared(0.0, error, freedom[0]) if np.isfinite(error) else _of_unkept(run, one)


def p_over_constant(run: Run, group: Sequence[PlanRun], own: Values, least: Values, metric: str) -> float | None:
    """The p-value, by test samples, of what models of classes are ahead of the trivial predictor; None if not known."""
    gains, errors = [], []
    for one in group:
        key, error = (one.plan.seed, one.plan.fold), _over_constant(run, one, metric)
        if error is not None and key in own and key in least:
            gains.append(own[key] - least[key])
            errors.append(error)
    return p_of_samples(gains, errors) if errors else None


def _over_constant(run: Run, one: PlanRun, metric: str) -> float | None:
    told = run.predictions_of(one)
    if "probabilities" not in told or "labels" not in told:
        return None
    constant = one.row.get("trivial", {}).get("class")
    return error_over_constant(metric, told["probabilities"], told["labels"], constant)


def _overlap(run: Run, one: PlanRun) -> float:
    """The share of its patients that a test set drawn by lot has in common with another of the same plan."""
    asked = one.plan.test
    if one.plan.folds:
        return 1 / one.plan.folds
    if not isinstance(asked, int):
        return asked if isinstance(asked, float) else HELD_OUT
    sites, (least, _) = run.about.get("sites", 1), run.about.get("samples_per_site", (0, 0))
    return float(min(0.9, asked / (asked + max(1, sites * least))))


def _without(run: Run, one: PlanRun, metric: str, scale: Scale, constant: bool = False) -> np.ndarray:
    """The metric without each group of patients, (groups,), as a logarithm where it is positive; cached in the run."""
    known = run.without.setdefault((prediction_key(one), constant), {})
    if metric not in known:
        told, loss = run.predictions_of(one), (run.about.get("task") or {}).get("loss", "mse")
        asked = dict.fromkeys([metric, *(one.row["common"] or ())])
        known |= worth_without(list(asked), constant_beside(told, loss) if constant else told, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(known[metric])) if scale == "positive" else known[metric]
