"""Reading: a broken attacker makes everything look safe, so the attacker itself is what is tested here."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsmall.data.sources.pool import NOWHERE
from fedsmall.data.sources.public import breast_cancer
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.reading import (
    layers_read,
    looks,
    noise_borne,
    noise_in_average,
    pad_records,
    read_from_stack,
    records_read,
)
from fedsmall.training.cohort import Cohort
from fedsmall.training.information import record_squares
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.wire import Arrays, ModelState


def arrays_of(module: nn.Module) -> Arrays:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def mlp(features: int, *hidden: int, outputs: int = 2, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width, bias=bias), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, outputs))


def one_update(
    module: nn.Module, x: np.ndarray, y: np.ndarray, steps: int = 1, lr: float = 0.1
) -> tuple[Arrays, Arrays]:
    """What a site sends after full-batch steps of SGD, and what it set out from."""
    start = arrays_of(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return start, arrays_of(module)


def scaled_breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    part = breast_cancer(None, 0).train[NOWHERE]
    return ((part.x - part.x.mean(0)) / part.x.std(0)).astype(np.float32), part.y.astype(np.int64)


def share_read(patients: int, sites: int, steps: int = 1) -> float:
    x, y = scaled_breast_cancer()
    rng, read = np.random.default_rng(0), 0
    for site in range(sites):
        torch.manual_seed(site)
        mine = rng.choice(len(x), patients, replace=False)
        read += int(records_read(*one_update(mlp(30, 32, 16), x[mine], y[mine], steps), x[mine]).sum())
    return read / (patients * sites)


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_without_a_defence_half_of_five_patients_are_read(steps: int) -> None:
    assert share_read(5, 60, steps) >= 0.45


def test_nobody_is_read_among_a_hundred_patients_in_one_batch() -> None:
    assert share_read(100, 3) < 0.02


def test_a_lone_patient_is_always_read() -> None:
    assert share_read(1, 20) == 1


def test_who_was_not_trained_on_is_not_read() -> None:
    x, y = scaled_breast_cancer()
    start, sent = one_update(mlp(30, 32, 16), x[:5], y[:5])

    assert not records_read(start, sent, x[100:]).any()


def test_nothing_is_read_from_a_model_that_did_not_move() -> None:
    x, _ = scaled_breast_cancer()
    start = arrays_of(mlp(30, 32, 16))

    assert not records_read(start, start, x[:5]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_record_is_read_whatever_the_learning_rate_and_the_precision(dtype: type) -> None:
    x, y = scaled_breast_cancer()
    module = mlp(30, 16).to(torch.float64 if dtype is np.float64 else torch.float32)

    for lr in (1e-3, 1.0):
        assert records_read(*one_update(module, x[:1].astype(dtype), y[:1], lr=lr), x[:1]).all()


def test_a_layer_without_biases_shows_a_record_but_for_one_factor() -> None:
    x, y = scaled_breast_cancer()

    assert records_read(*one_update(mlp(30, 32, bias=False), x[:1], y[:1]), x[:1]).all()


def test_a_convolution_as_large_as_the_image_shows_records_and_a_smaller_one_does_not() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 6, 6)).astype(np.float32)
    y = np.zeros(1, dtype=np.int64)

    whole = nn.Sequential(nn.Conv2d(1, 8, 6), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    small = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    assert records_read(*one_update(whole, x, y), x).all()
    assert not records_read(*one_update(small, x, y), x).any()
    assert layers_read(arrays_of(whole), 36) == ["0"]
    assert layers_read(arrays_of(small), 36) == []


def test_a_frozen_layer_shows_nothing() -> None:
    x, y = scaled_breast_cancer()
    module = mlp(30, 32, 16)
    module[0].requires_grad_(False)

    assert not records_read(*one_update(module, x[:1], y[:1]), x[:1]).any()


def test_many_updates_at_once_are_read_as_each_alone() -> None:
    x, y = scaled_breast_cancer()
    sizes, first = (1, 5, 3), 0
    sites, updates = [], []
    for seed, count in enumerate(sizes):
        torch.manual_seed(seed)
        mine = slice(first, first + count)
        sites.append(x[mine])
        updates.append(one_update(mlp(30, 32, 16), x[mine], y[mine]))
        first += count
    start, sent = ({n: np.stack([u[k][n] for u in updates]) for n in updates[0][0]} for k in (0, 1))

    together = read_from_stack(start, sent, pad_records(sites))

    assert together.shape == (3, 5)
    assert not together[0, 1:].any(), "a patient that is not there was read"
    for row, (update, records) in enumerate(zip(updates, sites, strict=True)):
        np.testing.assert_array_equal(together[row, : len(records)], records_read(*update, records))


def test_a_number_that_is_not_finite_reads_nobody_and_warns_nobody() -> None:
    x, y = scaled_breast_cancer()
    start, sent = one_update(mlp(30, 4), x[:2], y[:2])
    sent["0.weight"][:] = np.nan

    assert not records_read(start, sent, x[:2]).any()


def test_looks_are_about_the_information_that_blur_lets_out_in_a_few_comm_rounds():
    """Against the information by training again (tests/fedsmall/training/test_information.py holds that)."""
    method = Method(name="FedAvg", aggregate_every=1, privacy=Privacy(blur=1.0))
    fields = {"name": "test", "task": "breast_cancer", "sites": 6, "samples_per_site": 4, "rounds": 3}
    plan = Plan(**fields, model_options={"hidden": [32, 16]}, recipe=Recipe(lr=0.1), method=method)
    federation = build_federation(plan)
    names, train = federation.names, federation.train
    cohort = Cohort(plan, federation.task, names, train)
    model, places = initial_model(plan, federation.task), np.arange(6)
    numbers, told = sum(array.size for array in model.values()), np.zeros((6, 4))

    for t in (1, 2, 3):
        start = cohort.stack([ModelState(model)] * 6)
        phase, moved = Phase(places, t, 1), start.clone()
        squares = record_squares(plan, federation.task, names, train, [np.arange(4)] * 6, start, phase, TrainInput())
        cohort.walk(moved, [phase], TrainInput())
        steps = [(tensor - start.parameters[name]).double().flatten(1) for name, tensor in moved.parameters.items()]
        told += squares / (torch.cat(steps, 1).square().sum(1).numpy()[:, None] / numbers)
        model = {name: array.mean(0).numpy() for name, array in moved.state.items()}

    estimate = looks(plan, numbers, 4, 30)
    assert estimate == pytest.approx(numbers * 3 / 120)
    assert 0.2 < np.median(told) / estimate < 2
    assert looks(plan.model_copy(update={"method": Method(name="FedAvg")}), numbers, 4, 30) is None


def test_the_noise_that_is_foretold_is_about_that_which_is_added(monkeypatch):
    """In the first communication round of a run, over the length of the average's noise and that of a site's update."""
    method = Method(name="FedAvg", aggregate_every=1, privacy=Privacy(exposure=1.0))
    fields = {"name": "test", "task": "breast_cancer", "sites": 6, "samples_per_site": 4, "rounds": 3}
    plan = Plan(**fields, model_options={"hidden": [32, 16]}, recipe=Recipe(lr=0.1), method=method)
    federation = build_federation(plan)
    model, places = initial_model(plan, federation.task), np.arange(6)
    moved = []
    for privacy in (None, method.privacy):
        asked = plan.model_copy(update={"method": method.model_copy(update={"privacy": privacy})})
        cohort = cohort_for(asked, federation.task, federation.names, federation.train)
        stack = cohort.stack([ModelState(model)] * 6)
        cohort.walk(stack, [Phase(places, 1, 1, True)], TrainInput())
        moved.append(torch.cat([tensor.double().flatten(1) for tensor in stack.parameters.values()], 1))
    start = torch.cat([torch.from_numpy(array).double().flatten() for array in model.values()])
    numbers = sum(array.size for array in model.values())

    added = (moved[1] - moved[0]).mean(0).norm() / (moved[0] - start).norm(dim=1).median()

    line = noise_borne(plan, numbers, 4, 30, 6)
    foretold = noise_in_average(1.0, numbers, 3, 4, 30, 6, 1)
    assert f"about {foretold:.2g} times" in line
    assert 0.5 < added / foretold < 4
    assert noise_borne(plan.model_copy(update={"method": Method(name="FedAvg")}), numbers, 4, 30, 6) == ""
