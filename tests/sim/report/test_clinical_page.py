"""The clinical half of the page: read from the page itself, and held to scikit-learn's on the saved predictions."""

import base64
import re
import shutil
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import calibration, metrics

from fedsmall.evaluation.clinical import precision_recall, roc
from fedsmall.sim import run
from fedsmall.sim.report.curves import corners
from fedsmall.sim.report.html import page
from fedsmall.sim.report.model import clinical
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.merge import merge
from tests.sim.report.test_html import Nesting

SITES, CLASSES = ("bonn", "essen", "graz"), ["well", "ill"]


def hospitals(classes: int = 2, each: int = 60) -> dict:
    rng = np.random.default_rng(1)
    made = {}
    for name in SITES:
        x = rng.normal(size=(each, 4))
        score = x[:, 0] + 0.8 * rng.normal(size=each)
        made[name] = (x, np.digitize(score, np.linspace(-0.5, 0.9, classes - 1) if classes > 2 else [0.6]))
    return made


def made(tmp_path, **settings):
    asked = {"methods": ["Standalone", "FedAvg", "FedDC", "Central"], "model": "linear", "rounds": 8} | settings
    asked = {"task": {"name": "arrays", "classes": [0, 1]}} | asked if "task" not in asked else asked
    return run(out=tmp_path / "run", progress=False, seeds=[3, 4, 5, 6, 7], **asked).run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made(folder := tmp_path_factory.mktemp("clinical"), sites=hospitals(), threshold="youden")
    return folder / "run"


class Tables(HTMLParser):
    """The cells of every table, under the heading that stands before it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._heading, self._in, self._text = "", "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("h3", "td"):
            self._in, self._text = tag, ""
        if tag == "tr":
            self.rows.setdefault(self._heading, []).append([])
        if tag in ("br", "small"):
            self._text += " "

    def handle_data(self, data):
        self._text += data if self._in else ""

    def handle_endtag(self, tag):
        if tag == "h3":
            self._heading = self._text
        if tag == "td":
            self.rows[self._heading][-1].append(" ".join(self._text.split()))
        if tag in ("h3", "td"):
            self._in = ""


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", cell)]


@pytest.fixture(scope="module")
def shown(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    with np.load(folder / "predictions.npz") as file:
        saved = {name: file[name] for name in file}
    return text, {title: [r for r in rows if r] for title, rows in Tables(text).rows.items()}, saved


@pytest.mark.thorough
def test_errors_at_every_threshold_are_scikit_learns(shown, folder):
    _, tables, saved = shown
    p, y = saved["FedDC/3/probabilities"][:, 1], saved["FedDC/3/labels"]
    found = next(one for one in read(folder).done if one.label == "FedDC" and one.plan.seed == 3).row["thresholds"]
    rows = tables["Model at thresholds"]

    assert len(rows) == 3
    for row, threshold in zip(rows, (found["youden"], 0.5, found["sensitivity"]), strict=True):
        called = p >= threshold
        assert numbers(row[0])[0] == pytest.approx(threshold, abs=6e-4)
        expected = (
            metrics.recall_score(y, called),
            metrics.recall_score(y, called, pos_label=0),
            metrics.precision_score(y, called),
            metrics.precision_score(y, called, pos_label=0),
        )
        for cell, value in zip(row[1:], expected, strict=True):
            share, low, high, hits, of = numbers(cell)
            assert share == pytest.approx(100 * value, abs=0.051)
            assert hits / of == pytest.approx(value)
            assert 0 <= low <= share <= high <= 100
    matrix = metrics.confusion_matrix(y, p >= found["youden"])
    assert [list(map(int, row[1:3])) for row in tables["The model that is shown"]] == matrix.tolist()


@pytest.mark.thorough
def test_ranking_and_calibration_are_scikit_learns_by_samples_and_over_seeds(shown):
    _, tables, saved = shown
    each = [(saved[f"FedDC/{seed}/probabilities"][:, 1], saved[f"FedDC/{seed}/labels"]) for seed in (3, 4, 5, 6, 7)]

    def ece(y, p):
        observed, predicted = calibration.calibration_curve(y, p, n_bins=10)
        counts = np.histogram(p, np.linspace(0, 1, 11))[0]
        return float((counts[counts > 0] / len(p) * abs(observed - predicted)).sum())

    statistics = (metrics.roc_auc_score, metrics.average_precision_score, metrics.brier_score_loss, ece)
    for row, statistic in zip(tables["Discrimination and calibration"], statistics, strict=False):
        values = [statistic(y, p) for p, y in each]
        value, low, high = numbers(row[1])
        assert value == pytest.approx(values[0], abs=6e-4)
        assert low <= value <= high
        mean, low, high = numbers(row[2])
        assert mean == pytest.approx(np.mean(values), abs=6e-4)
        assert low <= mean <= high


def test_every_hospital_is_scikit_learns_by_its_name(shown):
    _, tables, saved = shown
    p, y, sites = (saved[f"FedDC/3/{name}"] for name in ("probabilities", "labels", "sites"))
    rows = tables["Hospital by hospital"]

    assert [row[0] for row in rows] == list(SITES)
    for row in rows:
        here = sites == row[0]
        assert [int(row[1]), int(row[2])] == [here.sum(), y[here].sum()]
        assert numbers(row[3])[0] == pytest.approx(metrics.roc_auc_score(y[here], p[here, 1]), abs=6e-4)


def test_the_data_behind_the_curves_are_scikit_learns(shown):
    text, _, saved = shown
    files = dict(re.findall(r'download="([^"]+)" href="data:text/csv;base64,([^"]+)"', text))
    p, y = saved["FedDC/3/probabilities"][:, 1], saved["FedDC/3/labels"]

    assert set(files) == {"roc.csv", "pr.csv", "decisions.csv", "calibration.csv", "methods.csv"}
    lines = base64.b64decode(files["roc.csv"]).decode().splitlines()
    mine = np.array([line.split(",")[3:] for line in lines if line.startswith("FedDC,0,")], float)
    false, true, _ = metrics.roc_curve(y, p, drop_intermediate=False)
    assert {tuple(point) for point in mine[:, 1:].round(4)} <= set(zip(false.round(4), true.round(4), strict=True))
    assert metrics.auc(*mine[:, 1:].T) == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-5)


@pytest.mark.parametrize("curve", [roc, precision_recall])
@pytest.mark.parametrize("samples", [1, 2, 3, 400])
def test_a_curve_without_the_points_on_its_straight_lines_is_the_same_curve(curve, samples):
    rng = np.random.default_rng(samples)
    positive = rng.random(samples) < 0.4
    whole = curve((rng.random(samples) + positive).round(2), positive)

    few = corners(whole)

    assert np.trapezoid(few.y, few.x) == pytest.approx(np.trapezoid(whole.y, whole.x))
    assert {*zip(*few, strict=True)} <= {*zip(*whole, strict=True)}
    assert (few.x[0], few.y[-1]) == (whole.x[0], whole.y[-1])
    assert len(few.x) < 0.7 * len(whole.x) or samples < 400


@pytest.mark.parametrize("curve", [roc, precision_recall])
def test_a_curve_of_very_many_samples_is_drawn_by_points_that_a_picture_shows(curve):
    rng = np.random.default_rng(0)
    positive = rng.random(60_000) < 0.4
    whole = curve(rng.normal(size=60_000) + positive, positive)

    few = corners(whole)

    assert len(few.x) < 3000 < 0.1 * len(whole.x)
    assert np.trapezoid(few.y, few.x) == pytest.approx(np.trapezoid(whole.y, whole.x), abs=5e-4)
    assert {*zip(*few, strict=True)} <= {*zip(*whole, strict=True)}
    assert (few.x[0], few.y[-1]) == (whole.x[0], whole.y[-1])


def test_who_took_part_is_counted_by_class(shown):
    _, tables, _ = shown

    for name, row in zip(SITES, tables["Participants"], strict=True):
        y = hospitals()[name][1]
        cells = [int(cell) for cell in row[1:]]
        assert row[0] == name
        assert cells[0] + cells[3] == len(y)
        assert cells[2] + cells[5] == y.sum()
        assert cells[0] == cells[1] + cells[2]


def test_the_page_names_question_classes_and_parts(shown):
    text, _, _ = shown

    assert "The model predicts the probability of <b>1</b>" in text
    assert "judged by auc" in unescape(text).lower()
    links = re.findall(r"<nav>.*?</nav>", text)[-1]
    targets = re.findall(r'href="#([^"]+)"', links)
    assert len(targets) >= 9
    assert all(f'id="{target}"' in text for target in targets)
    assert "not answered here" in text
    assert text.count("TRIPOD+AI") >= 2


@pytest.mark.thorough
def test_several_classes_are_shown_each_against_the_rest(tmp_path):
    asked = {"name": "arrays", "classes": [0, 1, 2]}
    whole = made(tmp_path, sites=hospitals(3), task=asked, methods=["FedDC"])
    text = page([whole], "three")
    tables = Tables(text).rows
    told = whole.predictions_of(whole.done[0])
    p, y = told["probabilities"], told["labels"]

    rows = [row for row in tables["Discrimination and calibration"] if row and row[1] == "ROC-AUC"]
    assert [numbers(row[2])[0] for row in rows] == pytest.approx(
        [metrics.roc_auc_score(y == label, p[:, label]) for label in range(3)], abs=6e-4
    )
    matrix = [list(map(int, row[1:4])) for row in tables["The model that is shown"] if row]
    assert matrix == metrics.confusion_matrix(y, p.argmax(axis=1)).tolist()
    assert "Model at thresholds" not in tables
    parser = Nesting()
    parser.feed(text)
    assert parser.open == []


@pytest.mark.thorough
def test_folds_are_shown_together_each_on_what_it_has_not_seen(tmp_path):
    whole = made(tmp_path, sites=hospitals(each=30), folds=3, methods=["FedDC"])

    shown = clinical(whole)

    assert shown.folds == 3
    assert len(shown.predictions.y) == 90


@pytest.mark.thorough
def test_a_number_in_the_scenario_is_the_chosen_threshold(tmp_path):
    whole = made(tmp_path, sites=hospitals(), threshold=0.25, methods=["FedDC"])

    assert clinical(whole).thresholds[0] == ("as the scenario says", 0.25)


@pytest.mark.thorough
def test_an_older_folder_opens_in_report_and_compare(folder, tmp_path, fedsmall):
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / "predictions.npz").unlink()
    rows = (old / "summary.json").read_text()
    (old / "summary.json").write_text(re.sub(r',\s*"thresholds": \{[^}]*\}', "", rows))
    for name, pattern in (
        ("run.json", r'\s*"class_counts": \{.*?\n \},'),
        ("scenario.toml", r"(metric|threshold) = .*\n"),
    ):
        (old / name).write_text(re.sub(pattern, "", (old / name).read_text(), flags=re.DOTALL if "json" in name else 0))
    plans = re.sub(r'\s*"(metric|threshold)": [^\n]*', "", (old / "plans.json").read_text())
    (old / "plans.json").write_text(plans)

    code, said, complained = fedsmall("report", old)
    assert (code, complained) == (0, "")
    assert "accuracy" in said
    text = (old / "report.html").read_text()
    assert "holds no predictions of classes" in text
    assert fedsmall("compare", old, folder, "--out", "beside")[0] == 0


@pytest.mark.thorough
def test_a_comparison_has_the_clinical_half_too(folder):
    both = merge([read(folder), read(folder)])

    text = page(both, "compared")

    assert "Hospital by hospital" in text
    assert "FedDC (run)" in text
