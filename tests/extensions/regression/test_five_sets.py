"""Regressions over a stack, over messages and from real sites' own programs in secure sums are fits of pooled rows."""

import json
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as PooledRidge
from sklearn.metrics import roc_auc_score

from fedsmall.data.federation import Federation, Samples
from fedsmall.extensions.regression import model as form
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import among
from fedsmall.privacy.patient_level import noise_for
from fedsmall.randomness import rng_for
from fedsmall.sim.consortium import keys, members
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies.server.handshake import SCALING_FILE
from tests.sim.consortium.desk import NAMES, Desk
from tests.sim.engines.harness import assert_equal_bits


class Fitted(NamedTuple):
    """A table with its ``outcome``, the penalty, and pooled coefficients (K, p), the constant last."""

    frame: pandas.DataFrame
    outcome: str
    penalty: float
    pooled: Any


def by_scikit_learn(penalty: float) -> Any:
    def pooled(train: Samples) -> np.ndarray:
        x = train.x.astype(float)
        if train.y.dtype.kind == "f":
            known = PooledRidge(alpha=penalty).fit(x, train.y.astype(float).ravel())
            return np.atleast_2d(np.r_[known.coef_, known.intercept_])
        known = LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(x, train.y)
        return np.c_[known.coef_, known.intercept_]

    return pooled


def by_statsmodels(train: Samples) -> np.ndarray:
    discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
    linear = pytest.importorskip("statsmodels.regression.linear_model")
    x, y = np.c_[train.x.astype(float), np.ones(len(train))], train.y.astype(float).ravel()
    if train.y.dtype.kind == "f":
        return np.atleast_2d(linear.OLS(y, x).fit().params)
    return np.atleast_2d(discrete.Logit(y, x).fit(disp=0, method="newton", tol=1e-12).params)


def affairs() -> pandas.DataFrame:
    datasets = pytest.importorskip("statsmodels.datasets")
    frame = datasets.fair.load_pandas().data.sample(400, random_state=0)
    return frame.assign(affairs=(frame["affairs"] > 0).astype(int))


SETS = {
    "breast cancer": lambda: Fitted(load_breast_cancer(as_frame=True).frame, "target", 1.0, by_scikit_learn(1.0)),
    "wine": lambda: Fitted(load_wine(as_frame=True).frame, "target", 0.5, by_scikit_learn(0.5)),
    "iris": lambda: Fitted(load_iris(as_frame=True).frame, "target", 2.0, by_scikit_learn(2.0)),
    "diabetes": lambda: Fitted(load_diabetes(as_frame=True).frame, "target", 0.0, by_statsmodels),
    "affairs (Fair 1978)": lambda: Fitted(affairs(), "affairs", 0.0, by_statsmodels),
}


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Desk:
    """Three sites, all with an identity."""
    made = Desk(tmp_path, monkeypatch)
    for name in NAMES:
        site = made.site(name)
        public = site.key.with_name("site.key.pub")
        keys.new_identity(site.identity)
        keys.tell_identity(public, site.identity)
        members.add_site(made.folder, name, public, days=90)
        (site.kit / "policy.toml").write_text("")
    return made


def plan_over(desk: Desk, of: Fitted) -> Plan:
    """The plan of a regression in secure sums, once the rows are dealt to the sites' files."""
    order = rng_for(0, "deal").permutation(len(of.frame))
    for rows, name in zip(np.array_split(order, len(NAMES)), NAMES, strict=True):
        of.frame.iloc[rows].to_csv(desk.data[name], index=False)
    classes = sorted(map(int, of.frame[of.outcome].unique()))
    asked = {"label": of.outcome, "classes": classes} if len(classes) < 9 else {"target": of.outcome}
    return plan_of(desk, asked, {"penalty": of.penalty})


def plan_of(desk: Desk, asked: dict[str, Any], regression: dict[str, Any]) -> Plan:
    """The plan of a regression over the sites' files, in secure sums."""
    scenario = build(
        {
            "name": "sets",
            "task": {"csv": str(desk.data["bonn"].parent), **asked},
            "partition": {"natural": "file"},
            "dtype": "float64",
            "rounds": 40,
            "method": [{"name": "Ridge", "regression": regression, "privacy": {"secure": True}}],
        }
    )
    return scenario.plans()[0]


def agreed_scales(federation: Federation) -> np.ndarray:
    """By what a simulation divides each feature."""
    return np.array(federation.preparation.agreed.scale)


def agreed_scales_of_run(desk: Desk, run: str) -> np.ndarray:
    """By what the real sites of a run divide each feature."""
    kept = json.loads((desk.folder / "runs" / run / SCALING_FILE).read_text())
    return np.array(kept["scale"])


def slopes_of(model: dict[str, np.ndarray]) -> np.ndarray:
    """The coefficients of scaled features, (outcomes, features)."""
    return form.theta_of(model)[0].reshape(model[form.COEFFICIENTS].shape)[:, :-1]


@pytest.mark.parametrize("name", [pytest.param(of, marks=[pytest.mark.slow] * (of != "diabetes")) for of in SETS])
def test_five_sets_have_pooled_coefficients_to_1e_7_over_stack_messages_and_real_sites(name, desk):
    of = SETS[name]()
    plan = plan_over(desk, of)
    federation = build_federation(plan)

    stack, messages = (run_plan(among(plan, 3), federation, engine) for engine in ("cohort", "inprocess"))
    real = desk.run("sets", plan)

    theta = form.theta_of(stack.model)[0].reshape(stack.model[form.COEFFICIENTS].shape)
    pooled = of.pooled(federation.pooled().train[0])
    free = (pooled - theta)[:, -1].mean() if len(theta) > 1 else 0.0  # what all classes' intercepts have in common
    pooled[:, -1] -= free
    assert np.abs(theta - pooled).max() < 1e-7
    assert_equal_bits(stack.model, messages.model)
    scales = agreed_scales(federation), agreed_scales_of_run(desk, "sets")[: federation.task.input_shape[0]]
    if np.array_equal(*scales):
        assert_equal_bits(stack.model, real.model)
    else:  # a hospital tells nothing of a column where few have a value: others scale it, and the slope is the same
        slopes = [slopes_of(model) / scale for model, scale in zip((stack.model, real.model), scales, strict=True)]
        np.testing.assert_allclose(*slopes, atol=1e-7)
    assert stack.rounds == messages.rounds == real.rounds <= 12
    assert stack.bytes_sent == messages.bytes_sent


def hearts() -> pandas.DataFrame:
    """Heart transplants (Miller 1976), as statsmodels ships them; times in steps of 20 days."""
    frame = pytest.importorskip("statsmodels.datasets").heart.load_pandas().data
    return pandas.DataFrame(
        {"age": frame["age"], "time": np.ceil(frame["survival"] / 20 + 0.01), "event": frame["censors"]}
    )


def breast_cancers() -> pandas.DataFrame:
    """The German study group's patients; times in steps of 60 days."""
    x, y = pytest.importorskip("sksurv.datasets").load_gbsg2()
    x = pandas.get_dummies(x, drop_first=True).astype(float)
    return x.assign(time=np.ceil(y["time"] / 60), event=y["cens"].astype(int))


@pytest.mark.parametrize("load", [hearts, pytest.param(breast_cancers, marks=pytest.mark.slow)])
def test_cox_has_efron_s_coefficients_and_errors_by_statsmodels_over_stack_messages_and_real_sites(load, desk):
    hazards = pytest.importorskip("statsmodels.duration.hazard_regression")
    frame = load()
    order = rng_for(0, "deal").permutation(len(frame))
    for rows, name in zip(np.array_split(order, len(NAMES)), NAMES, strict=True):
        frame.iloc[rows].to_csv(desk.data[name], index=False)
    cuts = np.arange(1, frame["time"].max() + 1).tolist()
    plan = plan_of(desk, {"time": "time", "event": "event", "cuts": cuts}, {"cox": True})
    federation = build_federation(plan)

    stack, messages = (run_plan(among(plan, 3), federation, engine) for engine in ("cohort", "inprocess"))
    real = desk.run("cox", plan)

    train = federation.pooled().train[0]
    pooled = hazards.PHReg(train.y[:, 2], train.x.astype(float), train.y[:, 3], ties="efron").fit()
    assert np.abs(form.theta_of(stack.model)[0] - pooled.params).max() < 1e-7
    assert np.abs(np.sqrt(np.diag(stack.model[form.COVARIANCE])) - pooled.bse).max() < 1e-5
    assert_equal_bits(stack.model, messages.model)
    assert_equal_bits(stack.model, real.model)
    hazard = np.cumsum(np.exp(stack.model[form.COEFFICIENTS][:, -1]))  # Breslow's, at the last step's coefficients
    events = np.bincount(train.y[train.y[:, 3] > 0, 2].astype(int), minlength=len(cuts) + 1)[1:]
    risk = np.exp(train.x.astype(float) @ pooled.params)
    at_risk = np.array([risk[train.y[:, 2] >= cut].sum() for cut in cuts])
    known = np.cumsum(np.divide(events, at_risk, out=np.zeros(len(cuts)), where=at_risk > 0))
    assert np.abs(hazard - known).max() < 1e-5


@pytest.mark.slow
def test_real_sites_add_a_share_of_a_secure_sum_s_noise_and_are_charged_for_all_of_it(desk):
    frame = load_breast_cancer(as_frame=True).frame
    plan_over(desk, Fitted(frame, "target", 0.0, by_scikit_learn(1.0)))
    ranges = {name: [float(frame[name].min()), float(frame[name].max())] for name in frame.columns[:-1]}
    plan = plan_of(desk, {"label": "target", "classes": [0, 1], "ranges": ranges}, {})
    privacy = Privacy(level="patient", clip=4.0, epsilon=8.0, secure=True)
    plan = plan.model_copy(update={"method": plan.method.model_copy(update={"privacy": privacy})})

    first, second = (desk.run(name, plan) for name in ("first", "second"))

    rows = build_federation(plan).pooled().train[0]
    for run in (first, second):
        b = run.model[form.COEFFICIENTS][0]
        assert roc_auc_score(rows.y, rows.x @ b[:-1] + b[-1]) > 0.97
    assert (first.model[form.COEFFICIENTS] != second.model[form.COEFFICIENTS]).any()  # nobody can repeat the noise
    for name in NAMES:
        charges = [charge for _, charge in desk.station(name).log.charges()]
        assert [charge.steps for charge in charges] == [1, 1]
        assert charges[0].noise == pytest.approx(noise_for(8.0, 1e-5, 1.0, 1))
