"""Classes that are one and are spelt in two ways, at one site or between sites: an error that says what to write."""

import re
from collections.abc import Mapping, Sequence

from fedsmall.data.sources.files import plain
from fedsmall.errors import DataError, PlanError

Classes = Sequence[object] | Mapping[str, Sequence[object]]


def read_classes(given: Classes | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """The names of the classes, None where they are to be found, and the class that every further spelling means.

    Raises PlanError where one spelling means two classes.
    """
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
        alike.setdefault(re.sub(r"[\W_]+", "", name.casefold()) or name, set()).add(name)
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
    """Raise DataError where two sites with several classes have none in common."""
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
        f'"{name}" = [{", ".join(f"{one!r}" for one in more)}]'.replace("'", '"') for name, more in classes.items()
    )
    return f"classes = {{{pairs}}}"
