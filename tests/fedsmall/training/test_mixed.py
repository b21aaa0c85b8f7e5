"""Sites with models of their own that share some layers."""

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.own_models import SHARED_PART, is_shared, kind_of
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.replicas import plan_at
from fedsmall.training.cohort import Cohort
from fedsmall.training.mixed import MixedCohort
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState

TASK = Task("toy", (6,), 2)
NAMES = ("a", "b", "c")
SHARED = ["body"]


def small(task: Task) -> torch.nn.Module:
    return _net(task, torch.nn.Linear(8, task.outputs))


def large(task: Task) -> torch.nn.Module:
    return _net(task, torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, task.outputs)))


def _net(task: Task, head: torch.nn.Module, width: int = 8) -> torch.nn.Module:
    net = torch.nn.Sequential()
    net.add_module("body", torch.nn.Linear(task.input_shape[0], width))
    net.add_module("norm", torch.nn.BatchNorm1d(width))
    net.add_module("head", head)
    return net


def other_width(task: Task) -> torch.nn.Module:
    return _net(task, torch.nn.Linear(9, task.outputs), width=9)


HERE = __name__
SMALL, LARGE, WIDE = (f"{HERE}:{name}" for name in ("small", "large", "other_width"))


def plan_of(
    name: str = "FedAvg", sites=(SMALL, LARGE, SMALL), shared=None, recipe: Recipe | None = None, **parts
) -> Plan:
    return Plan(
        name="mixed",
        task="toy",
        model=SHARED_PART,
        model_options={"sites": list(sites), "shared": shared or SHARED},
        rounds=6,
        dtype="float64",
        recipe=recipe or Recipe(lr=0.1, batch=4, local_epochs=1),
        method=method(name, **parts),
    )


def samples(rng: np.random.Generator) -> Samples:
    x = rng.normal(size=(10, 6))
    return Samples(x, (x[:, 0] > 0).astype(np.int64))


DATA = [samples(np.random.default_rng(seed)) for seed in range(3)]


def begin(plan: Plan, cohort, count: int = 3):
    return cohort.stack([ModelState(initial_model(plan, TASK))] * count)


def values(stack) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in stack.state.items()}


def test_only_the_shared_layers_are_on_the_wire():
    plan = plan_of()
    cohort = cohort_for(plan, TASK, NAMES, DATA)
    stack = begin(plan, cohort)

    cohort.train(stack, range(3), 1, 1, is_global=[True] * 3)

    assert isinstance(cohort, MixedCohort)
    assert list(initial_model(plan, TASK)) == ["body.weight", "body.bias"]
    assert list(stack.model_state(0).model) == ["body.weight", "body.bias"]


@pytest.mark.parametrize(
    "recipe", [Recipe(lr=0.1, batch=4), Recipe(lr=0.05, momentum=0.9), Recipe(optimizer="adam", lr=0.01)]
)
def test_sites_that_share_everything_train_as_sites_with_one_model(recipe):
    mixed = plan_of(sites=[SMALL] * 3, shared=["body", "norm", "head"], recipe=recipe)
    plain = mixed.model_copy(update={"model": SMALL, "model_options": {}})
    start = initial_model(plain, TASK)
    results = []
    for cohort in (cohort_for(mixed, TASK, NAMES, DATA), Cohort(plain, TASK, NAMES, DATA)):
        stack = cohort.stack([ModelState(start)] * 3)
        memory = cohort.train(stack, [0, 1, 2], 1, 1, is_global=[True] * 3).memory
        cohort.train(stack, [2, 0, 1], 3, 2, is_global=[False] * 3, memory=memory)
        results.append(values(stack))

    for name in results[0]:
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-12)


def test_private_layers_stay_at_their_site_when_shared_ones_move_on():
    plan = plan_of()
    cohort = cohort_for(plan, TASK, NAMES, DATA)
    stack = begin(plan, cohort)
    memory = cohort.train(stack, [0, 1, 2], 1, 1, is_global=[True] * 3).memory
    moved = values(stack)

    cohort.train(stack, [2, 0, 1], 2, 1, memory=memory)  # row 0 at site c, and so on

    by_hand = Cohort(plan.model_copy(update={"model": SMALL, "model_options": {}}), TASK, ["a"], [DATA[0]])
    head = {k.removeprefix("private/0/"): v[0] for k, v in memory.items() if k.startswith("private/0/")}
    visitor = by_hand.stack(
        [ModelState({"body.weight": moved["body.weight"][1], "body.bias": moved["body.bias"][1], **head})]
    )
    by_hand.train(visitor, [0], 2, 1)
    np.testing.assert_allclose(values(stack)["body.weight"][1], values(visitor)["body.weight"][0], rtol=1e-12)


@pytest.mark.parametrize("name", ["FedAvg", "FedDyn", "FedDC", "RepFL", "RepTreeFL", "FedProx"])
def test_a_site_alone_that_restarts_at_every_comm_round_gets_the_numbers_of_the_cohort(name):
    plan = plan_of(name, recipe=Recipe(lr=0.05, momentum=0.9, batch=4))
    whole = cohort_for(plan, TASK, NAMES, DATA)
    stack = begin(plan, whole)
    memory = {}
    for t in (1, 2, 3):
        memory = whole.train(stack, range(3), t, 1, is_global=[t == 1] * 3, memory=memory).memory

    for place, site in enumerate(NAMES):
        traveller, kept = ModelState(initial_model(plan, TASK)), {}
        for t in (1, 2, 3):
            program = cohort_for(plan_at(plan, place, 3), TASK, [site], [DATA[place]])  # a new process each time
            own = program.stack([traveller])
            told = program.train(own, [0], t, 1, is_global=[t == 1], memory=kept)
            sent = own.model_state(0)
            traveller = ModelState(*({k: a.copy() for k, a in part.items()} for part in (sent.model, sent.carried)))
            kept = {key: array.copy() for key, array in told.memory.items()}
        for key, array in traveller.model.items():
            np.testing.assert_allclose(array, values(stack)[key][place], rtol=1e-10, atol=1e-13)


def test_a_site_judges_the_shared_part_with_the_layers_it_remembers():
    plan = plan_at(plan_of(), 1, 3)
    cohort = cohort_for(plan, TASK, ["b"], [DATA[1]])
    stack = begin(plan, cohort, 1)
    memory = cohort.train(stack, [0], 1, 1, is_global=[True]).memory
    shared = stack.model_state(0).model

    alone = cohort_for(plan, TASK, ["b"], [DATA[1]]).predict_at(0, shared, DATA[1].x, memory)
    forgetful = cohort.predict_at(0, shared, DATA[1].x, {})

    head = {k.removeprefix("private/0/"): v[0] for k, v in memory.items() if k.startswith("private/0/")}
    whole = Cohort(plan.model_copy(update={"model": LARGE, "model_options": {}}), TASK, ["b"], [DATA[1]])
    by_hand = whole.predict(whole.stack([ModelState({**shared, **head})]), DATA[1].x)[0]
    np.testing.assert_array_equal(alone, by_hand)
    assert (forgetful != by_hand).any()


def test_sites_of_one_architecture_may_have_options_of_their_own():
    heads = [{"name": "mlp", "hidden": [8, width]} for width in (3, 5, 3)]
    plan = plan_of(sites=heads, shared=["0"])
    cohort = cohort_for(plan, TASK, NAMES, DATA)

    memory = cohort.train(begin(plan, cohort), range(3), 1, 1, is_global=[True] * 3).memory

    assert {name: array.shape[1:] for name, array in memory.items() if name.endswith("2.bias")} == {
        "private/0/2.bias": (3,),
        "private/1/2.bias": (5,),
    }


@pytest.mark.parametrize("entry", [3, None, {}, {"hidden": [3]}, {"name": 3}])
def test_what_is_no_model_of_a_site_is_refused(entry):
    with pytest.raises(PlanError, match="a name, or a table with a name and options"):
        kind_of(entry)


def test_diversity_is_measured_on_the_shared_layers():
    tree = {"fanout": 2, "drop": 0.3}
    results = []
    for shared in (["body"], ["body", "norm", "head"]):
        plan = plan_of("RepTreeFL", sites=[SMALL] * 3, shared=shared, tree=tree)
        cohort = cohort_for(plan, TASK, NAMES, DATA)
        full = initial_model(plan_of(sites=[SMALL] * 3, shared=["body", "norm", "head"]), TASK)
        stack = cohort.stack([ModelState({k: a for k, a in full.items() if is_shared(k, shared)})] * 3)
        cohort.train(stack, range(3), 1, 1, is_global=[True] * 3)
        results.append(values(stack)["body.weight"])

    assert (results[0] != results[1]).any()


def test_names_are_matched_by_layer_and_not_by_letters():
    assert is_shared("conv1.weight", ["conv1"])
    assert not is_shared("conv10.weight", ["conv1"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shared": ["tail"]}, "matches none of the arrays"),
        ({"sites": [SMALL, LARGE]}, "names 2 models for 3 sites"),
        ({"sites": [SMALL, WIDE, SMALL]}, r"Shared array 'body.bias' is \(8,\) in .*small' and \(9,\) in"),
        ({"shared": ["body", "head"]}, "Shared array 'head.0.bias' is nothing in .*small'"),
    ],
)
def test_sites_that_cannot_share_are_found_when_the_run_is_planned(settings, message):
    with pytest.raises(PlanError, match=message):
        cohort_for(plan_of(**settings), TASK, NAMES, DATA)


def test_a_shared_part_that_matches_nothing_is_found_before_any_site_is_asked():
    with pytest.raises(PlanError, match=r"shared = \['tail'\] matches none"):
        initial_model(plan_of(shared=["tail"]), TASK)
