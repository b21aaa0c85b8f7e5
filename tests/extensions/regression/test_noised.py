"""Noised sums: what one patient can change, what they cost, and that they are worth having."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from fedsmall.data.federation import Samples
from fedsmall.extensions.regression.model import ONE
from fedsmall.extensions.regression.noised import (
    SENSITIVITY,
    fit,
    in_one_exchange,
    log_odds_of,
    noised,
    penalty_for,
    share_of,
    statistics,
)
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.privacy.discrete_gaussian import grid_for, widened
from fedsmall.privacy.patient_level import (
    NamedChance,
    SystemChance,
    epsilon_of,
    noise_for,
    protection_of,
    shares_of,
    steps_of,
)
from fedsmall.randomness import rng_for
from fedsmall.sealing.masks import least_in_sum
from tests.extensions.regression.fits import standardised
from tests.extensions.regression.test_runs import regressed


def noised_plan(name: str, secure: bool = False, epsilon: float = 1.0) -> Plan:
    return regressed(name, privacy=Privacy(level="patient", clip=4.0, epsilon=epsilon, secure=secure))


@pytest.mark.parametrize("length", [1e-3, 1.0, 3.0, 1e6])
@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_a_patient_changes_the_sums_by_the_sensitivity_at_most(length, clip):
    rng = rng_for(0, "patients")
    for _ in range(50):
        x = rng.normal(size=(4, 7))
        x[3] *= length / np.linalg.norm(x[3])
        y = np.r_[rng.uniform(-1, 1, 3), rng.choice([-5.0, 5.0])]

        change = statistics(x, y, clip) - statistics(x[:3], y[:3], clip)

        assert np.linalg.norm(change) <= SENSITIVITY + 1e-12


@pytest.mark.parametrize("most", [2, 5])
def test_a_patient_with_several_rows_changes_the_sums_by_no_more(most):
    rng, whose = rng_for(0, "patients"), np.r_[np.zeros(most, dtype=int), 1, 2]
    shares = shares_of(Samples(whose, whose, whose))
    for _ in range(20):
        x = rng.normal(size=(1, 7)) * 3 + 0.01 * rng.normal(size=(most + 2, 7))
        y = np.ones(len(x))
        others = statistics(x[most:], y[most:], 3.0)

        assert np.linalg.norm(statistics(x, y, 3.0, shares) - others) <= SENSITIVITY + 1e-12
        assert np.linalg.norm(statistics(x, y, 3.0) - others) > 1.5 * SENSITIVITY  # where rows count as patients


def test_the_sensitivity_is_reached():
    change = statistics(np.array([[100.0, 0.0]]), np.ones(1), 2.0)

    assert np.linalg.norm(change) == pytest.approx(SENSITIVITY)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_one_exchange_costs_one_step_of_the_accountant(epsilon):
    plan = in_one_exchange(noised_plan("Ridge", epsilon=epsilon))

    charge = protection_of(plan, np.ones(40), 0, 5).charge(steps_of(plan, 0, 5))

    assert (charge.rate, charge.steps) == (1.0, 1)
    assert epsilon_of([charge], 1e-5) == pytest.approx(epsilon, rel=2e-3)
    assert epsilon_of([charge] * 2, 1e-5) > 1.3 * epsilon  # a second exchange is not free


@pytest.mark.parametrize("sites", [3, 4, 9, 10, 40, 200])
def test_the_honest_sites_of_the_smallest_sum_that_opens_add_the_whole_noise(sites):
    plan = noised_plan("Ridge", secure=True)

    honest = least_in_sum(sites, noised=True) - sites // 3

    assert honest * share_of(plan, sites) == pytest.approx(1)
    assert sites * share_of(plan, sites) <= 2  # and all together not twice as much
    assert share_of(noised_plan("Ridge"), sites) == share_of(noised_plan("StandaloneRidge", secure=True), sites) == 1


def test_shares_of_noise_are_whole_multiples_of_one_grid_and_are_sent_unrounded():
    noise, sums = noise_for(1.0, 1e-5, 1.0, 1), statistics(rng_for(0, "x").normal(size=(9, 4)), np.ones(9), 4.0)
    step = grid_for(widened(SENSITIVITY, noise, len(sums)) * np.sqrt(1 / 200))

    for chance in (SystemChance(), NamedChance(0, "a", 1)):
        made = noised(sums, noise, chance, 1 / 200)

        assert (made / step == np.rint(made / step)).all()
        assert (made * ONE == np.rint(made * ONE)).all()


@pytest.mark.parametrize("sites", [3, 10])
def test_what_a_sum_is_off_by_is_the_noise_of_all_sites_shares(sites):
    noise, zeros, share = 2.0, np.zeros(20_000), share_of(noised_plan("Ridge", secure=True), sites)

    total = sum(noised(zeros, noise, SystemChance(), share) for _ in range(sites))

    assert total.std() == pytest.approx(noise * SENSITIVITY * np.sqrt(sites * share), rel=0.03)


@pytest.mark.parametrize("chance", [NamedChance(0, "a", 1), SystemChance()])
def test_noise_is_as_large_as_it_says(chance):
    made = noised(np.zeros(20_000), 2.0, chance, share=0.25)

    assert made.std() == pytest.approx(2.0 * SENSITIVITY / 2, rel=0.03)


def test_without_noise_it_is_ridge_regression_of_clipped_rows():
    x, y = rng_for(0, "rows").normal(size=(30, 3)), rng_for(1, "rows").choice([-1.0, 1.0], 30)

    b, left, _ = fit(statistics(x[:10], y[:10], 100.0) + statistics(x[10:], y[10:], 100.0), 4, 100.0, 2.0)

    pooled = Ridge(alpha=2.0, fit_intercept=False).fit(np.c_[x, np.ones(30)], y)
    assert np.allclose(b, pooled.coef_, atol=1e-6)
    assert left == pytest.approx(np.mean((y - np.c_[x, np.ones(30)] @ b) ** 2), abs=1e-6)


def test_log_odds_are_those_of_the_discriminant_of_equally_many():
    rng = rng_for(0, "normal")
    x = np.r_[rng.normal(size=(200, 3)), rng.normal([1, 0.5, 0], size=(200, 3))]
    y = np.repeat([-1.0, 1.0], 200)

    b, left, _ = fit(statistics(x, y, 100.0), 4, 100.0, 0.0)

    pooled = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y)
    assert np.allclose(log_odds_of(b, left), np.r_[pooled.coef_[0], pooled.intercept_[0]], atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_sites_of_few_patients_add_up(n):
    x, y = rng_for(0, "few").normal(size=(6, 2)), np.tile([-1.0, 1.0], 3)

    apart = sum(statistics(x[k : k + n], y[k : k + n], 2.0) for k in range(0, 6, n))

    assert np.allclose(apart, statistics(x, y, 2.0))


def test_noise_once_in_a_secure_sum_beats_noise_at_each_site_and_both_beat_chance():
    x, y = load_breast_cancer(return_X_y=True)
    once = share_of(noised_plan("Ridge", secure=True), 40)
    x, noise, clip, auc = standardised(x), noise_for(1.0, 1e-5, 1.0, 1), 4.0, {"each": [], "shared": []}
    for seed in range(6):
        order = rng_for(seed, "deal").permutation(len(y))
        train, test = order[:160].reshape(40, 4), order[-142:]
        for way, share, summands in (("each", 1.0, 40), ("shared", once, 40 * once)):
            total = sum(
                noised(statistics(x[at], 2.0 * y[at] - 1, clip), noise, NamedChance(seed, f"site-{k}", 1), share)
                for k, at in enumerate(train)
            )
            b, left, _ = fit(total, 31, clip, penalty_for(noise, 31, clip, summands))
            auc[way].append(roc_auc_score(y[test], np.c_[x[test], np.ones(142)] @ log_odds_of(b, left)))

    assert 0.88 < np.mean(auc["each"]) < np.mean(auc["shared"])
    assert np.mean(auc["shared"]) > 0.97


def advantage(honest: int, sites: int, epsilon: float, delta: float, tries: int = 4000) -> float:
    """By how much the best test says "there" more often of a patient who is there than epsilon allows.

    The attacker knows every other record, and the sums of all sites but ``honest`` ones, of which one is the patient's.
    It looks along the one direction that the patient changes, at the least noise that may be left.
    """
    plan, noise = noised_plan("Ridge", secure=True), noise_for(epsilon, delta, 1.0, 1)
    x = np.full((1, 3), 100.0)
    change, share = statistics(x, np.ones(1), 4.0), share_of(plan, sites)
    said = {}
    for is_there in (False, True):
        own = change * is_there
        summed = [
            sum(
                noised(own if site == 0 else 0 * own, noise, NamedChance(site, f"try {k}", int(is_there)), share)
                for site in range(honest)
            )
            for k in range(tries)
        ]
        said[is_there] = np.array(summed) @ change / (change @ change)
    cuts = np.quantile(said[False], np.linspace(0.5, 0.999, 40))
    caught, wrong = ((said[of][:, None] > cuts).mean(axis=0) for of in (True, False))
    slack = 3 * np.sqrt(caught * (1 - caught) / tries) + 3 * np.exp(epsilon) * np.sqrt(wrong * (1 - wrong) / tries)
    return float((caught - np.exp(epsilon) * wrong - delta - slack).max())


@pytest.mark.thorough
def test_noise_that_sites_share_hides_a_patient_from_a_third_that_colludes_and_not_from_all_others():
    sites, epsilon, delta = 40, 1.0, 1e-5
    honest = least_in_sum(sites, noised=True) - sites // 3

    assert advantage(honest, sites, epsilon, delta) <= 0
    assert advantage(1, sites, epsilon, delta) > 0.1  # the attack is strong: with all others in league it finds him
