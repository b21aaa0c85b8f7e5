import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from fedsmall.errors import PlanError
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method, Plan
from fedsmall.privacy.discrete_gaussian import add_noise, keyed_words
from fedsmall.privacy.site_level import Ledger, check_private, epsilon, noise_for_comm_round, privatise, privatise_one


def models(rng, count):
    """A stack with a matrix, a bias, running statistics and a counter."""
    return {
        "0.weight": rng.normal(size=(count, 3, 2)).astype(np.float32),
        "0.bias": rng.normal(size=(count, 3)).astype(np.float32),
        "1.running_mean": rng.normal(size=(count, 3)).astype(np.float32),
        "1.num_batches_tracked": np.arange(count, dtype=np.int64),
    }


def update_norm(sent, received, row):
    steps = [(sent[n][row].astype(float) - received[n][row]).ravel() for n in ("0.weight", "0.bias")]
    return float(np.linalg.norm(np.concatenate(steps)))


def streams(count):
    return [np.random.default_rng(i) for i in range(count)]


@given(st.floats(0.01, 10), st.integers(1, 4), st.integers(0, 100))
def test_no_update_leaves_longer_than_the_clip(clip, count, seed):
    rng = np.random.default_rng(seed)
    sent, received = models(rng, count), models(rng, count)

    out = privatise(sent, received, Privacy(clip=clip), streams(count))

    for row in range(count):
        assert update_norm(out, received, row) <= clip * (1 + 1e-5)


def test_a_short_update_leaves_as_it_is():
    rng = np.random.default_rng(0)
    received = models(rng, 2)
    sent = {name: array + (1e-3 if array.dtype == np.float32 else 0) for name, array in received.items()}

    out = privatise(sent, received, Privacy(clip=1.0), streams(2))

    for name in ("0.weight", "0.bias"):
        np.testing.assert_allclose(out[name], sent[name], atol=1e-7)


def test_clipping_keeps_the_direction_over_all_parameters_together():
    received = {"a": np.zeros((1, 1)), "b": np.zeros((1, 1))}
    sent = {"a": np.array([[3.0]]), "b": np.array([[4.0]])}

    out = privatise(sent, received, Privacy(clip=1.0), streams(1))

    assert (out["a"].item(), out["b"].item()) == pytest.approx((0.6, 0.8))


def test_noise_has_deviation_sigma_times_clip_and_not_its_square_root():
    received = {"a": np.zeros((1, 200_000))}

    out = privatise(received, received, Privacy(clip=4.0, noise=0.5), streams(1))

    assert out["a"].std() == pytest.approx(2.0, rel=0.01)
    assert out["a"].mean() == pytest.approx(0.0, abs=0.02)


def test_what_the_ledger_does_not_cover_goes_back_as_it_came():
    rng = np.random.default_rng(1)
    sent, received = models(rng, 2), models(rng, 2)
    sent["1.num_batches_tracked"] += 7

    out = privatise(sent, received, Privacy(clip=1.0, noise=1.0), streams(2))

    for name in ("1.running_mean", "1.num_batches_tracked"):
        np.testing.assert_array_equal(out[name], received[name])


def test_dtypes_names_and_shapes_stay():
    rng = np.random.default_rng(1)
    sent, received = models(rng, 3), models(rng, 3)

    out = privatise(sent, received, Privacy(clip=1.0, noise=1.0), streams(3))

    assert {n: (a.dtype, a.shape) for n, a in out.items()} == {n: (a.dtype, a.shape) for n, a in sent.items()}
    assert list(out) == list(sent)


def test_a_stack_equals_its_models_one_by_one_to_the_bit():
    rng = np.random.default_rng(2)
    sent, received = models(rng, 3), models(rng, 3)
    privacy = Privacy(clip=0.5, noise=0.3)

    stacked = privatise(sent, received, privacy, streams(3))
    single = [
        privatise_one({n: a[k] for n, a in sent.items()}, {n: a[k] for n, a in received.items()}, privacy, rng)
        for k, rng in enumerate(streams(3))
    ]

    for k, one in enumerate(single):
        for name, array in one.items():
            np.testing.assert_array_equal(stacked[name][k], array)


def test_nothing_given_is_changed():
    rng = np.random.default_rng(3)
    sent, received = models(rng, 2), models(rng, 2)
    before = {name: array.copy() for name, array in sent.items()}

    privatise(sent, received, Privacy(clip=0.1, noise=1.0), streams(2))

    for name, array in before.items():
        np.testing.assert_array_equal(sent[name], array)


def test_noise_of_a_simulation_repeats_and_that_of_a_real_site_does_not():
    def draw(site="essen", t=5, key=None):
        return add_noise(np.zeros(4), 1.0, noise_for_comm_round(0, site, t, key))

    np.testing.assert_array_equal(draw(), draw())
    assert not np.array_equal(draw(), draw(t=6))
    assert not np.array_equal(draw(), draw("köln"))
    np.testing.assert_array_equal(draw(key=b"1"), draw(key=b"1"))
    assert not np.array_equal(draw(key=b"1"), draw(key=b"2"))
    assert not np.array_equal(draw(key=b"1"), draw(key=b"1", t=6))


@pytest.mark.parametrize(
    "noise", [keyed_words(b"a key"), np.random.default_rng(0)], ids=["a real site", "a simulation"]
)
@pytest.mark.parametrize("privacy", [Privacy(clip=1.0, noise=1.4), Privacy(blur=1.0)], ids=["site level", "blur"])
def test_no_last_digit_tells_whether_a_number_had_moved(noise, privacy):
    """Of what leaves, start subtracted in the server's own float64: numbers that moved and that did not are alike."""
    received = {"w": np.zeros(4000)}
    sent = {"w": np.where(np.arange(4000) % 2, 0.0, np.random.default_rng(1).normal(size=4000) * 1e-3)}

    left = privatise_one(sent, received, privacy, noise)["w"]

    steps = left / 2.0 ** np.floor(np.log2(np.abs(left).max()) - 40)
    odd = [np.mean([_is_fine(step) for step in steps[first::2]]) for first in (0, 1)]
    assert odd[0] == odd[1] == 0.0


def _is_fine(step: float) -> bool:
    """Whether a number has digits below those of the grid, which is 24 to 27 bits below the largest number."""
    return step % 2.0**10 != 0


def exact_epsilon(noise, delta, releases):
    """Balle & Wang 2018, theorem 8: the exact curve; composed Gaussians are one with noise / sqrt(releases)."""
    sigma = noise / releases**0.5

    def excess(eps):
        a, b = 1 / (2 * sigma) - eps * sigma, -1 / (2 * sigma) - eps * sigma
        return stats.norm.cdf(a) - np.exp(eps) * stats.norm.cdf(b) - delta

    return optimize.brentq(excess, 0, 500)


def classic_epsilon(noise, delta, releases):
    """Mironov 2017, proposition 3, minimised over the order in closed form: rho + 2 sqrt(rho ln(1 / delta))."""
    rho = releases / (2 * noise**2)
    return rho + 2 * (rho * np.log(1 / delta)) ** 0.5


@pytest.mark.parametrize("noise", [0.8, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
def test_epsilon_lies_between_the_exact_curve_and_the_classic_bound(noise, releases):
    found = epsilon(noise, 1e-5, releases)

    assert exact_epsilon(noise, 1e-5, releases) <= found <= classic_epsilon(noise, 1e-5, releases) * 1.001


def test_exact_curve_of_the_oracle_is_right_at_a_published_point():
    # Balle & Wang 2018: at epsilon 1 and delta 1e-5 the analytic mechanism needs sigma 3.7306 for sensitivity 1.
    assert exact_epsilon(3.7306, 1e-5, 1) == pytest.approx(1.0, abs=1e-3)


def drawn_epsilon(noise, delta, fraction):
    """The epsilon of one round for which a fixed number of sites is drawn, by integrating over what is seen.

    The site moves the sum by its clip or not at all; where it is not drawn, one that moves it the other way is.
    """
    seen = np.linspace(-16 * noise, 16 * noise, 200_001)
    elsewhere, trained, idle = (stats.norm.pdf(seen, mean, noise) for mean in (-1, 1, 0))
    pair = [(1 - fraction) * elsewhere + fraction * other for other in (trained, idle)]

    def excess(eps):
        return max(integrate.trapezoid(np.maximum(p - np.exp(eps) * q, 0), seen) for p, q in (pair, pair[::-1])) - delta

    return optimize.brentq(excess, 0, 50)


def test_drawn_epsilon_of_the_oracle_is_the_exact_curve_where_all_are_drawn():
    assert drawn_epsilon(2.0, 1e-5, 1.0) == pytest.approx(exact_epsilon(2.0, 1e-5, 1), abs=1e-3)


@pytest.mark.parametrize(("drawn", "sites", "noise"), [(1, 10, 2.0), (1, 5, 1.0), (5, 50, 4.0), (1, 100, 1.0)])
def test_a_budget_below_what_a_drawn_comm_round_truly_costs_is_refused(drawn, sites, noise):
    true = drawn_epsilon(noise, 1e-5, drawn / sites)

    with pytest.raises(PlanError, match="more than the budget"):
        check_private(private_plan(fraction=drawn / sites, noise=noise, budget=0.99 * true), comm_rounds=1)

    assert Ledger(Privacy(clip=1, noise=noise), releases=1).spent >= true


def test_more_comm_rounds_cost_more():
    assert epsilon(1.0, 1e-5, 10) < epsilon(1.0, 1e-5, 11)


def test_no_release_costs_nothing_and_no_noise_costs_everything():
    assert epsilon(1.0, 1e-5, 0) == 0
    assert epsilon(0.0, 1e-5, 1) == float("inf")


def test_ledger_stops_before_the_comm_round_that_would_overspend():
    ledger = Ledger(Privacy(clip=1, noise=2.0, budget=5.0))
    allowed = ledger.affordable()

    for _ in range(allowed):
        ledger.charge()

    assert ledger.spent <= 5.0 < ledger.epsilon_after(allowed + 1)
    with pytest.raises(PlanError, match=f"budget of epsilon 5 is spent: {allowed} communication rounds"):
        ledger.charge()
    assert ledger.releases == allowed


def test_ledger_goes_on_where_a_run_resumes():
    privacy = Privacy(clip=1, noise=2.0)
    whole = Ledger(privacy)
    for _ in range(7):
        whole.charge()

    resumed = Ledger(privacy, releases=6)
    resumed.charge()

    assert resumed.report() == whole.report()


def test_a_report_says_what_was_spent_at_which_delta():
    report = Ledger(Privacy(clip=1, noise=1.0), releases=20).report()

    assert report == {"epsilon": epsilon(1.0, 1e-5, 20), "delta": 1e-5, "releases": 20}


@settings(max_examples=20)
@given(st.floats(0.5, 20), st.floats(0.7, 5))
def test_affordable_is_the_last_comm_round_within_the_budget(budget, noise):
    ledger = Ledger(Privacy(clip=1, noise=noise, budget=budget))

    allowed = ledger.affordable()

    assert ledger.allows(allowed) or allowed == 0
    assert not ledger.allows(allowed + 1)


def test_no_budget_sets_no_limit():
    assert Ledger(Privacy(clip=1, noise=1)).affordable() is None
    assert Ledger(Privacy(clip=1, noise=0)).allows(10**6)


def private_plan(recipe=None, **method):
    privacy = Privacy(clip=1, noise=method.pop("noise", 1.0), budget=method.pop("budget", None))
    return Plan(name="p", task="digits", recipe=recipe or Recipe(), method=Method(name="m", privacy=privacy, **method))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (private_plan(budget=2.0), r"20 communication rounds .* it allows \d+ communication rounds"),
        (private_plan(budget=2.0, noise=0), "needs noise above 0"),
    ],
)
def test_a_plan_that_leaks_or_overspends_is_refused(plan, message):
    with pytest.raises(PlanError, match=message):
        check_private(plan, comm_rounds=20)


def test_running_statistics_are_refused_and_other_plans_pass():
    with pytest.raises(PlanError, match="GroupNorm"):
        check_private(private_plan(), 20, buffers=["1.running_mean"])
    check_private(private_plan(Recipe(optimizer="adam", optimizer_state="reset"), budget=500.0), 20)
    check_private(Plan(name="p", task="digits", method=Method(name="m", rule="scaffold")), 20, ["1.running_mean"])


def test_a_chain_gathers_the_noise_that_averaging_spreads():
    # After b hops a travelling model holds b noises, the global model of FedAvg only their mean over the sites; once
    # aggregated both hold the same: noise alone, with sites that learn nothing.
    sites, hops, privacy = 50, 20, Privacy(clip=1.0, noise=0.1)
    chain = averaged = {"a": np.zeros((sites, 400))}

    for t in range(hops):
        chain = privatise(chain, chain, privacy, [noise_for_comm_round(0, str(k), t) for k in range(sites)])
        noisy = privatise(averaged, averaged, privacy, [noise_for_comm_round(0, str(k), t) for k in range(sites)])
        averaged = {"a": np.broadcast_to(noisy["a"].mean(axis=0), (sites, 400))}

    assert chain["a"].std() == pytest.approx(0.1 * hops**0.5, rel=0.05)
    assert averaged["a"][0].std() == pytest.approx(0.1 * (hops / sites) ** 0.5, rel=0.1)
    np.testing.assert_allclose(chain["a"].mean(axis=0), averaged["a"][0], atol=1e-12)
