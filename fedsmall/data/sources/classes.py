"""The names of classes in labels, in their order and their spellings."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedsmall.data.outcomes import LEAST_GRADES
from fedsmall.data.table_files import is_number, plain
from fedsmall.errors import DataError, PlanError

Classes = Sequence[object] | Mapping[str, Sequence[object]]


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


def check_spelling(by_site: Mapping[str, set[str]]) -> None:
    """Raise DataError where two classes, {site: its classes}, look like one in two spellings."""
    alike: dict[str, set[str]] = {}
    for name in sorted(set().union(*by_site.values())):
        key = name if is_number(name) else re.sub(r"[\W_]+", "", name.casefold()) or name  # 1.5 is not 15, nor -1
        alike.setdefault(key, set()).add(name)
    groups = [sorted(names, key=str.swapcase) for names in alike.values() if len(names) > 1]
    if groups:
        raise DataError(
            f"classes {' and '.join(map(repr, groups[0]))} look like one in two spellings. Say so: "
            f"{_proposal({key[0]: key[1:] for key in (sorted(names, key=str.swapcase) for names in alike.values())})}"
        )
    _check_languages(by_site)


def lone_classes(by_site: Mapping[str, set[str]]) -> tuple[str, ...]:
    """A note where a class is at one site alone among others that have several: it may be their word for another."""
    several = {site: names for site, names in sorted(by_site.items()) if len(names) > 1}
    known = [name for names in several.values() for name in names]
    lone = [
        f"{name!r} at {site!r}" for site, names in several.items() for name in sorted(names) if known.count(name) == 1
    ]
    if len(several) < 2 or not lone:
        return ()
    more = f" and {len(lone) - 4} more" if len(lone) > 4 else ""
    names = f"{', '.join(lone[:4])}{more}"
    return (f"Classes at one site alone: {names}. If one is another's by a different word, say so in classes",)


def check_sites(column: str, names: set[str]) -> None:
    """Raise DataError where two sites of a column are one but for capitals and blanks."""
    alike: dict[str, str] = {}
    for name in sorted(names):
        if (other := alike.setdefault("".join(name.casefold().split()), name)) != name:
            raise DataError(
                f"sites {other!r} and {name!r} of column {column!r} look like one in two spellings; make them equal"
            )


def _check_languages(by_site: Mapping[str, set[str]]) -> None:
    several = sorted((site, names) for site, names in by_site.items() if len(names) > 1)
    for site, names in several[1:]:
        first, known = several[0]
        if not names & known and len(names) == len(known):
            gaps = ", ".join(f'"{name}" = [...]' for name in sorted(known))  # whose is whose, nobody here can know
            raise DataError(
                f"sites {first!r} and {site!r} have no class in common: {', '.join(sorted(known))} and "
                f"{', '.join(sorted(names))}. Say which mean the same: classes = {{{gaps}}}"
            )


def _proposal(classes: Mapping[str, Sequence[str]]) -> str:
    pairs = ", ".join(
        f'"{name}" = [{", ".join(f"{spelling!r}" for spelling in more)}]'.replace("'", '"')
        for name, more in classes.items()
    )
    return f"classes = {{{pairs}}}"


MOST_CLASSES = 100


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
    return tuple(sorted(spellings, key=_by_size))


def check_order(names: Sequence[str], is_stated: bool) -> None:
    """Raise PlanError where classes are too few to have an order, or nobody has ``said`` which it is."""
    if len(names) < LEAST_GRADES:
        raise PlanError(
            f'the loss "ordinal" is for {LEAST_GRADES} classes or more in their order; this task has {len(names)}, so '
            "leave it out"
        )
    if not is_stated and not all(map(is_number, names)):  # they are in the order of the alphabet
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
