"""What a site remembers of a run: between contacts, behind one small interface with two homes, and from its first on.

In a simulation Flower's Context keeps it. In a deployment a restarted SuperNode loses its Context, so there it is on
the site's own disk, a version for every round that wrote one: a contact may be asked for twice (the answer was lost, or
the coordinator went back to its last journal entry), and whoever is asked for round t again must start from what it
remembered before t, or the answer would differ. So a version is read by the round that asks, and a few are kept.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from safetensors.numpy import load, save

from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.data.standardise import Scaling
from fedsmall.errors import DataError, PlanError
from fedsmall.files import one_line, write
from fedsmall.run_sheet import RUN, RUN_ID
from fedsmall.wire import Arrays

RECORD, TRAVEL = "fedsmall-memory", "fedsmall-travel"  # of its training; of models that came or left in part
PREDICTIONS = "predictions.csv"  # in the folder of a run: what a model says of new patients, which is the site's alone
RUNS = "runs"  # in a site's folder: what it keeps of each run
KEEP = 5  # versions; more than the coordinator's journal keeps


class Memory(Protocol):
    """Named arrays that outlive a contact; empty at the start of a run."""

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
        return {name: array.numpy() for name, array in self._state.array_records[self._record].items()}

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays and nothing else."""
        self._state[self._record] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


class RoundMemory:
    """The memory of one run, in ``folder``, as the local training up to round ``t`` sees it."""

    def __init__(self, folder: Path, t: int) -> None:
        self.folder = folder
        self.t = t

    def read(self) -> Arrays:
        """What was remembered by the last round before ``t``; empty where there is none."""
        before = [t for t in self._rounds() if t < self.t]
        return load(opened(self._path(before[-1]).read_bytes())) if before else {}

    def write(self, arrays: Arrays) -> None:
        """Remember these arrays as of round ``t``, and let go of the oldest versions."""
        put(self._path(self.t), seal(save(dict(arrays))))
        for old in self._rounds()[:-KEEP]:
            self._path(old).unlink()

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:09d}.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())


def memories_of(run: Path, t: int) -> tuple[RoundMemory, RoundMemory]:
    """What a site remembers of training and of models on their way, in a run's folder, as round ``t`` sees it."""
    return RoundMemory(run, t), RoundMemory(run / TRAVEL, t)


def run_folder(home: Path, run: str) -> Path:
    """A run's folder at the site: its name comes over the network, so only its digest becomes part of a path."""
    return home / blake2b(run.encode(), digest_size=16).hexdigest()


def own_folder(home: Path, run: str, ident: str) -> Path:
    """The folder of the run ``ident``, by its name; what an earlier run of that name has left there is put aside."""
    folder = run_folder(home, run)
    mark = folder / "id"
    if mark.exists() and mark.read_text() != ident:
        folder.rename(_aside(folder, mark.read_text()))
        if _aside(folder, ident).exists():
            _aside(folder, ident).rename(folder)
    if not mark.exists():
        put(mark, ident.encode())
    return folder


def folder_of_order(home: Path, config: Mapping[str, Any]) -> Path:
    """The folder, at the site whose home this is, of the run that an order is of; PlanError where it names none."""
    if not config.get(RUN):
        raise PlanError("the order does not say of which run it is")
    return own_folder(home / RUNS, str(config[RUN]), one_line(config.get(RUN_ID, ""), 64))


def folders_of(home: Path, run: str) -> list[Path]:
    """The folders of all runs that had this name, the one that has it now first; those that are there."""
    now = run_folder(home, run)
    return [path for path in (now, *sorted(home.glob(f"{now.name}-*"))) if path.is_dir()]


def check_same_data(folder: Path, digest: str) -> None:
    """A run's data are those of its first contact: a file changed under way would mix two populations."""
    path = folder / "data"
    if not path.exists():
        put(path, digest.encode())
    elif path.read_text() != digest:
        raise DataError("the site's data have changed since this run began; start a new run")


def keep_scaling(folder: Path, agreed: Arrays, shape: tuple[int, ...]) -> None:
    """Keep the scaling on which the sites of a run have agreed, once: its mean and scale, each of this ``shape``.

    Raises PlanError where that is not what came, or another came before.
    """
    numbers = [np.asarray(array) for array in agreed.values()]
    fits = set(agreed) == {"mean", "scale"} and all(a.shape == shape and a.dtype == np.float64 for a in numbers)
    if not (fits and np.isfinite(numbers).all() and (agreed["scale"] > 0).all()):
        raise PlanError("the scaling that came is not a mean and a scale above 0 for each feature here")
    content, path = save({name: agreed[name] for name in ("mean", "scale")}), folder / "scaling"
    if not path.exists():
        put(path, content)
    elif path.read_bytes() != content:
        raise PlanError("another scaling was agreed on in this run before; start a new run")


def scaling_of(folder: Path) -> Scaling:
    """The scaling of a run, as it was kept. Raises PlanError where the site was told none."""
    if not (path := folder / "scaling").exists():
        raise PlanError("this site was never told the scaling of this run")
    return Scaling(**load(path.read_bytes()))


def _aside(folder: Path, ident: str) -> Path:
    return folder.with_name(f"{folder.name}-{blake2b(ident.encode(), digest_size=8).hexdigest()}")


def put(path: Path, content: bytes) -> None:
    """Write a file of a run, which the site's user alone may read, in a folder that is theirs alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path, content, flush=True, mode=0o600)
