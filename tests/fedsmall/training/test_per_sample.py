"""Gradients that are clipped sample by sample: every way of computing them is the per-sample loop, and Opacus's."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedsmall.data.federation import Task
from fedsmall.models.registry import build_model
from fedsmall.training.gradients import LOSSES, PATHS, Batch, clipped
from fedsmall.training.gradients.layers import dropout_shapes, prepare_model
from tests.fedsmall.training.cohorts import IMAGES, TABLE

CASES = [
    ("mlp", {"hidden": [5, 4]}, TABLE, "mlp"),
    ("mlp", {"hidden": [5, 4], "dropout": 0.5}, TABLE, "mlp"),
    ("linear", {}, Task("table", (6,), 2, "logistic"), "mlp"),
    ("linear", {}, Task("table", (6,), 2, "hinge"), "mlp"),
    ("mlp", {"hidden": [5]}, TABLE, "vmap"),
    ("mlp", {"hidden": [5], "dropout": 0.5}, TABLE, "loop"),
    ("cnn", {"norm": "group"}, IMAGES, "conv"),
    ("cnn", {"norm": "group", "dropout": 0.3}, IMAGES, "conv"),
    ("cnn", {"norm": "group"}, IMAGES, "loop"),
    ("resnet_small", {"norm": "group", "blocks": 1}, IMAGES, "conv"),
    ("linear", {}, Task("table", (6,), 4, "ordinal"), "mlp"),
    ("proportional", {"hidden": [5]}, Task("table", (6,), 4, "ordinal"), "vmap"),
]
MODELS, SAMPLES = 3, 7


def problem(name, options, task, path, dtype=torch.float64):
    """A way of computing gradients, and parameters, buffers and a batch for it."""
    model = prepare_model(build_model(name, task, options, np.random.default_rng(0))).to(dtype)
    rng = torch.Generator().manual_seed(1)
    parameters = {
        n: torch.randn(MODELS, *p.shape, generator=rng, dtype=dtype) * 0.5 for n, p in model.named_parameters()
    }
    x = torch.randn(MODELS, SAMPLES, *task.input_shape, generator=rng, dtype=dtype) * 3
    y = torch.randint(task.classes, (MODELS, SAMPLES), generator=rng)
    shapes = dropout_shapes(model, x[0, :1])
    masks = {n: 2.0 * torch.randint(2, (MODELS, SAMPLES, *s), generator=rng).to(dtype) for n, s in shapes.items()}
    weight = torch.rand(MODELS, SAMPLES, generator=rng, dtype=dtype)
    weight[0, 3:], weight[1] = 0, 0  # a lot of three, an empty one, a full one
    buffers = {n: b.expand(MODELS, *b.shape) for n, b in model.named_buffers() if not n.endswith("mask")}
    return model, PATHS[path](model, LOSSES[task.loss]), parameters, buffers, Batch(x, y, weight, masks)


def by_torch(model, task, parameters, batch, clip):
    """The oracle: torch.func's gradient of every sample alone, clipped by what it is and summed by its weight."""

    def loss(mine, x, y, masks):
        held = {f"{name}.mask": mask[None] for name, mask in masks.items()}
        outputs = functional_call(model, mine | held, (x[None],))
        return LOSSES[task.loss].value(outputs, y[None])[0]

    sums = []
    for k in range(MODELS):
        mine, masks = {n: t[k] for n, t in parameters.items()}, {n: m[k] for n, m in batch.masks.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0, 0))(mine, batch.x[k], batch.y[k], masks)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
        share = batch.weight[k] * (clip / norms).clamp(max=1)
        sums.append({n: torch.einsum("s,s...->...", share, g) for n, g in each.items()})
        assert (norms > clip).any()
        assert (norms < clip).any()
    return {n: torch.stack([one[n] for one in sums]) for n in parameters}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options", "task", "path"), CASES)
def test_the_sum_is_of_gradients_that_were_clipped_one_by_one(name, options, task, path):
    model, inner, parameters, buffers, batch = problem(name, options, task, path)
    expected = by_torch(model, task, parameters, batch, clip := median_norm(model, task, parameters, batch))

    outputs, gradients = clipped(inner, clip)(parameters, buffers, batch)

    assert outputs.shape[:2] == (MODELS, SAMPLES)
    for parameter, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[parameter], rtol=0, atol=1e-12)


def median_norm(model, task, parameters, batch):
    """A clip that is between the norms: some samples are clipped, some are not."""

    def norm(k, i):
        def loss(mine):
            held = {f"{n}.mask": m[k, i][None] for n, m in batch.masks.items()}
            outputs = functional_call(model, mine | held, (batch.x[k, i][None],))
            return LOSSES[task.loss].value(outputs, batch.y[k, i][None])[0]

        each = grad(loss)({n: t[k] for n, t in parameters.items()})
        return float(torch.sqrt(sum(g.square().sum() for g in each.values())))

    norms = [sorted(norm(k, i) for i in range(SAMPLES)) for k in range(MODELS)]
    low, high = max(each[0] for each in norms), min(each[-1] for each in norms)
    assert low < high
    return (low + high) / 2


@pytest.mark.parametrize(("name", "options", "task", "path"), CASES)
def test_noise_is_added_once_to_every_gradient(name, options, task, path):
    _, inner, parameters, buffers, batch = problem(name, options, task, path)
    way = clipped(inner, 0.5)
    noise = {n: torch.randn(t.shape, dtype=t.dtype) for n, t in parameters.items()}
    grid = torch.full((MODELS,), 2.0**-44, dtype=torch.float64)

    _, plain = way(parameters, buffers, batch)
    _, noisy = way(parameters, buffers, batch._replace(noise=noise, grid=grid))

    for parameter, gradient in noisy.items():
        np.testing.assert_allclose(gradient - plain[parameter], noise[parameter], atol=1e-12)


def test_a_step_in_place_is_the_step_along_the_gradient():
    _, inner, parameters, buffers, batch = problem(*CASES[0])
    noise = {n: torch.randn(t.shape, dtype=t.dtype) for n, t in parameters.items()}
    grid = torch.full((MODELS,), 2.0**-10, dtype=torch.float64)
    way, batch = clipped(inner, 0.5), batch._replace(noise=noise, grid=grid)
    outputs, gradients = way(parameters, buffers, batch)

    moved = {n: t.clone() for n, t in parameters.items()}
    seen = way.descend(moved, batch, 0.1)

    np.testing.assert_array_equal(outputs, seen)
    for n, tensor in moved.items():
        np.testing.assert_allclose(tensor, parameters[n] - 0.1 * gradients[n], atol=1e-14)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options", "task", "path"), [CASES[0], CASES[6], CASES[9]])
def test_opacus_makes_the_same_gradients(name, options, task, path):
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed; the dev extra brings it")
    _, inner, parameters, buffers, batch = problem(name, options, task, path, torch.float32)
    clip, lot = 0.7, 4
    whole = batch._replace(weight=torch.full_like(batch.weight, 1 / lot))

    _, ours = clipped(inner, clip)(parameters, buffers, whole)

    for k in range(MODELS):
        theirs = build_model(name, task, options, np.random.default_rng(0))
        theirs.load_state_dict({n: t[k] for n, t in parameters.items()})
        wrapped = opacus.GradSampleModule(theirs, loss_reduction="sum")
        descent = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=clip,
            expected_batch_size=lot, loss_reduction="mean",
        )  # fmt: skip
        nn.functional.cross_entropy(wrapped(batch.x[k]), batch.y[k], reduction="sum").backward()
        descent.pre_step()
        for n, parameter in theirs.named_parameters():
            np.testing.assert_allclose(ours[n][k], parameter.grad, rtol=0, atol=1e-6)
