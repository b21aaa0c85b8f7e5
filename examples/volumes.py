"""What whole volumes take: seconds to read a file, seconds for a step of training, and memory.

    python -m examples.volumes [--volumes 20] [--sides 16 32 64]

writes volumes of 256 x 256 x 128 voxels as a scanner leaves them (16 bits, compressed), reads them at each size, and
trains one step of ``cnn3d`` on eight of them. Seconds are of this process's processor time.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedsmall.data.federation import Task
from fedsmall.data.preparation import Pixels
from fedsmall.models.registry import build_model
from fedsmall.training.gradients import LOSSES, Batch, choose
from fedsmall.training.gradients.layers import prepare_model

SHAPE = (256, 256, 128)
BATCH = 8


class Cost(NamedTuple):
    """Of one size: seconds to read a file and for a step, MB of a sample, and the most MB this process has held."""

    side: int
    read_s: float
    step_s: float
    sample_mb: float
    peak_mb: float


def scan(path: Path, seed: int, shape: tuple[int, int, int] = SHAPE) -> Path:
    """A volume of a body in noise, written as NIfTI."""
    import nibabel

    axes = [np.linspace(-1, 1, side) for side in shape]
    body = sum(axis.reshape([-1 if k == place else 1 for k in range(3)]) ** 2 for place, axis in enumerate(axes)) < 0.7
    values = (900 * body + np.random.default_rng(seed).normal(0, 40, shape)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    return path


def cost(files: list[Path], side: int) -> Cost:
    """What reading the files at a size, and training on them, takes."""
    form = Pixels(channels=1, size=(side,) * 3, resize=True, range=(-100, 1000), stated=True, volume=True)
    held: list[np.ndarray] = []
    read_s = _seconds(lambda: held.append(form.scaled(form.numbers(files))))
    x = torch.from_numpy(np.resize(held[0], (1, BATCH, *held[0].shape[1:])))
    task = Task("scans", x.shape[2:], 2)
    model = prepare_model(build_model("cnn3d", task, {}, np.random.default_rng(0)))
    gradients = choose(model, LOSSES["cross_entropy"])
    parameters = {name: tensor.detach()[None] for name, tensor in model.named_parameters()}
    batch = Batch(x, torch.arange(BATCH)[None] % 2, None, {})
    step_s = min(_seconds(lambda: gradients(parameters, {}, batch)) for _ in range(3))
    return Cost(side, read_s / len(files), step_s, held[0][0].nbytes / 2**20, _peak_mb())


def _seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _peak_mb() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    """Measure and print a table."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--volumes", type=int, default=20)
    asked.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64])
    words = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [scan(Path(folder) / f"{index}.nii.gz", index) for index in range(words.volumes)]
        print(f"{words.volumes} volumes of {' x '.join(map(str, SHAPE))}; before reading {_peak_mb():.0f} MB")
        print("side  s a file  s a step of 8  MB a sample  most MB")
        for side in words.sides:
            told = cost(files, side)
            print(f"{side:4d}{told.read_s:10.2f}{told.step_s:15.2f}{told.sample_mb:13.2f}{told.peak_mb:9.0f}")


if __name__ == "__main__":
    main()
