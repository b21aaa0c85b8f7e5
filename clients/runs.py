"""A site's folder of each run, which holds the run to how it began; and how a site deletes it.

Deletion is asked for, or comes some days after a run was last heard of; it adds a line to the log. Three things outlive
every run, for they protect patients against the next one: the log, the privacy account beside it, and the digests of
whom sums were told of (``told_*.json``), without which a later run could single somebody out by subtraction. Deleted
files may still be found on the disk or in copies; where that matters, seal them, and destroy the key.
"""

import json
import shutil
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from fedsmall.clients.shelf import bytes_of, write_private
from fedsmall.clients.site_log import SiteLog
from fedsmall.data.preparation import Scaling
from fedsmall.errors import DataError, PlanError
from fedsmall.files import one_line
from fedsmall.planning.run_sheet import RUN, RUN_ID
from fedsmall.wire import Arrays

RUNS = "runs"  # in a site's folder: what it keeps of each run
PREDICTIONS = "predictions.csv"  # in the folder of a run: what a model says of new patients, which is the site's alone
AGREED = "agreed.json"  # in the folder of a run: what it was at the first


def run_folder(home: Path, run: str) -> Path:
    """A run's folder: its name comes over the network, so only its digest becomes part of a path."""
    return home / blake2b(run.encode(), digest_size=16).hexdigest()


def own_folder(home: Path, run: str, ident: str) -> Path:
    """The folder of the run ``ident``; that of an earlier run of the same name is renamed."""
    folder = run_folder(home, run)
    mark, aside = folder / "id", _aside(folder, ident)
    if mark.exists() and mark.read_text() != ident:
        folder.rename(_aside(folder, mark.read_text()))
        if aside.exists():
            aside.rename(folder)
    if not mark.exists():
        write_private(mark, ident.encode())
    return folder


def folder_of_order(home: Path, config: Mapping[str, Any]) -> Path:
    """The folder of an order's run. Raises PlanError where it names none."""
    if not config.get(RUN):
        raise PlanError("the order does not say of which run it is")
    return own_folder(home / RUNS, str(config[RUN]), one_line(config.get(RUN_ID, ""), 64))


def folders_of(home: Path, run: str) -> list[Path]:
    """The folders of all runs that had this name, the current one first."""
    now = run_folder(home, run)
    return [path for path in (now, *sorted(home.glob(f"{now.name}-*"))) if path.is_dir()]


def check_same_data(folder: Path, digest: str) -> None:
    """Raise DataError where the data are not those of the first communication round: two populations would mix."""
    if not _keep_once(folder / "data", digest.encode()):
        raise DataError("the site's data have changed since this run began; start a new run")


def _keep_once(path: Path, content: bytes) -> bool:
    """Write a file that is not there yet; False where it is there with another content."""
    if not path.exists():
        write_private(path, content)
    return path.read_bytes() == content


def keep_scaling(folder: Path, agreed: Arrays, shape: tuple[int, ...]) -> None:
    """Keep the agreed mean and scale of a run, each of this ``shape``. PlanError for any others."""
    numbers = [np.asarray(array) for array in agreed.values()]
    fits = set(agreed) == {"mean", "scale"} and all(a.shape == shape and a.dtype == np.float64 for a in numbers)
    if not (fits and np.isfinite(numbers).all() and (agreed["scale"] > 0).all()):
        raise PlanError("the scaling that came is not a mean and a scale above 0 for each feature here")
    if not _keep_once(folder / "scaling", bytes_of({name: agreed[name] for name in ("mean", "scale")})):
        raise PlanError("another scaling was agreed on in this run before; start a new run")


def scaling_of(folder: Path) -> Scaling:
    """The run's scaling. Raises PlanError where the site was told none."""
    if not (path := folder / "scaling").exists():
        raise PlanError("this site was never told the scaling of this run")
    return Scaling(**load(path.read_bytes()))


def _aside(folder: Path, ident: str) -> Path:
    return folder.with_name(f"{folder.name}-{blake2b(ident.encode(), digest_size=8).hexdigest()}")


DAY_S = 86_400.0


def forget_run(home: Path, log: SiteLog, run: str, why: str = "asked for at the site") -> tuple[int, int] | None:
    """Delete all runs of this name, logged first, and return how many files and bytes; None where there is none."""
    folders = folders_of(home / RUNS, run)
    return _delete(folders, log, run, why) if folders else None


def forget_old(home: Path, log: SiteLog, days: int | None) -> list[str]:
    """Delete runs that were not heard of for so many days, and return their names; None keeps all."""
    if days is None:
        return []
    before, names = time.time() - days * DAY_S, []
    for folder in [path for path in sorted((home / RUNS).glob("*")) if path.is_dir()]:
        if max(path.stat().st_mtime for path in [folder, *folder.rglob("*")]) < before:
            agreed = folder / AGREED  # an earlier release's folder does not say the run's name
            names.append(str(json.loads(agreed.read_text())["run"]) if agreed.exists() else folder.name)
            _delete([folder], log, names[-1], f"{days} days after it was last heard of")
    return names


def _delete(folders: list[Path], log: SiteLog, run: str, why: str) -> tuple[int, int]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    log.write("forgot", run=run, reason=f"{len(files)} files, {size} bytes: {why}")
    for folder in folders:
        shutil.rmtree(folder)
    return len(files), size
