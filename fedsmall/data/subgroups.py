"""Subgroups: groups of patients, by columns of a table, that a report also looks at by themselves.

``subgroups = ["sex", "age>=60", "bmi>=25, 30"]`` in a task: the values of a column, or the parts between stated cuts;
many numbers without cuts are cut at their thirds over all rows. Models never see them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from fedsmall.data.preparation import need
from fedsmall.data.sources.pool import Part, Pool
from fedsmall.data.table_files import as_numbers, is_missing, plain
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import check_known

if TYPE_CHECKING:
    from pandas import DataFrame

K = TypeVar("K")  # of a table: its site, or half and site
MOST_VALUES = 12
FEW_NUMBERS = 6  # different numbers in a column without cuts up to which each is a group
UNKNOWN = "unknown"
KEPT_AS = "groups/"  # in what a run keeps of predictions, before the name of the column
EXAMPLE = 'subgroups = ["sex", "age>=60"]'


class Subgroups(NamedTuple):
    """One way to divide patients: a column, and the cuts between its parts where they are stated."""

    column: str
    cuts: tuple[float, ...] = ()


def read_subgroups(given: Any) -> tuple[Subgroups, ...]:
    """What a task's ``subgroups`` say. Raises PlanError, in one line, for what is none."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        raise PlanError(f"subgroups lists columns, with cuts where these are numbers: {EXAMPLE}; got {given!r}")
    subgroups = tuple(map(_read_subgroup, given))
    columns = [subgroup.column for subgroup in subgroups]
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise PlanError(f'subgroups names {twice!r} twice; several cuts go into one: "{twice}>=40, 60"')
    return subgroups


def _read_subgroup(word: str) -> Subgroups:
    column, at, cuts = word.partition(">=")
    try:
        numbers = tuple(float(cut) for cut in cuts.split(",")) if at else ()
    except ValueError:
        numbers = (np.nan,)
    if not column.strip() or not np.isfinite(numbers).all() or list(numbers) != sorted(set(numbers)):
        raise PlanError(f'subgroups: a column, or a column and ascending cuts, as in "age>=40, 60"; got {word!r}')
    return Subgroups(column.strip(), numbers)


def add_groups(
    frames: "Mapping[K, DataFrame]", parts: Mapping[K, Part], asked: Sequence[Subgroups], markers: Sequence[str] = ()
) -> dict[K, Part]:
    """The samples of every table with the groups of their rows. Raises DataError by column, never by value."""
    for frame in frames.values():
        need(frame, [subgroup.column for subgroup in asked], "a subgroup")
    named: dict[K, dict[str, np.ndarray]] = {name: {} for name in frames}
    for subgroup in asked:
        columns = {name: frame[subgroup.column] for name, frame in frames.items()}
        missing = {name: is_missing(cells, markers).to_numpy(dtype=bool) for name, cells in columns.items()}
        numbers = {name: as_numbers(cells, markers) for name, cells in columns.items()}
        words = {name: np.array([plain(cell) for cell in cells], dtype=str) for name, cells in columns.items()}
        text = any((np.isnan(numbers[name]) & ~missing[name]).any() for name in frames)
        for name, groups in _group_rows(subgroup, words, missing, None if text else numbers).items():
            named[name][subgroup.column] = groups
    return {name: replace(part, groups=named[name]) for name, part in parts.items()}


def add_groups_by_features(pool: Pool, asked: Sequence[Subgroups]) -> Pool:
    """The pool with the groups of its samples, by features that have names. Raises PlanError where there are none."""
    from pandas import DataFrame

    known = list(pool.feature_names)
    halves = {"train": pool.train, "test": pool.test}
    parts = {(half, site): part for half, of_half in halves.items() for site, part in of_half.items()}
    if not known or any(part.x.ndim != 2 for part in parts.values()):
        raise PlanError("subgroups are columns of a table, and these samples are none. Leave subgroups out.")
    for subgroup in asked:
        check_known(subgroup.column, known, f"subgroups: there is no feature {subgroup.column!r}")
    frames = {key: DataFrame(part.x.astype(np.float64), columns=known) for key, part in parts.items()}
    grouped = add_groups(frames, parts, asked)
    train, test = ({site: grouped[half, site] for site in of_half} for half, of_half in halves.items())
    return replace(pool, train=train, test=test)


def _group_rows(
    asked: Subgroups, words: Mapping[K, np.ndarray], missing: Mapping[K, np.ndarray], numbers: Any
) -> dict[K, np.ndarray]:
    """The name of each row's group, by table; ``numbers`` is None for a column of words."""
    present = sorted(set(np.concatenate([words[key][~missing[key]] for key in words]).tolist()))
    if asked.cuts and numbers is None:
        raise DataError(f"subgroups: column {asked.column!r} holds text, which has no cuts; name the column alone")
    if numbers is None or (not asked.cuts and len(present) <= FEW_NUMBERS):
        if len(present) > MOST_VALUES:
            most = f"{MOST_VALUES} groups are the most"
            raise DataError(f"subgroups: column {asked.column!r} has {len(present)} values; {most}")
        return {key: np.where(missing[key], UNKNOWN, words[key]) for key in words}
    known = np.concatenate([numbers[key][~missing[key]] for key in words])
    cuts: Sequence[float] = asked.cuts
    if not cuts:
        thirds = np.unique(np.quantile(known, [1 / 3, 2 / 3]))
        cuts = np.round(thirds, 1 - math.floor(math.log10(np.ptp(thirds) or np.ptp(known)))).tolist()  # of years, too
    ends = [f"{cut:g}" for cut in cuts]
    inner = [f"{low} to below {high}" for low, high in pairwise(ends)]
    names = np.array([f"below {ends[0]}", *inner, f"{ends[-1]} or more"])
    return {
        key: np.where(missing[key], UNKNOWN, names[np.searchsorted(cuts, numbers[key], side="right") % len(names)])
        for key in words
    }
