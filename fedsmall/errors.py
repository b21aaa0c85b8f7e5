"""The errors that a caller can act on; every other wrong value is a plain ValueError.

::

    ValueError
    ├── PlanError      a scenario or plan that cannot be run as written; found before any site trains
    ├── DataError      data that cannot be used as they are; speaks of columns and counts, never of a value or a path
    ├── ReplyError     a message from a site that may not be used
    └── PolicyError    a site's own policy refuses the order
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PlanError(ValueError):
    """A scenario or plan that cannot be run as written."""


class DataError(ValueError):
    """Data that cannot be used as they are.

    ``file`` says where, never by a path, and is shown at the site alone; ``words`` are without it and may leave.
    """

    def __init__(self, words: str, file: str = "") -> None:
        super().__init__(f"{file}: {words}" if file else words)
        self.words, self.file = words, file

    def at(self, site: str) -> "DataError":
        """The same at a site."""
        return DataError(self.words, file=f"site {site!r}, {self.file}" if self.file else f"site {site!r}")


@contextmanager
def as_data_error(words: str, *kinds: type[Exception], file: str = "") -> Iterator[None]:
    """Make errors of these ``kinds`` within a DataError of these words; one that is a DataError stays as it is."""
    try:
        yield
    except DataError:
        raise
    except kinds as wrong:
        raise DataError(words, file) from wrong


class ReplyError(ValueError):
    """A message from a site that may not be used."""


class PolicyError(ValueError):
    """An order that the site's own policy refuses."""
