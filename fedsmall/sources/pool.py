"""What a source gives: the samples of a task before they are dealt to sites."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Part:
    """Samples as they were read: ``x`` (samples, *shape), NaN where a value is missing; ``y`` (samples,) classes."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.y)

    def __getitem__(self, rows: np.ndarray) -> "Part":
        """The samples at the given indices, in their order."""
        return Part(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Pool:
    """All samples of a source, and what must be known of them.

    ``test`` is the source's own test set, ``None`` where samples must be held out. ``standardise`` says whether
    features are brought to mean 0 and spread 1 over the sites; images (uint8) are not. ``site_of`` names the
    site of each training sample where the source has natural sites.
    """

    train: Part
    class_names: tuple[str, ...]
    test: Part | None = None
    feature_names: tuple[str, ...] = ()
    standardise: bool = False
    loss: str = "cross_entropy"
    metrics: tuple[str, ...] = ("accuracy", "auc", "macro_f1")
    site_of: np.ndarray | None = None
