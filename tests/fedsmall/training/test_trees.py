"""Trees grown, trained and folded at the sites, by the interface of a cohort."""

import numpy as np
import pytest

from fedsmall.data.federation import Federation, Samples
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.replicas import ReplicaTree, fold_sent, fold_trees, subsets
from fedsmall.training.cohort import Cohort
from fedsmall.training.trees import TreeCohort, cohort_for
from fedsmall.wire import ModelState

SITES = 3


def plan_of(name: str = "RepTreeFL", *, recipe: Recipe | None = None, rounds: int = 12, **settings) -> Plan:
    recipe = recipe or Recipe(lr=0.1, batch=4, local_epochs=1)
    return Plan(
        name="trees",
        task="breast_cancer",
        sites=SITES,
        samples_per_site=20,
        rounds=rounds,
        dtype="float64",
        recipe=recipe,
        method=method(name, **settings),
    )


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation(plan_of())


def cohort_of(plan: Plan, federation: Federation, sites: slice = slice(None)):
    return cohort_for(plan, federation.task, federation.names[sites], federation.train[sites])


def begin(plan: Plan, federation: Federation, cohort, count: int = SITES):
    model = initial_model(plan, federation.task)
    return cohort.stack([ModelState(model) for _ in range(count)])


def trained(plan: Plan, federation: Federation, t: int = 1, rounds: int = 1, common: bool = True):
    cohort = cohort_of(plan, federation)
    stack = begin(plan, federation, cohort)
    told = cohort.train(stack, range(SITES), t, rounds, is_global=[common] * SITES)
    return {name: tensor.numpy().copy() for name, tensor in stack.state.items()}, told


def assert_same(left, right):
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def test_a_method_without_a_tree_gets_a_plain_cohort(federation):
    assert isinstance(cohort_of(plan_of("FedAvg"), federation), Cohort)
    assert isinstance(cohort_of(plan_of(), federation), TreeCohort)


def test_depth_zero_trains_what_a_cohort_without_trees_trains_to_the_bit(federation):
    flat, _ = trained(plan_of(tree={"depth": 0}), federation, t=3, rounds=3)
    plain, _ = trained(plan_of("FedAvg"), federation, t=3, rounds=3)

    assert_same(flat, plain)


@pytest.mark.parametrize("fold", ["diversity", "simple"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_round_is_what_its_parts_are_one_by_one(federation, fold, depth):
    plan = plan_of(tree={"fanout": 2, "depth": depth, "fold": fold, "drop": 0.2})

    together, _ = trained(plan, federation)

    tree = ReplicaTree(2, depth, 0.2)
    names, rows = [], []
    for site, samples in zip(federation.names, federation.train, strict=True):
        held = subsets(tree, samples.y, plan.seed, site)
        for node in tree.nodes:
            name = f"{site}#{node}" if node else site
            part = Samples(samples.x[held[node]], samples.y[held[node]])
            alone = Cohort(plan_of("FedAvg"), federation.task, [name], [part], path="loop")
            stack = begin(plan, federation, alone, 1)
            alone.train(stack, [0], 1, 1)
            names.append(name)
            rows.append(stack.model_state(0).model)
    folded = fold_trees({name: np.stack([row[name] for row in rows]) for name in rows[0]}, names, fold)
    for name in folded:
        np.testing.assert_allclose(together[name], folded[name], rtol=1e-10, atol=1e-12)


def test_a_site_gets_the_same_numbers_in_any_company(federation):
    plan = plan_of(tree={"fanout": 3, "depth": 2})
    together, _ = trained(plan, federation)

    for site in range(SITES):
        cohort = cohort_of(plan, federation, slice(site, site + 1))
        stack = begin(plan, federation, cohort, 1)
        cohort.train(stack, [0], 1, 1, is_global=[True])
        for name, array in stack.model_state(0).model.items():
            np.testing.assert_allclose(array, together[name][site], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("recipe", [Recipe(lr=0.05, momentum=0.9, batch=4), Recipe(optimizer="adam", lr=0.01)])
@pytest.mark.parametrize("name", ["RepTreeFL", "RepTreeFL+FedProx", "FedDC+Trees"])
def test_a_look_in_between_changes_no_number(federation, recipe, name):
    plan = plan_of(name, recipe=recipe, permute_every=None, aggregate_every=6)
    whole, _ = trained(plan, federation, t=6, rounds=6)

    cohort = cohort_of(plan, federation)
    stack = begin(plan, federation, cohort)
    first = cohort.train(stack, range(SITES), 4, 4, is_global=[True] * SITES)
    cohort.train(stack, range(SITES), 6, 2, is_global=[False] * SITES, memory=first.memory)

    assert_same({name: tensor.numpy() for name, tensor in stack.state.items()}, whole)


@pytest.mark.parametrize("name", ["RepTreeFL", "FedDC+Trees"])
def test_a_traveller_that_was_written_down_goes_on_as_if_it_had_stayed(federation, name):
    plan = plan_of(name, recipe=Recipe(lr=0.05, momentum=0.9, batch=4))
    cohort = cohort_of(plan, federation)
    stack = begin(plan, federation, cohort)
    cohort.train(stack, range(SITES), 1, 1, is_global=[True] * SITES)
    again = cohort.stack([stack.model_state(row) for row in range(SITES)])

    for each in (stack, again):
        cohort.train(each, [1, 2, 0], 2, 1, is_global=[False] * SITES)

    assert_same({n: t.numpy() for n, t in stack.state.items()}, {n: t.numpy() for n, t in again.state.items()})


@pytest.mark.parametrize("fold", ["diversity", "simple"])
@pytest.mark.parametrize("depth", [1, 2])
def test_folding_at_the_server_gives_the_sites_fold_to_the_bit(federation, fold, depth):
    tree = {"fanout": 2, "depth": depth, "fold": fold}
    at_site, _ = trained(plan_of(tree=tree), federation)
    plan = plan_of(tree=tree | {"fold_at": "server"})

    unfolded, told = trained(plan, federation)

    assert any((unfolded[name] != at_site[name]).any() for name in at_site)
    assert_same(fold_sent(plan.method.tree, unfolded, told.rule, federation.names), at_site)


def test_between_aggregations_the_site_folds_even_where_the_server_does_at_them(federation):
    tree = {"fanout": 2, "depth": 1, "fold_at": "server"}
    plan = plan_of(tree=tree, aggregate_every=4)

    early, told = trained(plan, federation, t=3, rounds=3)

    assert told.rule == {}
    assert_same(
        early, trained(plan_of(tree={"fanout": 2, "depth": 1}, aggregate_every=4), federation, t=3, rounds=3)[0]
    )


def test_whole_trees_travel_unfolded_and_are_folded_when_aggregation_is_due(federation):
    plan = plan_of("FedDC+Trees", tree={"fanout": 2}, permute_every=1, aggregate_every=2)
    cohort = cohort_of(plan, federation)
    stack = begin(plan, federation, cohort)

    cohort.train(stack, [0, 1, 2], 1, 1, is_global=[True] * 3)
    carried = stack.model_state(0).carried
    cohort.train(stack, [1, 2, 0], 2, 1, is_global=[False] * 3)

    assert {name.split("/")[1] for name in carried} == {"0", "1"}
    by_hand = Cohort(plan_of("FedAvg"), federation.task, *_nodes(plan, federation), path="loop")
    nodes = begin(plan, federation, by_hand, 9)
    by_hand.train(nodes, range(9), 1, 1)
    by_hand.train(nodes, [3, 4, 5, 6, 7, 8, 0, 1, 2], 2, 1)
    names = ["a", "a#0", "a#1", "b", "b#0", "b#1", "c", "c#0", "c#1"]
    folded = fold_trees({name: tensor.numpy() for name, tensor in nodes.state.items()}, names)
    for name, tensor in stack.state.items():
        np.testing.assert_allclose(tensor.numpy(), folded[name], rtol=1e-10, atol=1e-12)


def _nodes(plan: Plan, federation: Federation) -> tuple[list[str], list[Samples]]:
    names, samples = [], []
    for site, own in zip(federation.names, federation.train, strict=True):
        for node, rows in subsets(ReplicaTree(2, 1, 0.1), own.y, plan.seed, site).items():
            names.append(f"{site}#{node}" if node else site)
            samples.append(Samples(own.x[rows], own.y[rows]))
    return names, samples


def test_a_tree_grows_anew_from_a_common_model_whatever_it_carried(federation):
    plan = plan_of("FedDC+Trees", tree={"fanout": 2})
    cohort = cohort_of(plan, federation)
    model = initial_model(plan, federation.task)
    fresh = begin(plan, federation, cohort)
    used = begin(plan, federation, cohort)
    cohort.train(used, range(SITES), 1, 1, is_global=[True] * SITES)
    used.replace(model)

    for stack in (fresh, used):
        cohort.train(stack, range(SITES), 2, 1, is_global=[True] * SITES)

    assert_same({n: t.numpy() for n, t in fresh.state.items()}, {n: t.numpy() for n, t in used.state.items()})


def test_the_fair_control_is_a_tree_that_drops_nothing(federation):
    plan = plan_of("RepFL", tree={"drop": 0.0})

    state, told = trained(plan, federation)

    assert (told.examples == 20).all()
    assert any((state[name] != trained(plan_of("FedAvg"), federation)[0][name]).any() for name in state)


def test_the_proximal_pull_of_every_node_is_towards_the_common_model(federation):
    strong = plan_of("RepTreeFL+FedProx", recipe=Recipe(lr=1e-3, batch=4, local_epochs=20), proximal_mu=900.0)
    start = initial_model(strong, federation.task)

    near, told = trained(strong, federation)
    far, _ = trained(plan_of("RepTreeFL", recipe=strong.recipe), federation)

    name = next(iter(start))
    assert np.abs(near[name] - start[name]).max() < 0.1 * np.abs(far[name] - start[name]).max()
    assert len(told.memory["known"]) == SITES


def test_sites_may_have_trees_of_their_own(federation):
    plan = plan_of(tree={"fanout": (1, 2, 3), "depth": (0, 1, 2), "drop": (0.1, 0.2, 0.3)})

    state, _ = trained(plan, federation)

    flat, _ = trained(plan_of("FedAvg"), federation)
    name = next(iter(state))
    np.testing.assert_allclose(state[name][0], flat[name][0], rtol=1e-10)
    assert (state[name][1] != flat[name][1]).any()


def test_kl_divergence_looks_at_the_anchors_own_samples(federation):
    state, _ = trained(plan_of(tree={"diversity": "kl"}), federation)
    other, _ = trained(plan_of(), federation)

    name = next(iter(state))
    assert np.isfinite(state[name]).all()
    assert (state[name] != other[name]).any()
    np.testing.assert_allclose(state[name], other[name], atol=0.1)


def test_anchors_say_their_own_steps_and_samples(federation):
    _, told = trained(plan_of(tree={"drop": 0.5}), federation, t=4, rounds=4)

    assert told.examples.tolist() == [20] * SITES
    assert told.steps.tolist() == [5 * 4] * SITES
