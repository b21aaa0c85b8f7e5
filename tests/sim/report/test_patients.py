"""What a page says of methods whose seeds share test patients, and of methods that explode."""

import numpy as np
import pytest
from scipy.special import expit

from fedsmall.data.federation import Task
from fedsmall.evaluation.metrics import evaluate
from fedsmall.sim.report.sentences import sentences, with_interval
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.folder import Run, prediction_key
from tests.sim.report.test_tables import GOOD, beside_trivial, made

METHODS = [{"name": "FedAvg", "label": "often"}, {"name": "FedDC", "aggregate_every": 10}]
SEEDS, PATIENTS = 6, 60


def judged(metric: str, gap: float = 0.0, draw: int = 0, drawn_anew: bool = False, each: int = 1) -> Run:
    """Two methods on patients of whom some are hard for one of them alone; FedDC is better by ``gap`` on a logit.

    A patient has ``each`` so many samples, which are alike but for a little.
    """
    rng = np.random.default_rng(draw)
    y, hard = rng.integers(2, size=PATIENTS // each), rng.normal(0, 1.2, (2, PATIENTS // each))
    y, hard = np.repeat(y, each), np.repeat(hard, each, axis=1)
    run = made({"often": [0.5] * SEEDS, "FedDC": [0.5] * SEEDS}, metric, METHODS)
    for one in run.done:
        y = rng.integers(2, size=PATIENTS) if drawn_anew else y
        which = int(one.label == "FedDC")
        scores = (0.7 + gap * which) * np.where(y == 1, 1, -1) + hard[which] + rng.normal(0, 0.1, PATIENTS)
        p = np.stack([1 - expit(scores), expit(scores)], axis=1)
        run.predictions |= {
            f"{prediction_key(one)}/{name}": array for name, array in {"probabilities": p, "labels": y}.items()
        }
        if each > 1:
            run.predictions[f"{prediction_key(one)}/patients"] = np.arange(PATIENTS) // each
        one.row["common"] |= evaluate(np.log(p), y, Task("", (), 2, metrics=(metric,)))
    return run


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["accuracy", "auc", "brier"])
def test_luck_with_the_patients_of_one_test_set_is_no_verdict(metric):
    told = [sentences(judged(metric, draw=draw))[1] for draw in range(12)]

    assert sum("cannot be told apart from" not in words for words in told) <= 2
    alone = [judged(metric, draw=draw) for draw in range(12)]
    for run in alone:
        run.predictions.clear()  # then nobody knows that it is one test set, and seeds agree on its luck
    assert sum("cannot be told apart from" not in sentences(run)[1] for run in alone) >= 4


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["accuracy", "auc", "brier"])
def test_luck_with_patients_who_have_several_samples_is_no_verdict(metric):
    made_of = [judged(metric, draw=draw, each=6) for draw in range(40)]
    told = [sentences(run)[1] for run in made_of]

    assert sum("cannot be told apart from" not in words for words in told) <= 5
    for run in made_of:
        run.predictions = {name: array for name, array in run.predictions.items() if not name.endswith("/patients")}
        run.without.clear()  # then samples count as patients
    assert sum("cannot be told apart from" not in sentences(run)[1] for run in made_of) >= 12


@pytest.mark.parametrize("metric", ["accuracy", "auc", "brier"])
def test_what_patients_bear_out_is_a_verdict(metric):
    assert "FedDC is better than FedAvg with the same traffic" in sentences(judged(metric, gap=3.0))[1]


def test_models_of_sites_on_one_test_set_have_no_verdict():
    run = judged("accuracy")
    for one in run.done:
        value = 0.9 if one.label == "FedDC" else 0.4
        one.row["common"], one.row["sites"] = None, {"accuracy_mean": value + 0.01 * one.plan.seed, "accuracy_sd": 0.1}

    assert "6 seeds on one test set, whose predictions are not kept, cannot tell this from chance" in sentences(run)[1]
    assert "cannot be told apart" in sentences(run)[1]


def test_the_mean_on_top_has_the_interval_of_its_patients():
    for drawn_anew in (False, True):
        row = table(judged("auc", drawn_anew=drawn_anew)).rows[0]

        assert row.common.high - row.common.low > 0.2  # 60 patients; by seeds alone .02 on one test set


@pytest.mark.parametrize("least", [2, 9, 23, 30])
def test_test_sets_of_seeds_may_differ_in_size(least):
    run = judged("brier", drawn_anew=True)
    for one in run.done:
        for name in ("probabilities", "labels"):
            kept = f"{prediction_key(one)}/{name}"
            run.predictions[kept] = run.predictions[kept][: least + one.plan.seed]

    row = table(run).rows[0]

    assert row.common.low < row.common.mean < row.common.high


def test_local_models_that_are_the_global_one_have_its_interval():
    run = judged("accuracy")
    for one in run.done:
        one.row["sites"] = {"accuracy_mean": one.row["common"]["accuracy"], "accuracy_sd": 0.0}

    rows = table(run).of_methods

    assert all(row.sites == row.common and row.sites.width > 0.1 for row in rows)


def test_a_hundred_percent_of_few_patients_is_not_certain():
    run = judged("accuracy", gap=30.0)

    shown = table(run)
    mean = next(row.common for row in shown.rows if row.label == "FedDC")

    assert mean.mean == 1.0
    assert mean.low == pytest.approx(60 / (60 + 1.96**2), abs=1e-3)  # Wilson's
    assert with_interval(shown, mean) == "100.0% (94.0 to 100.0)"


def test_a_method_that_explodes_with_most_seeds_is_worse_than_others_and_than_a_constant():
    usual = [52.0, 55.0, 54.0, 57.0, 53.0, 56.0, 51.0, 58.0]
    exploded = [2e5, 3e6, 55.0, 4e7, 1e8, 6e5, 9e6, 2e7]
    values = dict.fromkeys(GOOD, usual) | {"often": exploded, "rare": [1.01 * value for value in usual]}
    run = beside_trivial(made(values, "mae"), [70.0 + seed for seed in range(8)], "mae", "always the mean")
    rng = np.random.default_rng(0)
    for one in run.done:
        y = rng.normal(0, 90, (PATIENTS, 1))
        told = {"predictions": y + values[one.label][one.plan.seed] * rng.choice([-1, 1], y.shape), "labels": y}
        run.predictions |= {f"{prediction_key(one)}/{name}": array for name, array in told.items()}

    federation, travelling = sentences(run)

    assert "often is worse than predicting always the mean" in federation
    assert "it is better than FedAvg with the same traffic (b = 1) (-100.0%, 95% interval" in travelling
