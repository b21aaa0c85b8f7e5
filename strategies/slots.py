"""What the server holds for each site: the traveller it is sent next, and what its last reply said."""

from dataclasses import dataclass

from flwr.app import ArrayRecord


@dataclass(frozen=True, eq=False)
class Slot:
    """The traveller that a site is sent next. ``common``: it is the last common model, untouched since."""

    model: ArrayRecord
    carried: ArrayRecord | None = None
    common: bool = False


@dataclass(frozen=True)
class Seen:
    """What a site's last reply said beside its model."""

    model: ArrayRecord
    examples: float
    steps: float
    rule: ArrayRecord | None = None
