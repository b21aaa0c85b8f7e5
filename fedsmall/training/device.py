"""Where models train: a device is asked for by a word, and chosen once for a trainer.

It is no part of a plan: it decides speed and the last bits of numbers.
"""

import ctypes
import multiprocessing
import sys
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

import psutil
import torch

from fedsmall.errors import PlanError
from fedsmall.parts import device_word

SHARED_BY = 4  # processes on one GPU: each takes half a GiB of it before its first model
# From where on an H100 was faster than one core of its host (docs/gpu.md), and worth the seconds in which CUDA starts.
WORTH_ALONE, WORTH_TOGETHER = 20_000, 250_000
KEPT = ((-1, 2**29), (-2, 2**26), (-3, 2**25), (-3, 2**26))  # trim, pad, mmap of mallopt(3); old ones refuse the last


def choose_device(
    asked: str | torch.device, parameters: int, together: int = 1, dtype: str = "float32"
) -> torch.device:
    """The device for models of so many parameters, ``together`` of which take a step as one.

    "auto" is a CUDA GPU where it pays, else the CPU; never MPS, without float64. PlanError where it is not there.
    """
    if isinstance(asked, torch.device):
        return asked
    check_device(asked, dtype)
    if asked == "auto":
        worth = parameters >= WORTH_ALONE or parameters * together >= WORTH_TOGETHER
        asked = "cuda" if worth and torch.cuda.is_available() else "cpu"
    if threads_of_kernel(asked):
        asked = "cpu"
    if asked.startswith("cuda"):  # the same numbers each time: cuDNN tries no other algorithms, and rounds as asked
        torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    return torch.device(asked)


def check_device(asked: str, dtype: str = "float32") -> None:
    """Raise PlanError, in one line, unless ``asked`` may be had here for numbers of this type."""
    try:
        kind, _, number = device_word(asked).partition(":")
    except ValueError as error:
        raise PlanError(f'device = "{asked}": {error}') from None
    missing = kind == "cuda" and int(number or 0) >= torch.cuda.device_count()
    if missing or (kind == "mps" and not torch.backends.mps.is_available()):
        built = f"; torch {torch.__version__} is built without CUDA" if missing and not torch.version.cuda else ""
        cuda = [describe_device(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
        here = ", ".join(["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])])
        raise PlanError(f'device = "{asked}": not here; this machine has {here}{built}')
    if kind == "mps" and dtype == "float64":
        raise PlanError('device = "mps" has no float64; set dtype = "float32", or device = "cpu"')


def threads_of_kernel(asked: str | torch.device) -> int:
    """The threads of the CPU on which :mod:`fedsmall.training.kernel` is to train; 0 where it is not asked for."""
    kind, _, threads = str(asked).partition(":")
    return int(threads or 1) if kind == "kernel" else 0


def process_context(asked: str, modules: Sequence[str]) -> BaseContext:
    """How processes that train begin: on Linux as forks, of one that imports ``modules`` if this one has threads.

    Afresh, which takes seconds each, where a GPU may be touched, and on macOS, whose libraries bear no fork.
    """
    on_cpu = asked == "cpu" or threads_of_kernel(asked) > 0
    if not (on_cpu and sys.platform == "linux"):
        return multiprocessing.get_context("spawn")
    if not has_threads():
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


def has_threads() -> bool:
    """Whether this process, on Linux, has a second thread; Arrow's, whose memory is made for forks, is none."""
    names = [] if threading.active_count() > 1 else Path("/proc/self/task").glob("*/comm")
    return sum(name.read_text().strip() != "jemalloc_bg_thd" for name in names) != 1


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for what is asked next: new pages cost a network with convolutions a tenth."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for setting, size in KEPT:
            mallopt(setting, size)


def check_room(device: torch.device, models: int, bytes_each: int) -> None:
    """Raise PlanError, in one line, where so many models at once are more than the device can hold."""
    room, needed = room_of(device), models * bytes_each
    if needed > room:
        raise PlanError(
            f"{models:,} models of {bytes_each / 1e6:,.1f} MB, moments included, take {needed / 1e9:,.1f} GB, and "
            f"{describe_device(device)} has {room / 1e9:,.1f}; take fewer sites, fewer models that travel "
            "(models = ...), or a smaller model"
        )


def room_of(device: torch.device) -> int:
    """The bytes that tensors may take on a device: what is free on a GPU, all the memory of this machine elsewhere."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().total)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for what comes next
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def describe_device(device: torch.device) -> str:
    """The device as a run's record names it: "cpu", or "cuda:0 (NVIDIA H200)"."""
    if device.type != "cuda":
        return str(device)
    number = device.index or 0
    return f"cuda:{number} ({torch.cuda.get_device_name(number)})"


def widest_float(device: torch.device) -> torch.dtype:
    """The type in which sums are kept: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
