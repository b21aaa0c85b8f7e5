"""A site's memory of a run between communication rounds: in Flower's Context, or on the site's own disk.

A restarted SuperNode loses its Context, so real sites write a version for every round. A communication round may be
asked for twice, and round t must start from the memory before t again: a version is read by the round that asks.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, Context

from fedsmall.clients.shelf import Shelf
from fedsmall.wire import Arrays, join, read_npy, split

RECORD, TRAVEL = "fedsmall-memory", "fedsmall-travel"  # of its training; of models that came or left in part
KEEP = 5  # versions; more than the coordinator's journal keeps


class Memory(Protocol):
    """Named arrays that outlive a communication round; empty at the start of a run."""

    def read(self) -> Arrays:
        """What was written last."""

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays and nothing else."""


class ContextMemory:
    """Memory in the Context that Flower hands to every call in a simulation."""

    def __init__(self, context: Context, record: str = RECORD) -> None:
        self._state, self._record = context.state, record

    def read(self) -> Arrays:
        """What was written last."""
        if self._record not in self._state:
            return {}
        return {name: read_npy(array.data) for name, array in self._state.array_records[self._record].items()}

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays and nothing else."""
        self._state[self._record] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


class RoundMemory:
    """The memory of one run, in ``folder``, as training up to round ``t`` sees it."""

    def __init__(self, folder: Path, t: int) -> None:
        self.t, self._shelf = t, Shelf(folder)

    def read(self) -> Arrays:
        """The memory written by the last round before ``t``; empty where there is none."""
        before = [t for t in self._shelf.rounds() if t < self.t]
        return self._shelf.arrays(before[-1]) if before else {}

    def write(self, arrays: Arrays) -> None:
        """Write these arrays as of round ``t``, and delete the oldest versions."""
        self._shelf.put(self.t, arrays)
        self._shelf.keep_last(KEEP)


def memories_of(run: Path, t: int) -> tuple[RoundMemory, RoundMemory]:
    """The memories of training, and of compressed models on their way, in a run's folder, as round ``t`` sees them."""
    return RoundMemory(run, t), RoundMemory(run / TRAVEL, t)


STAYS = "stays/"  # begins the names of it in the site's memory, beside what training remembers
MODELS = ("model", "sent", "reference")


class Kept(NamedTuple):
    """A ``model`` as it was trained last, the one that the site was sent last, and the last that all sites had.

    ``since`` counts the optimizer steps since ``sent``; ``reference`` was made after round ``of``.
    """

    model: Arrays
    sent: Arrays
    reference: Arrays
    of: int
    since: int


class StayingMemory:
    """A site's memory with a model that stays; training sees its own part alone."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._trained: Arrays = {}

    def read(self) -> Arrays:
        """What training has written last."""
        return {name: array for name, array in self._memory.read().items() if not name.startswith(STAYS)}

    def write(self, arrays: Arrays) -> None:
        """Take the memory of training; :meth:`keep` writes it down with the model."""
        self._trained = dict(arrays)

    def read_kept(self) -> Kept | None:
        """The model that stays; None where there is none."""
        held = {k.removeprefix(STAYS): array for k, array in self._memory.read().items() if k.startswith(STAYS)}
        if not held:
            return None
        model, sent, reference = (split(held, part) for part in MODELS)
        return Kept(model, sent, reference, int(held["of"]), int(held["since"]))

    def keep(self, kept: Kept) -> None:
        """Write down a model with the memory of training."""
        held = {**join(**{part: getattr(kept, part) for part in MODELS}), "of": kept.of, "since": kept.since}
        stays = {f"{STAYS}{name}": np.asarray(array) for name, array in held.items()}
        self._memory.write({**(self._trained or self.read()), **stays})
