"""Arrays: .npz files, and what is given in Python, arrays or pandas tables."""

import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from fedsmall.data.outcomes import DEFAULT_LOSS, LEAST_LABELS, ORDINAL, Amount, Findings, kind_of
from fedsmall.data.preparation import Columns
from fedsmall.data.sources.files import at_site, locate, site_files
from fedsmall.data.sources.labels import as_classes, check_order, class_names, patients_listed
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError, PlanError, as_data_error
from fedsmall.files import check_is_regular
from fedsmall.methods import check_known, nearest

if TYPE_CHECKING:
    from pandas import DataFrame


# how an .npz fails that is no zip, is cut short, or holds a lone array or objects
UNREADABLE = (OSError, ValueError, EOFError, LookupError, TypeError, BadZipFile, zlib.error)
PATIENT = "patient"
MANY = 20  # different numbers that are not whole, from which on y is a number to be predicted
TEST = "the common test set"  # its key beside the names of sites
SAID = ("name", "loss", "classes", "label", "target", "targets")  # what a task says of arrays
Given = dict[str, tuple[Any, ...]]  # (x, y), or (x, time, event), by site
# x and y of the training samples, x and y of the test samples
LAYOUTS = (("x", "y", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels"))


def npz(
    root: Path | None, seed: int, path: str, *, classes: Sequence[object] | None = None, patient: str | None = None
) -> Pool:
    """The arrays at ``path``, or one .npz for each site where that is a folder.

    An .npz holds x and y, and may hold x_test and y_test (or MedMNIST's names). Images are uint8 of shape (samples,
    height, width) or with channels last, or floats with channels first; two dimensions are a table. ``patient`` names
    the array with the patient of each sample, with "_test" behind it for test samples. DataError for arrays that are
    missing, do not fit each other, or hold NaN or pickled objects.
    """
    if patient is not None and (not isinstance(patient, str) or patient in chain(*LAYOUTS)):
        raise PlanError(f'patient names the array that says whose each sample is, as in "patient"; got {patient!r}')
    source = locate(path, root)
    files = site_files(source, [".npz"]) if source.is_dir() else {NOWHERE: source}
    pool = from_arrays({name: read_npz(file) for name, file in files.items()}, classes)
    return patients_listed(pool, {name: _patients(name, file, patient) for name, file in files.items()})


def from_arrays(sites: Mapping[str, Sequence[np.ndarray]], classes: Sequence[object] | None = None) -> Pool:
    """A pool of (x, y) or (x, y, x_test, y_test) for each site."""
    labels = np.concatenate([_as_labels(array) for arrays in sites.values() for array in arrays[1::2]])
    if classes is None and _is_amount([labels]):
        raise DataError(
            "y holds many numbers that are not whole, so they are no classes. A number is predicted from a table, as "
            "its target, or in Python; if each is a class, list them: classes = [...]"
        )
    names = class_names(np.unique(labels), classes)
    train, test = {}, {}
    for name, arrays in sites.items():
        with at_site(name):
            train[name] = _make_part(arrays[0], arrays[1], names)
            if len(arrays) > 2:
                test[name] = _make_part(arrays[2], arrays[3], names)
    return replace(_pool_of_tables(train), class_names=names, test=test)


def given_samples(sites: Any, test: Any = None) -> Given:
    """What Python gives for every site, by name, and for the common test set last; PlanError for a mixture."""
    if not isinstance(sites, Mapping) or not sites:
        hint = '; one table of all is task={"csv": table, "label": "outcome"}' if is_table(sites) else ""
        got = "none" if isinstance(sites, Mapping) else type(sites).__name__
        raise PlanError(f"sites is {{name: (x, y), ...}}, by the names of the sites; got {got}{hint}")
    given = {str(name): sites[name] for name in sorted(sites, key=str)} | ({} if test is None else {TEST: test})
    for site, samples in given.items():
        if not isinstance(samples, tuple | list) or len(samples) not in (2, 3):
            whole = '; tables that hold the label are task={"csv": {name: table, ...}, "label": "outcome"}'
            raise PlanError(
                f"site {site!r}: expected (x, y), or (x, time, event) for survival; got {type(samples).__name__}"
                f"{f' of {len(samples)}' if isinstance(samples, tuple | list) else whole if is_table(samples) else ''}"
            )
    first = next(iter(given))
    for site, samples in given.items():
        if len(samples) != len(given[first]) or is_table(samples[0]) != is_table(given[first][0]):
            raise PlanError(
                f"sites {first!r} and {site!r} differ in kind: give (x, y) at all or (x, time, event) at all, and "
                "pandas tables at all or arrays at all (an array has no names by which columns could be found)"
            )
    return {site: tuple(samples) for site, samples in given.items()}


def is_table(x: Any) -> bool:
    """Whether something is a pandas table."""
    pandas = sys.modules.get("pandas")  # who has a table has imported it
    return pandas is not None and isinstance(x, pandas.DataFrame)


def with_outcome(options: Mapping[str, Any], given: Given) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A task's options with label, target, targets, or time and event filled in, and notes.

    By default y is a target if it has over 20 values that are not all whole, else a label, called as its column or "y".
    """
    outcomes = [samples[1:] for samples in given.values()]
    kind = kind_of(options.get("loss", ""))
    if len(outcomes[0]) == 2:
        return {"time": _name(outcomes, 0, "time"), "event": _name(outcomes, 1, "event"), **options}, ()
    if kind == "times":
        raise PlanError("survival takes (x, time, event) of every site")
    if kind == "labels" or "targets" in options:
        return {"targets": (), **options}, ()
    name = _name(outcomes, 0, "y")
    if kind == "numbers" or "target" in options:
        return {"target": name, **options}, ()
    if {"loss", "classes", "label", "order"} & set(options) or not _is_amount([y for (y,) in outcomes]):
        return {"label": name, **options}, ()
    return {"target": name, **options}, (
        f"{name!r} holds many numbers that are not whole, so the number itself is predicted. If each is a class, say "
        "so: classes = [...]",
    )


def _name(outcomes: Sequence[tuple[Any, ...]], place: int, default: str) -> str:
    names = {getattr(outcome[place], "name", None) for outcome in outcomes}
    name = names.pop() if len(names) == 1 else None
    return name if isinstance(name, str) and name else default


def pool_of_arrays(options: Mapping[str, Any], given: Given) -> Pool:
    """A pool of the arrays of each site; ``options`` are a task's table, with what is predicted."""
    if odd := next((key for key in options if key not in SAID), None):
        raise PlanError(f"arrays have no option {odd!r}. {nearest(odd, list(SAID))} Give tables to name columns")
    if "targets" in options:
        names = list(map(str, options["targets"]))
        if len(names) < LEAST_LABELS:
            raise PlanError('y of 0 and 1 is for several labels; name them: targets = ["edema", "effusion"]')
        return _pool_of_outcome(given, Findings(names=tuple(names)))
    if "target" in options:
        return _pool_of_outcome(given, Amount(name=str(options["target"])))
    arrays = {site: list(map(as_array, pair)) for site, pair in given.items()}
    pool = from_arrays(arrays, options.get("classes"))
    if options.get("loss") == ORDINAL:
        check_order(pool.class_names, "classes" in options)
    return pool


def as_array(given: Any) -> np.ndarray:
    """An array; DataError for rows of several lengths, and for masked values, which would be read as any other."""
    if np.ma.is_masked(given):
        raise DataError("masked values are no numbers: leave those samples out, or give pandas tables, which have gaps")
    with as_data_error("samples are rows of one length, or images of one size", ValueError):
        return np.asarray(given)


def tables_of(options: Mapping[str, Any], given: Given) -> dict[str, "DataFrame"]:
    """The table of each site with what is predicted as further columns, of the names that a task's table says."""
    import pandas

    keys = [key for key in ("label", "target", "time", "event") if key in options]
    names, tables = [str(name) for name in options.get("targets") or [options[key] for key in keys]], {}
    for site, (x, *outcomes) in given.items():
        with at_site(site):
            if not is_table(x):
                x = as_inputs(as_array(x))
                if x.ndim != 2:
                    raise DataError(f"survival takes samples of shape (samples, features); these are {x.shape}")
                x = pandas.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])])
            y = [column for outcome in outcomes for column in np.asarray(outcome).reshape(len(outcome), -1).T]
            if len(y) != len(names) or any(len(column) != len(x) for column in y):
                raise DataError(
                    f"what is predicted has {len(y)} columns of {len(y[0])} rows; expected is {len(names)} "
                    f"({', '.join(names)}) of {len(x)} rows, one for each sample"
                )
            if twice := [name for name in names if name in map(str, x.columns)]:
                key = (keys or ["targets"])[names.index(twice[0]) if keys else 0]
                raise DataError(
                    f"{twice[0]!r} is a column of x, and the {key} has that name. Take it out of x, or give the other "
                    f"a name: {key} = ... in the task"
                )
            tables[site] = x.reset_index(drop=True).assign(**dict(zip(names, y, strict=True)))
    return tables


def _pool_of_outcome(sites: Given, outcome: Amount | Findings) -> Pool:
    train = {}
    for site, (x, y) in sites.items():
        with at_site(site):
            train[site] = Part(as_inputs(as_array(x)), _targets(as_array(y).astype(np.float64), len(x), outcome))
    return replace(_pool_of_tables(train), loss=DEFAULT_LOSS[outcome.kind], outcome=outcome)


def _targets(y: np.ndarray, samples: int, outcome: Amount | Findings) -> np.ndarray:
    if outcome.kind == "findings":
        width = len(outcome.names)
        if y.shape != (samples, width) or not np.isin(y, (0, 1)).all():
            raise DataError(f"labels are 0 or 1, none missing, {width} for each of {samples} samples; got {y.shape}")
        return y
    numbers = y.reshape(len(y), -1)
    if numbers.shape != (samples, 1) or not np.isfinite(numbers).all():
        raise DataError(f"targets are one number for each of {samples} samples, none missing; got {y.shape}")
    return numbers


def _pool_of_tables(train: dict[str, Part]) -> Pool:
    first = next(iter(train.values())).x
    features = tuple(f"x{index}" for index in range(first.shape[1])) if first.ndim == 2 else ()
    form = Columns(columns=features, missing=False) if features else None
    return Pool(train, (), {}, features, standardise=bool(features), form=form)


def read_npz(path: Path) -> list[np.ndarray]:
    """The arrays of an .npz in the order x, y, x_test, y_test (the last two may be missing); nothing is unpickled."""
    with open_npz(path) as file:
        held = list(file)
        layout = next((layout for layout in LAYOUTS if layout[0] in held), LAYOUTS[0])
        for name in layout[:2]:
            check_known(name, held, f"the .npz holds no array {name!r}", DataError)
        return [file[name] for name in layout if name in held][: 4 if layout[3] in held else 2]


@contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz by their names; DataError where it is none, is damaged, or holds pickled objects."""
    check_is_regular(path)
    words = "the file is not an .npz of plain arrays, or is damaged"
    with (
        as_data_error(words, *UNREADABLE, file=path.name),
        path.open("rb") as raw,
        np.load(raw, allow_pickle=False) as file,
    ):
        yield file


def _patients(site: str, path: Path, name: str | None) -> list[np.ndarray]:
    wanted = name or PATIENT
    with at_site(site), open_npz(path) as file:
        if name is not None:
            check_known(name, file, f"the .npz holds no array {name!r} (whose each sample is)", DataError)
        return [file[key] for key in (wanted, f"{wanted}_test") if key in file] if wanted in file else []


def _make_part(x: np.ndarray, y: np.ndarray, classes: Sequence[str]) -> Part:
    x, labels = np.asarray(x), _as_labels(np.asarray(y))
    if len(x) != len(labels):
        raise DataError(f"there are {len(x)} samples and {len(labels)} labels; there must be one label for each sample")
    return Part(as_inputs(x), as_classes(labels.tolist(), classes))


def _as_labels(y: np.ndarray) -> np.ndarray:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
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
    if (odd := ~np.isfinite(x)).any():
        raise DataError(f"{odd.any(axis=tuple(range(1, x.ndim))).sum()} of {len(x)} samples hold NaN or Inf")
    x = x.astype(np.float64)
    return x[:, None] if x.ndim == 3 else x


def _is_amount(outcomes: Sequence[Any]) -> bool:
    """Whether y of all sites are numbers to be predicted: more than 20 of different values are not whole."""
    arrays = [np.asarray(y).ravel() for y in outcomes]
    if not all(y.dtype.kind in "fiu" for y in arrays):
        return False
    numbers = np.unique(np.concatenate(arrays))
    return int((np.isfinite(numbers) & (numbers != np.round(numbers))).sum()) > MANY
