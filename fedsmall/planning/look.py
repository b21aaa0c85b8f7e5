"""What an unknown table holds: which column is what, before anybody has written a task."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsmall.data.preparation import COUNT_FLOOR
from fedsmall.data.sources.labels import by_size, spelling_key, spelt_alike
from fedsmall.data.sources.pool import NOWHERE
from fedsmall.data.sources.tables import IDENTIFIER, MANY, MANY_VALUES, read_files, split_by_site
from fedsmall.data.table_files import COMMA, DATE, HUGE, is_missing, is_number, plain
from fedsmall.errors import PlanError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

OUTCOME = re.compile(
    r"outcome|label|target|diagnos|death|dead|died|storben|status|event|class|disease|relapse|surviv|^y$", re.I
)
HOSPITAL = re.compile(r"[oôs]p[ie][td]al|^site|cent(er|r[eo])|[ck]l[ií]ni|instit|^ward|krankenh|bliss|access_g", re.I)
PATIENT = re.compile(r"pa[ctz]ient|subject|person|mrn|^(pat|pt?|case|record|u?subj)[\W_]*(id|nr|no)(num)?$|^id$", re.I)
NO_VALUE = re.compile(
    r"\[?(unk(nown)?|missing|not (known|done|[ae]va\w+))\]?|n\.?d\.?|unbekannt|fehlt|inconnue?|\w*sconos?c\w+|\.", re.I
)
YES = re.compile(r"1|y(es)?|true|pos(iti[vf]e?)?|ja?|oui|s[ií]|malign(ant|e|o)?|dead|died|present|case|abnormal|.*\+")
CODES = ("-1", "-9", "-99", "-999", "-9999", "99", "999", "9999", "99999")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
MARKED = re.compile(r"[<>≤≥]?\s*[+-]?\d[\d., ']*(\D*)")  # a number with a unit, or with marks for thousands
UNEQUAL = 0.4  # share of the rarer of two classes, below which a threshold of a half calls too few positive
MOSTLY = 0.8  # of a column's cells, from which on they say what it is
FAR = 5.0  # times the spread of all other values, from which on a code is none of them
MOST_SITES = 100
NAME = "at each hospital one value, as its name is"
APART = "not at every hospital; what is the same has one name at all"


@dataclass(frozen=True)
class Look:
    """What ``look_at`` found: keys of a task, by name, and why; ``frames`` are rows by hospital ("" for none)."""

    frames: "dict[str, DataFrame]"
    decimal: str
    missing: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # stand for no value in one column, and for one in another
    drop: dict[str, str] = field(default_factory=dict)
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    patient: str | None = None
    site_column: str | None = None

    def categories(self) -> dict[str, list[str]]:
        """The values of each category, over all hospitals."""
        rows = self.frames.values()
        parts = {name: [_count(part[name], self.missing) for part in rows] for name in self.categorical}
        return {name: sorted(set().union(*values), key=by_size) for name, values in parts.items()}


def read_tables(path: Path, sheet: str | None = None) -> "tuple[dict[str, DataFrame], str]":
    """The table at ``path``, or one for each file of a folder, and the decimal sign by which its numbers are read."""
    tables = read_files(path, sheet=sheet)
    by_comma = any(_has_commas(table[column]) for table in tables.values() for column in table)
    return (read_files(path, decimal=",", sheet=sheet), ",") if by_comma else (tables, ".")


def _has_commas(cells: "Series") -> bool:
    """Whether the numbers of a column have decimal commas, and not all of them in the places of thousands."""
    if cells.dtype.kind in "fiub" or not cells.str.contains(",", regex=False).any():
        return False
    filled = _count(cells)
    commas = [cell for cell in filled if COMMA.fullmatch(cell)]
    return _share(commas, filled) > 0.5 and not all(map(THOUSANDS.fullmatch, commas))


def join_rows(tables: "Mapping[str, DataFrame]") -> "DataFrame":
    """All rows as one table of the columns that all sites have."""
    import pandas

    columns = [column for column in next(iter(tables.values())) if all(column in table for table in tables.values())]
    return pandas.concat([table[columns] for table in tables.values()], ignore_index=True)


def candidates(table: "DataFrame") -> list[str]:
    """Columns that may be the label, the likeliest first: of few values, by their names, and the last before others."""
    fit = [name for name in table if 2 <= len(_count(table[name])) <= MANY_VALUES and not HOSPITAL.search(name)]
    last = {name: -place for place, name in enumerate(table.columns)}
    return sorted(fit, key=lambda name: (not OUTCOME.search(name), len(_count(table[name])) > 2, last[name]))


def classes_of(
    what: str, words: Iterable[str], positive: str | None
) -> tuple[list[str] | dict[str, list[str]], list[str], bool]:
    """The classes of ``what`` in a task, the positive one last; sentences on them; and whether one of two is rare.

    Words that look like one in two spellings are one class, by the name of the commonest.
    """
    of_word = Counter(words)
    more_of = {names[0]: names[1:] for names in spelt_alike(word for word, _ in of_word.most_common())}
    counts = Counter({name: of_word[name] + sum(of_word[word] for word in more) for name, more in more_of.items()})
    names, notes = _name_classes(what, dict(counts.most_common()), positive)
    is_rare = len(names) == 2 and min(counts.values()) < UNEQUAL * counts.total()
    return {name: more_of[name] for name in names} if any(more_of.values()) else names, notes, is_rare


def spellings(look: Look) -> list[str]:
    """Sentences on categories of which two values differ by capitals and blanks alone."""
    notes = []
    for column, values in look.categories().items():
        twice = [" and ".join(words) for words in spelt_alike(values) if len(words) > 1]
        notes += [f"{column} has {', '.join(twice)} as values apart: write them alike"] if twice else []
    return notes


def _name_classes(what: str, counts: Mapping[str, int], positive: str | None) -> tuple[list[str], list[str]]:
    is_binary = len(counts) == 2
    is_coded = not counts.keys() - {"0", "1", "-1"}  # of 1 and 2 nobody knows which says yes
    found = [name for name in counts if YES.fullmatch(spelling_key(name)) and (is_coded or not is_number(name))]
    sought = positive or (found[0] if len(found) == 1 else None)
    by_count = sorted(counts, key=lambda name: (name == sought, -counts[name]))
    names = by_count if is_binary else sorted(counts, key=by_size)
    if len(names) < 2:
        raise PlanError(f"{what} {f'is always {names[0]!r}' if names else 'holds no value'}; there is nothing to learn")
    if positive is not None and (not is_binary or positive not in names):
        raise PlanError(f"--positive is one of two classes; {what} has {', '.join(names)}")
    notes = [f"{what} is one of {len(names)} classes: {', '.join(f'{name} ({counts[name]})' for name in names)}"]
    if is_binary:
        rarer = "the rarer" if counts[names[1]] < counts[names[0]] else "of two that are as frequent"
        why = "as asked" if positive else "as its name says" if sought else rarer
        notes.append(f"positive is {names[1]}, {why}: sensitivity and probabilities are of it (--positive: the other)")
    elif all(map(is_number, names)):
        cures = 'add loss = "ordinal"', "target in place of label, classes"
        notes.append(f"where these are grades, {cures[0]}; where they are counts, {cures[1]}")
    else:
        notes.append('where these are grades, list classes in their order, and add loss = "ordinal"')
    return names, notes


def is_amount(cells: "Series", missing: Sequence[str] = ()) -> bool:
    """Whether a column to be predicted is a number and no class: ``MANY`` different numbers or more."""
    values = _count(cells, missing)
    return len(values) >= MANY and sum(map(is_number, values)) >= MOSTLY * len(values)


def look_at(
    tables: "dict[str, DataFrame]", decimal: str, predicted: Sequence[str], site: str | None, patient: str | None
) -> Look:
    """What every column is but the ``predicted``; ``site`` and ``patient``, "" for none, are looked for where None."""
    table = join_rows(tables)
    likely = sorted((c for c in table if c not in predicted and HOSPITAL.search(c)), key=lambda c: "ward" in c.lower())
    few = min(MOST_SITES, len(table) // 4)
    site = next((c for c in likely if 2 <= len(_count(table[c])) <= few), None) if site is None else site
    site = site if site and NOWHERE in tables else None
    if patient is None:
        patient = next((c for c in table if c not in (*predicted, site) and _is_patient(table[c], c)), None)
    sought = [c for c in table if c not in (*predicted, site, patient)]
    found = {c: (NAME, set[str]()) if _is_name(tables, c) else _kind_of(table[c], c) for c in sought}
    of_outcome = [_no_values(_count(table[c])) for c in predicted]
    missing = set[str]().union(*(codes for _, codes in found.values()), *of_outcome)
    numeric, categorical = ([c for c, (kind, _) in found.items() if kind == of] for of in ("number", "category"))
    drop = {c: kind for c, (kind, _) in found.items() if kind not in ("number", "category")}
    drop |= {column: APART for rows in tables.values() for column in rows if column not in table}
    clash = set[str]().union(*(filter(is_number, _values_of(table[c], missing)) for c in numeric))
    clash = clash.union(*(_values_of(table[c], missing) for c in (*categorical, *predicted)))
    frames = tables if site is None else split_by_site(table, site)
    large, codes = [rows for rows in frames.values() if len(rows) >= COUNT_FLOOR], [*missing]
    sparse = [c for c in numeric if large and all(_count(rows[c], codes).total() < COUNT_FLOOR for rows in large)]
    drop |= dict.fromkeys(sparse, f"no hospital has {COUNT_FLOOR} values, by which a column is scaled")
    known = {"missing": tuple(sorted(missing - clash)), "kept": tuple(sorted(clash)), "categorical": tuple(categorical)}
    known |= {"numeric": tuple(c for c in numeric if c not in sparse)}
    return Look(frames, decimal, drop=drop, patient=patient or None, site_column=site, **known)


def _count(cells: "Series", missing: Sequence[str] = ()) -> Counter[str]:
    """How often each value stands in a column."""
    held, counts = cells.value_counts(sort=False), Counter[str]()
    for cell, times in held[~is_missing(held.index.to_series(), missing)].items():
        counts[plain(cell)] += times
    return counts


def _share(words: Iterable[str], counts: Counter[str]) -> float:
    return sum(counts[word] for word in words) / max(1, counts.total())


def _is_name(tables: "Mapping[str, DataFrame]", column: str) -> bool:
    """Whether every hospital has one value of a column, and another than all others."""
    held = [_count(rows[column]) for rows in tables.values()] if len(tables) > 1 else []
    return {*map(len, held)} == {1} and len(set().union(*held)) == len(held)


def _is_patient(cells: "Series", name: str) -> bool:
    """Whether a column names patients of whom some have several rows."""
    counts = _count(cells) if PATIENT.search(name) else Counter[str]()
    return counts.total() == len(cells) and len(cells) / 20 < len(counts) < len(cells)


def _kind_of(cells: "Series", name: str) -> tuple[str, set[str]]:
    """Whether a column is a "number" or a "category", or else why it is left out; and its codes for no value."""
    counts = _count(cells)
    numbers = {word: float(word) for word in counts if is_number(word) and abs(float(word)) < HUGE}
    words = counts.keys() - numbers.keys()
    spoken = set(filter(NO_VALUE.fullmatch, words))
    if len(counts.keys() - spoken) < 2:
        return ("empty" if not counts.keys() - spoken else "one value only"), set()
    if _share(filter(DATE.fullmatch, counts), counts) >= MOSTLY:
        return "a date", set()
    if _share(numbers, counts) >= MOSTLY * (1 - _share(spoken, counts)):
        many, whole = sum(counts[word] for word in numbers), all(map(float.is_integer, numbers.values()))
        if (IDENTIFIER.search(name) or PATIENT.search(name)) and whole and len(numbers) > MOSTLY * many:
            return "an identifier", set()
        if whole and len(numbers) == many >= MANY_VALUES and np.all(np.diff(sorted(numbers.values())) == 1):
            return "a number for each row", set()
        return "number", words | _codes(counts)
    if len(counts) > MANY_VALUES:
        units = Counter(match[1] for word in counts.elements() if (match := MARKED.fullmatch(word)))
        if max(units.values(), default=0) >= MOSTLY * counts.total():
            return "numbers with a unit or thousands marks: write plain numbers", set()
        return ("an identifier" if len(counts) > counts.total() / 2 else f"{len(counts)} different words"), set()
    return "category", _no_values(counts)


def _codes(counts: Counter[str]) -> set[str]:
    """Numbers that stand for no value: known codes far outside of all others, that recur or are -99 and its like."""
    found = [code for code in CODES if counts[code] > (not code.startswith("-99"))]
    others = {float(w) for w in counts if found and is_number(w) and abs(float(w)) < HUGE and w not in found}
    if len(others) < 2:
        return set()
    return {code for code in found if _is_far(float(code), min(others), max(others))}


def _is_far(code: float, low: float, high: float) -> bool:
    if code < 0:
        return low > 0 or (low == 0 and code < -1) or code < low - FAR * (high - low)
    return code > high + FAR * (high - low) or (code > 10 * high > 0)


def _no_values(counts: Counter[str]) -> set[str]:
    """What stands for no value in a column of few values, where two are left: words, codes, a lone code among words."""
    numbers = set(filter(is_number, counts))
    found = numbers.intersection(CODES) if len(numbers) == 1 else _codes(counts)
    found = found.union(filter(NO_VALUE.fullmatch, counts))
    return found if len(counts.keys() - found) > 1 else set()


def _values_of(cells: "Series", codes: set[str]) -> set[str]:
    """Which codes for no value in some column are values in this one."""
    counts = _count(cells) if codes else Counter[str]()
    return counts.keys() & codes - _no_values(counts)
