"""Whose patients a site has told sums of, over all runs: two such sums must not differ by a few patients.

The server knows the models of which it is told sums, and may ask of one model twice. So a site tells of other patients
than before only where :mod:`fedsmall.clients.telling.told` lets it; else of the same patients as last time, where they
are all still here; else nothing.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from fedsmall.clients.telling.told import Verdict, digest, recall, remembered, verdict, write


class ToldPatients:
    """The memory of one site, in the file ``path``: {"key", "patients": as :data:`telling.told.Entry`}."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, x: np.ndarray, y: np.ndarray, floor: int) -> np.ndarray:
        """The numbers of the samples that may be told of now, (rows,); none where nobody may be. Remembers them."""
        if len(y) < floor:
            return np.arange(0)
        known = recall(self.path, patients=None)
        here = [digest(_content(sample, target), known, 16) for sample, target in zip(x, y, strict=True)]
        now, before = Counter(here), known["patients"]
        allowed = verdict(before, now, floor)
        if allowed is Verdict.NEW:
            known["patients"] = remembered(before, now, now)
            write(self.path, known)
        if allowed is not Verdict.LAST:
            return np.arange(len(here))
        return _of_these(here, Counter(before["last"] if before else {}))


def _of_these(here: list[str], wanted: Counter[str]) -> np.ndarray:
    """Which of those who are ``here`` are the ``wanted`` ones, each as often as wanted; none unless all are here."""
    if not wanted <= Counter(here):
        return np.arange(0)
    rows, left = [], wanted.copy()
    for row, patient in enumerate(here):
        if left[patient]:
            left[patient] -= 1
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def _content(sample: np.ndarray, target: np.ndarray) -> bytes:
    return np.ascontiguousarray(sample).tobytes() + np.asarray(target).tobytes()
