"""What a source gives: samples as they were read, before they are dealt to sites or scaled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from fedsmall.data.federation import Samples
from fedsmall.data.outcomes import Outcome
from fedsmall.data.preparation import YES_OR_NO, Columns, Numbers, Pixels, Preparation, Ranges
from fedsmall.errors import PlanError

NOWHERE = ""  # the key of a source that has no sites of its own


Part = Samples  # as they were read


@dataclass(frozen=True)
class Pool:
    """All samples of a source, and what must be known of them to make a task.

    ``train`` and ``test`` are by site, under the empty name where a source has no sites. ``standardise``: features are
    scaled as sites agree. ``keep_unused``: official training samples that no site was given are a further test set.
    ``form`` says what a row was; ``ranges`` are public (low, high). ``outcome`` is predicted, where that is no class.
    So many ``unlabelled`` rows were left out.
    """

    train: dict[str, Part]
    class_names: tuple[str, ...] = ()
    test: dict[str, Part] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()
    standardise: bool = False
    keep_unused: bool = False
    loss: str = "cross_entropy"
    notes: tuple[str, ...] = ()
    form: Columns | Pixels | Numbers | None = None
    ranges: tuple[np.ndarray, np.ndarray] | None = None
    outcome: Outcome | None = None
    unlabelled: int = 0


def digests_of(texts: Iterable[str]) -> np.ndarray:
    """A number for each text, the same for equal ones, (texts,); a text may be a file's name that is not in UTF-8."""
    made = b"".join(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(made, dtype=np.uint64)


def preparation_of(pool: Pool, dtype: Literal["float32", "float64"]) -> Preparation:
    """What the samples of a pool go through, before its sites have agreed on anything."""
    shape, ranges = pool.train[min(pool.train)].x.shape[1:], None
    if pool.ranges is not None:
        low, high = (tuple(np.asarray(end, dtype=np.float64).ravel().tolist()) for end in pool.ranges)
        ranges = Ranges(low=low, high=high)
    scaled, outcome = pool.standardise, pool.outcome
    return Preparation(form=_form_of(pool), shape=shape, scaled=scaled, ranges=ranges, dtype=dtype, outcome=outcome)


def _form_of(pool: Pool) -> Columns | Pixels | Numbers:
    """What a row of a pool is: what its source says, or else what its samples look like."""
    if pool.form is not None:
        return pool.form
    x = pool.train[min(pool.train)].x
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] in (1, 3):
        return Pixels(channels=x.shape[1], size=(x.shape[2], x.shape[3]))
    if x.ndim == 2 and len(pool.feature_names) == x.shape[1]:
        return Columns(columns=pool.feature_names)
    return Numbers()


def within_ranges(pool: Pool, ranges: Mapping[str, Sequence[float]] | Sequence[float]) -> Pool:
    """``pool`` scaled by public ``ranges``, by feature or one for all; PlanError for one that is missing or is none.

    A value outside counts as the nearest end; targets are scaled and not cut.
    """
    if not pool.standardise:
        raise PlanError("ranges are for features that are scaled; this task's are not. Leave ranges out")
    if isinstance(pool.form, Columns) and pool.form.unscaled:
        raise PlanError("ranges scale every column, and unscaled says that some are not; leave one of them out")
    shape = next(iter(pool.train.values())).x.shape[1:]
    outcome = pool.outcome
    if outcome is not None and outcome.kind == "survival" and outcome.agrees:
        raise PlanError(f"beside ranges say cuts = [...], or sites tell sums of {outcome.name!r} to agree on intervals")
    if outcome is not None and outcome.kind == "amount" and isinstance(ranges, Mapping):
        if outcome.name not in ranges:
            raise PlanError(f"ranges says nothing of {outcome.name}, which is predicted; give [lowest, highest]")
        outcome = outcome.model_copy(update={"stated": _pair(outcome.name, ranges[outcome.name])})
        ranges = {name: ends for name, ends in ranges.items() if name != outcome.name}
    return replace(pool, ranges=_range_ends(pool.feature_names, shape, ranges), standardise=False, outcome=outcome)


def _range_ends(names: Sequence[str], shape: tuple[int, ...], ranges: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(ranges, Mapping):
        pair = _pair("ranges", ranges)
        return np.full(shape, pair[0]), np.full(shape, pair[1])
    if not names:
        raise PlanError("these features have no names; give one range for all: ranges = [0.0, 1.0]")
    if unknown := sorted(set(ranges) - set(names)):
        raise PlanError(f"ranges names {unknown[0]!r}, which is no feature of this task: {', '.join(names)}")
    if without := [name for name in names if name not in ranges and YES_OR_NO not in name]:
        raise PlanError(f"ranges says nothing of {', '.join(without)}; give [lowest, highest] for each")
    pairs = np.array([_pair(name, ranges.get(name, (0.0, 1.0))) for name in names])  # (features, 2)
    return pairs[:, 0], pairs[:, 1]


def _pair(name: str, ends: Any) -> tuple[float, float]:
    good = isinstance(ends, Sequence) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    if not good or not -np.inf < ends[0] < ends[1] < np.inf:
        raise PlanError(f"the range of {name} is [lowest, highest], as in [0, 120]; got {ends!r}")
    return float(ends[0]), float(ends[1])
