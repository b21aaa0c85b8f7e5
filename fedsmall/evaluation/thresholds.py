"""From which probability on a sample is called positive: found on training samples, never on those judged on."""

from collections.abc import Mapping

import numpy as np

from fedsmall.plan import Plan

SENSITIVITY = 0.9  # of the threshold that is found beside the best one, where a plan does not say


def thresholds_of(plan: Plan, p: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """The thresholds that are told of a plan's model, by the way they were found: "youden", and by a "sensitivity"."""
    if not positive.any() or positive.all():
        return {}
    asked = plan.threshold
    wanted = asked["sensitivity"] if isinstance(asked, dict) else SENSITIVITY
    return {"youden": best_threshold(p, positive), "sensitivity": least_sensitivity(p, positive, wanted)}


def chosen_threshold(plan: Plan, found: Mapping[str, float]) -> tuple[float, str] | None:
    """The threshold that a plan asks for and how it was found, of those ``found``; None where it leaves that open."""
    asked = plan.threshold
    if isinstance(asked, float):
        return asked, "given in the scenario"
    if asked is None or not found:
        return None
    if isinstance(asked, dict):
        return found["sensitivity"], f"sensitivity {asked['sensitivity']:g} on the training samples"
    return found["youden"], "Youden's index on the training samples"


def best_threshold(p: np.ndarray, positive: np.ndarray) -> float:
    """The threshold with the largest sensitivity + specificity - 1, in the middle of the gap; the lowest of several.

    ``p`` (samples,) are probabilities of the positive class, ``positive`` (samples,) says who was so.
    Source: Youden 1950, "Index for rating diagnostic tests".
    """
    values, hits, false = counts_from_above(p, positive)
    gains = hits / max(hits[-1], 1) - false / max(false[-1], 1)
    best = np.flatnonzero(gains >= gains.max() - 1e-12)[-1]
    return _middle(values, int(best))


def least_sensitivity(p: np.ndarray, positive: np.ndarray, wanted: float) -> float:
    """The highest threshold at which at least the share ``wanted`` of the positive samples is called positive."""
    values, hits, _ = counts_from_above(p, positive)
    enough = np.flatnonzero(hits >= wanted * hits[-1] - 1e-9)
    return _middle(values, int(enough[0]))


def counts_from_above(p: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of ``p`` from high to low, and how many positive and other samples are at or above each."""
    order = np.argsort(-p, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(p[order])), len(p) - 1)
    hits = np.cumsum(positive[order])[ends]
    return p[order][ends], hits, ends + 1 - hits


def _middle(values: np.ndarray, place: int) -> float:
    """Halfway between a value and the next lower one, or zero."""
    below = values[place + 1] if place + 1 < len(values) else 0.0
    return float((values[place] + below) / 2)
