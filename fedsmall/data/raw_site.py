"""A site's samples between reading and training: split, and not yet scaled.

A hospital goes two steps: from its own file to the sums it may tell (:meth:`RawSite.sums`), and with the scaling that
all sites agreed on to the samples it trains on (:meth:`RawSite.samples`). A simulation takes the same two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsmall.data import standardise
from fedsmall.data.class_weights import class_sums
from fedsmall.data.preparation import Preparation
from fedsmall.data.sources.pool import Part
from fedsmall.data.standardise import Scaling, Sums
from fedsmall.federation import Samples, Task


@dataclass(frozen=True)
class RawSite:
    """The samples of one site as they were read, split into those to train on and those held out.

    ``preparation`` says what they go through on their way into a model; ``floor`` is the least number of values of
    which a sum is told. ``notes`` are what its source has to say of the data. ``kept_back`` are training samples that
    no model is trained on, which tell when to stop.
    """

    name: str
    task: Task
    train: Part
    held_out: Part | None
    preparation: Preparation
    floor: int = standardise.COUNT_FLOOR
    notes: tuple[str, ...] = ()
    kept_back: Part | None = None

    @property
    def scaled(self) -> bool:
        """Whether the task's features are scaled by what the sites agree on."""
        return self.preparation.scaled

    def sums(self) -> Sums | None:
        """What this site tells of its training samples for the scaling; ``None`` where nothing is scaled."""
        return standardise.sums(self.train.x, self.floor, self.train.patients) if self.scaled else None

    def class_sums(self) -> Sums:
        """What this site tells of the classes of its training samples, for weights."""
        return class_sums(self.train.y, self.task.classes, self.floor, self.train.patients)

    def withheld(self) -> tuple[str, ...]:
        """The features of which this site tells nothing, because fewer than ``floor`` of its values are there."""
        sums = self.sums()
        if sums is None or not self.task.feature_names:
            return ()
        return tuple(name for name, count in zip(self.task.feature_names, sums.count, strict=True) if count == 0)

    def samples(self, scaling: Scaling | None) -> tuple[Samples, Samples | None]:
        """The samples to train on and those held out, as a model takes them."""
        prepared = self.preparation.with_scaling(scaling)
        return ready(self.train, prepared), None if self.held_out is None else ready(self.held_out, prepared)

    def samples_kept_back(self, scaling: Scaling | None) -> Samples | None:
        """The samples that tell when to stop, as a model takes them; None where the plan asks for none."""
        return None if self.kept_back is None else ready(self.kept_back, self.preparation.with_scaling(scaling))


def agreed(sites: Sequence[RawSite]) -> Scaling | None:
    """The scaling that the sites agree on, in the order of their names; ``None`` where nothing is scaled."""
    told = [site.sums() for site in sorted(sites, key=lambda site: site.name)]
    known = [sums for sums in told if sums is not None]
    return standardise.agree(known) if known else None


def ready(part: Part, preparation: Preparation) -> Samples:
    """Samples as a model takes them, classes as 64-bit integers."""
    y = part.y.astype(np.int64 if part.y.dtype.kind in "iub" else preparation.dtype)
    return Samples(preparation.inputs(part.x), y, patients=part.patients, groups=part.groups)
