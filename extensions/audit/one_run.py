"""A lower bound on epsilon from one run in which every candidate was in the data by the toss of a coin.

An attacker guesses, for some of the candidates, whether they were in. Under (epsilon, delta)-differential privacy no
guesser is right more often than a coin of bias e^epsilon / (e^epsilon + 1), but for delta; more right guesses than that
refute the epsilon. The bound can refute a claim and never prove one: a weak attacker finds nothing.

Source: Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2 and Appendix D.
"""

from functools import lru_cache
from math import exp

import numpy as np
from scipy.stats import binom

GUESSES = 64  # all of 64 right shows epsilon 3.04, and no number of guesses is chosen after a look at the outcome
LEVEL = 0.05
HIGHEST = 32.0


def lower_bound(scores: np.ndarray, members: np.ndarray, guesses: int = GUESSES, delta: float = 0.0) -> float:
    """The epsilon that the guesses of one run refute at the 5% level; 0 where they refute none.

    ``scores`` (candidates,) are above zero for "was in"; the ``guesses`` candidates with the largest magnitude are
    guessed, the others left. They may depend on all that the attacker sees of the run, and not on ``members``
    (candidates,) of bool, its coins.
    """
    taken = min(guesses, len(scores))
    sure = np.argsort(-np.abs(scores), kind="stable")[:taken]
    right = int(((scores[sure] > 0) == members[sure]).sum())
    return refuted(len(scores), taken, right, delta)


@lru_cache(maxsize=4096)
def refuted(candidates: int, guesses: int, right: int, delta: float = 0.0, level: float = LEVEL) -> float:
    """The largest epsilon under which so many right guesses have a p-value below ``level``; 0 for none."""
    low, high = 0.0, HIGHEST
    if p_value(candidates, guesses, right, low, delta) >= level:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if p_value(candidates, guesses, right, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def p_value(candidates: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """How probable so many right guesses are, at most, where the run was (epsilon, delta)-private."""
    bias = 1 / (1 + exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, bias))
    if delta == 0 or right == 0:
        return min(beta, 1.0)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, bias))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(beta + 2 * candidates * delta * alpha, 1.0)
