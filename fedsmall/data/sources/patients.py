"""Whose each sample is, by a column, an array or a file's name."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsmall.data.preparation import need
from fedsmall.data.sources.files import at_site
from fedsmall.data.sources.pool import Part, Pool
from fedsmall.data.table_files import is_missing, plain
from fedsmall.errors import DataError, PlanError

if TYPE_CHECKING:
    from pandas import DataFrame


def patients_of(frames: "Mapping[str, DataFrame]", column: str | None, one_table: bool) -> dict[str, np.ndarray]:
    """A number for the patient of each row, (rows,), by site; nothing without a ``column``.

    Equal names at two sites are two patients, unless their rows come from ``one_table``, where that is an error.
    """
    if column is None:
        return {}
    names = {}
    for site, frame in frames.items():
        with at_site(site):
            need(frame, [column], "whose each row is")
            if (gaps := is_missing(frame[column])).any():
                raise DataError(f"column {column!r} names no patient in {gaps.sum()} of {len(frame)} rows")
            names[site] = frame[column].map(plain).to_numpy(dtype=object)
    if one_table:
        _check_one_site(column, names)
    return numbered(names)[0]


def patients_in(files: Mapping[str, Sequence[str]], pattern: str | None) -> dict[str, np.ndarray]:
    """What ``pattern`` finds in the names of each site's ``files``; nothing without a pattern."""
    if pattern is None:
        return {}
    try:
        search = re.compile(pattern).search
    except (re.error, TypeError) as wrong:
        raise PlanError(
            f"patient is a regular expression for names of files, as in 'person([0-9]+)': {wrong}"
        ) from wrong
    patients = {}
    for site, names in files.items():
        matches = [search(name) for name in names]
        if none := matches.count(None):
            with at_site(site):
                raise DataError(f"in {none} of {len(names)} names of files {pattern!r} finds no patient")
        patients[site] = np.array([match.group(match.re.groups and 1) for match in matches if match], dtype=object)
    return patients


def patients_listed(pool: Pool, held: Mapping[str, Sequence[np.ndarray]]) -> Pool:
    """The pool with the patients that ``held`` lists at each site, of its training samples and of its test samples.

    Raises DataError where a list is missing or does not fit the samples, and where a patient is missing.
    """
    if not any(map(len, held.values())):
        return pool
    if none := sum(not len(held.get(site, ())) for site in pool.train):
        raise DataError(f"{none} of {len(pool.train)} sites do not say whose each sample is; say it at all, or at none")
    train = {site: _patient_names(site, held[site][0], part) for site, part in pool.train.items()}
    test = {site: _patient_names(site, held[site][1], part) for site, part in pool.test.items() if len(held[site]) > 1}
    of_train, of_test = numbered(train, test)
    return replace(
        pool,
        train={site: replace(part, patients=of_train[site]) for site, part in pool.train.items()},
        test={site: replace(part, patients=of_test.get(site)) for site, part in pool.test.items()},
    )


def _patient_names(site: str, names: np.ndarray, part: Part) -> np.ndarray:
    import pandas

    names = np.asarray(names)
    names = names[:, 0] if names.ndim == 2 and names.shape[1] == 1 else names
    with at_site(site):
        if names.shape != (len(part),) or names.dtype.kind not in "iufUSO":
            raise DataError(
                f"patients have shape {names.shape} and type {names.dtype}; a number or a name for each of "
                f"{len(part)} samples is expected"
            )
        words = pandas.Series([name.decode() if isinstance(name, bytes) else name for name in names], dtype=object)
        if (gaps := is_missing(words.map(plain))).any():
            raise DataError(f"{gaps.sum()} of {len(part)} samples name no patient")
    return np.asarray(words.map(plain).to_numpy(dtype=object))


def numbered(*sides: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Numbers for names on every side: one for a name of a site, in the order of sites and names."""
    pairs = sorted({(site, str(name)) for side in sides for site, names in side.items() for name in names})
    places = {pair: place for place, pair in enumerate(pairs)}
    return [
        {site: np.array([places[site, str(name)] for name in names], dtype=np.int64) for site, names in side.items()}
        for side in sides
    ]


def check_no_feature(column: str | None, label: str, *features: Collection[str] | None) -> None:
    """Raise PlanError where the column of patients is a feature, or what is predicted."""
    if column is not None and any(column in (named or ()) for named in ([label], *features)):
        raise PlanError(f"patient = {column!r} says whose a row is; it can be neither a feature nor the label")


def _check_one_site(column: str, names: Mapping[str, np.ndarray]) -> None:
    everybody = np.concatenate([np.unique(those.astype(str)) for those in names.values()])
    if torn := len(everybody) - len(np.unique(everybody)):
        raise DataError(
            f"{torn} of the patients in column {column!r} have rows at more than one site, and belong at one; "
            "say sites = ... to deal them, or give them names of their own at each site"
        )
