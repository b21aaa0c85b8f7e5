import time
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score

from fedsmall.data.federation import Samples
from fedsmall.evaluation.baselines import POOLED, folds_of, pooled_logistic
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.report.sentences import sentences
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.merge import merge
from fedsmall.sim.runs.scenario import Scenario, build, load, scenarios


def federation(task="breast_cancer", **more):
    named = {"name": "x", "task": task, "sites": 10, "samples_per_site": 8, "method": [{"name": "FedAvg"}], **more}
    return build_federation(build(named).plans()[0])


def rows_of(samples):
    return samples.x.reshape(len(samples), -1).astype(float), samples.y


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("task", ["breast_cancer", "digits"])
def test_the_row_is_scikit_learn_s_own_fit_of_all_rows(task):
    whole = federation(task)
    x, y = (np.concatenate(parts) for parts in zip(*map(rows_of, whole.train), strict=True))
    test, truth = rows_of(whole.test)

    found = pooled_logistic(whole)["common"]

    direct = LogisticRegressionCV(Cs=[0.01, 0.1, 1, 10], cv=3, scoring="neg_log_loss", max_iter=1000, tol=1e-3)
    shares = direct.fit(x, y).predict_proba(test)
    assert found["accuracy"] == pytest.approx(np.mean(shares.argmax(axis=1) == truth))
    assert found["loss"] == pytest.approx(log_loss(truth, shares), rel=1e-6)
    if task == "breast_cancer":
        assert found["auc"] == pytest.approx(roc_auc_score(truth, shares[:, 1]))


def test_a_class_of_one_patient_leaves_no_fold_and_the_penalty_is_fixed():
    whole = federation()
    x, y = (np.concatenate(parts)[:20] for parts in zip(*map(rows_of, whole.train), strict=True))
    y = np.eye(20, dtype=int)[0]

    found = pooled_logistic(replace(whole, train=(Samples(x, y),)))["common"]

    shares = LogisticRegression(max_iter=1000, tol=1e-3).fit(x, y).predict_proba(rows_of(whole.test)[0])
    assert found["loss"] == pytest.approx(log_loss(whole.test.y, shares), rel=1e-6)


def test_there_is_none_of_numbers_of_one_class_or_of_own_models():
    whole = federation()
    alike = tuple(replace(samples, y=np.zeros_like(samples.y)) for samples in whole.train)

    assert pooled_logistic(federation("diabetes", model="linear")) is None
    assert pooled_logistic(replace(whole, train=alike)) is None
    assert pooled_logistic(whole, own_models=True) is None


@pytest.mark.parametrize("name", ["demo_breast_cancer", "demo_digits"])
def test_it_costs_less_than_half_a_second_on_the_demo_s_sets(name):
    whole = build_federation(load(scenarios()[name]).plans()[0])
    pooled_logistic(whole)  # imports scikit-learn

    before = time.process_time()
    pooled_logistic(whole)

    assert time.process_time() - before < 0.5


def run(lr):
    """Two seeds of two methods, good or hopeless by their rate."""
    shared = {"task": "breast_cancer", "sites": 10, "samples_per_site": 8, "rounds": 20, "seeds": [0, 1]}
    methods = [{"name": "FedAvg"}, {"name": "Central"}]
    return execute(Scenario(name="x", metric="accuracy", **shared, recipe={"lr": lr}, method=methods))


def test_a_table_has_the_row_beside_the_trivial_predictor_and_compares_it_with_nothing():
    done = run(1e-9)

    shown = table(done)

    assert [row.label for row in shown.rows[:2]] == [shown.trivial.label, POOLED]
    assert shown.pooled.runs == 2
    assert shown.pooled.lead is None
    assert shown.comparisons == 2
    each = [pooled_logistic(build_federation(plan))["common"]["accuracy"] for plan in done.plans[::2]]
    assert shown.pooled.common.mean == pytest.approx(np.mean(each))


def test_a_sentence_says_so_where_all_networks_lie_below_it_and_else_none():
    below, level = sentences(run(1e-9))[0], run(0.3)
    for plan_run in level.done:
        plan_run.row["common"]["accuracy"] = 1.0

    assert (
        "that were trained by gradients lie, by their means, below logistic regression on the pooled patients" in below
    )
    assert "lie, by their means" not in sentences(level)[0]


def test_its_interval_counts_patients_as_those_of_methods_do():
    named = {"name": "x", "task": "breast_cancer", "sites": 10, "samples_per_site": 8, "rounds": 5, "seeds": [0, 1, 2]}
    run = execute(build({**named, "model": "linear", "method": [{"name": "FedAvg"}, {"name": "Standalone"}]}))

    shown = table(run)
    pooled, federated = shown.pooled, next(row for row in shown.rows if row.label == "FedAvg")
    kept = run.predictions_of(run.done[0].labelled(POOLED))

    values = [one.row["pooled"]["common"][shown.metric] for one in run.done if "pooled" in one.row]
    assert pooled.common.mean == pytest.approx(np.mean(values))
    assert None not in (pooled.common.freedom, federated.common.freedom)  # of patients and seeds
    assert kept["probabilities"].shape == (len(kept["labels"]), 2)
    assert "predictions" not in run.done[0].row["pooled"]
    merged = table(merge([run])[0]).pooled
    assert merged.common == pooled.common


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_for_a_baseline_are_of_whole_patients(folds):
    rng = np.random.default_rng(0)
    whose = np.sort(rng.integers(0, 40, 150))
    samples = Samples(rng.normal(size=(150, 2)), whose % 2, whose)

    parts = folds_of(samples, folds)

    assert sorted(np.concatenate([held for _, held in parts]).tolist()) == list(range(150))
    assert all(not set(whose[rows]) & set(whose[held]) for rows, held in parts)


@pytest.mark.parametrize("patients", [None, np.arange(8), np.repeat([0, 1], 4), np.r_[np.zeros(7, int), 1]])
def test_where_that_cannot_be_folds_are_of_samples(patients):
    assert folds_of(Samples(np.zeros((8, 1)), np.arange(8) % 2, patients), 3) == 3
    assert folds_of(Samples(np.zeros((8, 1)), np.arange(8) % 2, patients), 1) == 1
