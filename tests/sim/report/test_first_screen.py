"""What a page says first, decisions and recalibration, and the words of the field."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedsmall
from fedsmall.errors import PlanError
from fedsmall.evaluation.clinical import net_benefit, recalibration_intercept, recalibration_slope
from fedsmall.sim import run
from fedsmall.sim.report.html import page, tripod, write_dpia
from fedsmall.sim.report.model import nobody_positive, purpose
from fedsmall.sim.report.terminal import SAID
from fedsmall.sim.runs.folder import read

HOME = Path(fedsmall.__file__).parent.parent
OLD = (  # what no statistician or clinician says
    *("common model", "sites' own models", "who is called what", "none to judge", "observed share", "by test samples"),
    *("who took part", "ranking and calibration", "patients that could be read", "of which the probability is told"),
)


def federation(shift: float = 2.0, threshold: object = None, share: float = 0.5) -> dict:
    rng = np.random.default_rng(0)
    sites = {}
    for name in ("bonn", "essen", "graz"):
        y = (rng.random(40) < share).astype(int)
        sites[name] = (rng.normal(size=(40, 3)) + shift * y[:, None], y)
    return {"sites": sites, "threshold": threshold, "methods": ["Standalone", "FedAvg"], "seeds": [0], "rounds": 5}


@pytest.fixture(scope="module")
def shown():
    return run(progress=False, **federation()).run


def test_the_first_sentence_says_what_the_page_is_and_what_is_missing(shown):
    text = page([shown], "mine")

    first = re.search(r"<h1>mine</h1>\s*(?:<section[^>]*>)?\s*<p class=\"purpose\"><b>([^<]*)", text)
    assert first is not None
    assert first[1].startswith("This is a comparison of methods, not a model for patients.")
    assert "at least 100 test patients" in first[1]


def test_what_the_study_says_fills_items_of_tripod_and_makes_the_page_one_of_a_model_for_patients(tmp_path):
    said = {
        "ethics": "Bonn, 12/26",
        "source": "Charts of 2024",
        "intended_use": "Triage in the ward.",
    }

    made = run(progress=False, out=tmp_path / "mine", study=said, **federation()).run

    kept = read(made.folder)
    answers = {item.number: item.answer for item in tripod(kept, None)}
    assert answers["17"] == said["ethics"]
    assert answers["5a-b"] == said["source"]
    assert answers["6a"].startswith("Participants")
    assert not answers["2"]
    first = purpose(kept)
    assert first.startswith("This is of a model for patients, meant for this: Triage in the ward. It still requires ")
    assert "ethic" not in first
    with pytest.raises(PlanError, match=r"study\.etics"):
        run(progress=False, study={"etics": "yes"}, **federation())


def test_a_figure_and_at_most_three_sentences_stand_before_the_tables(shown):
    text = page([shown], "mine")

    head = text[: text.index("<table")]
    assert head.count("<svg") == 1
    says = re.search(r'<div class="says"[^>]*>(.*?)</div>', head, re.DOTALL)
    assert says is not None
    assert 1 <= says[1].count("<p>") <= 3


def test_a_model_that_calls_nobody_positive_is_warned_of_on_page_and_terminal(shown):
    lame = run(progress=False, **federation(threshold=0.999999)).run

    (warning,) = nobody_positive(lame)

    assert "calls no patient 1 (sensitivity 0 of" in warning
    assert warning.split(";")[0] in page([lame], "mine").replace("&#34;", '"')
    assert nobody_positive in SAID
    assert nobody_positive(shown) == []
    for name, labels in lame.predictions.items():  # where nobody is positive, nobody is right
        labels[:] = 0 if name.endswith("/labels") else labels
    assert nobody_positive(replace(lame)) == []


def test_tables_of_more_than_ten_rows_fold(shown):
    for table in re.finditer(
        r"(<details><summary>A table of (\d+) rows</summary>\s*)?<div class=\"wide\"><table>.*?</table>",
        page([shown], "mine"),
        re.DOTALL,
    ):
        rows = table[0].partition("<tbody>")[2].count("<tr")
        assert (rows > 10) == (table[1] is not None)


def test_a_data_protection_officer_reads_one_screen_and_has_an_annex(shown, tmp_path):
    annex = write_dpia(tmp_path, [shown], "mine").read_text()

    for text in (page([shown], "mine"), annex):
        assert "For the data protection officer" in text
        assert "What can be reconstructed" in text
    assert "Data disclosed by sites" in annex


def test_intercept_and_slope_are_those_of_logistic_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    positive = rng.random(400) < 1 / (1 + np.exp(-(0.4 + 0.7 * x)))
    p = 1 / (1 + np.exp(-x))

    intercept, slope = recalibration_intercept(p, positive), recalibration_slope(p, positive)

    fitted = LogisticRegression(C=np.inf, tol=1e-9).fit(x[:, None], positive)
    assert slope == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
    assert 1 / (1 + np.exp(-(intercept + x))) @ np.ones(400) == pytest.approx(positive.sum())


@pytest.mark.parametrize("p", [[0.1, 0.2, 0.8, 0.9], [0.5, 0.5, 0.5, 0.5]])
def test_a_slope_without_an_end_is_not_a_number(p):
    assert np.isnan(recalibration_slope(np.array(p), np.array([False, False, True, True])))


def test_net_benefit_is_hits_less_false_alarms_at_the_odds_of_the_threshold():
    curve = net_benefit(np.array([0.9, 0.3, 0.6, 0.1]), np.array([True, True, False, False]))

    assert curve.y[np.isclose(curve.x, 0.5)] == pytest.approx(1 / 4 - 1 / 4)
    assert curve.y[np.isclose(curve.x, 0.2)] == pytest.approx(2 / 4 - 1 / 4 * 0.25)
    assert curve.y[np.isclose(curve.x, 0.95)] == 0


def test_no_old_phrase_stands_in_reports_help_or_cards():
    places = [*(HOME / "sim" / "report").rglob("*"), *(HOME / "fedsmall" / "package" / "templates").glob("*")]
    found = [
        (path.name, phrase)
        for path in places
        if path.suffix in (".py", ".html", ".md", ".csv")
        for phrase in OLD
        if phrase in path.read_text().lower()
    ]

    assert found == []


@pytest.mark.parametrize("statistic", [recalibration_intercept, recalibration_slope])
def test_resamples_that_are_fitted_at_once_are_fitted_as_one_by_one(statistic):
    rng = np.random.default_rng(4)
    p, positive = rng.random((30, 12)), rng.random((30, 12)) < 0.3
    positive[3], p[5] = False, 0.5  # one class; equal probabilities

    together = statistic(p, positive)

    np.testing.assert_allclose(together, [statistic(*row) for row in zip(p, positive, strict=True)], rtol=1e-9)
    assert np.isnan(together).sum() in (1, 2, 3, 4)
    assert np.isnan(together[3])
