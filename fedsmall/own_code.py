"""A user's own functions: where they are found, and what one does wrong, in one line with what it raised and where."""

import sys
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
        message = " ".join(str(wrong).split())[:200] or "no reason"
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise PlanError(f"{what} raised {type(wrong).__name__}: {message} ({where})") from wrong


def look_in(*folders: Path) -> None:
    """Find a user's modules in these folders, before any that are installed.

    A folder with a ``fedsmall`` of its own comes after ours, else a command's child processes would take it.
    """
    ours = [folder for folder in folders if (folder / "fedsmall").is_dir() or (folder / "fedsmall.py").is_file()]
    sys.path[:0] = [str(folder) for folder in folders if folder not in ours]
    sys.path += map(str, ours)
