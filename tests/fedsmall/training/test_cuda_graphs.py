"""Replayed steps where there is no GPU: a graph is then the step itself on the tensors that it was recorded with."""

from contextlib import contextmanager

import pytest
import torch

from fedsmall.training import cuda_graphs
from fedsmall.training.cuda_graphs import ReplayedStep
from fedsmall.training.gradients import Batch
from fedsmall.training.stack import Stack

RATE = 0.5


@pytest.fixture
def recorded(monkeypatch):
    """The graphs that were recorded; while one is, a step changes nothing, as on a GPU."""
    graphs = []

    class Graph:
        def replay(self):
            models, batch, outputs, lr = self.recorded
            outputs.copy_(descend(models, {}, {}, batch, lr))

    @contextmanager
    def record(graph, pool, capture_error_mode):
        graphs.append(graph)
        recording.append(graph)
        yield
        recording.pop()

    recording = []

    def step(models, state, variables, batch, lr):
        if not recording:
            return descend(models, state, variables, batch, lr)
        outputs = torch.zeros(2, dtype=torch.float64)
        recording[0].recorded = models, batch, outputs, lr
        return outputs

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return step, graphs


def descend(models, state, variables, batch, lr):
    models.parameters["w"].sub_(lr * (batch.x * batch.masks["dropout"]).sum(1))
    return models.parameters["w"] * 2


def models_of():
    return Stack(("w",), {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}, {})


def batch_of(number, samples=3):
    return Batch(
        torch.full((2, samples), float(number), dtype=torch.float64),
        torch.zeros(2, samples),
        None,
        {"dropout": torch.ones(2, samples)},
    )


def test_steps_are_the_same_before_and_after_they_are_recorded(recorded):
    step, graphs = recorded
    plain, replayed, by_graph = models_of(), models_of(), ReplayedStep(step)

    for number in range(cuda_graphs.RECORDED_AFTER + 5):
        wanted = descend(plain, {}, {}, batch_of(number), RATE)
        given = by_graph(replayed, {}, {}, batch_of(number), RATE)
        assert torch.equal(given, wanted)
        assert len(graphs) == (number >= cuda_graphs.RECORDED_AFTER)
    assert torch.equal(replayed.parameters["w"], plain.parameters["w"])


@pytest.mark.parametrize("change", ["models", "learning rate", "samples"])
def test_another_model_rate_or_size_is_not_the_recorded_step(recorded, change):
    step, graphs = recorded
    models, by_graph, kept = models_of(), ReplayedStep(step), []

    for number in range(2 * cuda_graphs.RECORDED_AFTER):
        other = number % 2 == 1
        if change == "models" and other:
            kept.append(models_of())  # each in a place of its own
        here = kept[-1] if change == "models" and other else models
        lr = RATE / (number + 1) if change == "learning rate" and other else RATE
        batch = batch_of(number, 4 if change == "samples" and other else 3)
        before = here.parameters["w"].clone()
        by_graph(here, {}, {}, batch, lr)
        assert torch.allclose(before - here.parameters["w"], lr * batch.x.sum(1))
    assert len(graphs) == 0

    by_graph(models, {}, {}, batch_of(1), RATE)
    assert len(graphs) == 1


def test_what_is_met_once_is_forgotten_and_graphs_are_few(recorded, monkeypatch):
    step, graphs = recorded
    monkeypatch.setattr(cuda_graphs, "KEPT", 2)
    monkeypatch.setattr(cuda_graphs, "RECORDED_AFTER", 1)
    by_graph, models = ReplayedStep(step), models_of()

    for number in range(100):
        by_graph(models, {}, {}, batch_of(1), 1 / (number + 1))
        assert len(by_graph._met) <= 20
    assert not graphs
    for number in range(10):
        for _ in range(3):
            by_graph(models, {}, {}, batch_of(1), float(number + 2))
    assert len(graphs) == 2
