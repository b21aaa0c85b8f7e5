import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fedsmall.extensions.audit.membership import LEAST_RUNS, area, leak, scores

RUNS, UNITS = 64, 60


def world(seed: int, shifts: tuple[float, ...], runs: int = RUNS, units: int = UNITS) -> tuple[np.ndarray, np.ndarray]:
    """Features that lie ``shifts`` higher for members."""
    rng = np.random.default_rng(seed)
    members = rng.random((runs, units)) < 0.5
    noise = rng.standard_normal((runs, units, len(shifts)))
    return noise + members[..., None] * np.array(shifts), members


def told(seen, members, **more):
    return leak(scores(seen, members), members, np.random.default_rng(0), **more)


def test_the_best_that_can_be_had_of_two_features_is_nearly_had():
    seen, members = world(0, (1.0, 0.5))
    best = roc_auc_score(members.ravel(), (seen @ [1.0, 0.5]).ravel())

    found = told(seen, members).auc

    assert best - 0.02 < found.value <= best + 0.005
    assert found.low < found.value < found.high


def test_features_that_hang_together_are_weighed_together():
    seen, members = world(1, (1.0, 0.0))
    seen[..., 0] += 5 * seen[..., 1]  # alone the first is worth little; with the second subtracted, all

    assert told(seen[..., :1], members).auc.value < 0.6
    assert told(seen, members).auc.value > 0.7


def test_coins_that_have_nothing_to_do_with_what_is_seen_give_a_half():
    seen, _ = world(2, (2.0, 1.0, 0.0, 0.0, 0.0))
    _, coins = world(3, (0.0,))

    auc = told(seen, coins).auc

    assert auc.low <= 0.5 <= auc.high
    assert auc.width < 0.1


def test_a_feature_that_gives_members_away_finds_all_of_them():
    seen, members = world(4, (100.0, 0.0))

    found = told(seen, members)

    assert found.auc.value == 1.0
    assert [share.value for share in found.found] == [1.0, 1.0]


def test_what_one_unit_alone_shows_is_found_though_others_show_nothing():
    seen, members = world(5, (0.0, 0.0))
    seen[:, 7] += 50.0 * members[:, 7, None]

    found = scores(seen, members)

    assert found[members[:, 7], 7].min() > np.quantile(found[~members], 0.999)


def test_features_that_are_never_seen_count_for_nothing():
    seen, members = world(6, (1.0, 1.0))
    half = np.where(np.arange(UNITS)[:, None] % 2 == [0, 1], seen, np.nan)  # each unit has one of the two

    auc = told(half, members).auc.value

    assert auc == pytest.approx(told(seen[..., :1], members).auc.value, abs=0.03)
    assert (scores(np.full_like(seen, np.nan), members) == 0).all()


def test_rates_are_those_of_scikit_learn_and_ties_are_half():
    rng = np.random.default_rng(7)
    found, members = np.round(rng.standard_normal((20, 30)), 1), rng.random((20, 30)) < 0.5

    whole = leak(found, members, rng).auc.value

    assert whole == pytest.approx(roc_auc_score(members.ravel(), found.ravel()), abs=1e-12)
    assert leak(np.zeros((20, 30)), members, rng).auc.value == 0.5
    assert leak(np.zeros((20, 30)), members, rng).found[0].value == 0.0


def test_units_of_one_candidate_are_drawn_together():
    """A copy of every unit is no further evidence: the interval stays as wide as it was."""
    seen, members = world(8, (0.5,), runs=200, units=12)
    found = scores(seen, members)
    twice, bits = np.tile(found, 4), np.tile(members, 4)

    alone = leak(found, members, np.random.default_rng(0)).auc
    together = leak(twice, bits, np.random.default_rng(0), np.tile(np.arange(12), 4)).auc

    assert together == alone


def test_a_score_does_not_see_its_own_coin():
    """With coins of one half of the runs turned, scores of that half stay as they were."""
    seen, members = world(9, (1.0,))
    turned = members.copy()
    turned[: RUNS // 2] = ~turned[: RUNS // 2]

    np.testing.assert_array_equal(scores(seen, members)[: RUNS // 2], scores(seen, turned)[: RUNS // 2])


def test_too_few_runs_are_refused():
    seen, members = world(10, (1.0,), runs=LEAST_RUNS - 1)

    with pytest.raises(ValueError, match="at least 8 runs"):
        scores(seen, members)


def test_the_fewest_runs_do():
    seen, members = world(11, (3.0,), runs=LEAST_RUNS)

    assert told(seen, members).auc.value > 0.8


def test_eight_against_three_cannot_be_decided():
    rng = np.random.default_rng(12)

    widths = [area(rng.standard_normal(8), rng.standard_normal(3)).width for _ in range(50)]

    assert np.median(widths) > 0.5


@pytest.mark.parametrize(("members", "others"), [(1, 1), (2, 1), (3, 3), (8, 3)])
def test_an_interval_of_few_holds_its_own_value_even_at_the_ends(members, others):
    for shift in (-100.0, 0.0, 100.0):
        found = area(np.arange(members) + shift, np.arange(others) + 0.5)

        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.width > 0.2


def test_the_interval_of_few_holds_the_truth_in_about_95_percent_of_samples():
    rng = np.random.default_rng(13)
    truth = norm.cdf(1 / np.sqrt(2))  # of two normal clouds one apart

    held = [area(rng.standard_normal(15) + 1, rng.standard_normal(10)) for _ in range(400)]

    assert 0.92 <= np.mean([each.low <= truth <= each.high for each in held]) <= 0.99
