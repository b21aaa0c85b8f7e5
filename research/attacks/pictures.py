"""Reading an image from the update of a batch of one, through convolutions.

The attacker knows the model that the site set out from, and sees what it sent. The dense layer behind the convolutions
gives what came into it by division, as a layer at the input gives a record; what pixels it came from is a search for
the least squares. Of a batch of several the division gives a mixture: the attack is of batches of one.

Source: Phong et al. 2018, section 3, at an inner layer; Mahendran & Vedaldi 2015 for the search.
"""

import copy

import numpy as np
import torch
from torch import nn

from fedsmall.wire import Arrays

STEPS = 400
PACE = 0.05
ROUGH = 1e-4  # what the differences of neighbouring pixels cost beside what is left of the activations


def inputs_of(start: Arrays, sent: Arrays, layer: str) -> np.ndarray:
    """What came into a dense ``layer`` with biases, (features,), by its unit that moved most; of a batch of one."""
    bias = sent[f"{layer}.bias"].astype(np.float64) - start[f"{layer}.bias"]
    unit = int(np.abs(bias).argmax())
    moved = sent[f"{layer}.weight"][unit].astype(np.float64) - start[f"{layer}.weight"][unit]
    return np.asarray(moved / bias[unit])


def read_picture(
    model: nn.Sequential, start: Arrays, sent: Arrays, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """The picture (channels, height, width) that explains the update of a chain which ends in a dense layer."""
    known = copy.deepcopy(model).float().eval().requires_grad_(False)
    known.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    features, layer = known[:-1], [*dict(known.named_children())][-1]
    wanted = torch.from_numpy(inputs_of(start, sent, layer)).float()[None]
    pixels = torch.from_numpy(0.1 * rng.standard_normal((1, *shape))).float().requires_grad_()
    optimizer = torch.optim.Adam([pixels], PACE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        left = (features(pixels).flatten(1) - wanted).square().sum() / wanted.square().sum()
        rough = sum(pixels.diff(dim=axis).square().mean() for axis in (-1, -2))
        (left + ROUGH * rough).backward()
        optimizer.step()
        schedule.step()
    return np.asarray(pixels.detach()[0].numpy())


def likeness(pictures: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """The correlation of ``picture`` with each of ``pictures``, (pictures,)."""
    flat, one = pictures.reshape(len(pictures), -1).astype(np.float64), picture.ravel().astype(np.float64)
    flat, one = flat - flat.mean(axis=1, keepdims=True), one - one.mean()
    return np.asarray(flat @ one / np.maximum(np.linalg.norm(flat, axis=1) * np.linalg.norm(one), 1e-12))
