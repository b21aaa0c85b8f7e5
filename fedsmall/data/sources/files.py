"""Where files are, and at which site."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsmall.errors import DataError, PlanError

ROOT_VARIABLE = "FEDSMALL_DATA"
HIDDEN = (".", "~$")  # how the names of files begin that programs put beside a user's own


def data_root(root: Path | None) -> Path | None:
    """The folder of data files: the argument, else the environment variable FEDSMALL_DATA, else none."""
    named = root or os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else None


def needed_root(root: Path | None, task: str) -> Path:
    """The folder of data files; PlanError where none was named."""
    folder = data_root(root)
    if folder is None:
        raise PlanError(f"task {task!r} reads files: name their folder with --data-root, or in {ROOT_VARIABLE}")
    return folder


def locate(path: str | Path, root: Path | None) -> Path:
    """The file or folder that a scenario names, as it stands or under the data root; PlanError for none."""
    asked, folder = Path(path).expanduser(), data_root(root)
    for candidate in (asked, *([folder / asked] if folder else [])):
        with suppress(OSError, ValueError, RuntimeError):  # a name that is too long or holds a zero, a link to itself
            if candidate.exists():
                return candidate
    named = str(path) if len(str(path)) <= 120 else f"{str(path)[:60]}...{str(path)[-50:]}"
    raise PlanError(f"there is no file or folder {named!r} here" + (" or under the data root" if folder else ""))


def stamp(data: Path | None) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file is written anew: name, size and time of a file, or of every file in a folder."""
    if data is None:
        return ()
    files = sorted(data.rglob("*")) if data.is_dir() else [data]
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())


def site_files(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """The files of a folder that holds one for each site, by the site's name: the file's, without its ending."""
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(HIDDEN)]
    endings = sorted(suffixes, key=len, reverse=True)
    by_site: dict[str, Path] = {}
    alike: dict[str, str] = {}
    for path in files:
        ending = next((ending for ending in endings if path.name.lower().endswith(ending)), None)
        if ending is None:
            continue
        site = path.name[: -len(ending)]
        if (other := alike.setdefault(site.casefold(), site)) in by_site:
            raise DataError(f"site {other!r} has two files, {by_site[other].name} and {path.name}; keep one of them")
        if not path.is_file():
            raise DataError("it is no file that can be read, but a folder, a pipe or a broken link", file=path.name)
        by_site[site] = path
    if not by_site:
        raise DataError(f"the folder holds no file that ends in {' or '.join(suffixes)}")
    return by_site


@contextmanager
def at_site(name: str) -> Iterator[None]:
    """Make a DataError within say at which site it is, where sites have names; what may leave does not change."""
    try:
        yield
    except DataError as wrong:
        if not name:
            raise
        raise wrong.at(name) from wrong
