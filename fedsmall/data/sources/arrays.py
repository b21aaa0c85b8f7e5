"""Arrays: .npz files of one's own or of MedMNIST, and arrays given in Python."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedsmall.data.forms import Columns
from fedsmall.data.outcomes import Amount, Findings
from fedsmall.data.sources.files import as_classes, at_site, class_names, locate, needed_root, site_files
from fedsmall.data.sources.patient_column import patients_listed
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError, PlanError
from fedsmall.files import check_is_regular
from fedsmall.methods import nearest

UNREADABLE = (OSError, ValueError, EOFError, LookupError, TypeError, BadZipFile, zlib.error)
PATIENT = "patient"
# x and y of the training samples, x and y of the test samples
LAYOUTS = (("x", "y", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels"))


def npz(
    root: Path | None, seed: int, path: str, *, classes: Sequence[object] | None = None, patient: str | None = None
) -> Pool:
    """The arrays at ``path``, or one .npz for each site where that is a folder.

    An .npz holds x and y, and may hold x_test and y_test (or MedMNIST's names). Images are uint8 of shape (samples,
    height, width) or (samples, height, width, channels), or ready floats with channels first; two dimensions are a
    table of features. ``patient`` names an array that says whose each sample is, (samples,) of numbers or words, and
    with "_test" behind it whose the test samples are; without a word an array "patient" is that, where there is one.

    Raises DataError for arrays that are not there, do not fit each other, or hold NaN or pickled objects.
    """
    if patient is not None and (not isinstance(patient, str) or patient in chain(*LAYOUTS)):
        raise PlanError(f'patient names the array that says whose each sample is, as in "patient"; got {patient!r}')
    found = locate(path, root)
    files = site_files(found, [".npz"]) if found.is_dir() else {NOWHERE: found}
    pool = from_arrays({name: read_npz(file) for name, file in files.items()}, classes)
    return patients_listed(pool, {name: _patients(name, file, patient) for name, file in files.items()})


def from_arrays(sites: Mapping[str, Sequence[np.ndarray]], classes: Sequence[object] | None = None) -> Pool:
    """A pool of (x, y) or (x, y, x_test, y_test) for each site."""
    labels = np.concatenate([_labels(array) for arrays in sites.values() for array in arrays[1::2]])
    names = class_names(np.unique(labels), classes)
    train = {name: make_part(arrays[0], arrays[1], names) for name, arrays in sites.items()}
    test = {name: make_part(arrays[2], arrays[3], names) for name, arrays in sites.items() if len(arrays) > 2}
    table = next(iter(train.values())).x.ndim == 2
    width = next(iter(train.values())).x.shape[1]
    features = tuple(f"x{index}" for index in range(width)) if table else ()
    form = Columns(columns=features, missing=False) if table else None
    return Pool(train, names, test, feature_names=features, standardise=table, form=form)


def pool_of_numbers(sites: Mapping[str, Sequence[np.ndarray]], target: str, loss: str) -> Pool:
    """A pool of (x, y) for each site, whose y (samples,) are numbers to be predicted, called ``target``."""
    train = {}
    for name, (x, y) in sites.items():
        numbers = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        if numbers.shape[1] != 1 or not np.isfinite(numbers).all() or len(numbers) != len(x):
            raise DataError(f"targets are one number for each of {len(x)} samples, none missing; got {np.shape(y)}")
        train[str(name)] = Part(as_inputs(np.asarray(x)), numbers)
    return replace(_tabled(train), loss=loss, outcome=Amount(name=target))


def pool_of_labels(sites: Mapping[str, Sequence[np.ndarray]], names: Sequence[str], loss: str) -> Pool:
    """A pool of (x, y) for each site, whose y (samples, labels) are 1 or 0 for each of the ``names``."""
    train = {}
    for name, (x, y) in sites.items():
        y = np.asarray(y, dtype=np.float64)
        if y.shape != (len(x), len(names)) or not np.isin(y, (0, 1)).all():
            raise DataError(
                f"labels are 0 or 1, none missing, {len(names)} for each of {len(x)} samples; got {y.shape}"
            )
        train[str(name)] = Part(as_inputs(np.asarray(x)), y)
    return replace(_tabled(train), loss=loss, outcome=Findings(names=tuple(names)))


def _tabled(train: dict[str, Part]) -> Pool:
    """A pool whose features have numbers for names, where samples are rows of a table."""
    first = next(iter(train.values())).x
    features = tuple(f"x{index}" for index in range(first.shape[1])) if first.ndim == 2 else ()
    form = Columns(columns=features, missing=False) if features else None
    return Pool(train, (), {}, features, standardise=bool(features), form=form)


def read_npz(path: Path) -> list[np.ndarray]:
    """The arrays of an .npz in the order x, y, x_test, y_test (the last two may be missing); nothing is unpickled."""
    with opened_npz(path) as file:
        held = list(file)
        layout = next((layout for layout in LAYOUTS if layout[0] in held), LAYOUTS[0])
        for name in layout[:2]:
            if name not in held:
                raise DataError(f"the .npz holds no array {name!r}. {nearest(name, held)}")
        return [file[name] for name in layout if name in held][: 4 if layout[3] in held else 2]


@contextmanager
def opened_npz(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz by their names; DataError where it is none, is damaged, or holds pickled objects."""
    check_is_regular(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file
    except DataError:
        raise
    except UNREADABLE as wrong:  # not a zip, one that is cut short, a lone array, or an array of objects
        raise DataError("the file is not an .npz of plain arrays, or is damaged", file=path.name) from wrong


def _patients(site: str, path: Path, name: str | None) -> list[np.ndarray]:
    """Whose the training samples are and, where that is there, whose the test samples are; nothing where not said."""
    wanted = name or PATIENT
    with at_site(site), opened_npz(path) as file:
        if name is not None and name not in file:
            raise DataError(f"the .npz holds no array {name!r} (whose each sample is). {nearest(name, list(file))}")
        return [file[each] for each in (wanted, f"{wanted}_test") if each in file] if wanted in file else []


def make_part(x: np.ndarray, y: np.ndarray, classes: Sequence[str]) -> Part:
    """Samples from arrays as users have them: grey images gain a channel, colours come first, labels become indices."""
    x, labels = np.asarray(x), _labels(np.asarray(y))
    if len(x) != len(labels):
        raise DataError(f"there are {len(x)} samples and {len(labels)} labels; there must be one label for each sample")
    return Part(as_inputs(x), as_classes(labels.tolist(), classes))


def _labels(y: np.ndarray) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"labels have shape {y.shape}: one class for each sample is expected (no multi-label task)")
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise DataError(f"{np.isnan(y).sum()} of {len(y)} labels are NaN")
    return y


def as_inputs(x: np.ndarray) -> np.ndarray:
    """Samples as users have them, (samples, features) or images, with channels first; DataError for what is neither."""
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"samples are numbers of shape (samples, features) or images; these are {x.dtype} {x.shape}")
    if 0 in x.shape[1:]:
        raise DataError(f"samples of shape {x.shape[1:]} hold no number; there is nothing to learn from")
    if x.dtype == np.uint8 and x.ndim >= 3:
        return x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    if not np.isfinite(x).all():
        raise DataError(
            f"{(~np.isfinite(x)).any(axis=tuple(range(1, x.ndim))).sum()} of {len(x)} samples hold NaN or Inf"
        )
    x = x.astype(np.float64)
    return x[:, None] if x.ndim == 3 else x


def medmnist(root: Path | None, seed: int, flag: str) -> Pool:
    """A 2D task of MedMNIST v2 by its flag, from ``flag``.npz under the data root, downloaded where it is not there."""
    folder = needed_root(root, flag)
    file = folder / f"{flag}.npz"
    if not file.exists():
        _download(flag, folder)
    pool = from_arrays({NOWHERE: read_npz(file)})
    return Pool(pool.train, pool.class_names, pool.test, keep_unused=True)


def _download(flag: str, folder: Path) -> None:
    import medmnist as library

    info: dict[str, Any] = library.INFO
    if flag not in info:
        raise PlanError(f"MedMNIST has no {flag!r}. {nearest(flag, list(info))}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        getattr(library, info[flag]["python_class"])(split="train", root=str(folder), download=True)
    except (OSError, RuntimeError) as wrong:
        raise DataError(f"{flag}.npz is not under the data root and could not be downloaded; put it there") from wrong
