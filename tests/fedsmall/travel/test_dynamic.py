"""Who takes part in an average that may be left out: distances, balancing, and what both leave as it was."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.algorithm.dynamic import Coordinator, Taken, Weighed, order_of_asking, squared_distances
from fedsmall.wire import Arrays

REFERENCE = {"0.weight": np.array([[1.0, -1.0], [0.5, 0.0]]), "0.bias": np.array([0.0, 2.0])}
worlds = st.builds(
    lambda seed, sites, spread: (np.random.default_rng(seed), sites, spread),
    st.integers(0, 10_000),
    st.integers(1, 8),
    st.floats(0.01, 3.0),
)


class Sites:
    """Sites with models around the reference; remembers who was asked."""

    def __init__(self, rng: np.random.Generator, count: int, spread: float) -> None:
        self.models = {
            f"site-{number}": {
                name: array + spread * (rng.standard_normal(array.shape) + rng.standard_normal())
                for name, array in REFERENCE.items()
            }
            for number in range(count)
        }
        self.silent: set[str] = set()
        self.asked: list[Sequence[str]] = []

    def __call__(self, sites: Sequence[str]) -> dict[str, Weighed]:
        self.asked.append(list(sites))
        return {site: Weighed(self.models[site]) for site in sites if site not in self.silent}

    def beyond(self, bound: float) -> dict[str, bool]:
        return {site: apart([model]) > bound for site, model in self.models.items()}

    def settle(self, bound: float, t: int = 1, coordinator: Coordinator | None = None, **more: bool) -> Taken:
        coordinator = coordinator or Coordinator(bound, 0)
        return coordinator.settle(t, REFERENCE, self.beyond(bound), self, len(self.models), **more)

    def mean(self, sites: Sequence[str]) -> Arrays:
        return mean([self.models[site] for site in sites])


def mean(models: Sequence[Arrays]) -> Arrays:
    stack = {name: np.stack([model[name] for model in models]) for name in REFERENCE}
    return aggregate(stack, "mean", None, {}, np.random.default_rng(0))


def apart(models: Sequence[Arrays]) -> float:
    """An oracle: all numbers in a row, and the norm of their difference."""
    flat, reference = (np.concatenate([a.ravel() for a in model.values()]) for model in (mean(models), REFERENCE))
    return float(np.linalg.norm(flat - reference) ** 2)


@given(worlds)
def test_distances_are_those_of_all_weights_in_a_row(world):
    sites = Sites(*world)
    stack = {name: np.stack([model[name] for model in sites.models.values()]) for name in REFERENCE}

    found = squared_distances(stack, REFERENCE)

    np.testing.assert_allclose(found, [apart([model]) for model in sites.models.values()], rtol=1e-12)


def test_running_statistics_and_counters_are_no_part_of_a_distance():
    reference = {"0.weight": np.zeros(2), "1.running_mean": np.zeros(2), "1.num_batches_tracked": np.array(0)}
    models = {"0.weight": np.ones((1, 2)), "1.running_mean": np.full((1, 2), 9.0), "1.num_batches_tracked": np.ones(1)}

    assert squared_distances(models, reference).tolist() == [2.0]


def test_distances_of_small_floats_are_summed_in_float64():
    reference = {"0.weight": np.full(3, 1e4, dtype=np.float32)}
    models = {"0.weight": np.full((1, 3), 1e4 + 2**-9, dtype=np.float32)}

    assert squared_distances(models, reference) == pytest.approx([3 * 2.0**-18])


@pytest.mark.thorough
@given(worlds, st.floats(0.01, 30.0))
@settings(max_examples=200)
def test_the_balanced_mean_is_within_the_bound_or_all_take_part(world, bound):
    sites = Sites(*world)

    taken = sites.settle(bound)

    violators = {site for site, beyond in sites.beyond(bound).items() if beyond}
    assert violators <= set(taken.sites)
    assert bool(taken.sites) == bool(violators)
    assert taken.whole == (set(taken.sites) == sites.models.keys())
    if taken.sites and not taken.whole:
        assert apart([sites.models[site] for site in taken.sites]) <= bound * (1 + 1e-9)


@given(worlds, st.floats(0.01, 30.0))
def test_nobody_is_asked_whose_model_is_not_needed(world, bound):
    sites = Sites(*world)

    taken = sites.settle(bound)

    if not taken.whole and taken.sites:
        violators, *others = sites.asked
        turn = order_of_asking(0, 1, sites.models.keys() - set(violators))
        assert [site for (site,) in others] == turn[: len(others)]
        for asked in range(len(others)):  # before the last came, the mean was beyond
            assert apart([sites.models[site] for site in [*violators, *turn[:asked]]]) > bound * (1 - 1e-9)


@given(worlds, st.floats(0.01, 30.0))
def test_an_average_of_some_leaves_the_mean_of_all_as_it_was(world, bound):
    sites = Sites(*world)
    before = sites.mean(sorted(sites.models))

    taken = sites.settle(bound)
    if taken.sites:
        made = sites.mean(taken.sites)
        sites.models |= dict.fromkeys(taken.sites, made)

    after = sites.mean(sorted(sites.models))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-12)


@given(worlds)
def test_where_all_are_within_the_bound_their_mean_is(world):
    sites = Sites(*world)
    bound = max(apart([model]) for model in sites.models.values())

    assert sites.settle(bound) == Taken((), False)
    assert apart(list(sites.models.values())) <= bound * (1 + 1e-9)
    assert not sites.asked


@given(worlds)
def test_beyond_every_bound_it_is_a_plain_average(world):
    sites = Sites(*world)

    assert sites.settle(1e-300) == Taken(tuple(sorted(sites.models)), True)
    assert len(sites.asked) == 1


@given(worlds)
def test_the_last_average_takes_all(world):
    sites = Sites(*world)

    assert sites.settle(1e300, last=True) == Taken(tuple(sorted(sites.models)), True)


def world_of_one_violator(sites: int = 4) -> Sites:
    world = Sites(np.random.default_rng(0), sites, 0.0)
    world.models["site-1"] = {name: array + 1.0 for name, array in REFERENCE.items()}  # six numbers: 6 away
    return world


def test_as_many_violations_as_sites_make_the_next_average_whole_and_begin_the_count_anew():
    world, coordinator = world_of_one_violator(), Coordinator(2.0, 0)

    wholes = [world.settle(2.0, t, coordinator).whole for t in range(1, 10)]

    assert wholes == [False, False, False, True] * 2 + [False]


def test_a_site_that_is_asked_and_does_not_answer_is_passed_over():
    world = world_of_one_violator()
    first, second, *_ = order_of_asking(0, 1, world.models.keys() - {"site-1"})
    world.silent = {first}

    taken = world.settle(2.0)

    assert taken == Taken(tuple(sorted(["site-1", second])), False)


def test_where_no_other_answers_the_average_is_whole_without_them():
    world = world_of_one_violator()
    world.silent = world.models.keys() - {"site-1"}

    assert world.settle(2.0) == Taken(("site-1",), True)


def test_where_nobody_answers_there_is_none():
    world = world_of_one_violator()
    world.silent = set(world.models)

    assert world.settle(2.0) == Taken((), False)
    assert world.settle(2.0, last=True) == Taken((), False)


def test_heavy_models_draw_the_mean():
    models = {site: {"0.weight": np.array([number])} for site, number in (("a", 3.0), ("b", 0.0), ("c", 0.0))}
    weights = {"a": 1.0, "b": 9.0, "c": 9.0}
    reference = {"0.weight": np.array([0.0])}

    def fetch(sites):
        return {site: Weighed(models[site], weights[site]) for site in sites}

    def light(sites):
        return {site: Weighed(models[site]) for site in sites}

    present = {"a": True, "b": False, "c": False}
    taken = [Coordinator(0.1, 0).settle(1, reference, present, some, 3) for some in (fetch, light)]

    assert [len(each.sites) for each in taken] == [2, 3]  # .3 squared, against 1.5 and then 1 squared


def test_who_is_asked_differs_from_round_to_round_and_not_with_the_order_of_names():
    names = [f"site-{number}" for number in range(9)]

    assert order_of_asking(0, 1, names) == order_of_asking(0, 1, reversed(names))
    assert order_of_asking(0, 1, names) != order_of_asking(0, 2, names)
    assert sorted(order_of_asking(0, 1, names)) == names
