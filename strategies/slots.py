"""What the server holds for each traveller: the model, what goes with it, and what its last training said."""

from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import ArrayRecord


class Report(NamedTuple):
    """The numbers of a traveller's last training: they are its own, wherever it goes."""

    examples: float
    steps: float
    rule: ArrayRecord | None = None


@dataclass(frozen=True, eq=False)
class Slot:
    """The traveller that a site is sent next. ``common``: it is the last common model, untouched since.

    ``report`` is there if it was trained since the last aggregation; then it counts in the next, wherever it is. ``by``
    is the site that trained last what is in it, moments among them; empty for none.
    """

    model: ArrayRecord
    carried: ArrayRecord | None = None
    common: bool = False
    report: Report | None = None
    by: str = ""
