"""What a user's own function does wrong, in one line: which function, what it raised, and at which of its lines."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsmall.errors import DataError, PlanError


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Make whatever a user's own function raises within a PlanError of one line; ``what`` says which function it is."""
    try:
        yield
    except (PlanError, DataError):
        raise
    except Exception as wrong:
        place = traceback.extract_tb(wrong.__traceback__)[-1]
        said = " ".join(str(wrong).split())[:200] or "no reason"
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise PlanError(f"{what} raised {type(wrong).__name__}: {said} ({where})") from wrong
