"""What a table holds, hospital by hospital, as a run keeps it; and what looks wrong in it."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsmall.data.federation import Samples, join
from fedsmall.data.outcomes import kind_of
from fedsmall.data.preparation import YES_OR_NO, Columns
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.evaluation.metrics import area

ALL = "all"
MOST_SITES, MOST_FEATURES = 12, 60  # columns and rows of the table
OUTLYING = 15.0  # interquartile ranges beyond the quartiles
NEARLY_PERFECT = 0.98  # AUC of one column
MOSTLY_EMPTY = 0.5
FEW_EVENTS = 10  # for each feature
FAR = 2.0  # powers of ten that are another unit, however few values there are
LEAST_COMPARED = 8  # values of a column at a hospital, to compare its unit with the others'
LEAST_ZEROS = 0.25  # of the median of all other values, above which these lie where 0 may stand for no value

Values = Mapping[str, np.ndarray]  # of one column, by site, NaN where one is missing


def describe(pool: Pool) -> dict[str, Any]:
    """Rows, outcome, and of each named feature how many are missing, mean and SD, by site; empty without names.

    In JSON's types. Features of categories, "sex=f", are 0 and 1, so their mean is a share.
    """
    if not pool.feature_names or any(part.x.ndim != 2 for part in pool.train.values()):
        return {}
    parts = {site or ALL: (part.x, part.y) for site, part in sorted(pool.train.items())[:MOST_SITES]}
    if NOWHERE not in pool.train and len(pool.train) > 1:
        every = join(Samples(part.x, part.y) for part in pool.train.values())
        parts[ALL] = (every.x, every.y)
    features = list(pool.feature_names[:MOST_FEATURES])
    places = {name: _place_of(x[:, : len(features)], y, pool) for name, (x, y) in parts.items()}
    return {"features": features, "more": len(pool.feature_names) - len(features), "places": places}


def _place_of(x: np.ndarray, y: np.ndarray, pool: Pool) -> dict[str, Any]:
    columns = [_summary_of(column) for column in x.T]
    kind, outcome = kind_of(pool.loss), {}
    if kind == "classes":
        counts = np.bincount(y.astype(int), minlength=len(pool.class_names)).tolist()
        outcome = dict(zip(pool.class_names, counts, strict=True))
    elif kind == "times":
        outcome = {"events": int(y[:, 1].sum())}
    elif pool.outcome is not None and pool.outcome.kind == "amount":
        outcome = {pool.outcome.name: _summary_of(y.ravel())}
    return {"rows": len(x), "outcome": outcome, "columns": columns}


def _summary_of(column: np.ndarray) -> list[float | None]:
    """How many values are missing, the mean, and the standard deviation; None where there are too few."""
    known = column[np.isfinite(column)].astype(np.float64)
    return [
        len(column) - len(known),
        float(known.mean()) if len(known) else None,
        float(known.std(ddof=1)) if len(known) > 1 else None,
    ]


def rows_of(description: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table: hospitals side by side, their rows and outcomes, and then each feature."""
    places = description["places"]
    rows = [["rows", *(str(place["rows"]) for place in places.values())]]
    for name in next(iter(places.values()))["outcome"]:
        outcomes = [(place["outcome"][name], place["rows"]) for place in places.values()]
        rows.append([name, *(_cell(held, n) if isinstance(held, list) else str(held) for held, n in outcomes)])
    for k, feature in enumerate(description["features"]):
        is_share = YES_OR_NO in feature
        rows.append([feature, *(_cell(p["columns"][k], p["rows"], is_share) for p in places.values())])
    return ["", *places], rows


def _cell(summary: list[float | None], rows: int, is_share: bool = False) -> str:
    missing, mean, spread = summary
    value = "-" if mean is None else f"{mean:.0%}" if is_share else _short(mean)
    value += "" if spread is None or is_share else f" ({_short(spread)})"
    return value + (f", {100 * missing / rows:.2g}% missing" if missing else "")


def _short(number: float) -> str:
    return f"{number:.0f}" if 1000 <= abs(number) < 1e9 else f"{number:.3g}"


def suspicions(pool: Pool) -> tuple[str, ...]:
    """Sentences on what looks wrong in tables; of two classes the second is the event."""
    if not isinstance(pool.form, Columns):
        return ()
    kind, notes, positive = kind_of(pool.loss), list[str](), None
    if kind == "classes" and len(pool.class_names) == 2:
        positive = {site: part.y == 1 for site, part in pool.train.items()}
    for place, column in enumerate(pool.feature_names):
        if YES_OR_NO not in column:
            notes += _suspect_column(column, {site: part.x[:, place] for site, part in pool.train.items()}, positive)
    happened = positive if kind != "times" else {site: part.y[:, 1] == 1 for site, part in pool.train.items()}
    if happened is not None:
        notes += _suspect_events(pool.train, happened, len(pool.form.columns), kind == "times")
    return (*notes, *_suspect_repeats(pool))


def _suspect_column(column: str, by_site: Values, positive: Values | None) -> list[str]:
    notes = _suspect_units(column, by_site)
    every = np.concatenate(list(by_site.values()))
    known = every[np.isfinite(every)]
    if len(known) < MOSTLY_EMPTY * len(every):
        notes.append(f"{column} is missing in {len(every) - len(known)} of {len(every)} rows")
    low, high = np.percentile(known, [25, 75]) if len(known) else (0.0, 0.0)
    far = int((np.maximum(low - known, known - high) > OUTLYING * (high - low)).sum()) if high > low else 0
    if 0 < far <= 0.02 * len(known):
        notes.append(f"{column} has {far} value{'s' * (far > 1)} far outside the others; look for slips of the comma")
    others = known[known != 0]
    zeros, is_measured = len(known) - len(others), len(np.unique(others)) > LEAST_COMPARED
    if zeros > 1 and is_measured and others.min() > LEAST_ZEROS * np.median(others):
        notes.append(
            f"{column} is 0 in {zeros} rows and {others.min():g} or more in all others; does 0 stand for no value? "
            'Then leave it empty, or list it: missing = ["0"], if no other column has zeros'
        )
    if positive is not None and len(np.unique(known)) > 2:
        truth = np.concatenate([positive[site] for site in by_site])[np.isfinite(every)]
        auc = float(area(known, truth)) if min(truth.sum(), (~truth).sum()) >= FEW_EVENTS else 0.5
        if (auc := max(auc, 1 - auc)) > NEARLY_PERFECT:
            notes.append(f"{column} alone predicts the outcome (AUC {auc:.3f}); was it known before the outcome?")
    return notes


def _suspect_units(column: str, by_site: Values) -> list[str]:
    known = {site: held[np.isfinite(held)] for site, held in by_site.items()}
    middle = {site: float(np.median(np.abs(v))) for site, v in known.items() if len(v) > 1}
    middle = {site: value for site, value in middle.items() if value > 0}
    large = {site for site in middle if len(known[site]) >= LEAST_COMPARED}
    if not large or len(middle) < 2:
        return []
    usual = sorted(middle[site] for site in large)[(len(large) - 1) // 2]  # of two hospitals the smaller
    powers = {site: math.log10(value / usual) for site, value in middle.items()}
    odd = {s: round(p) for s, p in powers.items() if abs(p) >= FAR or (s in large and abs(p - round(p)) < 0.2)}
    about = "{} is about 10^{:+d} times the others' at {}; is its unit another?"
    return [about.format(column, p, site) for site, p in odd.items() if p]


def _suspect_events(parts: Mapping[str, Part], positive: Values, features: int, of_times: bool) -> list[str]:
    what, sought = ("with the event", (1,)) if of_times else ("of the rarer class", (0, 1))
    whose = {site: np.arange(len(part.y)) if part.patients is None else part.patients for site, part in parts.items()}
    events = min(sum(len(np.unique(whose[site][held == of])) for site, held in positive.items()) for of in sought)
    few = f"{events} patient{'s' * (events != 1)} {what} for {features} column{'s' * (features != 1)}, fewer than"
    notes = [f"{few} {FEW_EVENTS} for each: expect wide intervals"] * (events < FEW_EVENTS * features)
    lone = [site for site, held in positive.items() if not of_times and len(np.unique(held)) == 1 < len(positive)]
    return notes + ([f"one class only at {', '.join(lone)}"] if lone else [])


def _suspect_repeats(pool: Pool) -> list[str]:
    """The same rows at several hospitals, told by their values being equal."""
    where: Counter[bytes] = Counter()
    for part in pool.train.values():
        where.update({row.tobytes() for row in part.x if np.isfinite(row).sum() > 3})
    apart = sum(sites > 1 for sites in where.values())
    return [f"rows that stand at several hospitals, the same patients?: {apart}"] * bool(apart)
