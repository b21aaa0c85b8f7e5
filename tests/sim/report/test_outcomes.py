"""Runs that predict numbers and times, from the folder to the page, to new rows, and to files of other programs."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedsmall
from fedsmall.data.sources.pool import NOWHERE
from fedsmall.evaluation.statistics import interval
from fedsmall.package import export as exporting
from fedsmall.package.predictor import Labeller, Regressor, SurvivalModel, predictor_of
from fedsmall.sim.api import Result
from fedsmall.sim.report.html import page, tripod, write_report
from fedsmall.sim.report.model import LEAST
from fedsmall.sim.report.outcomes import outcome
from fedsmall.sim.report.tables import scale_of
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import Scenario
from tests.sim.engines import test_outcomes as sources
from tests.sim.report.test_html import Nesting

KINDS = {"numbers": sources.numbers, "times": sources.times, "labels": sources.labels}
NAMES = ("edema", "effusion")
TITLES = {"The question", "Participants", "What is in the data", "The model that is shown", "Hospital by hospital"}
TITLES |= {"Model at thresholds", "Discrimination and calibration", "Use the model", "How to read this"}


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(kind, tmp_path_factory):
    scenario = Scenario(
        name=kind,
        task={"source": f"{sources.__name__}:{kind}"},
        model=sources.KINDS[kind],
        sites=6,
        samples_per_site=10,
        rounds=8,
        seeds=[0, 1],
        recipe={"lr": 1.0 if kind == "labels" else 0.2},
        method=[{"name": "Standalone"}, {"name": "FedAvg"}, {"name": "FedDC"}, {"name": "Central"}],
    )
    return execute(scenario, tmp_path_factory.mktemp("runs") / kind)


def rows_of(kind):
    return KINDS[kind](None, 0).train[NOWHERE].x


@pytest.mark.thorough
def test_the_page_shows_the_model_of_an_outcome_and_no_threshold(run, kind):
    html = page([read(run.folder)], kind)

    parser = Nesting()
    parser.feed(html)
    assert parser.open == []
    words = {"numbers": "Bland &amp; Altman 1986", "times": "Kaplan-Meier", "labels": "effusion: average precision"}[
        kind
    ]
    assert words in html
    assert "keep this page as you keep those" in html
    assert "Model at thresholds</h3>" not in html
    assert "There is no confusion matrix" not in html
    assert f'href="#run-{kind}-model"' in html


@pytest.mark.thorough
def test_tripod_names_what_stands_on_the_page_and_all_that_does(run, kind):
    html = page([read(run.folder)], kind)
    shown = outcome(read(run.folder))

    answers = {item.number: item.answer for item in tripod(run, None, shown)}

    assert {answers[number] for number in ("12e", "12g")} == {"The model that is shown"}
    assert answers["13"] == "No classes are predicted"
    assert answers["23b"] == ("Hospital by hospital" if shown.sites else "")
    named = {part for answer in answers.values() for part in re.split("; |: ", answer)} & TITLES
    assert {"The model that is shown", "Use the model"} <= named
    assert not {title for title in named if not re.search(f"<h[23][^>]*>{title}</h[23]>", html)}


@pytest.mark.thorough
def test_what_is_shown_is_what_the_run_measured(run, kind):
    shown = outcome(read(run.folder))
    first = next(one for one in run.done if one.label == "FedDC" and one.plan.seed == 0)

    told = {each.name: each for each in shown.worth}
    pairs = {
        "numbers": {"mean absolute error": "mae", "R2": "r2", "root mean squared error": "rmse"},
        "times": {"concordance index (Harrell)": "c_index", "integrated Brier score": "ibs"},
        "labels": {
            "ROC-AUC, the mean over labels": "auc",
            "F1, the mean over labels": "macro_f1",
            "share of samples of which all labels are right": "subset_accuracy",
            "share of all labels that are right": "label_accuracy",
        },
    }[kind]
    for words, metric in pairs.items():
        assert told[words].of_samples.value == pytest.approx(first.row["common"][metric], abs=1e-6)
        assert told[words].of_samples.low < told[words].of_samples.value < told[words].of_samples.high
        assert told[words].of_seeds.n == 2
        measured = [one.row["common"][metric] for one in run.done if one.label == "FedDC"]
        expected = interval(measured, scale=scale_of(metric))  # as the table of methods has it, within what can be
        shown_ends, ends = ((of.low, of.high) for of in (told[words].of_seeds, expected))
        assert shown_ends == pytest.approx(ends, rel=1e-4, nan_ok=True)
    assert (shown.label, shown.seed, shown.seeds) == ("FedDC", 0, 2)
    assert all(drawn.data.count("\n") > 1 for drawn in shown.figures)


def test_the_trivial_row_looks_at_no_sample(run, kind):
    least = run.done[0].row["trivial"]

    words = {"numbers": "always the mean", "times": "one curve for all", "labels": "each label's share"}
    assert least["label"] == words[kind]
    assert least["common"].get("auc", 0.5) == 0.5
    assert least["common"].get("c_index", 0.5) == 0.5
    assert least["common"].get("r2", 0) <= 0
    assert "class" not in least


def test_a_package_predicts_in_the_unit_of_the_outcome(run, kind):
    one = next(one for one in run.done if one.label == "FedDC")
    stored = run.packages_of(one)[0]
    model = predictor_of([stored])

    said = model.predict(rows_of(kind))

    if kind == "labels":
        assert isinstance(model, Labeller)
        truth, p = KINDS[kind](None, 0).train[NOWHERE].y, model.predict_proba(rows_of(kind))
        assert said.shape == p.shape == (120, 2)
        assert list(model.labels_) == list(NAMES)
        np.testing.assert_array_equal(said, p > 0.5)
        assert [roc_auc_score(*pair) > 0.75 for pair in zip(truth.T, p.T, strict=True)] == [True] * 2
        return
    assert said.shape == (120,)
    if kind == "numbers":
        assert isinstance(model, Regressor)
        assert np.corrcoef(said, KINDS[kind](None, 0).train[NOWHERE].y[:, 0])[0, 1] > 0.9
        assert said.mean() == pytest.approx(60, abs=10)
    else:
        assert isinstance(model, SurvivalModel)
        assert model.predict_survival(rows_of(kind)).shape == (120, 4)
        assert (said > 0).all()
        assert (said < model.times_[-1]).all()


def test_seeds_answer_together_at_the_times_of_the_first(run, kind):
    stored = [run.packages_of(one)[0] for one in run.done if one.label == "FedDC"]

    both, alone = predictor_of(stored), predictor_of(stored[:1])

    answers = both.answers(rows_of(kind))
    assert answers.each.shape[0] == 2
    np.testing.assert_allclose(answers.together, answers.each.mean(axis=0))
    np.testing.assert_allclose(answers.each[0], alone.answers(rows_of(kind)).together)
    assert (answers.spread > 0).all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("form", ["torchscript", "onnx"])
def test_a_file_for_other_programs_says_the_same(run, kind, form, tmp_path):
    stored = run.packages_of(next(one for one in run.done if one.label == "FedDC"))[0]
    exporting.export(stored, tmp_path / "model", form)

    x = rows_of(kind)
    if form == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "model"))
        said, told = session.run(None, {"x": x.astype(np.float32)})[0], session.get_modelmeta().custom_metadata_map
    else:
        extra = {"fedsmall": ""}
        model = torch.jit.load(str(tmp_path / "model"), _extra_files=extra)
        said, told = model(torch.from_numpy(x)).numpy(), json.loads(extra["fedsmall"])

    expected = predictor_of([stored]).answers(x).together
    np.testing.assert_allclose(said, expected, atol=1e-5 * np.abs(expected).max())
    assert told["target"] == {"numbers": "age", "times": "months", "labels": ", ".join(NAMES)}[kind]
    assert len(json.loads(told["times"])) == (4 if kind == "times" else 0)
    assert tuple(json.loads(told["labels"])) == (NAMES if kind == "labels" else ())


def test_the_card_says_what_is_predicted(run, kind):
    folder = next((run.folder / "packages").glob("*FedDC-seed0"))

    card = (folder / "README.md").read_text()

    assert ("tabular-classification" if kind == "labels" else "tabular-regression") in card
    words = {
        "numbers": "It predicts **age**, a number",
        "times": "It predicts **months** until died",
        "labels": "It predicts each of **edema**, **effusion** by itself",
    }[kind]
    assert words in card
    assert all(f"`{name}`" in card for name in fedsmall.load(folder).package.target.split(", "))


def test_predictions_in_python_have_named_columns(run, kind, tmp_path):
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([sources.FEATURES, *rows_of(kind)[:3]])

    table = Result(run).predict(tmp_path / "new.csv")

    first = {"numbers": "age", "times": "mean_months", "labels": "p_edema"}[kind]
    assert table.columns[0] == first
    assert len(table) == 3
    assert np.isfinite(table[first]).all()


@pytest.mark.thorough
def test_hospitals_with_few_samples_are_not_shown(run):
    shown = outcome(run)

    assert all(samples >= LEAST for _, samples, _ in shown.sites)


@pytest.mark.thorough
def test_a_report_is_written_anew_from_the_folder_alone(run, kind, tmp_path):
    path = write_report(tmp_path, [read(run.folder)], kind)

    assert path.read_text(encoding="utf-8").count("<svg") >= 5
