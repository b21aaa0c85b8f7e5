"""CIFAR-10, a few images for each client: every client draws its own, as in Table 1 (iid)."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch


class Images(NamedTuple):
    """Images (samples, 3, height, width) from -1 to 1, and their classes (samples,)."""

    x: torch.Tensor
    y: torch.Tensor


def load_client(data: str, client: int, samples: int, seed: int) -> Images:
    """The ``samples`` of a client; no two clients share one."""
    train, _ = _arrays(data)
    order = np.random.default_rng(seed).permutation(len(train[1]))
    own = order[client * samples : (client + 1) * samples]
    if len(own) < samples:
        raise ValueError(f"client {client} has {len(own)} of {samples} samples: there are {len(order)} for all")
    return _images(train[0][own], train[1][own])


def load_test(data: str) -> Images:
    """The test set."""
    return _images(*_arrays(data)[1])


@cache
def _arrays(data: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    if data:
        with np.load(data) as file:
            return (file["x"], file["y"]), (file["x_test"], file["y_test"])
    from datasets import load_dataset

    parts = load_dataset("uoft-cs/cifar10").with_format("numpy")
    train, test = ((parts[part]["img"], parts[part]["label"]) for part in ("train", "test"))
    return train, test


def _images(x: np.ndarray, y: np.ndarray) -> Images:
    pixels = torch.from_numpy(np.asarray(x)).permute(0, 3, 1, 2).float()
    return Images((pixels / 255 - 0.5) / 0.5, torch.from_numpy(np.asarray(y)).long())
