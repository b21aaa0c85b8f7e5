"""The names of the forms in which models travel, as a plan says them."""

import re
from typing import Annotated

from pydantic import AfterValidator

PRECISIONS = ("full", "half", "int8")
TOP = re.compile(r"top(\d{1,3}(?:\.\d{1,6})?)%")


def share_of(wire: str) -> float | None:
    """The share of its numbers that leave with a model, "top1%" -> 0.01; None for other forms."""
    read = TOP.fullmatch(wire)
    return float(read[1]) / 100 if read else None


def _known(wire: str) -> str:
    share = share_of(wire)
    if wire not in PRECISIONS and (share is None or not 0 < share <= 1):
        forms = ", ".join(f'"{name}"' for name in PRECISIONS)
        raise ValueError(f'wire is {forms} or a share such as "top1%", above 0 and at most 100')
    return wire


Wire = Annotated[str, AfterValidator(_known)]
