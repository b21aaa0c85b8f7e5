"""Numbers and times over real sites' own programs: from files to the run's folder and all pages."""

import html
import json
import re

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import run_folder
from fedsmall.clients.telling import own_evaluation
from fedsmall.errors import PlanError
from fedsmall.evaluation import survival
from fedsmall.evaluation.metrics import kappa
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.api import Result
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.hospital import own_run
from fedsmall.sim.report.hospital import page as own_page
from fedsmall.sim.report.html import page
from fedsmall.sim.report.outcomes import question
from fedsmall.sim.report.real_sites import real_runs
from fedsmall.sim.report.sentences import metric_name
from fedsmall.sim.runs.folder import read
from tests import only_quick
from tests.sim.consortium.real_run import NAMES, real_run

TASKS = {
    "numbers": {"target": "age"},
    "times": {"time": "months", "event": "died", "intervals": 4},
    "grades": {"target": "grade", "order": ["0", "1", "2"]},
    "labels": {"targets": ["died", "edema"]},
}


def files(folder):
    """Tables of 40 patients each: an age, months until an event, a grade and a label, of which two markers tell."""
    rng, paths = np.random.default_rng(0), {}
    (folder / "data").mkdir()
    for name in NAMES:
        a, b = rng.normal(size=(2, 40))
        months, lost = rng.exponential(20 * np.exp(-a)), rng.exponential(50, size=40)
        grade = (a - b + rng.logistic(scale=0.3, size=40) > np.array([[-0.7], [0.7]])).sum(axis=0)
        seen = (np.minimum(months, lost), months <= lost, grade, a + rng.logistic(scale=0.3, size=40) > 0)
        table = np.stack([a, b, 60 + 8 * a - 4 * b, *seen], axis=1)
        paths[name] = folder / "data" / f"{name}.csv"
        np.savetxt(paths[name], table, delimiter=",", header="a,b,age,months,died,grade,edema", comments="", fmt="%.6g")
    return paths


@pytest.fixture(scope="module", params=only_quick(["times"], TASKS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return tmp_path_factory.mktemp(kind)


@pytest.fixture(scope="module")
def plan(kind, folder):
    return Plan(
        name=kind,
        task={"csv": str(folder / "data"), "features": ["a", "b"], **TASKS[kind]},
        model="proportional" if kind in ("times", "grades") else "linear",
        partition={"natural": "file"},
        rounds=12,
        recipe=Recipe(lr=0.3),
        method=method("FedDC", permute_every=1, aggregate_every=4, privacy={"blur": 0}),
    )


@pytest.fixture(scope="module")
def home(folder, plan):
    data = files(folder)
    with pytest.MonkeyPatch.context() as patch:
        return real_run(folder, plan, patch, data=data)


@pytest.mark.thorough
def test_the_bits_and_the_metrics_are_those_of_the_simulation(home, plan, kind):
    played = run_plan(plan, build_federation(plan), "inprocess")

    run = read(home)

    model = run.model_of(run.done[0])
    assert {name: array.tobytes() for name, array in model.items()} == {
        name: array.tobytes() for name, array in played.model.items()
    }
    told, common = run.done[0].row["common"], played.evaluations[-1].common
    if kind == "numbers":  # sums over all patients
        assert told["mae"] == pytest.approx(common["mae"], rel=1e-5)
        assert told["rmse"] == pytest.approx(common["rmse"], rel=1e-5)
    if kind == "labels":
        shared = ("macro_f1", "subset_accuracy", "label_accuracy", "brier")
        assert {name: told[name] for name in shared} == pytest.approx({name: common[name] for name in shared}, rel=1e-5)
        assert told["auc"] == pytest.approx(common["auc"], abs=0.05)
    if kind == "grades":
        assert {name: told[name] for name in ("kappa", "mae", "accuracy")} == pytest.approx(
            {name: common[name] for name in ("kappa", "mae", "accuracy")}
        )
    assert told["loss"] == pytest.approx(common["loss"], rel=1e-5)
    assert run.scenario.metric == {"numbers": "mae", "times": "c_index", "grades": "kappa", "labels": "auc"}[kind]


@pytest.mark.thorough
def test_sites_were_told_what_they_agreed_on_in_one_message(home, kind):
    scaling = json.loads((home / "scaling.json").read_text())

    assert len(scaling["mean"]) == (2 if kind in ("grades", "labels") else 3)  # two features, and what is predicted


@pytest.mark.thorough
def test_the_page_of_the_run_is_in_the_unit_of_the_outcome(home, kind):
    text = html.unescape(page([read(home)], "t"))

    words = {"numbers": "mean absolute error", "times": "concordance index", "grades": "quadratic weighted kappa"}
    assert words.get(kind, "ROC-AUC, mean over labels") in text
    assert ("Label by label, all hospitals together" in text) == (kind == "labels")
    assert "There is no central test set." in text
    assert "There is no confusion matrix" not in text


def test_the_page_has_what_each_hospital_told_and_says_what_is_a_mean_of_it(home, kind):
    run = read(home)
    text = html.unescape(page([run], "t"))

    (shown,), (done,) = real_runs(run), run.done
    means = {"times": ["c_index", "ibs"], "numbers": ["r2"], "labels": ["average_precision"]}
    assert shown.averaged == means.get(kind, [])
    named = " and ".join(map(metric_name, shown.averaged))
    assert (f"together, but for {named}: a mean of the hospitals' own, by their samples." in text) == (kind in means)
    assert (question(run) == "When does the event come to a new sample, in months?") == (kind == "times")
    told = done.row["extra"]["held_out"]
    for at in shown.homes if kind in ("numbers", "times") else ():
        assert {"times": "c_index", "numbers": "mae"}[kind] in told[at.site].keys() & at.metrics.keys()
        cells = "".join(f"<td>{told[at.site][name]:.3f}</td>" for name in at.metrics)
        assert f"<tr><td>{at.site}</td><td>{at.trained}</td><td>{at.judged}</td>{cells}</tr>" in text


@pytest.mark.thorough
def test_a_hospitals_own_page_shows_its_own_patients(folder, home, kind):
    own = own_run(folder / "essen", Policy(), "essen", "trial")
    evaluation = own_evaluation(run_folder(folder / "essen" / "runs", "trial"))

    text = html.unescape(own_page(own))

    if kind == "numbers":
        error = np.abs(evaluation.predictions - evaluation.y).mean()
        assert error < 8
        assert f"<td>{error:.4g}<br>" in text
    elif kind == "grades":
        found = kappa(evaluation.predictions.argmax(axis=1), evaluation.y)
        assert found > 0.5
        assert f"<td>{found:.4g}<br>" in text
        assert "recall of 2" in text
    elif kind == "labels":
        aucs = roc_auc_score(evaluation.y, evaluation.predictions, average=None)
        assert aucs[1] > 0.8
        assert all(f"<td>{found:.4g}<br>" in text for found in (*aucs, aucs.mean()))
    else:
        cuts = np.array(own.package.cuts)
        curves = survival.concordance(
            np.exp(np.cumsum(-np.log1p(np.exp(evaluation.predictions)), axis=1))[None], cuts, *evaluation.y[:, 2:4].T
        )
        assert f"<td>{curves[0]:.4g}<br>" in text
    assert kind == "grades" or "keep this page as you keep those" in text


def test_a_hospital_is_told_what_joining_brings_in_the_unit_or_that_its_data_have_no_regression(folder, home, kind):
    own, data = own_run(folder / "essen", Policy(), "essen", "trial"), folder / "data" / "essen.csv"
    said, y = own.evaluation.predictions, own.evaluation.y

    if kind in ("times", "labels"):
        with pytest.raises(PlanError, match="leave --data out: it is for classes or a number"):
            own_page(own, data)
        return
    numbers = kind == "numbers"
    together = np.abs(said - y).mean() if numbers else -np.log(said[np.arange(len(y)), y]).mean()
    loss = "mean absolute error" if numbers else "log loss"
    sentence = rf"has a {loss} of [\d.]+, and FedDC, trained by all, one of {together:.4g}: "
    assert re.search(sentence, own_page(own, data))


def test_the_runs_package_predicts_in_the_unit(home, folder, kind):
    run = read(home)
    table = Result(run).predict(folder / "data" / "ulm.csv")

    (stored,) = run.packages_of(run.done[0])
    if kind == "numbers":
        mean, scale = stored.package.preparation.outcome.unit
        assert table["age"].mean() == pytest.approx(mean, abs=scale)
    elif kind == "grades":
        assert set(table["class"]) == {"0", "1", "2"}
        np.testing.assert_allclose(table[["p_0", "p_1", "p_2"]].sum(axis=1), 1)
    elif kind == "labels":
        assert list(table.columns)[:2] == ["p_died", "p_edema"]
        assert table["p_edema"].between(0, 1).all()
    else:
        assert table.columns[0] == "mean_months"
        assert stored.package.cuts[-1] == pytest.approx(4 * stored.package.cuts[0])
