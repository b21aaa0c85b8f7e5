"""How the cost of the cohort engine grows: one process for each setting, so that peak memory is its own."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass

from fedsmall.research.bench.workloads import Workload, small_mlps

SITES, SAMPLES, WIDTHS = (50, 500, 5000), (2, 10, 50), (10, 50, 250)
UPDATES = 20_000  # about as many in every measurement


@dataclass(frozen=True)
class Growth:
    """One setting: ``rate`` in client updates a second, ``peak_bytes`` of the process that ran it and of its device."""

    varied: str
    sites: int
    samples: int
    parameters: int
    rate: float
    peak_bytes: int


def growth(device: str) -> Iterator[Growth]:
    """The settings in turn: sites, then samples, then parameters, the others being workload A's."""
    for sites in SITES:
        yield _apart("sites", sites, 10, 50, device)
    for samples in SAMPLES:
        yield _apart("samples", 50, samples, 50, device)
    for width in WIDTHS:
        yield _apart("parameters", 50, 10, width, device)


def _apart(varied: str, sites: int, samples: int, width: int, device: str) -> Growth:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (varied, sites, samples, width, device))


def _measure(varied: str, sites: int, samples: int, width: int, device: str) -> Growth:
    import torch

    from fedsmall.planning.validation import parameter_count
    from fedsmall.research.bench.contenders import by_cohort
    from fedsmall.research.bench.timing import peak_bytes

    torch.set_num_threads(1)
    work: Workload = small_mlps(sites, samples, max(8, UPDATES // sites))
    plan = work.plan.model_copy(update={"model_options": {"hidden": [width, 20]}})
    federation = work.federation()
    by_cohort(plan.model_copy(update={"rounds": 2}), federation, device)
    timing = by_cohort(plan, federation, device)
    count = parameter_count(plan, federation.task)
    return Growth(varied, sites, samples, count, sites * plan.rounds / timing.seconds, peak_bytes(device))
