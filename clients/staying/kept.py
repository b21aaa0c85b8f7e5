"""What a site remembers of a model that stays: where it is, and what others know of it."""

from typing import NamedTuple

import numpy as np

from fedsmall.clients.memory import Memory
from fedsmall.wire import Arrays, join, split

STAYS = "stays/"  # begins the names of it in the site's memory, beside what training remembers


class Kept(NamedTuple):
    """A ``model`` as it was trained last, the one that the site was sent last, and the last that all sites had.

    ``since`` are the optimizer steps since it was ``sent`` one, and ``reference`` was made after round ``of``.
    """

    model: Arrays
    sent: Arrays
    reference: Arrays
    of: int
    since: int


class StayingMemory:
    """A site's memory of which training sees its own part alone."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._trained: Arrays = {}

    def read(self) -> Arrays:
        """What training has written last."""
        return {name: array for name, array in self._memory.read().items() if not name.startswith(STAYS)}

    def write(self, arrays: Arrays) -> None:
        """What training remembers; it is written down with the model (:meth:`keep`)."""
        self._trained = dict(arrays)

    def kept(self) -> Kept | None:
        """The model that stays; None where there is none."""
        found = self._memory.read().items()
        held = {name.removeprefix(STAYS): array for name, array in found if name.startswith(STAYS)}
        if not held:
            return None
        model, sent, reference = (split(held, part) for part in ("model", "sent", "reference"))
        return Kept(model, sent, reference, int(held["of"]), int(held["since"]))

    def keep(self, kept: Kept) -> None:
        """Remember a model, and what training has written."""
        models = join(model=kept.model, sent=kept.sent, reference=kept.reference)
        held = {**models, "of": np.array(kept.of), "since": np.array(kept.since)}
        stays = {f"{STAYS}{name}": np.asarray(array) for name, array in held.items()}
        self._memory.write({**(self._trained or self.read()), **stays})
