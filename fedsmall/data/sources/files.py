"""Where files are, and the names of classes in them."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedsmall.data.outcomes import LEAST_GRADES
from fedsmall.errors import DataError, PlanError

ROOT_VARIABLE = "FEDSMALL_DATA"
MOST_CLASSES = 100
HIDDEN = (".", "~$")  # how the names of files begin that programs put beside a user's own


def data_root(root: Path | None) -> Path | None:
    """The folder of data files: the argument, else the environment variable FEDSMALL_DATA, else none."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(root) if root is not None else Path(named) if named else None


def needed_root(root: Path | None, task: str) -> Path:
    """The folder of data files; PlanError where none was named."""
    found = data_root(root)
    if found is None:
        raise PlanError(f"task {task!r} reads files: name their folder with --data-root, or in {ROOT_VARIABLE}")
    return found


def locate(path: str | Path, root: Path | None) -> Path:
    """The file or folder that a scenario names: as it stands, or else under the data root.

    Raises PlanError, with the scenario's own words, where there is no such thing.
    """
    asked, folder = Path(path).expanduser(), data_root(root)
    for candidate in (asked, *([folder / asked] if folder else [])):
        if _exists(candidate):
            return candidate
    raise PlanError(f"there is no file or folder {short(path)!r} here" + (" or under the data root" if folder else ""))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError, RuntimeError):  # a name that is too long or holds a zero, a link to itself
        return False


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
    found: dict[str, Path] = {}
    alike: dict[str, str] = {}
    for path in files:
        ending = next((ending for ending in endings if path.name.lower().endswith(ending)), None)
        if ending is None:
            continue
        site = path.name[: -len(ending)]
        if (other := alike.setdefault(site.casefold(), site)) in found:
            raise DataError(f"site {other!r} has two files, {found[other].name} and {path.name}; keep one of them")
        if not path.is_file():
            raise DataError("it is no file that can be read, but a folder, a pipe or a broken link", file=path.name)
        found[site] = path
    if not found:
        raise DataError(f"the folder holds no file that ends in {' or '.join(suffixes)}")
    return found


@contextmanager
def at_site(name: str) -> Iterator[None]:
    """Make a DataError within say at which site it is, where sites have names; what may leave does not change."""
    try:
        yield
    except DataError as wrong:
        if not name:
            raise
        raise wrong.at(name) from wrong


def short(path: str | Path) -> str:
    """A path that a scenario names, in as many letters as a line can hold."""
    text = str(path)
    return text if len(text) <= 120 else f"{text[:60]}...{text[-50:]}"


def plain(label: object) -> str:
    """A label as text, whole numbers without a decimal point: "1.0" and "1" are one class."""
    text = str(label).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def class_names(labels: Iterable[object], given: Sequence[object] | None) -> tuple[str, ...]:
    """The classes in order: those ``given``, else all that occur, numbers by size and words by the alphabet.

    Raises DataError where fewer than two occur, or so many that the labels can hardly be classes.
    """
    if given is not None:
        names = tuple(plain(label) for label in given)
        if len(names) < 2:
            raise PlanError(f"a model needs at least two classes to tell apart; classes lists {len(names)}")
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(f"classes lists {twice[0]!r} twice; each has one place")
        return names
    found = {plain(label) for label in labels}
    if len(found) < 2:
        raise DataError("all samples have one label; a model needs at least two classes to tell apart")
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"the labels have {len(found)} different values; they do not look like classes. "
            "A number that is to be predicted is named as target in place of label"
        )
    return tuple(sorted(found, key=_by_size))


def check_order(names: Sequence[str], said: bool) -> None:
    """Raise PlanError where classes are too few to have an order, or nobody has ``said`` which it is."""
    if len(names) < LEAST_GRADES:
        raise PlanError(
            f'the loss "ordinal" is for {LEAST_GRADES} classes or more in their order; this task has {len(names)}, so '
            "leave it out"
        )
    if not said and not all(map(is_number, names)):  # they are in the order of the alphabet
        listed = ", ".join(f'"{name}"' for name in names)
        raise PlanError(
            'the loss "ordinal" needs the order of the classes, from the lowest to the highest: classes = '
            f"[{listed}], in that order"
        )


def _by_size(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def as_classes(labels: Sequence[object], names: Sequence[str]) -> np.ndarray:
    """Labels as indices into ``names``; DataError, with how many, where a label is none of them."""
    index = {name: place for place, name in enumerate(names)}
    places = np.array([index.get(plain(label), -1) for label in labels], dtype=np.int64)
    if (places < 0).any():
        raise DataError(f"{(places < 0).sum()} of {len(places)} labels are none of the classes {', '.join(names)}")
    return places
