"""What patient-level privacy costs, by the accountant and by others, and what plans may ask for."""

import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan, check_run
from fedsmall.privacy.patient_level import (
    Charge,
    check_noise,
    epsilon_of,
    event_of,
    noise_for,
    protection_of,
    reported_samples,
    steps_of,
)
from fedsmall.training.batches import Lots, epsilons_spent
from fedsmall.training.trainer import Indices
from fedsmall.travel.journey import journey
from tests import only_quick

CHARGES = [Charge(0.07, 1.76, 200), Charge(0.3, 2.0, 50), Charge(0.01, 0.8, 1000), Charge(1.0, 20.0, 200)]
PATIENTS = {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 16}


def plan_of(name="FedDC", recipe=None, privacy=PATIENTS, **settings):
    return Plan(
        name="test",
        task="breast_cancer",
        rounds=settings.pop("rounds", 20),
        model=settings.pop("model", "mlp"),
        model_options=settings.pop("model_options", {}),
        recipe=recipe or Recipe(),
        method=method(name, **{"aggregate_every": 5, "privacy": privacy} | settings),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("charge", CHARGES)
def test_the_accountant_is_that_of_privacy_loss_distributions_to_one_in_a_thousand(charge):
    fine = PLDAccountant()
    fine.compose(event_of(charge), charge.steps)

    assert epsilon_of([charge], 1e-5) == pytest.approx(fine.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("charge", CHARGES)
def test_the_accountant_of_renyi_divergences_is_above_it_and_not_far(charge):
    renyi = RdpAccountant()
    renyi.compose(event_of(charge), charge.steps)

    assert epsilon_of([charge], 1e-5) <= renyi.get_epsilon(1e-5) <= 1.3 * epsilon_of([charge], 1e-5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("charge", CHARGES[:3])
def test_opacus_says_the_same_epsilon(charge):
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed; the dev extra brings it")
    theirs = accountants.PRVAccountant()
    theirs.history = [(charge.noise, charge.rate, charge.steps)]

    assert epsilon_of([charge], 1e-5) == pytest.approx(theirs.get_epsilon(1e-5, eps_error=1e-3), rel=1e-3)


def test_whole_sites_in_every_step_cost_what_one_gaussian_costs():
    """Balle & Wang 2018, theorem 8: without sampling, steps compose to one Gaussian with noise / sqrt(steps)."""
    sigma = 20 / 200**0.5

    def excess(eps):
        a, b = 1 / (2 * sigma) - eps * sigma, -1 / (2 * sigma) - eps * sigma
        return stats.norm.cdf(a) - np.exp(eps) * stats.norm.cdf(b) - 1e-5

    assert epsilon_of([Charge(1.0, 20.0, 200)], 1e-5) == pytest.approx(optimize.brentq(excess, 0, 50), rel=1e-3)


def test_charges_of_several_runs_are_composed_and_their_order_is_nothing():
    one, other = Charge(0.1, 2.0, 100), Charge(0.3, 3.0, 50)

    assert epsilon_of([one, other], 1e-5) == epsilon_of([other, one], 1e-5) > epsilon_of([one], 1e-5)
    assert epsilon_of([Charge(0.1, 2.0, 40), Charge(0.1, 2.0, 60)], 1e-5) == epsilon_of([one], 1e-5)
    assert epsilon_of([], 1e-5) == 0


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.floats(0.5, 10), st.floats(0.03, 1), st.integers(1, 2000))
def test_a_site_finds_noise_that_keeps_the_promise_and_wastes_little(epsilon, rate, steps):
    noise = noise_for(epsilon, 1e-5, rate, steps)

    assert 0.998 * epsilon <= epsilon_of([Charge(rate, noise, steps)], 1e-5) <= epsilon


def test_sites_of_different_sizes_take_noise_of_their_own_for_one_epsilon():
    plan = plan_of()
    small, large = (protection_of(plan, np.ones(samples), 0, 4) for samples in (40, 400))

    assert (small.rate, large.rate) == (0.4, 0.04)
    assert small.noise > large.noise
    for own in (small, large):
        assert epsilon_of([own.charge(20)], 1e-5) == pytest.approx(3, rel=2e-3)


def epsilon_shown(chances, shifts, noise, delta=1e-5):
    """The epsilon of one release of N(0, noise^2), or with some ``chances`` of N(shift, noise^2): by integration."""
    x, width = np.linspace(-12 * noise, max(shifts) + 12 * noise, 200_001, retstep=True)
    without = stats.norm.pdf(x, 0, noise)
    among = sum(chance * stats.norm.pdf(x, shift, noise) for chance, shift in zip(chances, shifts, strict=True))

    def beyond(epsilon):
        gaps = [np.clip(a - np.exp(epsilon) * b, 0, None).sum() for a, b in ((among, without), (without, among))]
        return max(gaps) * width - delta

    return optimize.brentq(beyond, 1e-3, 100)


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("samples", only_quick([40], [16, 40, 400]))
def test_a_patient_with_several_samples_has_the_epsilon_that_is_promised(samples, most):
    plan = plan_of(rounds=1)
    own = protection_of(plan, np.full(samples, 1 / most), 0, 4)
    drawn, chances = np.arange(most + 1), stats.binom.pmf(np.arange(most + 1), most, own.rate)

    assert steps_of(plan, 0, 4) == 1
    promised = epsilon_of([own.charge(1)], 1e-5)
    assert promised == pytest.approx(3, rel=2e-3)
    assert epsilon_shown(chances, drawn / most, own.noise) <= promised * (1 + 1e-3)
    fewer = stats.binom.pmf([0, 1], 1, own.rate)  # another patient's only sample
    assert epsilon_shown(fewer, [0, 1], own.noise) <= promised * (1 + 1e-3)
    if most > 1:  # samples that are taken for patients, and count whole, break it
        assert epsilon_shown(chances, drawn, protection_of(plan, np.ones(samples), 0, 4).noise) > 4


@pytest.mark.parametrize("seed", range(3))
def test_no_patient_counts_more_than_one_in_a_lot(seed):
    rng, plan = np.random.default_rng(seed), plan_of(recipe=Recipe(local_steps=5))
    whose = [np.sort(rng.integers(0, 9, 30)), None]
    samples = [Samples(np.arange(30.0)[:, None], np.arange(30) % 2, patients) for patients in whose]
    lots = Lots(plan, ["a", "b"], samples, {}, torch.device("cpu"), {"w": (2, 3)}, Indices.of_all(2))
    most = np.unique(whose[0], return_counts=True)[1].max()

    steps = [batch for _, batch in lots.round(np.arange(2), 1, pads=True)]

    assert len(steps) == 5
    for batch in steps:
        rows, weight = batch.x[..., 0].long().numpy(), batch.weight.numpy()
        of_patients = np.bincount(whose[0][rows[0]], weight[0])
        assert 0 < of_patients.max() <= (1 + 1e-6) / 16
        assert set(np.round(weight[1] * 16, 6).tolist()) <= {0, 1}
    spent = epsilons_spent(plan, samples, 20, Indices.of_all(2))
    assert spent == pytest.approx([3, 3], rel=2e-3)
    rate = 1 - (1 - 16 / 30) ** most
    assert lots.protections[0].charge(5) == pytest.approx((rate, lots.protections[0].noise, 5))
    assert lots.protections[0].noise > lots.protections[1].noise


@pytest.mark.parametrize("noise", [1e-5, 0.05])
def test_noise_whose_cost_is_out_of_reach_is_refused_before_a_site_trains(noise):
    plan = Plan(
        name="test",
        task="breast_cancer",
        model="linear",
        rounds=20,
        sites=3,
        samples_per_site=20,
        method=method("FedAvg", aggregate_every=5, privacy={"level": "patient", "clip": 1.0, "noise": noise, "lot": 8}),
    )

    with pytest.raises(PlanError, match=rf"noise = {noise:g} is too small for 20 steps .* 0\.11 is always enough"):
        check_run(plan, build_federation(plan))


def test_the_noise_that_is_always_enough_is_so_by_the_exact_curve_where_the_whole_site_trains():
    """Balle & Wang 2018, theorem 8: delta at an epsilon of 1000, of one step with the noise that the refusal names."""
    plan = plan_of(privacy={"level": "patient", "clip": 1.0, "noise": 0.02, "lot": 16}, rounds=1)
    with pytest.raises(PlanError, match=r"too small for 1 steps .* 0\.025 is always enough"):
        check_noise(plan, {0: np.ones(4)}, 4)

    a, b = (sign / (2 * 0.025) - 1000 * 0.025 for sign in (1, -1))
    assert stats.norm.cdf(a) - np.exp(1000 + stats.norm.logcdf(b)) < 1e-5


def test_noise_below_that_goes_where_lots_are_small():
    plan = plan_of(privacy={"level": "patient", "clip": 1.0, "noise": 0.6, "lot": 16}, rounds=2000)

    check_noise(plan, {0: np.ones(800)}, 4)
    with pytest.raises(PlanError, match="too small for 2000 steps"):
        check_noise(plan, {0: np.ones(800), 1: np.ones(20)}, 4)
    with pytest.raises(PlanError, match="too small for 2000 steps"):
        check_noise(plan, {0: np.append(np.ones(760), np.full(40, 1 / 40))}, 4)  # one patient is in half of all lots


def test_a_lot_larger_than_the_site_is_the_whole_site_and_still_what_sums_are_divided_by():
    own = protection_of(plan_of(), np.ones(5), 0, 4)

    assert (own.rate, own.lot) == (1.0, 16)
    assert own.deviation(400) == pytest.approx(own.noise * 1.0 / 16, rel=1e-4)


def test_the_lot_is_the_batch_of_the_recipe_where_the_plan_says_no_other():
    privacy = {"level": "patient", "clip": 1.0, "noise": 2.0}

    assert protection_of(plan_of(recipe=Recipe(batch=8), privacy=privacy), np.ones(80), 0, 4).rate == 0.1
    assert reported_samples(plan_of(), 80) == 16


@pytest.mark.parametrize("settings", [{}, {"permute_every": 1}, {"aggregate_every": 1}, {"random_schedule": True}])
def test_a_site_counts_the_steps_of_the_comm_rounds_for_which_it_is_drawn(settings):
    settings = {"permute_every": 2, "fraction": 0.5, "rounds": 23} | settings
    plan = plan_of(recipe=Recipe(local_steps=3), **settings)
    taken = np.zeros(6, dtype=int)
    for comm_round, at in journey(plan, 6):
        taken[at] += 3 * comm_round.rounds

    assert [steps_of(plan, place, 6) for place in range(6)] == taken.tolist()
    assert 0 < taken.min() < taken.max() < 3 * 23
    assert [steps_of(plan, place, 6, rounds=23) for place in range(6)] == taken.tolist()
    assert steps_of(plan, 0, 6, rounds=0) == 0


@pytest.mark.parametrize("parts", [{"models": 2}, {"models": 2, "route": "cyclic"}])
def test_a_site_counts_the_steps_of_the_models_that_came(parts):
    plan = plan_of(recipe=Recipe(local_steps=3), permute_every=1, rounds=9, **parts)
    taken = np.zeros(6, dtype=int)
    for comm_round, at in journey(plan, 6):
        taken[at] += 3 * comm_round.rounds

    assert [steps_of(plan, place, 6) for place in range(6)] == taken.tolist()
    assert taken.sum() == 2 * 3 * 9


@pytest.mark.parametrize(
    ("privacy", "told"),
    [
        ({"level": "patient", "clip": 1.0}, "noise .* or epsilon, one of the two"),
        ({"level": "patient", "clip": 1.0, "noise": 0.0}, "noise .* or epsilon, one of the two"),
        ({"level": "patient", "clip": 1.0, "noise": 1.0, "epsilon": 3.0}, "noise .* or epsilon, one of the two"),
        ({"level": "patient", "clip": 1.0, "noise": 1.0, "budget": 3.0}, "budget belongs to level = .site"),
        ({"clip": 1.0, "noise": 1.0, "lot": 8}, "lot belongs to level = .patient"),
        ({"clip": 1.0, "epsilon": 3.0}, "epsilon belongs to level = .patient"),
        ({"level": "patients", "clip": 1.0, "epsilon": 3.0}, "privacy.level"),
    ],
)
def test_what_privacy_may_say_is_told_in_one_line(privacy, told):
    with pytest.raises(PlanError, match=told) as refused:
        plan_of(privacy=privacy)

    assert "\n" not in str(refused.value)


TABLE, IMAGES = Task("table", (6,), 2), Task("images", (1, 8, 8), 2)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (plan_of(privacy={"level": "patient", "clip": 1.0, "noise": 1.0}), "needs lot"),
        (plan_of(model="cnn", model_options={"norm": "batch"}), "GroupNorm|norm = .group"),
        (plan_of(privacy=PATIENTS | {"epsilon": 1e6}), "promises patients nothing; give 1,000 at most"),
    ],
)
def test_a_plan_that_would_break_its_promise_is_refused(plan, told):
    with pytest.raises(PlanError, match=told) as refused:
        check_plan(plan, IMAGES if plan.model == "cnn" else TABLE, 4)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedProx", "FedDyn", "FedAdam", "FedMedian", "FedDC", "DaisyChain"])
def test_what_is_computed_from_noised_gradients_may_leave(name):
    adam = Recipe(optimizer="adam") if name == "FedDC" else Recipe()

    check_plan(plan_of(name, recipe=adam), TABLE, 4)


def test_plans_of_before_are_of_the_level_of_sites():
    privacy = Plan(name="x", task="t", method={"name": "FedDC", "privacy": {"clip": 1.0, "noise": 2.0}}).method.privacy

    assert privacy is not None
    assert (privacy.level, privacy.at_comm_rounds) == ("site", True)
