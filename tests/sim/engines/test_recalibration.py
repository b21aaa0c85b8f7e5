"""Recalibration on samples that a model has not seen: the run's numbers, its package and its exports are one model."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from fedsmall import run
from fedsmall.errors import PlanError
from fedsmall.evaluation.clinical import recalibrate, recalibration_of
from fedsmall.methods import method
from fedsmall.package import export, store
from fedsmall.package.predictor import predictor_of, with_prevalence
from fedsmall.plan import Plan
from fedsmall.planning.validation import check_real_sites
from fedsmall.sim.api import Result
from fedsmall.sim.report.model import clinical, clinical_sections

SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "rounds": 60,
    "recipe": {"lr": 0.5},  # learns by heart
    "progress": False,
}
WIDTH = 20


def patients(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = (np.arange(count) % 3 == 0).astype(int)
    return rng.normal(size=(count, WIDTH)) + 0.4 * y[:, None], y


def result_of(method: Any = "FedDC", **settings: Any) -> Result:
    rng = np.random.default_rng(0)
    held = {f"site-{k}": patients(30, rng) for k in range(4)}
    return run(sites=held, test=patients(500, rng), methods=[method], **SETTINGS | settings)


TABLE = pandas.DataFrame({"x0": np.arange(80.0), "x1": np.arange(80.0) ** 2})
ROWS = patients(9, np.random.default_rng(1))[0]


def test_it_is_a_logistic_regression_on_the_log_odds() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    positive = rng.random(400) < expit(0.4 + 0.5 * x)
    found = recalibration_of(expit(x), positive)
    oracle = LogisticRegression(C=np.inf, tol=1e-10).fit(x[:, None], positive)
    assert found == pytest.approx((oracle.intercept_[0], oracle.coef_[0, 0]), abs=1e-6)
    assert recalibrate(expit(x), *found) == pytest.approx(oracle.predict_proba(x[:, None])[:, 1], abs=1e-6)


@pytest.mark.parametrize("sign", [-1.0, 0.0])
def test_a_model_that_tells_nothing_is_left_as_it_is(sign: float) -> None:
    positive = np.arange(40) % 3 == 0
    noise = np.sin(np.arange(40))
    assert recalibration_of(expit(sign * (positive + noise)), positive) is None
    assert recalibration_of(np.full(4, 0.3), np.zeros(4, dtype=bool)) is None


@pytest.mark.parametrize("stop", [None, pytest.param({"patience": 3, "hold_out": 0.4}, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("loss", ["cross_entropy", pytest.param("logistic", marks=pytest.mark.thorough)])
def test_tables_packages_and_exports_are_the_recalibrated_model(tmp_path: Path, stop: Any, loss: str) -> None:
    more = {"task": {"name": "arrays", "loss": loss}} | ({} if stop is None else {"stop": stop, "evaluate_every": 5})
    result, plain = result_of(recalibrate=True, threshold="youden", **more), result_of(**more)
    (ended,), (before,) = result.run.done, plain.run.done
    found, predictions = ended.row["recalibration"], result.run.predictions_of(ended)
    numbers = found["intercept"], found["slope"]
    assert found["common"] == before.row["common"]
    assert ended.row["common"]["auc"] == before.row["common"]["auc"]
    if stop is None:  # by heart: far too sure of itself
        assert found["slope"] < 0.7
        assert ended.row["common"]["loss"] < 0.8 * found["common"]["loss"]
    p, y = predictions["probabilities"], predictions["labels"]
    assert -np.log(p[np.arange(len(y)), y]).mean() == pytest.approx(ended.row["common"]["loss"], rel=1e-6)

    shifted = recalibrate(plain.predictor().predict_proba(ROWS)[:, 1], *numbers)
    predictor = result.predictor()
    assert predictor.predict_proba(ROWS)[:, 1] == pytest.approx(shifted, abs=1e-6)
    assert predictor.package.threshold == ended.row["thresholds"]["youden"]
    assert predictor.predict(ROWS).tolist() == (shifted > predictor.package.threshold).astype(int).tolist()

    store.save(tmp_path / "kept", *predictor.stored[0])
    assert store.read(tmp_path / "kept").package.recalibration == numbers
    export.export(predictor.stored[0], tmp_path / "model.pt", "torchscript")  # which holds it against the package
    shown = clinical(result.run)
    assert shown is not None
    assert f"{found['common']['loss']:.4f} before" in str(clinical_sections(shown))
    assert "recalibrate = true" not in str(clinical_sections(shown))


def test_a_page_whose_calibration_is_off_offers_it() -> None:
    shown = clinical(result_of().run)
    assert shown is not None
    assert "recalibrate = true" in str(clinical_sections(shown))


@pytest.mark.parametrize("each", [1, 2, 3])
def test_too_few_patients_leave_the_model_as_it_is_and_its_card_says_so(each: int) -> None:
    rng = np.random.default_rng(0)
    held = {f"site-{k}": patients(each, rng) for k in range(2)}
    result = run(sites=held, test=patients(50, rng), methods=["FedAvg"], recalibrate=True, **SETTINGS | {"rounds": 2})
    (stored,) = result.run.packages_of(result.run.done[0])
    assert stored.package.recalibration is None
    assert any("Not recalibrated" in note for note in stored.package.notes)


def test_another_prevalence_moves_the_recalibrated_log_odds() -> None:
    stored = result_of(recalibrate=True).predictor().stored[0]
    moved = with_prevalence(stored, 0.05)
    before, after = (predictor_of([one]).predict_proba(ROWS)[:, 1] for one in (stored, moved))
    assert logit(after) - logit(before) == pytest.approx(np.full(9, logit(0.05) - logit(1 / 3)), abs=1e-5)


def test_members_of_an_ensemble_are_recalibrated_alike() -> None:
    method = {"name": "TravellingEnsemble", "permute_every": 1, "models": 3}
    result, plain = result_of(method, recalibrate=True), result_of(method)
    found = result.run.done[0].row["recalibration"]
    answers, before = result.predictor().answers(ROWS), plain.predictor().answers(ROWS)
    assert answers.each.shape[0] == 3
    expected = recalibrate(before.each[..., 1], found["intercept"], found["slope"])
    assert answers.each[..., 1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "digits"},
        {"task": {"name": "breast_cancer", "loss": "hinge"}},
        {"task": {"csv": TABLE, "target": "x0"}},
        {"methods": [{"name": "Ridge", "regression": {"intercepts": "hospital"}}]},
        {"methods": [{"name": "FedAvg", "intercepts": "hospital"}]},
    ],
)
def test_it_is_refused_where_it_means_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="recalibrate is for two classes"):
        run(**{"task": "breast_cancer", "sites": 4, "methods": ["FedDC"], "recalibrate": True, **SETTINGS, **wrong})


def test_real_sites_send_no_predictions_to_go_by() -> None:
    plan = Plan(name="p", task="t", rounds=4, recalibrate=True, method=method("FedAvg"))

    with pytest.raises(PlanError, match="recalibrate goes by single predictions"):
        check_real_sites(plan)
    check_real_sites(plan.model_copy(update={"recalibrate": False}))
