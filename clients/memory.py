"""What a site remembers between contacts, behind one small interface with two homes.

In a simulation Flower's Context keeps it. In a deployment a restarted SuperNode loses its Context, so there it is on
the site's own disk, written whole or not at all, in a file of its own for each run and site.
"""

import os
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from flwr.app import Array, ArrayRecord, Context
from safetensors.numpy import load, save

from fedsmall.wire import Arrays

RECORD = "fedsmall-memory"


class Memory(Protocol):
    """Named arrays that outlive a contact; empty at the start of a run."""

    def read(self) -> Arrays:
        """What was written last."""

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays and nothing else."""


class ContextMemory:
    """Memory in the Context that Flower hands to every call in a simulation."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def read(self) -> Arrays:
        """What was written last."""
        if RECORD not in self._state:
            return {}
        return {name: array.numpy() for name, array in self._state.array_records[RECORD].items()}

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays and nothing else."""
        self._state[RECORD] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


class DiskMemory:
    """Memory in ``folder``, for one run and one site; safetensors, so that nothing is pickled."""

    def __init__(self, folder: Path, run: str, site: str) -> None:
        # names come over the network: only their digest becomes part of a path
        name = blake2b(f"{run}\n{site}".encode(), digest_size=16).hexdigest()
        self._file = folder / f"{name}.safetensors"

    def read(self) -> Arrays:
        """What was written last."""
        return load(self._file.read_bytes()) if self._file.exists() else {}

    def write(self, arrays: Arrays) -> None:
        """Write to a file beside, flush it to the disk, and put it in place in one step."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = self._file.with_suffix(".new")
        with open(beside, "wb") as out:
            out.write(save(dict(arrays)))
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, self._file)
