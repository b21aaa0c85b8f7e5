"""The class of each sample, by its order and its spellings, and the patient whose it is."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsmall.data.outcomes import LEAST_GRADES
from fedsmall.data.preparation import need
from fedsmall.data.sources.files import at_site
from fedsmall.data.sources.pool import Part, Pool
from fedsmall.data.table_files import is_missing, is_number, plain
from fedsmall.errors import DataError, PlanError
from fedsmall.files import list_some

if TYPE_CHECKING:
    from pandas import DataFrame


NUMBERS, SAME = "Numbers to predict are a target, no label", "Say which mean the same: classes = {{{}}}"
MOST_CLASSES = 100
UNSAID = re.compile(r"(?<!\d)[^\w+<>=≤≥±-]|[^\w+<>=≤≥±-](?!\d)|(?<=\w)-(?=[^\W\d])|(?<=[^\W\d])-(?=\w)")
Classes = Sequence[object] | Mapping[str, Sequence[object]]


class SharedClasses(NamedTuple):
    """The classes of all sites in their order, the class that each further spelling means, and what to think about."""

    names: tuple[str, ...]
    means: dict[str, str]
    notes: tuple[str, ...] = ()


def share_classes(words: Mapping[str, Iterable[str]], classes: Classes | None) -> SharedClasses:
    """The classes of the labels of all sites, as ``classes`` says; without it DataError where two look like one."""
    given, means = read_classes(classes)
    labels = {site: {means.get(word, word) for word in held} for site, held in words.items()}
    names = class_names(set().union(*labels.values()), given)
    if given is not None:
        return SharedClasses(names, means)
    check_spelling(labels)
    return SharedClasses(names, means, lone_classes(labels))


def read_classes(given: Classes | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """The names of the classes, None where they are to be found, and the class that every further spelling means."""
    if given is None:
        return None, {}
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise PlanError(f'classes are a list, ["well", "ill"], or say which spelling is whose; got {given!r}')
    names = tuple(plain(name) for name in given)
    means: dict[str, str] = {}
    for name, spellings in given.items() if isinstance(given, Mapping) else ():
        for spelling in [spellings] if isinstance(spellings, str) else spellings:
            word = plain(spelling)
            if means.get(word, plain(name)) != plain(name) or (word in names and word != plain(name)):
                raise PlanError(f"classes says that {word!r} is two classes, {means.get(word, word)!r} and {name!r}")
            means[word] = plain(name)
    return names, means


def spelling_key(name: str) -> str:
    """What two spellings of one class share. Signs count (HER2+ is not HER2-, nor <5 >5), and marks between digits."""
    word = re.sub(r"\s+", "", name.casefold()).replace("_", "/").replace("\N{MINUS SIGN}", "-")
    return name if is_number(name) else UNSAID.sub("", word) or name


def spelt_alike(names: Iterable[str]) -> list[list[str]]:
    """The names, those together that differ by capitals and blanks alone, in their order."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(spelling_key(name), []).append(name)
    return list(alike.values())


def check_spelling(by_site: Mapping[str, set[str]]) -> None:
    """Raise DataError where two classes, {site: its classes}, look like one in two spellings."""
    spellings = [sorted(names, key=str.swapcase) for names in spelt_alike(sorted(set().union(*by_site.values())))]
    if groups := [names for names in spellings if len(names) > 1]:
        pairs = [f'"{name}" = {[*map(str, more)]}'.replace("'", '"') for name, *more in spellings]
        twice, proposal = " and ".join(map(repr, groups[0])), f"classes = {{{', '.join(pairs)}}}"
        raise DataError(f"classes {twice} look like one in two spellings. Say so: {proposal}")
    several = sorted((site, names) for site, names in by_site.items() if len(names) > 1)
    for site, names in several[1:]:
        first, known = several[0]
        if not names & known and len(names) == len(known):
            gaps = ", ".join(f'"{name}" = [...]' for name in sorted(known))  # whose is whose, nobody here can know
            lists = f"{', '.join(sorted(known))} and {', '.join(sorted(names))}"
            cure = NUMBERS if any("." in n for n in filter(is_number, known)) else SAME.format(gaps)
            raise DataError(f"sites {first!r} and {site!r} have no class in common: {lists}. {cure}")


def lone_classes(by_site: Mapping[str, set[str]]) -> tuple[str, ...]:
    """A note where a class is at one site alone among others that have several: it may be their word for another."""
    several = {site: names for site, names in sorted(by_site.items()) if len(names) > 1}
    known = [name for names in several.values() for name in names]
    pairs = [(name, site) for site, names in several.items() for name in sorted(names) if known.count(name) == 1]
    if len(several) < 2 or not pairs:
        return ()
    lone = list_some([f"{name!r} at {site!r}" for name, site in pairs], 4)
    return (f"Classes at one site alone: {lone}. If one is another's by a different word, say so in classes",)


def check_sites(column: str, names: set[str]) -> None:
    """Raise DataError where two sites of a column look like one in two spellings."""
    for first, *more in spelt_alike(sorted(names)):
        if more:
            twice = f"sites {first!r} and {more[0]!r} of column {column!r}"
            raise DataError(f"{twice} look like one in two spellings; make them equal")


def class_names(labels: Iterable[object], given: Sequence[object] | None) -> tuple[str, ...]:
    """The classes in order: those ``given``, else all that occur, numbers by size and words by the alphabet."""
    if given is not None:
        names = tuple(plain(label) for label in given)
        if len(names) < 2:
            raise PlanError(f"a model needs at least two classes to tell apart; classes lists {len(names)}")
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(f"classes lists {twice[0]!r} twice; each has one place")
        return names
    spellings = {plain(label) for label in labels}
    if len(spellings) < 2:
        raise DataError("all samples have one label; a model needs at least two classes to tell apart")
    if len(spellings) > MOST_CLASSES:
        raise DataError(
            f"the labels have {len(spellings)} different values; they do not look like classes. "
            "A number that is to be predicted is named as target in place of label"
        )
    return tuple(sorted(spellings, key=by_size))


def by_size(name: str) -> tuple[float, str]:
    """What sorts numbers by size, and words behind them by the alphabet."""
    return float(name) if is_number(name) else float("inf"), name


def check_order(names: Sequence[str], is_stated: bool) -> None:
    """Raise PlanError where classes are too few to have an order, or their order is neither stated nor by size."""
    if len(names) < LEAST_GRADES:
        has = f"this task has {len(names)}, so leave it out"
        raise PlanError(f'the loss "ordinal" is for {LEAST_GRADES} classes or more in their order; {has}')
    if not is_stated and not all(map(is_number, names)):  # they are in the order of the alphabet
        listed = ", ".join(f'"{name}"' for name in names)
        need_order = 'the loss "ordinal" needs the order of the classes, from the lowest to the highest'
        raise PlanError(f"{need_order}: classes = [{listed}], in that order")


def as_classes(labels: Sequence[object], names: Sequence[str]) -> np.ndarray:
    """Labels as indices into ``names``; DataError, with how many, where a label is none of them."""
    index = {name: place for place, name in enumerate(names)}
    places = np.array([index.get(plain(label), -1) for label in labels], dtype=np.int64)
    if (places < 0).any():
        raise DataError(f"{(places < 0).sum()} of {len(places)} labels are none of the classes {', '.join(names)}")
    return places


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
    everybody = np.concatenate([np.unique(those.astype(str)) for those in names.values()])
    if one_table and (torn := len(everybody) - len(np.unique(everybody))):
        raise DataError(
            f"{torn} of the patients in column {column!r} have rows at more than one site, and belong at one; "
            "say sites = ... to split them (`fedsmall new --site ''`), or give them names of their own at each site"
        )
    return number_patients(names)[0]


def patients_in(files: Mapping[str, Sequence[str]], pattern: str | None, own: bool) -> dict[str, np.ndarray]:
    """What ``pattern`` finds in the names of each site's ``files``; nothing without a pattern.

    A DataError where it finds nothing, but for a hospital's ``own``: refusals would tell any name, letter by letter.
    """
    if pattern is None:
        return {}
    try:
        search = re.compile(pattern).search
    except (re.error, TypeError) as wrong:
        example = "a regular expression for names of files, as in 'person([0-9]+)'"
        raise PlanError(f"patient is {example}: {wrong}") from wrong
    patients = {}
    for site, names in files.items():
        matches = [search(name) for name in names]
        if (none := matches.count(None)) and not own:
            with at_site(site):
                raise DataError(f"in {none} of {len(names)} names of files {pattern!r} finds no patient")
        found = [m.group(m.re.groups and 1) if m else name for name, m in zip(names, matches, strict=True)]
        patients[site] = np.array(found, dtype=object)
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
    of_train, of_test = number_patients(train, test)
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


def number_patients(*sides: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
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
