"""Runs that predict grades, from a table to the page, to new rows, and to files of other programs."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score, recall_score

import fedsmall
from fedsmall.data.sources.pool import NOWHERE
from fedsmall.package import export as exporting
from fedsmall.package.predictor import predictor_of
from fedsmall.sim.api import Result
from fedsmall.sim.report.outcomes import grades
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import Scenario
from tests.sim.engines import test_outcomes as sources

X, Y = (getattr(sources.grades(None, 0).train[NOWHERE], name) for name in ("x", "y"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graded")
    with (folder / "graded.csv").open("w", newline="") as file:
        rows = [[*row, sources.GRADES[grade]] for row, grade in zip(X.tolist(), Y, strict=True)]
        csv.writer(file).writerows([[*sources.FEATURES, "grade"], *rows])
    scenario = Scenario(
        name="graded",
        task={"csv": str(folder / "graded.csv"), "target": "grade", "order": list(sources.GRADES)},
        model="proportional",
        sites=6,
        samples_per_site=12,
        rounds=20,
        seeds=[0, 1],
        recipe={"lr": 0.3},
        method=[{"name": "Standalone"}, {"name": "FedAvg"}, {"name": "FedDC"}, {"name": "Central"}],
    )
    return execute(scenario, folder / "run")


def first_of(run):
    return next(one for one in run.done if one.label == "FedDC" and one.plan.seed == 0)


@pytest.mark.thorough
def test_what_is_shown_is_what_the_run_measured_and_what_scikit_learn_finds(run):
    shown, said = grades(read(run.folder)), run.predictions_of(first_of(run))

    told, called = {each.name: each.of_samples for each in shown.worth}, said["probabilities"].argmax(axis=1)
    common = first_of(run).row["common"]
    kappa = cohen_kappa_score(said["labels"], called, weights="quadratic")
    assert told["quadratic weighted kappa"].value == pytest.approx(common["kappa"]) == pytest.approx(kappa)
    assert told["mean absolute error, in grades"].value == pytest.approx(common["mae"])
    assert told["share called right"].value == pytest.approx(common["accuracy"])
    recalls = recall_score(said["labels"], called, average=None)
    assert [each.value for name, each in told.items() if name.startswith("recall of")] == pytest.approx(recalls)
    assert all(each.of_seeds.n == 2 for each in shown.worth)
    assert all(drawn.data.count("\n") > 3 for drawn in shown.figures)


@pytest.mark.thorough
def test_classes_without_an_order_have_no_such_part(run):
    other = read(run.folder)
    other.about["task"]["loss"] = "cross_entropy"

    assert grades(other) is None


def test_the_trivial_row_has_no_kappa_and_names_the_commonest(run):
    least = first_of(run).row["trivial"]

    assert least["common"]["kappa"] == 0
    assert least["class"] == np.bincount(Y).argmax()


def test_a_package_gives_each_grade_a_probability(run):
    model = predictor_of(run.packages_of(first_of(run)))

    p = model.predict_proba(X)

    np.testing.assert_allclose(p.sum(axis=1), 1)
    places = [list(model.classes_).index(name) for name in sources.GRADES]
    assert cohen_kappa_score(Y, p[:, places].argmax(axis=1), weights="quadratic") > 0.5
    np.testing.assert_array_equal(model.predict(X), model.classes_[p.argmax(axis=1)])


def test_predictions_in_python_have_a_column_for_each_grade(run, tmp_path):
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([sources.FEATURES, *X[:3].tolist()])

    table = Result(run).predict(tmp_path / "new.csv")

    assert list(table.columns)[:5] == ["class", "p_no", "p_mild", "p_severe", "p_worst"]
    np.testing.assert_allclose(table.iloc[:, 1:5].sum(axis=1), 1)
    assert set(table["class"]) <= set(sources.GRADES)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("form", ["torchscript", "onnx"])
def test_a_file_for_other_programs_says_the_same(run, form, tmp_path):
    stored = run.packages_of(first_of(run))[0]
    exporting.export(stored, tmp_path / "model", form)

    if form == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "model"))
        said, told = session.run(None, {"x": X.astype(np.float32)})[0], session.get_modelmeta().custom_metadata_map
    else:
        extra = {"fedsmall": ""}
        said = torch.jit.load(str(tmp_path / "model"), _extra_files=extra)(torch.from_numpy(X)).numpy()
        told = json.loads(extra["fedsmall"])

    np.testing.assert_allclose(said, predictor_of([stored]).answers(X).together, atol=1e-6)
    assert json.loads(told["classes"]) == list(sources.GRADES)


def test_the_card_says_which_grades_there_are(run):
    folder = next((run.folder / "packages").glob("*FedDC-seed0"))

    assert "They are grades, from no to worst." in (folder / "README.md").read_text()
    assert fedsmall.load(folder).package.loss == "ordinal"
