"""What a site remembers in a run over real sites: on its own disk, a version for every round that wrote one.

A contact may be asked for twice: the answer was lost, or the coordinator went back to its last journal entry. Whoever
is asked for round t again must start from what it remembered before t, or the answer would differ. So a version is
read by the round that asks, and a few of them are kept.
"""

import os
from hashlib import blake2b
from pathlib import Path

from safetensors.numpy import load, save

from fedsmall.wire import Arrays

KEEP = 5  # more than the coordinator's journal keeps


def run_folder(home: Path, run: str) -> Path:
    """A run's folder at the site: its name comes over the network, so only its digest becomes part of a path."""
    return home / blake2b(run.encode(), digest_size=16).hexdigest()


def put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and flush it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, path)


class RoundMemory:
    """The memory of one run, in ``folder``, as the local training up to round ``t`` sees it."""

    def __init__(self, folder: Path, t: int) -> None:
        self.folder = folder
        self.t = t

    def read(self) -> Arrays:
        """What was remembered by the last round before ``t``; empty where there is none."""
        before = [t for t in self._rounds() if t < self.t]
        return load(self._path(before[-1]).read_bytes()) if before else {}

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays as of round ``t``, and let go of the oldest versions."""
        put(self._path(self.t), save(dict(arrays)))
        for old in self._rounds()[:-KEEP]:
            self._path(old).unlink()

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:09d}.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())
