"""A posterior that goes from hospital to hospital ends at the fit of pooled patients, on every engine."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.chain import OPEN
from fedsmall.extensions.regression.page import table
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy
from fedsmall.planning.validation import among, check_plan, check_real_sites
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from tests.extensions.regression.test_runs import ended, regressed
from tests.sim.engines.harness import assert_equal_bits, federation_of
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_stopping import conduct

CHAIN = "TravellingPosterior"


def pooled_theta(federation) -> np.ndarray:
    train = federation.pooled().train[0]
    fit = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(train.x.astype(float), train.y)
    return np.r_[fit.coef_[0], fit.intercept_]


def test_passes_lead_to_the_coefficients_and_errors_of_ridge_on_breast_cancer():
    federation = federation_of(regressed(CHAIN))
    exact = run_plan(regressed(), federation, "cohort").model

    runs = [run_plan(regressed(CHAIN, {"passes": passes}), federation, "cohort") for passes in (1, 3, 5)]

    away = [np.abs(form.theta_of(run.model)[0] - pooled_theta(federation)).max() for run in runs]
    assert away[0] > away[1]
    assert away[1] < 1e-6
    assert away[2] < 1e-10  # in float32 plans too
    assert [run.rounds for run in runs] == [5, 15, 25]
    assert np.allclose(runs[2].model[form.COVARIANCE], exact[form.COVARIANCE], atol=1e-6)
    assert not runs[2].model[form.SUMS].any()  # nothing of single hospitals is kept


HEART = {"task": "heart_disease", "partition": {"natural": "site"}, "sites": None, "samples_per_site": None}


def test_one_pass_over_four_hospitals_is_near_the_exact_fit_and_three_are_there(data_root, monkeypatch):
    if not (data_root / "heart_disease").exists():
        pytest.skip("FEDSMALL_DATA has no heart_disease/")
    monkeypatch.setenv("FEDSMALL_DATA", str(data_root))
    plans = [regressed(CHAIN, {"passes": k}, **HEART) for k in (1, 2, 3)]
    federation = federation_of(plans[0])

    losses = [run_plan(plan, federation, "cohort").evaluations[-1].common["loss"] for plan in plans]

    exact = run_plan(regressed("Ridge", {"penalty": 1.0}, **HEART), federation, "cohort").evaluations[-1].common["loss"]
    assert abs(losses[0] - exact) < 0.003
    assert abs(losses[1] - exact) < 2e-4
    assert abs(losses[2] - exact) < 1e-6


def test_several_classes_are_fitted_from_hospitals_with_one_class_each():
    rng = rng_for(0, "classes")
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(3, 3)) + rng.gumbel(size=(120, 3)), axis=1)
    sites = [Samples(x[y == c], y[y == c]) for c in range(3)]
    task = Task("t", (3,), 3)

    exact = ended(regressed(), task, sites)

    model = ended(regressed(CHAIN, {"passes": 25}), task, sites)
    slopes = [m[form.COEFFICIENTS] - m[form.COEFFICIENTS][:1] for m in (exact, model)]
    assert np.abs(slopes[0] - slopes[1]).max() < 1e-5
    assert np.isfinite(ended(regressed(CHAIN, {"passes": 1}), task, sites)[form.COEFFICIENTS]).all()


@pytest.mark.parametrize("privacy", [None, Privacy(blur=0.0)])
def test_engines_and_real_sites_have_the_same_bits(privacy, tmp_path, monkeypatch):
    plan = among(regressed(CHAIN, {"passes": 2}, **({"privacy": privacy} if privacy else {})), 5)
    federation = federation_of(plan)

    batched, in_process = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))
    sealed = regressed(CHAIN, {"passes": 2}, privacy=Privacy(blur=0.0, sealed=True))
    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert batched.rounds == 10
    assert_equal_bits(batched.model, in_process.model)
    assert_equal_bits(batched.model, real.model)
    assert_equal_bits(batched.model, run_plan(among(sealed, 5), federation, "inprocess").model)
    assert not real.events


class EveryHop:
    """Somebody who wants to see the model after every hop, so that each is kept in the journal."""

    def needs(self, comm_round) -> bool:
        return True

    def see(self, result) -> None:
        pass


def test_a_chain_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    plan = among(regressed(CHAIN), 5)
    federation = federation_of(plan)

    def go(journal=None, stop=None):
        trainer = cohort_for(plan, federation.task, federation.names, federation.train)
        first = initial_model(plan, federation.task)
        return run_rounds(plan, trainer, lambda _: first, journal=journal, stop=stop, watcher=EveryHop())

    whole, turns = go(), iter([False] * 6 + [True])
    cut = go(FileJournal(tmp_path), lambda: next(turns))

    assert (cut.rounds, whole.rounds) == (7, 15)
    assert_equal_bits(whole.model, go(FileJournal(tmp_path)).model)


def test_the_order_is_drawn_once_by_the_seed_and_every_pass_visits_all():
    def visits(seed):
        plan = among(regressed(CHAIN, seed=seed), 5)
        return [int(at[0]) for _, at in journey(plan, 5)]

    assert all(visits(0)[k : k + 5] == visits(0)[:5] for k in (5, 10))
    assert sorted(visits(0)[:5]) == [0, 1, 2, 3, 4]
    assert len({tuple(visits(seed)) for seed in range(5)}) > 2


def test_the_page_has_its_coefficients_and_the_run_says_who_reads_whom(tmp_path):
    scenario = {"name": "c", "task": "breast_cancer", "sites": 3, "samples_per_site": 20, "rounds": 2}

    run = execute(build({**scenario, "method": [{"name": CHAIN}]}), tmp_path / "run")

    assert any(OPEN in note for note in run.about["notes"])
    assert run.done[0].row["rounds"] == 9
    assert table(run, run.done[0]).rows[0][0].startswith("mean radius (by 3.")


TWO = Task("t", (5,), 2)
NOISED = Privacy(level="patient", clip=4.0, epsilon=1.0)
REFUSED = {
    'route = "shuffled" or "cyclic"': (regressed(CHAIN), {"route": "random"}, TWO),
    "take models = 1, permute_every = 1": (regressed(CHAIN), {"models": None}, TWO),
    "which is for classes": (regressed(CHAIN), {}, Task("t", (5,), 1, loss="mse")),
    "clip needs noise on models": (regressed(CHAIN, privacy=NOISED), {}, TWO),
    "the next hospital reads it": (regressed(CHAIN, privacy=Privacy(secure=True)), {}, TWO),
    "blur needs noise on models": (regressed(CHAIN, privacy=Privacy(blur=1.0)), {}, TWO),
    "it has a penalty above 0": (regressed(CHAIN, {"penalty": "cv"}), {}, TWO),
    "on columns or random features": (regressed(CHAIN, {"basis": "additive"}), {}, TWO),
    "without more": (regressed(CHAIN, {"intercepts": "hospital"}), {}, TWO),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_chain_cannot_have_is_refused(reason):
    plan, changes, task = REFUSED[reason]
    plan = plan.model_copy(update={"method": plan.method.model_copy(update=changes)})

    with pytest.raises(PlanError, match=reason):
        check_plan(plan, task, 4)


def test_real_sites_have_to_be_told_that_nothing_hides_the_posterior():
    with pytest.raises(PlanError, match="blur = 0"):
        check_real_sites(regressed(CHAIN))
    check_real_sites(regressed(CHAIN, privacy=Privacy(blur=0.0, sealed=True)))
