import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.extensions.audit.federations import MOST_CANDIDATES, split, world_of
from tests.extensions.audit.worlds import plan_of


def test_sites_train_on_as_many_samples_as_in_the_scenario_on_average():
    world = world_of(plan_of(samples_per_site=4))

    assert [len(some) for some in world.fixed] == [1] * 4
    assert world.sizes.tolist() == [6] * 4
    assert world.mean == world.expected == 4


def test_nobody_is_dealt_twice():
    world = world_of(plan_of(sites=20, samples_per_site=5))
    rows = np.concatenate([some.x for some in (*world.fixed, *world.candidates)])

    assert len(np.unique(rows, axis=0)) == len(rows) == 20 * 9


def test_coins_are_fair_and_each_run_has_its_own():
    world = world_of(plan_of(sites=20, samples_per_site=5))
    coins = np.stack([world.coins(run) for run in range(200)])

    assert coins.mean() == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.corrcoef(coins.T) - np.eye(coins.shape[1])).max() < 0.4  # no two toss together
    np.testing.assert_array_equal(coins[7], world.coins(7))


def test_a_run_holds_the_fixed_and_those_whose_coin_fell_so():
    world = world_of(plan_of())
    members = world.coins(0)

    samples = world.samples(members)

    assert [len(some) for some in samples] == [
        len(fixed) + members[world.site_of == site].sum() for site, fixed in enumerate(world.fixed)
    ]
    np.testing.assert_array_equal(samples[1].x[0], world.fixed[1].x[0])
    first = world.candidates[2].y[members[world.site_of == 2]]
    np.testing.assert_array_equal(samples[2].y[len(world.fixed[2]) :], first)


def test_sites_of_their_own_toss_for_as_many_more_as_they_hold_out(data_root):
    world = world_of(plan_of(task="heart_disease", sites=None, samples_per_site=None), data_root)

    assert world.names == ("cleveland", "hungarian", "switzerland", "va")
    assert world.mean == world.expected
    assert world.sizes.max() <= MOST_CANDIDATES


def test_where_there_is_nobody_to_spare_half_are_tossed_for():
    world = world_of(plan_of(samples_per_site=None, sites=5))  # all patients are dealt

    assert world.mean < world.expected
    assert set(world.sizes.tolist()) == {42, 43}  # of 85 or 86


def test_a_source_without_enough_to_spare_gives_what_it_has():
    world = world_of(plan_of(sites=60, samples_per_site=6))  # 426 to train on: 7 a site, not 11

    assert [len(f) + len(c) for f, c in zip(world.fixed, world.candidates, strict=True)] == [7] * 60
    assert world.mean == 6


@pytest.mark.parametrize(
    ("available", "trained", "fixed", "tossed"),
    [(7, 4, 1, 6), (2, 1, 1, 1), (3, 2, 1, 2), (5, 5, 3, 2), (1, 1, 1, 0), (300, 225, 193, 64), (9, 8, 7, 2)],
)
def test_samples_are_split_into_fixed_ones_and_candidates(available, trained, fixed, tossed):
    assert split(available, trained) == (fixed, tossed)


def test_a_world_of_single_samples_is_refused():
    with pytest.raises(PlanError, match="one sample only"):
        world_of(plan_of(sites=None, samples_per_site=None, partition={"sizes": [1, 1, 1]}))


def test_models_of_the_sites_own_are_refused():
    options = {"sites": ["mlp"] * 4, "shared": ["0"]}

    with pytest.raises(PlanError, match="models of their own"):
        world_of(plan_of(model="shared_part", model_options=options))
