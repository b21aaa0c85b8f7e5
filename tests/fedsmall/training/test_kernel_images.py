"""Convolutions in compiled C against torch: every chain of layers, odd sizes, whole runs, and which C does not take."""

import ctypes
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsmall.data.federation import Samples, Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.training import kernel
from fedsmall.training.cohort import Cohort
from fedsmall.training.gradients.packed import ForwardPass, PackedGradients
from fedsmall.training.kernel import images
from fedsmall.training.stack import Stack
from fedsmall.wire import ModelState

CLOSE = 1e-5  # of the largest number of an array; torch's own float32 is as far from float64
NORMS = {"none": nn.Identity, "batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(2, c)}
SHAPES = [(1, 1, 4, 4), (3, 4, 8, 5), (2, 8, 16, 7), (2, 32, 32, 2), (2, 3, 64, 19)]  # samples, channels, outputs, side


def network(channels: int, outputs: int, norm: str, pool: bool, relu: bool, bias: bool = True) -> nn.Sequential:
    """Two chains, the second of which passes slopes on, and an odd layer between."""
    torch.manual_seed(6)
    layers: list[nn.Module] = []
    for before in (channels, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=bias)]
        layers += [] if norm == "none" else [NORMS[norm](outputs)]
        layers += (
            ([nn.ReLU()] if relu else []) + ([nn.MaxPool2d(2)] if pool and before == channels else []) + [nn.Tanh()]
        )
    return nn.Sequential(*layers)


def slopes(model: nn.Module, gradients: PackedGradients, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The network's outputs, and the slopes of a weighted sum of them, for a model and one with all numbers changed."""
    models, state = len(x), {name: tensor.detach() for name, tensor in model.state_dict().items()}
    stacked = {name: torch.stack([tensor, *[tensor * 1.5] * (models - 1)]) for name, tensor in state.items()}
    leaves = {name: stacked[name].to(x.dtype).requires_grad_() for name, _ in model.named_parameters()}
    buffers = {name: t.to(x.dtype) if t.is_floating_point() else t for name, t in stacked.items() if name not in leaves}
    outputs = gradients._run(ForwardPass(models, leaves | buffers, {}, True), x)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=x.dtype).view(outputs.shape[::-1]).permute(3, 2, 1, 0)
    found = torch.autograd.grad((outputs * weights).sum(), list(leaves.values()))
    return outputs, dict(zip(leaves, found, strict=True)) | buffers


def fused(model: nn.Module, threads: int = 1) -> PackedGradients:
    gradients = PackedGradients(model, None)  # type: ignore[arg-type]
    plan = Plan(name="test", task="t", model="cnn", method=Method(name="FedAvg", aggregate_every=1))
    assert images.fuse(plan, gradients, threads) is None
    return gradients


CHAINS = [
    pytest.param(number, norm, shape, pool, relu, id=f"{name}-{norm}-{shape}-{pool}-{relu}")
    for (number, name), norm, shape in product(enumerate(kernel.SETS), NORMS, SHAPES)
    for pool, relu in product([False, True], repeat=2)
    if shape[2] % kernel.LANES[number] == 0 and (shape[3] >= 4 or not pool)
]


@pytest.mark.parametrize(("number", "norm", "shape", "pool", "relu"), CHAINS)
def test_a_chain_of_layers_and_its_slopes_are_torch_s(compiled, monkeypatch, number, norm, shape, pool, relu):
    samples, channels, outputs, side = shape
    if not compiled.has(number):
        pytest.skip(f"this processor has no {kernel.SETS[number]}")
    monkeypatch.setattr(compiled, "has", lambda asked: asked == number)
    model = network(channels, outputs, norm, pool, relu, bias=channels > 1)
    x = torch.randn(3, samples, channels, side, side + 1)

    exact, expected = slopes(model.double(), PackedGradients(model, None), x.double())  # type: ignore[arg-type]
    values, found = slopes(model.float(), fused(model), x)

    torch.testing.assert_close(values.double(), exact, atol=CLOSE, rtol=CLOSE)
    for name, tensor in expected.items():
        if not (norm == "batch" and "bias" in name and f"{name[:-4]}weight" in expected and tensor.abs().max() < 1e-9):
            scale = max(1.0, float(tensor.abs().max()))  # under BatchNorm a convolution's bias has none but rounding's
            torch.testing.assert_close(
                found[name].to(tensor.dtype) / scale, tensor / scale, atol=CLOSE, rtol=CLOSE, msg=name
            )


def test_of_equal_pixels_the_first_is_taken_as_in_torch(compiled):
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
    x = torch.ones(2, 3, 1, 9, 8)
    x[:, :, :, 3:5] = 0

    _, expected = slopes(model, PackedGradients(model, None), x)  # type: ignore[arg-type]
    _, found = slopes(model, fused(model), x)

    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-5)


TASK = Task("pictures", (1, 9, 10), 3)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "batch": ("cnn", {"norm": "batch"}),
    "group": ("cnn", {"norm": "group", "dropout": 0.3}),
    "residual": ("resnet_small", {"norm": "batch", "blocks": 1}),
}
SIZES = [6, 1, 3, 4]


def walked(
    device: str, network: str, sites: list[int], dtype: str = "float32", **recipe: Any
) -> tuple[Cohort, Stack, Any]:
    """Models that train at the given sites for some rounds, and what they say of new images."""
    model, options = NETWORKS[network]
    plan = Plan(
        name="test", task="pictures", model=model, model_options=options, recipe=Recipe(**({"lr": 0.05} | recipe)),
        method=Method(name="FedAvg", aggregate_every=8), rounds=8, dtype=dtype, initial_models="independent",
    )  # fmt: skip
    rng = np.random.default_rng(5)
    drawn = [Samples(rng.normal(size=(n, 1, 9, 10)).astype(np.float32), rng.integers(0, 3, n)) for n in SIZES]
    names = [f"site-{site}" for site in sites]
    cohort = Cohort(plan, TASK, names, [drawn[site] for site in sites], device=device)
    stack = cohort.stack([ModelState(initial_model(plan, TASK, name)) for name in names])
    losses = cohort.train(stack, range(len(sites)), 8, 8)
    return cohort, stack, (losses, cohort.predict(stack, rng.normal(size=(5, 1, 9, 10))))


@pytest.mark.parametrize("recipe", [{}, {"momentum": 0.9}, {"batch": 2, "local_epochs": 1}], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_runs_are_torch_s(compiled, network, recipe):
    slow, exact, (_, expected) = walked("cpu", network, [0, 1, 2, 3], "float64", **recipe)
    fast, stack, (_, told) = walked("kernel", network, [0, 1, 2, 3], **recipe)

    assert (slow.path, fast.path) == ("conv", "kernel")
    np.testing.assert_allclose(told, expected, atol=2e-4, rtol=2e-4)
    for name, tensor in exact.state.items():
        np.testing.assert_allclose(stack.state[name], tensor, atol=2e-4, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("network", NETWORKS)
def test_company_threads_and_repetition_change_no_bit(compiled, network):
    _, stack, _ = walked("kernel:3", network, [0, 1, 2, 3], batch=2)

    for place, site in enumerate((3, 0)):
        _, alone, _ = walked("kernel", network, [3, 0], batch=2)
        for name, tensor in alone.parameters.items():
            if name.startswith(("0.", "conv1")):  # torch sums what follows
                assert torch.equal(tensor[place], stack.parameters[name][site]), name


WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "augmented": ({"augment": {"shift": 1}}, {"name": "FedDC", "permute_every": 1, "aggregate_every": 2}),
    "adam": ({"optimizer": "adam", "lr": 0.002, "epsilon": 1e-3}, {"name": "FedAvg", "aggregate_every": 1}),
    "scaffold": ({"batch": 3}, {"name": "SCAFFOLD", "aggregate_every": 1}),
    "trees": ({}, {"name": "RepTreeFL", "aggregate_every": 1}),
}


@pytest.mark.parametrize(("recipe", "named"), WHOLE.values(), ids=WHOLE)
def test_whole_runs_of_every_kind_are_torch_s(compiled, recipe, named):
    scenario = Scenario.model_validate(
        {"name": "test", "task": "digits", "model": "cnn", "sites": 4, "samples_per_site": 8, "rounds": 4,
         "recipe": {"lr": 0.05} | recipe, "method": [named]}
    )  # fmt: skip
    (plan,) = scenario.plans()
    federation = build_federation(plan)

    slow, fast = (run_plan(plan, federation, "cohort", options={"device": device}) for device in ("cpu", "kernel:2"))

    assert (slow.path, fast.path) == ("conv", "kernel")
    assert slow.model is not None
    assert fast.model is not None
    for name, array in slow.model.items():
        np.testing.assert_allclose(fast.model[name], array, atol=1e-4, rtol=1e-4, err_msg=name)


def test_a_model_that_diverges_is_not_finite_and_spoils_no_other(compiled):
    model = network(1, 16, "group", True, True)
    x = torch.randn(3, 2, 1, 8, 8)
    x[1] = float("nan")

    outputs, found = slopes(model, fused(model), x)

    assert [bool(torch.isfinite(of_one).all()) for of_one in found["0.weight"]] == [True, False, True]
    assert [bool(torch.isfinite(of_one).all()) for of_one in outputs.chunk(3, 1)] == [True, False, True]


OF_ANOTHER_KIND = {
    "odd channels": nn.Conv2d(1, 6, 3, padding=1),
    "five by five": nn.Conv2d(1, 16, 5, padding=2),
    "a step of two": nn.Conv2d(1, 16, 3, 2, padding=1),
    "apart": nn.Conv2d(4, 16, 3, padding=1, groups=2),
}


@pytest.mark.parametrize("layer", OF_ANOTHER_KIND.values(), ids=OF_ANOTHER_KIND)
def test_torch_keeps_a_convolution_of_another_kind(compiled, layer):
    gradients = PackedGradients(nn.Sequential(layer, nn.ReLU()), None)  # type: ignore[arg-type]
    plan = Plan(name="test", task="t", model="cnn", method=Method(name="FedAvg", aggregate_every=1))

    assert images.fuse(plan, gradients, 1) == "3 x 3 convolutions, to channels in fours"


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)]
)
def test_other_pooling_stays_with_torch(compiled, pool):
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), pool)
    x = torch.randn(1, 2, 1, 7, 7)

    values, _ = slopes(model, fused(model), x)

    torch.testing.assert_close(values, pool(model[0](x[0])))


def test_in_float64_torch_trains(compiled):
    cohort, _, _ = walked("kernel", "batch", [0, 1], "float64")

    assert cohort.path == "conv"
    assert cohort.unmet_need == "numbers in float32"


def test_the_structure_is_as_long_in_python_as_in_c(compiled):
    assert ctypes.sizeof(images._Struct) == compiled.size_of_block()
