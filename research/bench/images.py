"""Convolutional networks at 64 images a site, from 50 to 5,000 sites: the batched path against one model at a time.

Images are CIFAR-10's where cifar10.npz lies in the data folder, else noise of their shape. Every site draws its own 64
of the 15,000 there are, so from 235 sites on sites share images: what is measured is time.
"""

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.data.sources.pool import NOWHERE
from fedsmall.data.sources.public import cifar10
from fedsmall.errors import PlanError
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.research.bench.contenders import by_cohort, pooled_loss
from fedsmall.research.bench.measure import CLOSE
from fedsmall.research.bench.timing import peak_bytes
from fedsmall.research.bench.workloads import plan_of

MODELS = ("cnn", "resnet18")
SITES = (50, 500, 5000)
PATHS = ("conv", "loop")  # the batched path of convolutional networks, and the specification of all paths
IMAGES, ROUNDS, JUDGED = 64, 2, 500
TASK = Task("bench-cifar10", (3, 32, 32), 10)


class Pictures(NamedTuple):
    """The images of sites, others to evaluate on, and the name of both."""

    train: Samples
    test: Samples
    name: str


@dataclass(frozen=True)
class ImageRow:
    """One setting: client updates a second, the peak memory of process and device, the loss on other images.

    ``missing`` says why nothing was measured; the numbers are NaN then.
    """

    model: str
    sites: int
    path: str
    images: str
    rate: float = math.nan
    peak_bytes: float = math.nan
    loss: float = math.nan
    missing: str = ""


def pictures(root: Path | None) -> Pictures:
    """CIFAR-10's images where they are in ``root``, else noise."""
    if root is None or not (root / "cifar10.npz").is_file():
        rng = rng_for(0, "bench", "pictures")
        train, test = (
            Samples(rng.uniform(-1, 1, (n, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, n))
            for n in (15_000, 3_000)
        )
        return Pictures(train, test, "generated")
    pool = cifar10(root, 0)
    halves = (pool.train[NOWHERE], (pool.test or pool.train)[NOWHERE])
    train, test = (Samples(half.x.astype(np.float32) / 127.5 - 1, half.y) for half in halves)
    return Pictures(train, test, "CIFAR-10")


def federation_of(pictures: Pictures, sites: int, images: int = IMAGES) -> Federation:
    """So many sites, each with images of its own draw."""
    names = tuple(f"site-{number:05d}" for number in range(sites))
    drawn = [rng_for(0, "bench", "images", name).choice(len(pictures.train), images, replace=False) for name in names]
    train = tuple(Samples(pictures.train.x[rows], pictures.train.y[rows]) for rows in drawn)
    return Federation(TASK, names, train, pictures.test)


def image_plan(model: str) -> Plan:
    """FedDC with d = 1 on whole batches of a site's images."""
    return plan_of("images", model, ROUNDS, ROUNDS, Recipe(lr=0.01, momentum=0.9))


def image_rows(
    device: str, root: Path | None, models: Sequence[str] = MODELS, sites: Sequence[int] = SITES
) -> Iterator[ImageRow]:
    """Every model at every number of sites by either path, each in a process of its own.

    Raises ValueError where the two paths do not come to one loss: then their times cannot be compared.
    """
    for model in models:
        for count in sites:
            rows = [_apart(model, count, path, device, root) for path in PATHS]
            _same_loss(rows)
            yield from rows


def _same_loss(rows: Sequence[ImageRow]) -> None:
    measured_rows = [row for row in rows if not row.missing]
    if measured_rows and max(row.loss for row in measured_rows) - min(row.loss for row in measured_rows) > CLOSE:
        losses = ", ".join(f"{row.path} {row.loss:.6f}" for row in measured_rows)
        raise ValueError(
            f"{measured_rows[0].model} at {measured_rows[0].sites} sites: the paths come to other losses ({losses})"
        )


def _apart(model: str, sites: int, path: str, device: str, root: Path | None) -> ImageRow:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (model, sites, path, device, root))


def measured(model: str, sites: int, path: str, device: str, root: Path | None) -> ImageRow:
    """One row, measured in this process; one that does not fit the memory says so."""
    torch.set_num_threads(1)
    data = pictures(root)
    row = ImageRow(model, sites, path, data.name)
    plan, federation = image_plan(model), federation_of(data, sites)
    few = replace(federation, names=federation.names[:3], train=federation.train[:3])
    try:
        by_cohort(plan.model_copy(update={"rounds": 1}), few, device, path)  # a device loads its code at first use
        timing = by_cohort(plan, federation, device, path)
    except (PlanError, torch.OutOfMemoryError) as error:
        return replace(row, missing=str(error).partition("\n")[0])
    others = Samples(data.test.x[:JUDGED], data.test.y[:JUDGED])
    loss = pooled_loss(plan, replace(federation, train=(others,)), timing.model)
    return replace(row, rate=sites * plan.rounds / timing.seconds, peak_bytes=float(peak_bytes(device)), loss=loss)
