"""The network for volumes: its size, its refusals, and one gradient whatever way it is worked out."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.models.registry import build_model
from fedsmall.training.gradients import LOSSES, PATHS, Batch, choose
from fedsmall.training.gradients.layers import prepare_model

GREY = Task("scans", (1, 8, 6, 5), 2)
RNG = np.random.default_rng(0)


def built(task: Task = GREY, **options: object) -> nn.Module:
    return build_model("cnn3d", task, options, np.random.default_rng(0))


@pytest.mark.parametrize("shape", [(1, 8, 6, 5), (1, 16, 16, 16)])
def test_its_size_is_not_that_of_the_volumes(shape: tuple[int, ...]) -> None:
    model = built(Task("scans", shape, 2))

    assert sum(tensor.numel() for tensor in model.parameters()) == 14_466
    assert not list(model.buffers())  # nothing that a site of one volume could not keep
    assert model(torch.zeros(3, *shape)).shape == (3, 2)


def test_one_volume_alone_trains_with_either_norm() -> None:
    for norm in ("group", "batch"):
        loss = built(norm=norm)(torch.from_numpy(RNG.normal(size=(1, *GREY.input_shape)).astype(np.float32))).sum()
        loss.backward()
        assert torch.isfinite(loss)


def test_every_path_that_fits_gives_the_gradient_of_the_loop() -> None:
    model, loss = prepare_model(built(widths=[4, 8]).double()), LOSSES["cross_entropy"]
    parameters = {
        name: torch.from_numpy(RNG.normal(size=(3, *tensor.shape))) / 4 for name, tensor in model.named_parameters()
    }
    batch = Batch(
        torch.from_numpy(RNG.normal(size=(3, 4, *GREY.input_shape))), torch.tensor([[0, 1, 1, 0]] * 3), None, {}
    )

    (one, mine), (other, theirs) = (PATHS[path](model, loss)(parameters, {}, batch) for path in ("loop", "vmap"))

    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    for name in parameters:
        torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=1e-10)
        assert mine[name].abs().max() > 1e-6


def test_the_loop_is_taken_and_nobody_is_warned() -> None:
    assert choose(prepare_model(built()), LOSSES["cross_entropy"]).path == "loop"
    assert choose(prepare_model(built()), LOSSES["cross_entropy"], "vmap").path == "vmap"


@pytest.mark.parametrize(
    ("model", "shape", "options", "line"),
    [
        ("cnn3d", (1, 8, 8), {}, r"it takes volumes, and a sample has shape \(1, 8, 8\); use cnn for images"),
        ("cnn3d", (30,), {}, "it takes volumes"),
        ("cnn3d", (1, 8, 3, 8), {}, "2 poolings need sides of at least 4; these are 8 x 3 x 8"),
        ("cnn3d", (1, 8, 8, 8), {"widths": []}, r"widths are the channels of its convolutions, as in \[16, 32\]; got"),
        ("cnn3d", (1, 8, 8, 8), {"norm": "layer"}, 'norm is "batch" or "group"'),
        ("cnn", (1, 8, 8, 8), {}, r"it takes images, and a sample has shape \(1, 8, 8, 8\); use cnn3d"),
    ],
)
def test_what_it_cannot_be_built_for_is_one_line(
    model: str, shape: tuple[int, ...], options: dict[str, object], line: str
) -> None:
    with pytest.raises(PlanError, match=line):
        build_model(model, Task("scans", shape, 2), options, np.random.default_rng(0))
