"""What the benchmark records of a contender, and the clock it is measured with."""

import math
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from fedsmall.wire import Arrays


class Timing(NamedTuple):
    """The rounds' wall and processor seconds, and the global model after them."""

    seconds: float
    processor: float
    model: Arrays


class Clock:
    """Seconds since it was made, by the wall and of this process's processor time."""

    def __init__(self, device: str) -> None:
        self._device, self._wall, self._processor = device, time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """The seconds so far, once the device has done what it was told."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - self._wall, time.process_time() - self._processor


def peak_bytes(device: str = "cpu") -> int:
    """The most memory this process ever held, on the machine and on the device together.

    On Linux not what getrusage says, which counts the parent's too.
    """
    on_device = 0 if device == "cpu" else torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return on_device + 1024 * int(peak.split()[1])
    return on_device + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass
class Measured:
    """One contender on one workload: client updates a second by the wall, and of processor time, for each repeat.

    ``missing`` says why a rival cannot be imported; it has no rates then.
    """

    workload: str
    contender: str
    loss: float = math.nan
    rates: list[float] = field(default_factory=list)
    processor_rates: list[float] = field(default_factory=list)
    missing: str = ""

    @property
    def rate(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.rates)

    @property
    def processor_rate(self) -> float:
        """The best repeat in processor time, which other work on the machine disturbs least."""
        return max(self.processor_rates)
