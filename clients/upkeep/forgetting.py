"""What a site lets go of: all that it keeps of a run, when somebody asks for it, or some days after it was last used.

The log keeps its lines, and gets one more. Three things that belong to no single run stay, for they protect patients
against the next one: the privacy account beside the log, and the digests of whom sums were told of
(``told_sums.json``, ``told_patients.json``, ``told_held_out.json``), without which a later run could single somebody
out by subtraction. Files are deleted as the system deletes them: copies elsewhere stay, and what lay on a disk may be
found there. Where that matters, keep them sealed (:mod:`fedsmall.clients.upkeep.at_rest`) and destroy the key.
"""

import json
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from fedsmall.clients.memory import RUNS, folders_of
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import AGREED

DAY_S = 86_400.0


class Forgotten(NamedTuple):
    """What was deleted: files, and their bytes."""

    files: int
    bytes: int


def forget(home: Path, log: SiteLog, run: str, why: str = "asked for at the site") -> Forgotten | None:
    """Delete what the site keeps of the run of this name, and of earlier ones of that name; None where that is nothing.

    The line in the log is written first: what cannot be logged is not done.
    """
    folders = folders_of(home / RUNS, run)
    if not folders:
        return None
    return _delete(folders, log, run, why)


def forget_old(home: Path, log: SiteLog, days: int | None) -> list[str]:
    """Delete what is kept of runs that were not heard of for so many days; their names. None days keep all."""
    if days is None:
        return []
    before = time.time() - days * DAY_S
    old = [folder for folder in sorted((home / RUNS).glob("*")) if folder.is_dir() and _last_used(folder) < before]
    names = {folder: _name(folder) for folder in old}
    for folder, name in names.items():
        _delete([folder], log, name, f"{days} days after it was last heard of")
    return list(names.values())


def _delete(folders: list[Path], log: SiteLog, run: str, why: str) -> Forgotten:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = Forgotten(len(files), sum(path.stat().st_size for path in files))
    log.write("forgot", run=run, reason=f"{found.files} files, {found.bytes} bytes: {why}")
    for folder in folders:
        shutil.rmtree(folder)
    return found


def _last_used(folder: Path) -> float:
    return max((path.stat().st_mtime for path in [folder, *folder.rglob("*")]), default=0.0)


def _name(folder: Path) -> str:
    """The run's name; of earlier releases' folders, which do not say it, the folder's."""
    path = folder / AGREED
    return str(json.loads(path.read_text())["run"]) if path.exists() else folder.name
