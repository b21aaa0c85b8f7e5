"""What the patients by whom methods are judged leave open: seeds that share them are not so many strangers."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedsmall.data.raw_site import HELD_OUT
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
    predictions = [run.predictions_of(plan_run) for plan_run in run.done if plan_run.label == run.done[0].label]
    labels = [test_labels["labels"] for test_labels in predictions if "labels" in test_labels]
    return len(labels) == len(predictions) > 1 and all(np.array_equal(test_labels, labels[0]) for test_labels in labels)


def mean_of(run: Run, group: Sequence[PlanRun], values: Values, metric: str, scale: Scale) -> Interval:
    """The common models' mean over runs with its interval, by the test patients and by seeds.

    The patients are those of one test set, even where each run draws its own. By seeds alone where no predictions of
    the ``group`` are kept.
    """
    mean, members = list(values.values()), [plan_run for plan_run in group if plan_run.key in values]
    predictions = [run.predictions_of(plan_run) for plan_run in members]
    if not predictions or not all("labels" in arrays for arrays in predictions):
        return interval(mean, scale=scale, shared=Shared(patients=run.about.get("test_samples") if group else None))
    patients = patients_behind(metric, predictions[0]["labels"])
    without = np.array([_without(run, plan_run, metric, scale) for plan_run in members])
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
    if not kept or not all("labels" in run.predictions_of(plan_run) for pair in pairs for plan_run in pair):
        return _of_unkept(run, pairs[0][0])
    gaps = [_without(run, a, metric, scale) - _without(run, b, metric, scale) for a, b in pairs]
    return _of_gaps(run, gaps, pairs[0][0])


def behind_lead(run: Run, group: Sequence[PlanRun], metric: str, scale: Scale, kept: bool = True) -> Shared:
    """What differences from the trivial predictor share; nothing where :func:`p_over_constant` asks besides."""
    if kept and all(_over_constant(run, plan_run, metric) is not None for plan_run in group):
        return NOTHING
    predictions = [run.predictions_of(plan_run) for plan_run in group]
    if not kept or not all("labels" in arrays and "probabilities" not in arrays for arrays in predictions):
        return _of_unkept(run, group[0])
    pairs = [[_without(run, plan_run, metric, scale, constant) for constant in (False, True)] for plan_run in group]
    return _of_gaps(run, [model - least for model, least in pairs], group[0])


def _of_unkept(run: Run, plan_run: PlanRun) -> Shared:
    return Shared(error=np.inf) if has_one_test_set(run) else Shared(overlap=_overlap(run, plan_run))


def _of_gaps(run: Run, gaps: Sequence[np.ndarray], plan_run: PlanRun) -> Shared:
    """What differences share by how they change without groups of patients, (groups,) for each run."""
    if has_one_test_set(run):
        return Shared(0.0, *jackknife(np.mean(gaps, axis=0)))
    errors, freedom = zip(*map(jackknife, gaps), strict=True)
    error = float(np.sqrt(_overlap(run, plan_run) * np.mean(np.square(errors))))
    return Shared(0.0, error, freedom[0]) if np.isfinite(error) else _of_unkept(run, plan_run)


def p_over_constant(run: Run, group: Sequence[PlanRun], common: Values, least: Values, metric: str) -> float | None:
    """The p-value, by test samples, of what models of classes are ahead of the trivial predictor; None if not known."""
    gains, errors = [], []
    for plan_run in group:
        error = _over_constant(run, plan_run, metric)
        if error is not None and plan_run.key in common and plan_run.key in least:
            gains.append(common[plan_run.key] - least[plan_run.key])
            errors.append(error)
    return p_of_samples(gains, errors) if errors else None


def _over_constant(run: Run, plan_run: PlanRun, metric: str) -> float | None:
    predictions = run.predictions_of(plan_run)
    if "probabilities" not in predictions or "labels" not in predictions:
        return None
    constant = plan_run.row.get("trivial", {}).get("class")
    return error_over_constant(metric, predictions["probabilities"], predictions["labels"], constant)


def _overlap(run: Run, plan_run: PlanRun) -> float:
    """The share of its patients that a test set drawn by lot has in common with another of the same plan."""
    asked = plan_run.plan.test
    if plan_run.plan.folds:
        return 1 / plan_run.plan.folds
    if not isinstance(asked, int):
        return asked if isinstance(asked, float) else HELD_OUT
    sites, (least, _) = run.about.get("sites", 1), run.about.get("samples_per_site", (0, 0))
    return float(min(0.9, asked / (asked + max(1, sites * least))))


def _without(run: Run, plan_run: PlanRun, metric: str, scale: Scale, constant: bool = False) -> np.ndarray:
    """The metric without each group of patients, (groups,), as a logarithm where it is positive; cached in the run."""
    known = run.without.setdefault((prediction_key(plan_run), constant), {})
    if metric not in known:
        predictions, loss = run.predictions_of(plan_run), (run.about.get("task") or {}).get("loss", "mse")
        asked = dict.fromkeys([metric, *(plan_run.row["common"] or ())])
        known |= worth_without(list(asked), constant_beside(predictions, loss) if constant else predictions, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(known[metric])) if scale == "positive" else known[metric]
