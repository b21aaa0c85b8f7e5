"""FedPAGE against the paper's algorithm in a loop of numpy, against gradient descent, and where averaging drifts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.federation import Federation, Samples, Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.training.batches import batch_order, batch_sizes
from fedsmall.validation import check_plan
from fedsmall.wire import Arrays
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_one_algorithm import (
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
    table,
)
from tests.sim.engines.test_stopping import conduct

NUMBERS = Task("numbers", (3,), 1, "mse", ("mse",))
SIZES = (6, 9, 7)
STEPS = Recipe(lr=0.02, batch=2, local_steps=4)


def plan_for(name: str = "FedPAGE", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """A linear model on numbers: the loss of each site is a quadratic function."""
    table = {"sites": None, "samples_per_site": None, "model": "linear", "model_options": {}, "recipe": STEPS}
    return plan_of(name, settings or {}, **{**table, "rounds": 10, **changes})


def far_apart(sizes: tuple[int, ...] = SIZES) -> Federation:
    """Sites whose optima differ, and whose losses are curved differently."""
    rng, samples = np.random.default_rng(2), []
    for number, size in enumerate(sizes):
        x = rng.standard_normal((size, 3)) * (1 + number)
        samples.append(Samples(x, x @ rng.standard_normal(3) * 3 + number))
    names = tuple(f"site-{number}" for number in range(len(sizes)))
    return Federation(NUMBERS, names, tuple(samples), Samples(samples[0].x, samples[0].y))


def start(plan: Plan) -> np.ndarray:
    return flat(initial_model(plan, NUMBERS, None))


def flat(model: Arrays | None) -> np.ndarray:
    """Weights and bias of a linear model as one vector, (4,)."""
    weight, bias = (model or {}).values()
    return np.concatenate([weight.reshape(-1), bias]).astype(np.float64)


def gradient(samples: Samples, w: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Of the mean squared error on some of the samples."""
    x = np.hstack([samples.x[rows], np.ones((len(samples.x[rows]), 1))])
    return 2 * x.T @ (x @ w - samples.y[rows]) / len(x)


def as_printed(plan: Plan, federation: Federation, p: float) -> np.ndarray:
    """Algorithm 1 of Zhao, Li and Richtarik, site by site; batches and the coin are the run's own."""
    sites, lr = list(zip(federation.names, federation.train, strict=True)), plan.recipe.lr

    def batches(site: str, samples: Samples, t: int) -> list[np.ndarray]:
        sizes = batch_sizes(plan.recipe, len(samples), min(plan.recipe.batch or len(samples), len(samples)))
        return batch_order(sizes, len(samples), rng_for(plan.seed, "batches", site, t))

    x = start(plan)
    g = np.mean([gradient(samples, x) for _, samples in sites], axis=0)
    for t in range(2, plan.rounds + 1, 2):
        ends = []
        for site, samples in sites:
            along, y = g, x - lr * g
            before = x
            for rows in batches(site, samples, t)[1:]:
                along = along + gradient(samples, y, rows) - gradient(samples, before, rows)
                before, y = y, y - lr * along
            ends.append(y)
        last, x = x, np.mean(ends, axis=0)
        if rng_for(plan.seed, "server", t).random() < p:
            g = np.mean([gradient(samples, x) for _, samples in sites], axis=0)
        else:
            first = [(samples, batches(site, samples, t + 1)[0]) for site, samples in sites]
            g = g + np.mean([gradient(s, x, rows) - gradient(s, last, rows) for s, rows in first], axis=0)
    return x


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("recipe", [STEPS, Recipe(lr=0.02, batch=4, local_epochs=2), Recipe(lr=0.02, local_steps=3)])
def test_a_run_is_the_papers_algorithm(p: float, recipe: Recipe) -> None:
    plan = plan_for(settings={"server_options": {"p": p}}, recipe=recipe)
    federation = far_apart()

    found = flat(batched(plan, federation).model)

    np.testing.assert_allclose(found, as_printed(plan, federation, p), rtol=0, atol=1e-10)
    assert np.abs(found - start(plan)).max() > 0.1


def test_one_step_with_full_gradients_is_gradient_descent() -> None:
    recipe = Recipe(lr=0.02)
    page = plan_for(settings={"server_options": {"p": 1.0}}, recipe=recipe)
    descent = plan_for("FedSGD", {"weighted": False}, recipe=recipe, rounds=5)
    federation = far_apart()

    both = [flat(batched(plan, federation).model) for plan in (page, descent)]

    np.testing.assert_allclose(*both, rtol=0, atol=1e-12)


def test_it_finds_the_common_optimum_where_averaging_drifts_away() -> None:
    federation = far_apart()
    x = np.vstack([np.hstack([s.x, np.ones((len(s), 1))]) / len(s) ** 0.5 for s in federation.train])
    y = np.concatenate([s.y / len(s) ** 0.5 for s in federation.train])
    optimum = np.linalg.lstsq(x, y, rcond=None)[0]
    recipe = Recipe(lr=0.01, local_steps=8)

    page = flat(batched(plan_for(rounds=600, recipe=recipe), federation).model)
    average = flat(batched(plan_for("FedAvg", recipe=recipe, rounds=600), federation).model)

    assert np.abs(page - optimum).max() < 1e-6
    assert np.abs(average - optimum).max() > 0.1


def test_weights_of_sites_hold_for_gradients_too() -> None:
    federation = far_apart((20, 5, 5))
    pooled = Samples(*(np.concatenate([getattr(s, part) for s in federation.train]) for part in "xy"))
    recipe = Recipe(lr=0.02)
    plan = plan_for(settings={"weighted": True, "server_options": {"p": 1.0}}, rounds=4, recipe=recipe)
    w = start(plan)

    for _ in range(2):
        w = w - recipe.lr * gradient(pooled, w)

    np.testing.assert_allclose(flat(batched(plan, federation).model), w, rtol=0, atol=1e-12)


SETTINGS = {
    "batches": {"recipe": STEPS},
    "full batches, always full gradients": {"settings": {"server_options": {"p": 1.0}}},
    "a secure sum": {"settings": {"privacy": {"secure": True}}},
    "a server step of half the size": {"settings": {"server_options": {"lr": 0.5, "p": 0.2}}, "recipe": STEPS},
    "dropout": {"model_options": {"hidden": [6], "dropout": 0.3}, "recipe": STEPS},
    "batch norm": {
        "task": "digits",
        "model": "cnn",
        "model_options": {"norm": "batch"},
        "recipe": STEPS,
        "rounds": 3,
        "sites": 2,
    },
}


@pytest.mark.parametrize("case", SETTINGS)
def test_sites_one_by_one_do_what_a_stack_does(case: str) -> None:
    plan = plan_of("FedPAGE", **{"settings": {}, "rounds": 8, "evaluate_every": 2, **SETTINGS[case]})

    assert_alike(batched(plan), loop_of(plan).run())


def test_unequal_sites_one_by_one_do_what_a_stack_does() -> None:
    few = {"task": {"name": "table"}, "sites": None, "samples_per_site": None, "model_options": {"hidden": [4]}}
    plan = plan_of("FedPAGE", recipe=Recipe(lr=0.05, batch=3, local_epochs=2), rounds=6, **few)
    federation = table(plan, 4)
    cut = [Samples(s.x[:n], s.y[:n]) for s, n in zip(federation.train, (8, 3, 5, 4), strict=True)]
    federation = replace(federation, train=tuple(cut))

    assert_alike(batched(plan, federation), loop_of(plan, federation).run())


def test_real_sites_programs_make_the_model_of_the_simulation(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("FedPAGE", recipe=STEPS, rounds=4, sites=3)
    federation = federation_of(plan)

    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert_equal_bits(loop_of(plan, federation).run().model, real.model)


def test_a_run_that_is_stopped_at_every_contact_and_resumed_is_the_run_in_one_go(tmp_path) -> None:
    plan = plan_of("FedPAGE", {"server_options": {"p": 0.4}}, recipe=STEPS, rounds=8)
    whole = loop_of(plan).run()

    for _ in range(20):
        part = loop_of(plan, journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_equal_bits(whole.model, part.model)
    assert part.bytes_sent == whole.bytes_sent


@pytest.mark.parametrize(("p", "models"), [(1.0, 2 + 3 + 2 + 3), (0.0, 2 + 3 + 3 + 3)])
def test_an_exchange_costs_what_goes_in_its_messages(p: float, models: int) -> None:
    """A gradient costs a model either way, its change the model before on top, local steps the estimate."""
    plan = plan_for(settings={"server_options": {"p": p}}, rounds=4)
    outcome = batched(plan, far_apart())

    asked = 3 * 8 * 3  # from the second on an order says, in eight bytes, what is asked of each of three sites

    assert outcome.bytes_sent == models * 3 * start(plan).nbytes + asked


def test_who_asks_for_gradients_moves_no_model() -> None:
    plan = plan_of("FedPAGE", rounds=5, evaluate_every=1)
    losses = [(evaluation.common or {})["loss"] for evaluation in batched(plan).evaluations]

    assert losses[1] == losses[2]
    assert losses[3] == losses[4]
    assert losses[0] > losses[1] > losses[3]


REFUSED = [
    ({"aggregate_every": 2}, {}, "aggregate_every = 1"),
    ({"random_schedule": True}, {}, "aggregate_every = 1"),
    ({"fraction": 0.5}, {}, "leave fraction, models and phases out"),
    ({"models": 2}, {}, "leave fraction, models and phases out"),
    ({"permute_every": 1}, {}, "FedPAGE has no meaning with permute_every"),
    ({"aggregator": "median"}, {}, "defined for the mean"),
    ({"groups": 2}, {}, "'page' holds a model near the one common model"),
    ({"regions": 2}, {}, "'page' holds a model near the one common model"),
    ({"topology": "gossip"}, {}, "topology"),
    ({"tree": {}}, {}, "Replica trees do not go with rule 'page'"),
    ({"snapshots": 2}, {}, "leave snapshots and ema out"),
    ({"ema": 0.5}, {}, "leave snapshots and ema out"),
    ({"wire": "int8"}, {}, 'set wire = "full"'),
    ({"server_options": {"p": 2.0}}, {}, "p is a probability"),
    ({"server_options": {"rate": 2.0}}, {}, "leave rate out"),
    ({"server": "none"}, {}, "set rule and server both to 'page'"),
    ({"rule": "none"}, {}, "set rule and server both to 'page'"),
    ({"privacy": {"blur": 1.0}}, {}, "leave blur, clip and noise out"),
    ({"privacy": {"clip": 1.0, "noise": 1.0}}, {}, "leave blur, clip and noise out"),
    ({"privacy": {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 4}}, {}, "leave blur, clip and noise out"),
    ({}, {"recipe": Recipe(momentum=0.5)}, "momentum and weight_decay to 0"),
    ({}, {"recipe": Recipe(weight_decay=0.1)}, "momentum and weight_decay to 0"),
    ({}, {"recipe": Recipe(optimizer="adam")}, "no meaning with 'adam'"),
]


@pytest.mark.parametrize(("settings", "changes", "said"), REFUSED)
def test_what_does_not_go_is_refused_in_a_line(settings: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    plan = plan_of("FedPAGE", settings, **changes)

    with pytest.raises(PlanError, match=said) as caught:
        check_plan(plan, Task("breast_cancer", (30,), 2), 5)

    assert "\n" not in str(caught.value)
