"""Table 1 over sites from what each counts: means, spreads, quantiles, missing values, survival; no model, no row.

A site tells of each column, by class, counts, sums, sums of squares, and counts of values in the cells of a grid that
all sites have agreed on. Nothing that is told is of fewer patients than a floor: not a count, not what a count leaves
of its group or of its category, and no cell (:func:`group_cells`), of which alone :func:`spread_cells` is made.

Source: Kaplan and Meier 1958, Greenwood 1926 (survival); Domingo-Ferrer and Mateo-Sanz 2002 (groups of k values).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from fedsmall.data.federation import Task, join
from fedsmall.data.preparation import Preparation, tellable
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import DataError
from fedsmall.evaluation.metrics import by_digits

CELLS, REACH, BEND = 200, 4.0, 3.0  # of a grid: its ends in standard deviations; cells are finer in the middle
QUANTILES = (0.25, 0.5, 0.75)
OF_VALUES = ("sites", "binary", "count", "missing", "total", "squares")  # by group and column
OF_CURVE = ("time", "at risk", "survival", "low", "high")
EVEN = 3**0.5  # standard deviations to both sides of its mean that an even distribution has
AT_RISK = 10  # patients, with fewer of whom a curve ends
BOUND = 1.96  # standard errors, of a 95% interval
UNTOLD = "too few to tell"

Sums = Mapping[str, np.ndarray]
Row = tuple[str, ...]


class Patients(NamedTuple):
    """Rows of one site: ``x`` (n, columns), NaN where missing, ``group`` (n,); at most ``often`` are one patient's.

    ``digests`` (n,) are those of :class:`fedsmall.data.federation.Samples`.

    The last two columns are a time and its event where ``is_survival``.
    """

    x: np.ndarray
    group: np.ndarray
    names: tuple[str, ...]
    groups: tuple[str, ...]
    is_survival: bool
    often: int = 1
    digests: np.ndarray | None = None


def patients_of(raw: RawSite, floor: int) -> Patients:
    """All patients of a site, but for held-out ones that are fewer than ``floor``: sums of the others are told too.

    Raises DataError for what is no table.
    """
    parts = (part for part in (raw.train, raw.kept_back, raw.held_out) if part is not None)
    whole = join([part for part in parts if part is raw.train or len(part) >= floor])
    task, form, outcome = raw.task, raw.preparation, raw.preparation.outcome
    if whole.x.ndim != 2 or whole.x.dtype == np.uint8 or (outcome is None and whole.y.ndim > 1):
        raise DataError("describe is for tables; these samples are images or arrays")
    x, group = whole.x.astype(np.float64), np.zeros(len(whole), dtype=np.int64)
    if outcome is None:
        group = whole.y.astype(np.int64)
    else:
        x = np.concatenate([x, whole.y.reshape(len(whole), -1)], axis=1)
    often = 1 if whole.patients is None else int(np.unique(whole.patients, return_counts=True)[1].max(initial=1))
    return Patients(x, group, names_of(task, form), groups_of(task, form), task.kind == "times", often, whole.digests)


def names_of(task: Task, preparation: Preparation) -> tuple[str, ...]:
    """The columns: features, then the outcome where it is no class."""
    features = task.feature_names or tuple(f"column {k + 1}" for k in range(int(np.prod(task.input_shape))))
    return (*features, *(preparation.outcome.columns if preparation.outcome is not None else ()))


def groups_of(task: Task, preparation: Preparation) -> tuple[str, ...]:
    """The classes, or one group of all."""
    return tuple(map(str, task.class_names or range(task.classes))) if preparation.outcome is None else ("all",)


def shapes(names: int, groups: int, is_survival: bool) -> dict[str, tuple[int, ...]]:
    """What a site tells, by name."""
    values: dict[str, tuple[int, ...]] = dict.fromkeys(OF_VALUES, (groups, names))
    return values | {"cells": (groups, names, CELLS)} | ({"events": (2, CELLS)} if is_survival else {})


def count(patients: Patients, ends: np.ndarray, floor: int, withheld: Collection[str] = ()) -> dict[str, np.ndarray]:
    """What a site tells of its patients for the ``ends`` of cells of :func:`grid`; zeros in ``withheld`` columns."""
    of = shapes(len(patients.names), len(patients.groups), patients.is_survival)
    counts, floor = {name: np.zeros(shape) for name, shape in of.items()}, max(floor, 1) * patients.often
    for g in range(len(patients.groups)):
        values, is_told = tellable(patients.x[patients.group == g], patients.names, floor, few=2)
        for k in np.flatnonzero(is_told & ~np.isin(patients.names, [*withheld])):
            present = values[~np.isnan(values[:, k]), k]
            numbers = (1, np.isin(present, (0, 1)).all(), len(present), len(values) - len(present))
            for name, number in zip(OF_VALUES, (*numbers, present.sum(), (present**2).sum()), strict=True):
                counts[name][g, k] = number
            is_time = patients.is_survival and k >= len(patients.names) - 2
            lone = np.inf if is_time else EVEN * np.ptp(ends[k]) / (2 * REACH)
            counts["cells"][g, k] = spread_cells(present, ends[k], floor, lone)
    if patients.is_survival and not set(patients.names[-2:]) & set(withheld):
        time, event = patients.x[:, -2], patients.x[:, -1] > 0
        if all(number == 0 or number >= floor for number in (event.sum(), (~event).sum())):
            counts["events"][:] = [spread_cells(time[event == of], ends[-2], floor) for of in (True, False)]
    return counts


def group_cells(values: np.ndarray, ends: np.ndarray, floor: int) -> np.ndarray:
    """How many ``values`` lie in each cell, (CELLS,), never 1 to ``floor`` - 1; nothing of fewer values.

    Neighbours go in groups of ``floor`` or more, each in its mean's cell: two grids tell no more than those means.
    """
    counts = np.zeros(CELLS)
    if len(values) >= floor:
        for group in np.array_split(np.sort(values), len(values) // floor):
            place = np.searchsorted(ends, group.mean(), side="right") - 1
            counts[np.clip(place, 0, CELLS - 1)] += len(group)
    return counts


def spread_cells(values: np.ndarray, ends: np.ndarray, floor: int, lone: float = np.inf) -> np.ndarray:
    """The counts of :func:`group_cells`, each spread evenly to where the next begins, in fractions: (CELLS,).

    That is between their cells, as far as these are apart; a lone one reaches ``lone`` to both sides. Left in their
    cells, they would make medians of small hospitals wrong by half a standard deviation, and survival curves by .2.
    """
    counts = group_cells(values, ends, floor)
    if floor == 1:
        return counts
    places = np.flatnonzero(counts)
    means = (ends[places] + ends[places + 1]) / 2
    gaps = np.diff(means)
    if len(places) < 2:
        half = np.minimum(means - ends[0], lone)
        low, high = means - half, means + half
    else:
        wide = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
        inner = means[:-1] + gaps * wide[:-1] / (wide[:-1] + wide[1:])
        low = np.concatenate([[max(2 * means[0] - inner[0], ends[0])], inner])
        high = np.concatenate([inner, [2 * means[-1] - inner[-1]]])
    below = np.clip((ends - low[:, None]) / (high - low)[:, None], 0, 1)  # (counted cells, CELLS + 1)
    below[:, 0], below[:, -1] = 0, 1
    return np.asarray(counts[places] @ np.diff(below))


def grid(preparation: Preparation) -> np.ndarray:
    """The ends of cells, (columns, CELLS + 1), around the mean on which sites have agreed, or of public ranges.

    Of a time they are of one length, from 0 to the end of the last interval.
    """
    known, ranges, outcome = preparation.agreed, preparation.ranges, preparation.outcome
    middle, spread = np.zeros(preparation.shape).ravel(), np.ones(preparation.shape).ravel()
    if ranges is not None:
        middle, spread = np.add(ranges.high, ranges.low) / 2, np.subtract(ranges.high, ranges.low) / 2 / REACH
    if known is not None:
        middle, spread = np.array(known.mean), np.array(known.scale)
    if outcome is not None and outcome.kind == "amount":
        middle, spread = np.append(middle, outcome.mean_and_scale[0]), np.append(spread, outcome.mean_and_scale[1])
    bend = np.sinh(BEND * np.linspace(-1, 1, CELLS + 1)) / np.sinh(BEND)
    ends = middle[:, None] + REACH * spread[:, None] * bend
    if outcome is None or outcome.kind == "amount":
        return np.asarray(ends)
    last = outcome.cuts[-1] if outcome.kind == "survival" else 1.0
    return np.concatenate([ends, np.tile(np.linspace(0, last, CELLS + 1), (len(outcome.columns), 1))])


def quantiles(cells: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The :data:`QUANTILES` of values that are counted in cells, (3,): a line within each cell; NaN of no values."""
    if not cells.any():
        return np.full(len(QUANTILES), np.nan)
    share = np.concatenate([[0.0], np.cumsum(cells)]) / cells.sum()
    at = np.unique(np.flatnonzero(cells)[:, None] + [0, 1])  # flat parts between cells have no quantile of their own
    return np.asarray(np.interp(QUANTILES, share[at], ends[at]))


def kaplan_meier(events: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The product-limit estimate after each cell, (5, CELLS), from events and losses by cell, (2, CELLS).

    Rows are :data:`OF_CURVE`; the 95% interval is Greenwood's, by the logarithm of the cumulative hazard. Who is lost
    in a cell is at risk in it.
    """
    happened, lost = events
    at_risk = events.sum() - np.concatenate([[0.0], np.cumsum(happened + lost)[:-1]])
    at_risk = np.maximum(at_risk, happened)  # but for rounding, where groups were spread
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        survival = np.cumprod(np.where(at_risk > 0, 1 - happened / at_risk, 1.0))
        error = np.sqrt(np.cumsum(np.nan_to_num(happened / (at_risk * (at_risk - happened)), posinf=0.0)))
        bounds = [np.exp(np.log(survival) * np.exp(-s * BOUND * error / np.log(survival))) for s in (1, -1)]
    low, high = (np.where((survival > 0) & (survival < 1), bound, survival) for bound in bounds)
    return np.stack([ends[1:], at_risk, survival, low, high])


def table_of(names: Row, groups: Row, sums: Sums, ends: np.ndarray) -> list[Row]:
    """Heads, then rows, of the table of all patients and of each group, in words; and of survival at five times."""
    parts = [slice(None), *(slice(g, g + 1) for g in range(len(groups)) if len(groups) > 1)]
    most = (sums["count"] + sums["missing"]).max(axis=1)  # by the column that most is told of
    cells = [f"{number:.0f}" if number else UNTOLD for number in (most.sum(), *most)]
    rows = [("column", "all", *(groups if len(groups) > 1 else ()), "missing"), ("rows", *cells[: len(parts)], "")]
    for k, name in enumerate(names):
        of = {key: values[:, k] for key, values in sums.items() if key != "events"}
        cells = [_cell({key: values[part].sum(axis=0) for key, values in of.items()}, ends[k]) for part in parts]
        of_class = of["missing"] + of["count"]  # (classes,)
        missing, told = of["missing"].sum(), of_class.sum()
        of_whom = f" of {told:.0f}" if told < most.sum() else ""
        if not of_class[most > 0].all():  # of one class alone it is nothing of all
            cells[0] = UNTOLD
        elif of_whom and (of["binary"] < of["sites"]).any():  # a mean of those who may differ from the others
            cells[0] += f";{of_whom} rows alone"
        rows.append((name, *cells, f"{missing:.0f}{of_whom} ({missing / max(told, 1):.1%})"))
    curve = shown_curve(sums, ends)
    if curve.size:
        rows.append((f"{names[-1]} over {names[-2]}", f"of {sums['events'].sum():.0f} rows, in groups", ""))
        for k in np.unique(np.linspace(0, curve.shape[1] - 1, 6).round().astype(int)[1:]):
            time, at_risk, survival, low, high = curve[:, k]
            words = f"{survival:.3f} ({low:.3f} to {high:.3f}); {at_risk:.0f} at risk"
            rows.append((f"no event by {names[-2]} {by_digits(time)}", words, ""))
    return rows


def shown_curve(sums: Sums, ends: np.ndarray) -> np.ndarray:
    """The survival curve as far as :data:`AT_RISK` are at risk, (5, cells); of no cell where nothing of it is told."""
    if "events" not in sums:
        return np.zeros((len(OF_CURVE), 0))
    curve = kaplan_meier(sums["events"], ends[-2])
    return curve[:, (curve[1] >= AT_RISK) & bool(sums["events"][0].any())]


def _cell(sums: Sums, ends: np.ndarray) -> str:
    number, total = float(sums["count"]), float(sums["total"])
    if not number:
        return UNTOLD
    if sums["binary"] == sums["sites"]:
        return f"{total:.0f} of {number:.0f} ({total / number:.1%})"
    spread = np.sqrt(max(float(sums["squares"]) - total**2 / number, 0) / max(number - 1, 1))
    digits = int(np.clip(1 - np.floor(np.log10(spread or 1.0)), 0, 9))
    low, middle, high = np.round(quantiles(sums["cells"], ends), digits) + 0.0
    values = (f"{value:.{digits}f}" for value in (total / number, spread, middle, low, high))
    return "{} ± {}; {} [{}, {}]".format(*values)
