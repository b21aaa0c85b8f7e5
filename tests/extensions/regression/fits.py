"""Fits by exchanges, as a run makes them, for tests of the mathematics alone."""

import numpy as np

from fedsmall.extensions.regression.families import Rows
from fedsmall.extensions.regression.inference import Table, covariance_of, inverse, wald
from fedsmall.extensions.regression.newton import Setup, State, advance, begin, is_converged, read_sum, rests, summand
from fedsmall.randomness import rng_for


def rows_of(x, y, predictors=1, weight=None, offset=None) -> Rows:
    n = len(x)
    weight = np.ones(n) if weight is None else np.asarray(weight, dtype=float)
    return Rows(np.c_[x, np.ones(n)], y, weight, np.zeros((n, predictors)) if offset is None else offset)


def dealt(rows: Rows, sites: int) -> list[Rows]:
    """The rows at so many sites of unequal size."""
    order = rng_for(0, "deal").permutation(len(rows.y))
    ends = np.sort(rng_for(1, "deal").choice(np.arange(1, len(order)), sites - 1, replace=False))
    return [Rows(*(part[at] for part in rows)) for at in np.split(order, ends)]


def fit(setup: Setup, sites: list[Rows], folds=None, exchanges: int = 60) -> tuple[State, int]:
    """The state at the end, and the number of exchanges."""
    state = begin(setup)
    made = 0
    while made < exchanges and not is_converged(setup, state):
        made += 1
        known = inverse(setup, state.hessian[0]) if rests(setup, state) else None
        total = sum(
            summand(setup, state.theta, rows, np.zeros(len(rows.y)) if folds is None else folds[k], known)
            for k, rows in enumerate(sites)
        )
        state = advance(setup, state, read_sum(setup, total))
    return state, made


def standardised(x) -> np.ndarray:
    return (x - x.mean(axis=0)) / x.std(axis=0)


def inference(setup: Setup, state: State, place: int = 0) -> Table:
    """The table of the model of penalty number ``place``."""
    return wald(state.last[place * (setup.folds + 1)], *covariance_of(setup, state, place))
