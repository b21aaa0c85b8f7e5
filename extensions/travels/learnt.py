"""From which sites each travelling model has learnt, itself or through the models that were averaged into it."""

from collections.abc import Mapping
from typing import final

import numpy as np

from fedsmall.plan import Method
from fedsmall.travel.journey import groups_of

MISSED = ("absent", "silent", "set aside", "refused")  # kinds of events: a site gave no update that was used
REPLACED = "replaced"  # by the last common model, for what the site of this event had trained
BAD = (*MISSED, REPLACED)


@final
class Learnt:
    """``seen`` (models, sites) grows with every contact, as what counts in averages does in a run.

    Departs from nothing that :class:`fedsmall.travel.travellers.Travellers` decides, but knows no numbers: that a model
    came to nothing at a site it is told as an event.
    """

    def __init__(self, method: Method, models: int, sites: int) -> None:
        self._method = method
        self.seen = np.zeros((models, sites), bool)
        self._group = groups_of(method, models, method.group_count(sites))
        self._commons = np.zeros((method.group_count(sites), sites), bool)
        self._trained, self._here = np.zeros(models, bool), np.zeros(models, bool)  # since the average; just now
        self._by = np.full(models, -1)  # the site that trained it last
        self._turn = 0

    def train(self, at: np.ndarray, befell: Mapping[int, str]) -> None:
        """Models train at the sites ``at`` (models,), to some of which ``befell`` a kind of :data:`BAD`."""
        kinds = [befell.get(site) for site in at.tolist()]
        replaced = np.array([befell.get(site) == REPLACED for site in self._by.tolist()])
        self._here = np.array([kind not in MISSED for kind in kinds]) & ~replaced
        self.seen[replaced], self._trained[replaced] = self._commons[self._group[replaced]], False
        self.seen[self._here, at[self._here]] = True
        self._by[self._here] = at[self._here]
        self._trained |= self._here

    def average(self, refused: bool = False) -> None:
        """The models of each group become one, unless its average is ``refused``."""
        counted = self._trained & self._here if self._method.hidden else self._trained
        turns = self._method.by_samples
        for group in [self._turn] if turns else range(len(self._commons)):
            members = counted & (self._group == group)
            if members.any() and not refused:
                self._commons[group] = self.seen[members].any(axis=0)
        if turns:
            self._turn = (self._turn + 1) % len(self._commons)
            self._group[:] = self._turn
        self.seen, self._trained[:] = self._commons[self._group], False
