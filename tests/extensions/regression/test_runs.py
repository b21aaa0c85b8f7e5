"""Regressions as a user has them: every engine, real sites' programs, secure sums, packages, the page, refusals."""

import re
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.linear_model import Ridge as PooledRidge

from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.clients.patients import spent_here
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import DataError, PlanError, ReplyError
from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.model import knots_from
from fedsmall.extensions.regression.newton import Setup
from fedsmall.extensions.regression.noised import share_of, statistics
from fedsmall.extensions.regression.page import inference_of
from fedsmall.extensions.regression.page import table as coefficients
from fedsmall.extensions.regression.trainer import OPEN, NewtonStep, Regressors
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.package.export import export
from fedsmall.package.predictor import predictor_of
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.planning.validation import among, check_plan
from fedsmall.randomness import rng_for
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.trainer import Indices
from tests import ROOT, only_quick
from tests.clients.test_patients import config as site_config
from tests.clients.test_patients import order as site_order
from tests.clients.test_patients import plan_of as site_plan
from tests.clients.test_patients import station_at
from tests.extensions.regression.fits import dealt, fit, inference, rows_of
from tests.sim.engines.harness import assert_equal_bits, federation_of, plan_of
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_stopping import conduct

CENTRAL = method("Ridge", family="central", aggregate_every=None, regression={"penalty": 1.0})
METHODS = ("Ridge", "AdditiveRidge", "RandomFeatureRidge")


def regressed(name: str = "Ridge", regression: dict[str, Any] | None = None, **changes: Any) -> Plan:
    parts = {"privacy": changes.pop("privacy")} if "privacy" in changes else {}
    defaults = {"samples_per_site": 20, "rounds": 30, "dtype": "float32", "model_options": {}, "evaluate_every": None}
    few = {"features": 8} if name == "RandomFeatureRidge" else {}
    settings = {"regression": {"penalty": 1.0, **few, **(regression or {})}, **parts}
    return plan_of(name, settings, **(defaults | changes))


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_engines_and_real_sites_fit_the_same_to_the_bit(name, tmp_path, monkeypatch):
    plan = among(regressed(name), 5)
    federation = federation_of(plan)

    batched, in_process = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))
    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert batched.rounds == in_process.rounds == real.rounds < 15
    assert_equal_bits(batched.model, in_process.model)
    assert_equal_bits(batched.model, real.model)
    assert not real.events


@pytest.mark.parametrize(
    ("name", "local"), [("Ridge", False), ("StandaloneRidge", True), ("TravellingPosterior", True)]
)
def test_sites_that_only_sum_have_no_local_models_to_judge(name, local):
    plan = regressed(name)

    last = run_plan(plan, federation_of(plan), "cohort").evaluations[-1]

    assert bool(last.sites) is plan.method.has_local_models is local
    assert (last.common is None) is (name == "StandaloneRidge")


@pytest.mark.parametrize("penalty", [1.0, "cv"])
def test_a_server_that_is_told_secure_sums_fits_the_same(penalty):
    plan, secure = (
        regressed(regression={"penalty": penalty}, **more) for more in ({}, {"privacy": Privacy(secure=True)})
    )
    federation = federation_of(plan)

    assert_equal_bits(run_plan(plan, federation, "cohort").model, run_plan(secure, federation, "cohort").model)


def test_a_run_has_the_coefficients_of_pooled_scikit_learn_and_ends_when_nothing_moves():
    plan = regressed(regression={"penalty": 3.0})
    federation = federation_of(plan)

    outcome = run_plan(plan, federation, "cohort")

    train = federation.pooled().train[0]
    pooled = LogisticRegression(C=1 / 3.0, solver="newton-cholesky", tol=1e-12).fit(train.x.astype(float), train.y)
    theta = form.theta_of(outcome.model)[0]
    assert np.abs(theta - np.r_[pooled.coef_[0], pooled.intercept_]).max() < 1e-7
    assert 4 < outcome.rounds < 12
    assert outcome.evaluations[-1].t == outcome.rounds
    assert outcome.predictions["probabilities"][:, 1] == pytest.approx(
        pooled.predict_proba(federation.test.x.astype(float))[:, 1], abs=1e-5
    )


def test_standard_errors_come_with_the_last_exchange_whether_the_fit_has_converged_or_not():
    plan = regressed(regression={"penalty": 3.0})
    whole, short = (
        run_plan(of, federation_of(plan), "cohort").model for of in (plan, plan.model_copy(update={"rounds": 5}))
    )

    assert whole[form.STATUS][form.CONVERGED] == 1 != short[form.STATUS][form.CONVERGED]
    assert np.diag(short[form.COVARIANCE]) == pytest.approx(np.diag(whole[form.COVARIANCE]), rel=0.2)


def ended(plan: Plan, task: Task, sites: list[Samples]) -> dict[str, np.ndarray]:
    """The model at the end, by the trainer and the combiner alone."""
    plan = plan.with_model_of(len(sites))
    names = [f"site-{k}" for k in range(len(sites))]
    trainer = Regressors(plan, task, names, sites, Indices.of_all(len(sites)))
    return run_rounds(plan, trainer, lambda _: initial_model(plan, task)).model


def test_numbers_and_grades_are_learnt_too():
    rng = rng_for(0, "numbers")
    x = rng.normal(size=(60, 4)).astype(np.float32)
    number = x[:, :1].astype(float) + rng.normal(size=(60, 1))
    sites = np.array_split(np.arange(60), 4)

    linear = ended(regressed(), Task("t", (4,), 1, loss="mse"), [Samples(x[k], number[k]) for k in sites])
    grades = np.digitize(number[:, 0], [-0.5, 0.5])
    graded = Task("t", (4,), 3, loss="ordinal")
    plan = regressed().with_model_of(4)
    ordinal = ended(regressed(), graded, [Samples(x[k], grades[k]) for k in sites])

    pooled = PooledRidge(alpha=1.0).fit(x.astype(float), number[:, 0])
    assert np.abs(form.theta_of(linear)[0] - np.r_[pooled.coef_, pooled.intercept_]).max() < 1e-7
    state, _ = fit(Setup("ordinal", 5, 2, (1.0,)), dealt(rows_of(x.astype(float), grades, 2), 3))
    assert np.abs(form.theta_of(ordinal)[0] - state.last[0]).max() < 1e-7
    trainer = Regressors(plan, graded, ["a"], [Samples(x, grades)], Indices.of_all(1))
    outputs = trainer.predict_at(0, ordinal, x, {})
    eta = x.astype(float) @ state.last[0, :4] + state.last[0, 4]
    assert np.allclose(outputs[:, 0], eta, atol=1e-5)  # the log-odds of being above the lowest grade


def test_counts_and_times_are_learnt_in_their_own_units():
    rng = rng_for(0, "counts")
    x = rng.normal(size=(90, 2)).astype(np.float32)
    counts = rng.poisson(np.exp(0.5 * x[:, :1] + 1))
    task = Task("t", (2,), 1, loss="mse", unit=(2.0, 4.0))
    sites = [Samples(x[k], (counts[k] - 2.0) / 4.0) for k in np.array_split(np.arange(90), 3)]
    plan = regressed(regression={"counts": True}).with_model_of(3)

    model = ended(plan, task, sites)

    pooled = PoissonRegressor(alpha=1 / 90, solver="newton-cholesky", tol=1e-12).fit(x.astype(float), counts[:, 0])
    assert np.abs(form.theta_of(model)[0] - np.r_[pooled.coef_, pooled.intercept_]).max() < 1e-7
    said = Regressors(plan, task, list("abc"), sites, Indices.of_all(3)).predict_at(0, model, x, {})
    assert np.allclose(said[:, 0] * 4 + 2, pooled.predict(x.astype(float)), rtol=1e-5)
    with pytest.raises(DataError, match="a number here is below 0"):
        ended(plan, task, [Samples(part.x, part.y - 9) for part in sites])


def test_times_until_an_event_have_a_page_with_hazard_ratios(tmp_path):
    pytest.importorskip("sksurv")
    table = {"name": "times", "task": "gbsg2", "sites": 5, "rounds": 20}

    run = execute(build({**table, "method": [{"name": "Ridge", "regression": {"penalty": 1.0}}]}), tmp_path / "run")

    cells = coefficients(run, run.done[0])
    ratio = {row[0].partition(" (by")[0]: row[-1] for row in cells.rows}
    assert cells.heads[-1] == "hazard ratio"
    assert float(ratio["positive_nodes"].split()[0]) > 1.2
    assert float(ratio["hormone_therapy: 1 against 0"].split()[0]) < 0.95
    assert run.done[0].row["common"]["c_index"] > 0.6


def test_who_fits_alone_has_the_fit_of_own_patients_and_who_pools_that_of_all():
    plans = [regressed("StandaloneRidge"), regressed(), regressed("Ridge").model_copy(update={"method": CENTRAL})]
    federation = federation_of(plans[0])

    alone = run_plan(plans[0], federation, "cohort", own_models=True)
    together, central = (run_plan(plan, federation, "cohort", own_models=True) for plan in plans[1:])

    for site, train in zip(federation.names, federation.train, strict=True):
        pooled = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(train.x.astype(float), train.y)
        theta = form.theta_of(alone.own[site])[0]
        assert np.abs(theta - np.r_[pooled.coef_[0], pooled.intercept_]).max() < 1e-7
    assert alone.bytes_sent == 0
    theta = [form.theta_of(model)[0] for model in (together.model, central.own["central"])]
    assert np.abs(theta[0] - theta[1]).max() < 1e-7


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", only_quick([1.0], [1.0, "cv"]))
def test_a_hospital_alone_that_has_one_class_only_counts_one_patient_of_each_other(classes, penalty):
    plan = regressed("StandaloneRidge", {"penalty": penalty}, sites=3)
    federation = federation_of(plan)
    train = (replace(federation.train[0], y=np.zeros_like(federation.train[0].y)), *federation.train[1:])
    task = replace(federation.task, classes=classes, class_names=tuple("abc")[:classes])

    fitted = run_plan(plan, replace(federation, task=task, train=train), "cohort", own_models=True)

    eta = np.c_[train[0].x, np.ones(len(train[0]))] @ fitted.own[federation.names[0]][form.COEFFICIENTS].T
    eta = np.c_[np.zeros(len(eta)), eta] if classes == 2 else eta
    share = softmax(eta, axis=1)[:, 0]
    assert share == pytest.approx(len(eta) / (len(eta) + classes - 1), abs=0.03)


def test_a_run_notes_once_whose_single_sums_can_be_read_and_of_secure_or_lone_regressions_nothing():
    names = {"Ridge": "Ridge", "masked": "Ridge", "twice": "Ridge", "alone": "StandaloneRidge"}
    methods = [{"name": name, "label": label, "regression": {"penalty": 1.0}} for label, name in names.items()]
    methods[1] |= {"privacy": {"secure": True}}

    run = execute(build({"name": "r", "task": "breast_cancer", "sites": 3, "rounds": 2, "method": methods}))

    assert [note.partition(":")[0] for note in run.about["notes"] if OPEN in note] == ["Ridge, twice"]


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    plan = among(regressed(regression={"penalty": "cv"}), 5)
    federation = federation_of(plan)
    task = federation.task

    def go(journal=None, stop=None):
        trainer = Regressors(plan, task, federation.names, federation.train, Indices.of_all(5))
        return run_rounds(plan, trainer, lambda _: initial_model(plan, task), journal=journal, stop=stop)

    whole, turns = go(), iter([False, False, True])
    cut = go(FileJournal(tmp_path), lambda: next(turns))
    resumed, again = go(FileJournal(tmp_path)), go(FileJournal(tmp_path))

    assert cut.rounds == 3
    assert resumed.rounds == again.rounds == whole.rounds > 3
    assert_equal_bits(whole.model, resumed.model)
    assert_equal_bits(whole.model, again.model)


def test_knots_lie_at_quantiles_of_what_all_sites_counted():
    x = rng_for(0, "quantiles").normal(size=(600, 2)).astype(np.float32)

    knots = knots_from(sum(form.cell_counts(part) for part in np.array_split(x, [5, 300])))

    assert np.abs(knots - np.quantile(x, form.QUANTILES, axis=0).T).max() < 0.06


def test_hinges_find_what_a_line_does_not():
    rng = rng_for(0, "bend")
    x = rng.normal(size=(400, 1)).astype(np.float32)
    y = (np.abs(x[:, 0]) > 0.7).astype(int)
    sites = [Samples(x[k], y[k]) for k in np.array_split(np.arange(400), 4)]
    task = Task("t", (1,), 2)

    worth = {}
    for name in METHODS:
        plan = regressed(name, {"penalty": 0.1}).with_model_of(4)
        model = ended(plan, task, sites)
        outputs = Regressors(plan, task, list("abcd"), sites, Indices.of_all(4)).predict_at(0, model, x, {})
        worth[name] = (outputs.argmax(axis=1) == y).mean()

    assert worth["Ridge"] < 0.65
    assert min(worth["AdditiveRidge"], worth["RandomFeatureRidge"]) > 0.9


def test_hospital_intercepts_stay_at_home_and_serve_the_hospitals_own_patients():
    rng = rng_for(0, "hospitals")
    shift = np.repeat([-3.0, 0, 3.0], 60)
    x = rng.normal(size=(180, 2)).astype(np.float32)
    y = (rng.random(180) < 1 / (1 + np.exp(-(x[:, 0] + shift)))).astype(int)
    sites = [Samples(x[k], y[k]) for k in np.split(np.arange(180), 3)]
    plan = regressed(regression={"intercepts": "hospital", "intercept_penalty": 0.1}).with_model_of(3)
    task = Task("t", (2,), 2)

    model = ended(plan, task, sites)

    trainer = Regressors(plan, task, list("abc"), sites, Indices.of_all(3))
    said = [np.diff(trainer.predict_at(k, model, np.zeros((1, 2), np.float32), {}))[0, 0] for k in range(3)]
    assert np.allclose(np.diff(said), [3, 3], atol=1.2)
    common = ended(regressed(), task, sites)
    assert {n: a.shape for n, a in model.items()} == {n: a.shape for n, a in common.items()}  # nothing of a site's own
    elsewhere = trainer.predict(trainer.stack_of({n: form.torch.from_numpy(a[None]) for n, a in model.items()}), x[:1])
    assert elsewhere.shape == (1, 1, 2)


def test_a_run_keeps_packages_that_predict_what_its_table_was_made_of_and_a_page_with_coefficients(tmp_path):
    table = {"name": "ridge", "task": "breast_cancer", "sites": 6, "samples_per_site": 20, "rounds": 20}
    methods = [{"name": name, "regression": {"penalty": 1.0}} for name in METHODS]
    methods.append({"name": "Ridge", "label": "by site", "regression": {"robust": True}})

    run = execute(build({**table, "method": methods}), tmp_path / "run")

    from sklearn.datasets import load_breast_cancer

    features = load_breast_cancer(as_frame=True).data
    assert not run.failed
    for plan_run in read(tmp_path / "run").done:
        model = predictor_of(run.packages_of(plan_run)[:1])
        said, kept = model.predict_proba(features), run.predictions_of(plan_run)["probabilities"]
        assert np.isin(kept[:, 1].round(4), said[:, list(model.classes_).index("benign")].round(4)).mean() > 0.95
        assert plan_run.row["common"]["auc"] > 0.95
        assert plan_run.row["rounds"] < 20
    write_report(tmp_path / "run", [run], "ridge")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "odds ratio" in text
    assert "mean radius" in text
    assert text.count("By one standard deviation") == 2  # of Ridge, not of hinges or random features
    of_run = read(tmp_path / "run").done[0]
    _, penalty, found, _ = inference_of(run.packages_of(of_run)[0], of_run)
    sites = federation_of(of_run.plan.model_copy(update={"method": of_run.plan.method}))
    rows = [rows_of(part.x.astype(float), part.y) for part in sites.train]
    state, _ = fit(Setup("logistic", 31, 1, (1.0,)), rows)
    truth = inference(Setup("logistic", 31, 1, (1.0,)), state)
    assert penalty == 1.0
    assert np.allclose(found.estimate, truth.estimate[:-1], atol=1e-7)
    assert np.allclose(found.error, truth.error[:-1], atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("form_of_file", ["onnx", "torchscript"])
@pytest.mark.parametrize("name", METHODS)
def test_a_regression_is_exported_as_one_file_that_says_the_same(name, form_of_file, tmp_path):
    if form_of_file == "onnx":
        pytest.importorskip("onnxscript")
    table = {"name": "ridge", "task": "breast_cancer", "sites": 3, "samples_per_site": 30, "rounds": 3}
    run = execute(build({**table, "method": [{"name": name, "regression": {"penalty": 1.0}}]}))

    export(run.packages_of(run.done[0])[0], tmp_path / "model", form_of_file)  # which compares file and package

    assert (tmp_path / "model").stat().st_size > 1000


def test_a_secure_sum_of_two_sites_is_refused():
    plan, task = regressed(privacy=Privacy(secure=True)).with_model_of(2), Task("t", (5,), 2)
    model = initial_model(plan, task)
    updates = Updates(("a", "b"), {n: np.stack([a, a]) for n, a in model.items()}, None, np.ones(2))

    with pytest.raises(ReplyError, match="a secure sum has 2 of the 3 sites"):
        NewtonStep(plan).combine(model, updates, 1)


NOISED = Privacy(level="patient", clip=4.0, epsilon=2.0)


def test_noised_sums_are_one_exchange_charged_as_one_step_and_the_same_on_every_engine():
    plan = regressed(privacy=NOISED)
    federation = federation_of(plan)

    batched, in_process = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert batched.rounds == 1
    assert batched.privacy["epsilon"] == batched.privacy["epsilon_least"] == pytest.approx(2.0, rel=2e-3)
    assert batched.evaluations[-1].common["auc"] > 0.8
    assert_equal_bits(batched.model, in_process.model)


def test_noise_once_in_a_secure_sum_is_the_same_on_every_engine_at_the_same_charge_and_less_of_it():
    plan = regressed(privacy=NOISED.model_copy(update={"secure": True}))
    federation = federation_of(plan)

    batched, in_process = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert batched.privacy["epsilon"] == pytest.approx(2.0, rel=2e-3)
    assert_equal_bits(batched.model, in_process.model)
    totals = {}
    for secure in (False, True):
        of = among(regressed(privacy=NOISED.model_copy(update={"secure": secure})), 5)
        trainer = Regressors(of, federation.task, federation.names, federation.train, Indices.of_all(5))
        model = initial_model(of, federation.task)
        totals[secure] = sum(trainer._sums(model, site, 1) for site in range(5)) / form.ONE
    clean = sum(
        statistics(rows.x[:, :-1], 2.0 * rows.y - 1, 4.0)
        for rows in (trainer._rows(model, samples) for samples in federation.train)
    )
    off = {secure: totals[secure][: len(clean)] - clean for secure in totals}
    assert np.allclose(off[True], np.sqrt(share_of(plan, 5)) * off[False], atol=1e-4)  # the same draws, less of each


def test_a_sum_whose_noise_is_shared_is_not_made_of_fewer_sites_than_it_needs():
    plan = among(regressed(privacy=NOISED.model_copy(update={"secure": True})), 5)
    model = initial_model(plan, TWO)
    updates = Updates(tuple("abcd"), {form.SUMS: np.zeros((4, *model[form.SUMS].shape))}, None, np.ones(4))

    with pytest.raises(ReplyError, match="a secure sum has 4 of the 5 sites"):
        NewtonStep(plan).combine(model, updates, 1)
    table = RoutingTable(plan, tuple("abcde"))  # by which decryptors open
    assert (table.least_in_sum(1, 0), table.least_in_sum(1, 0, of="worth")) == (5, 3)


def test_a_patient_s_noised_sums_differ_by_seed_and_tell_nothing_in_further_rounds():
    plan = among(regressed(privacy=NOISED), 5)
    federation = federation_of(plan)
    model = initial_model(plan, federation.task)

    def sums(seed, t):
        trainer = Regressors(
            plan.model_copy(update={"seed": seed}),
            federation.task,
            list("abcde"),
            federation.train,
            Indices.of_all(5),
        )
        return trainer._sums(model, 0, t)

    assert (sums(0, 1) == sums(0, 1)).all()
    assert (sums(0, 1) != sums(1, 1)).any()
    assert not sums(0, 2).any()


def test_a_real_site_charges_its_patients_for_one_step_and_adds_noise_that_nobody_can_repeat(tmp_path):
    more = {"permute_every": None, "aggregate_every": 1, "regression": {}, "gate": False}
    plan = among(site_plan({"level": "patient", "clip": 4.0, "epsilon": 2.0}, **more), 3)
    asked = site_order(plan)

    answers = []
    for place in ("here", "there"):  # the same patients and orders
        station = station_at(tmp_path / place, policy="least_blur = 0\nmost_epsilon = 2.1")
        model = initial_model(plan, station._read_samples(plan)[0].task)
        station.answer("roll", site_config(plan), {})
        words, sent = station.answer("train", asked, {f"arrays/{name}": array for name, array in model.items()})
        assert "error" not in words, words
        answers.append(sent["arrays/sums"])
        ((_, charge),) = station.log.charges()
        assert (charge.rate, charge.steps) == (1.0, 1)
        assert spent_here(station.log, 1e-5)[-1][1] == pytest.approx(2.0, rel=2e-3)

    assert (answers[0] != answers[1]).any()
    cheap = station_at(tmp_path / "cheap", policy="least_blur = 0\nmost_epsilon = 1.9")
    assert "most_epsilon" in cheap.answer("roll", site_config(plan), {})[0]["error"]


def test_a_plan_of_noised_sums_that_a_ledger_would_charge_less_for_is_not_followed():
    plan = among(regressed(privacy=NOISED), 5)
    cheap = plan.privacy.model_copy(update={"lot": 4})  # as if patients were drawn
    plan = plan.model_copy(update={"method": plan.method.model_copy(update={"privacy": cheap})})
    federation = federation_of(plan)

    with pytest.raises(PlanError, match="one exchange of all patients"):
        Regressors(plan, federation.task, federation.names, federation.train, Indices.of_all(5))


TWO = Task("t", (5,), 2)
REFUSED = {
    "counts = true is for numbers, and this task predicts classes": (regressed(regression={"counts": True}), {}, TWO),
    "sums are noised for two classes": (regressed(privacy=NOISED), {}, Task("t", (5,), 3)),
    "on columns or random features, without more": (regressed("AdditiveRidge", privacy=NOISED), {}, TWO),
    "take none; Ridge has level": (regressed(), {"privacy": Privacy(clip=1.0, noise=1.0)}, TWO),
    "sums over all sites in every round: take aggregate_every = 1 and all sites": (
        regressed(),
        {"aggregate_every": 5},
        TWO,
    ),
    "this task: classes by hinge": (regressed(), {}, Task("t", (5,), 2, loss="hinge")),
    "firth is for two classes": (regressed(regression={"penalty": 0, "firth": True}), {}, Task("t", (5,), 3)),
    "firth is for two classes, without another penalty": (regressed(regression={"firth": True}), {}, TWO),
    "cox = true is for times until an event, and this task predicts classes": (
        regressed(regression={"penalty": 0, "cox": True}),
        {},
        TWO,
    ),
    'robust = "patients" is without firth and hospital intercepts': (
        regressed(regression={"robust": "patients", "intercepts": "hospital"}),
        {},
        TWO,
    ),
    "cox has a penalty that is a number": (
        regressed(regression={"cox": True, "robust": True}),
        {},
        Task("t", (5,), 3, loss="hazard"),
    ),
    "regression takes it away": (regressed(), {"weighted": True}, TWO),
    "regression needs one kind of model": (regressed(), {"boosting": method("FedHistogramXGB").boosting}, TWO),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_regressions_do_not_know_is_refused(reason):
    plan, changes, task = REFUSED[reason]
    plan = plan.model_copy(update={"method": plan.method.model_copy(update=changes)})

    with pytest.raises(PlanError, match=reason):
        check_plan(plan, task, 4)


def test_more_coefficients_than_can_be_summed_are_refused_before_anything_is_trained():
    plan = among(regressed(), 4)

    with pytest.raises(PlanError, match="6,001 coefficients, of which a site would sum 18,021,007 numbers: take fewer"):
        initial_model(plan, Task("t", (6000,), 2))


def test_a_penalty_below_zero_is_refused_in_one_line():
    with pytest.raises(PlanError, match=r"regression\.penalty"):
        method("Ridge", regression={"penalty": -1})


def test_the_scenario_of_the_page_runs():
    (block, *_) = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs" / "regression.md").read_text(encoding="utf-8"), re.DOTALL
    )

    run = execute(build(tomllib.loads(block)))

    assert not run.failed


def test_folds_of_patients_keep_all_rows_of_a_patient_together():
    rng, sites = np.random.default_rng(0), 3
    whose = [rng.integers(0, 20, 60) + 100 * site for site in range(sites)]
    plan = among(regressed("Ridge", {"penalty": "cv"}), sites)
    task = Task("t", (2,), 2, "cross_entropy")
    samples = [Samples(rng.normal(size=(60, 2)), rng.integers(0, 2, 60), patients) for patients in whose]
    trainer = Regressors(plan, task, ["a", "b", "c"], samples, Indices.of_all(sites))

    for site, patients in enumerate(whose):
        folds = trainer._folds(site)
        assert len(set(folds.tolist())) > 1
        assert len(set(zip(patients.tolist(), folds.tolist(), strict=True))) == len(set(patients.tolist()))
