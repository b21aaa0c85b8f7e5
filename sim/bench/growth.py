"""How the cost of the cohort engine grows: one process for each setting, so that peak memory is its own."""

import multiprocessing
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sim.bench.workloads import Workload, small_mlps

SITES, SAMPLES, WIDTHS = (50, 500, 5000), (2, 10, 50), (10, 50, 250)
UPDATES = 20_000  # about as many in every measurement


@dataclass(frozen=True)
class Growth:
    """One setting: ``rate`` in client updates a second, ``peak_bytes`` of the whole process that ran it."""

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

    from fedsmall.validation import parameter_count
    from sim.bench.contenders import by_cohort

    torch.set_num_threads(1)
    work: Workload = small_mlps(sites, samples, max(8, UPDATES // sites))
    plan = work.plan.model_copy(update={"model_options": {"hidden": [width, 20]}})
    federation = work.federation()
    by_cohort(plan.model_copy(update={"rounds": 2}), federation, device)
    timing = by_cohort(plan, federation, device)
    count = parameter_count(plan, federation.task)
    return Growth(varied, sites, samples, count, sites * plan.rounds / timing.seconds, _peak_bytes())


def _peak_bytes() -> int:
    """The most memory this process ever held; on Linux not what getrusage says, which counts the parent's too."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(peak.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
