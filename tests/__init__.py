"""The tests; ``ROOT`` is the checkout's folder."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def only_quick(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values as parameters, of which these are quick, and all others are thorough."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.thorough) for value in values]
