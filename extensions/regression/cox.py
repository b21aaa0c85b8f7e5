"""Cox's regression over sites: risk sets span hospitals, so sites sum over a grid of event times that all share.

With a grid of all distinct event times it is the pooled partial likelihood with Efron's ties; a coarser grid, of
agreed ends of intervals, tells less of single times, and ties those of an interval.

Source: Cox 1972; Efron 1977 (ties); Breslow 1974 (baseline); Lu et al. 2015, WebDISCO (the sums).
"""

from typing import NamedTuple

import numpy as np

from fedsmall.extensions.regression.families import Rows, Sums, lower_half_of
from fedsmall.extensions.regression.newton import Exchange, Setup, from_wholes, in_wholes

NEVER = 1e-12  # the hazard of an interval without an event
FAR = 12.0  # log-risks beyond which a step was too long


class Times(NamedTuple):
    """Patients of one site: ``x`` (n, p) without a constant, ``time`` and ``event`` (n,), ``weight``, ``offset``."""

    x: np.ndarray
    time: np.ndarray
    event: np.ndarray
    weight: np.ndarray
    offset: np.ndarray


class RiskSums(NamedTuple):
    """Sums over the patients at risk, and those who had the event, for each of J times of the grid; they add up.

    ``risk`` and ``tied`` are (J, 1 + p + p (p + 1) / 2): of exp(eta) times 1, x, and the lower half of x x'.
    ``events`` (J, 3 + p): their weight, their number, their sum of eta, of x.
    """

    risk: np.ndarray
    tied: np.ndarray
    events: np.ndarray


def risk_sums(beta: np.ndarray, patients: Times, grid: np.ndarray) -> RiskSums:
    """What a site adds at coefficients ``beta`` (p,), for the ascending ends ``grid`` (J,) of intervals of time.

    Who is lost within an interval is at risk in those before it alone, and who is there behind the last end in all.
    """
    x, eta = patients.x, np.clip(patients.x @ beta + patients.offset, -FAR, FAR)
    happened = (patients.event > 0) & (patients.time <= grid.max(initial=-np.inf))
    lost_after = np.searchsorted(grid, patients.time, side="right") - 1  # -1 is in none
    place = np.where(happened, np.searchsorted(grid, patients.time), lost_after)
    lower = lower_half_of(x.shape[1])
    terms = np.concatenate([np.ones((len(x), 1)), x, (x[:, :, None] * x[:, None, :])[:, lower[0], lower[1]]], axis=1)
    terms = terms * (patients.weight * np.exp(eta))[:, None]
    of_events = np.concatenate([np.ones((len(x), 1)), eta[:, None], x], axis=1) * patients.weight[:, None]
    of_events = np.insert(of_events, 1, 1.0, axis=1)
    ending = _by_place(terms, place, place >= 0, len(grid))
    risk = np.cumsum(ending[::-1], axis=0)[::-1]  # who is there to the end of an interval or later
    return RiskSums(risk, *(_by_place(part, place, happened, len(grid)) for part in (terms, of_events)))


def _by_place(terms: np.ndarray, place: np.ndarray, which: np.ndarray, places: int) -> np.ndarray:
    made = np.zeros((places, terms.shape[1]))
    np.add.at(made, place[which], terms[which])
    return made


def partial_likelihood(sums: RiskSums, ties: str = "efron") -> Sums:
    """Loss, gradient and Hessian by beta from the sums over all sites; ``ties`` is "efron" or "breslow".

    Of d events in an interval the k-th has those tied at risk by 1 - k / d (Efron), each the mean of their weights.
    """
    p = sums.events.shape[1] - 3
    loss, gradient, hessian = 0.0, np.zeros(p), np.zeros((p, p))
    lower = lower_half_of(p)
    for at_risk, tied, (weight, count, eta, *x) in zip(*sums, strict=True):
        loss, gradient = loss - eta, gradient - np.array(x)
        for k in range(round(count)):
            left = at_risk - (k / count if ties == "efron" else 0.0) * tied
            mean, square, each = left[1 : p + 1] / left[0], np.zeros((p, p)), weight / count
            square[lower] = square.T[lower] = left[p + 1 :] / left[0]
            loss += each * float(np.log(left[0]))
            gradient, hessian = gradient + each * mean, hessian + each * (square - np.outer(mean, mean))
    return Sums(float(sums.events[:, 0].sum()), loss, gradient, hessian)


def baseline_hazard(sums: RiskSums) -> np.ndarray:
    """Breslow's cumulative baseline hazard at the ends of the grid, (J,), from the sums at the fitted coefficients."""
    increments = np.where(sums.events[:, 0] > 0, sums.events[:, 0] / np.maximum(sums.risk[:, 0], 1e-300), 0.0)
    return np.asarray(np.cumsum(increments))


def summand(beta: np.ndarray, rows: Rows, intervals: int) -> np.ndarray:
    """What a site adds in an exchange at ``beta`` (p,), whole numbers; the times of ``rows`` are their intervals."""
    survived, event = rows.y[:, 0], rows.y[:, 1]
    time = np.where(event > 0, survived, survived - 0.5)  # who is lost in an interval is at risk in those before
    sums = risk_sums(
        beta, Times(rows.x[:, :-1], time, event, rows.weight, rows.offset[:, 0]), np.arange(float(intervals))
    )
    values = np.concatenate([part.ravel() for part in sums])
    return in_wholes(values, len(values))


def read_risk(setup: Setup, total: np.ndarray) -> RiskSums:
    """The sums over sites that :func:`summand` s add up to."""
    free, intervals = setup.free, setup.predictors
    at_risk = intervals * (1 + free + free * (free + 1) // 2)
    parts = np.split(from_wholes(total, setup.numbers // 2), [at_risk, 2 * at_risk])
    return RiskSums(*(part.reshape(intervals, -1) for part in parts))


def exchange_of(sums: RiskSums) -> Exchange:
    """The partial likelihood as the sums of any other regression."""
    weight, loss, gradient, hessian = partial_likelihood(sums)
    models, free = np.concatenate([[weight, loss], gradient])[None], len(gradient)
    return Exchange(models, np.zeros((1, 0, 2)), hessian[None], np.zeros((1, free + 1, free + 1)))
