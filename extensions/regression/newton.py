"""Newton's method by exchanges: sites sum at the server's parameters, and the server steps, for all penalties at once.

With several penalties one is chosen by cross-validation within the run. Model m = penalty (F + 1) + f leaves fold f - 1
out, and f = 0 nothing; a fold is of sites, or of every site's patients where sites are few, as a fold's sum is of no
fewer than three sites. Where Hessians of all would make a message too long, folds' models take that of the whole one,
by their share of the patients: their steps end at the same place, as gradients are their own, only later.

Source: Boyd and Vandenberghe 2004, sections 9.5 and 10.2 (damped steps; here halved where the objective rises).
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedsmall.aggregation.sums import LEAST
from fedsmall.extensions.regression import families
from fedsmall.extensions.regression.families import Given, Rows, Sums

TOLERANCE, OF_FOLDS = 1e-8, 1e-3  # of the largest change of a parameter; of models that only choose a penalty
NO_GAIN = 2e-3  # twice what a step is to gain in log-likelihood; of models that only choose a penalty
SHORT = 1e-6  # of a step that is taken in any case
SLACK = 1e-9  # by which an objective may rise from rounding, by its size
NOTHING = 1e-8  # of the largest eigenvalue: what is less is rounding, as of columns of which one follows from others
LIGHT = 0.1  # on a hazard's intercept: less than a tenth of a patient who has the event
COARSE, FINE = 2.0**24, 2.0**40  # of one in whole numbers, and of one of their units in the rest
MOST_FOLDS = 5
LONG = 200_000  # numbers of Hessians in a message, from which on folds have none of their own


class Setup(NamedTuple):
    """What is fitted: ``columns`` p with the constant, K ``predictors``; ``penalties`` to choose among by ``folds``.

    ``home`` penalises intercepts fitted at home; ``firth`` is his correction; ``robust`` adds outer products.
    """

    family: str
    columns: int
    predictors: int
    penalties: tuple[float, ...]
    folds: int = 0
    home: float | None = None
    firth: bool = False
    robust: bool | str = False

    @property
    def free(self) -> int:
        """P, the number of parameters."""
        return families.parameters(self.family, self.columns, self.predictors)

    @property
    def models(self) -> int:
        """How many models are fitted at once."""
        return len(self.penalties) * (self.folds + 1)

    @property
    def curved(self) -> range:
        """The models of which there are Hessians."""
        few = self.models * self.free * (self.free + 1) // 2 > LONG
        return range(0, self.models, self.folds + 1 if few else 1)

    @property
    def vectors(self) -> int:
        """How many numbers a summand has beside squares, as floats."""
        return self.models * (self.free + 2) + 2 * len(self.penalties) * self.folds

    @property
    def squares(self) -> int:
        """How many numbers the lower halves of its squares have."""
        meats = len(self.penalties) * bool(self.robust) * (self.free + 2)
        return (len(self.curved) * self.free + meats) * (self.free + 1) // 2

    @property
    def precise(self) -> int:
        """How many of its numbers are sent in full precision: squares only lead there, but for Firth's leverages."""
        return self.vectors + self.squares * self.firth

    @property
    def numbers(self) -> int:
        """How many whole numbers a summand has; of Cox's sums of those at risk in each interval, and of events."""
        if self.family == "cox":
            return 2 * self.predictors * (3 + self.free + 2 * (1 + self.free + self.free * (self.free + 1) // 2))
        return self.vectors + self.squares + self.precise


class State(NamedTuple):
    """Where the models are: parameters to ask for next, (models, P), the last good ones, the steps from there.

    ``objective`` (models,) is that of the last good ones, and ``held`` (penalties,) the loss of left-out folds. The
    sums at the last good parameters: ``hessian`` and ``meat`` of an :class:`Exchange`, ``loss`` and ``weight``.
    """

    theta: np.ndarray
    last: np.ndarray
    step: np.ndarray
    objective: np.ndarray
    held: np.ndarray
    hessian: np.ndarray
    meat: np.ndarray
    loss: np.ndarray
    weight: np.ndarray


class Exchange(NamedTuple):
    """The sums of one exchange over sites, by :class:`Setup`: of ``models`` (M, 2 + P), ``held`` (penalties, folds, 2).

    A model's row is weight, loss and gradient. ``hessian`` is (setup.curved, P, P), ``meat`` (penalties, P + 1, P + 1),
    the last of which counts sites or patients.
    """

    models: np.ndarray
    held: np.ndarray
    hessian: np.ndarray
    meat: np.ndarray


def folds_for(sites: int) -> tuple[int, bool]:
    """How many folds so many sites make, and whether these are of sites, as then none has fewer than three."""
    return (min(MOST_FOLDS, sites // LEAST), True) if sites >= 2 * LEAST else (MOST_FOLDS, False)


def begin(setup: Setup) -> State:
    """Where all models are before the first exchange."""
    theta = np.tile(families.start(setup.family, setup.columns, setup.predictors), (setup.models, 1))
    count, free = len(setup.penalties), setup.free
    square, meat, none = np.zeros((count, free, free)), np.zeros((count, free + 1, free + 1)), np.zeros(count)
    return State(theta, theta, np.ones_like(theta), np.full(setup.models, np.inf), none, square, meat, none, none)


def summand(
    setup: Setup, theta: np.ndarray, rows: Rows, fold: np.ndarray, inverse: Given = None, whose: Given = None
) -> np.ndarray:
    """What a site adds in an exchange at ``theta`` (models, P): (setup.numbers,) int64, the same sum in any order.

    ``fold`` (n,) says in which fold each sample is left out; ``inverse`` is Firth's, of one penalty. ``whose`` (n,) are
    the patients, for errors by them; without, each sample is one.
    """
    models, held = np.zeros((setup.models, setup.free + 2)), np.zeros((len(setup.penalties), setup.folds, 2))
    hessians, meats = [], []
    for m in range(setup.models):
        place, left_out = divmod(m, setup.folds + 1)
        seen = _part(rows, fold != left_out - 1) if left_out else rows
        sums, shift = families.profiled_sums(setup.family, theta[m], seen, setup.home, inverse, m in setup.curved)
        models[m] = np.concatenate([[sums.weight, sums.loss], sums.gradient])
        if left_out:
            theirs = _part(rows, fold == left_out - 1)
            theirs = theirs._replace(offset=theirs.offset + shift)
            unseen = families.sums_at(setup.family, theta[m], theirs, is_curved=False)
            held[place, left_out - 1] = unseen.loss, unseen.weight
        hessians.append(sums.hessian)
        meats += [_meat(setup, theta[m], rows, sums, whose)] if setup.robust and not left_out else []
    halves = [square[families.lower_half_of(len(square))] for square in (*hessians, *meats)]
    return in_wholes(np.concatenate([models.ravel(), held.ravel(), *halves]), setup.precise)


def _meat(setup: Setup, theta: np.ndarray, rows: Rows, sums: Sums, whose: Given) -> np.ndarray:
    scores = sums.gradient[None]  # of the site as a whole
    if setup.robust == "patients" and sums.loss < families.LARGE:
        each = families.scores_at(setup.family, theta, rows)
        _, place = np.unique(np.arange(len(each)) if whose is None else whose, return_inverse=True)
        scores = np.zeros((int(place.max(initial=-1)) + 1, setup.free))
        np.add.at(scores, place, each)
    counted = np.column_stack([scores, np.ones(len(scores))])
    return np.asarray(counted.T @ counted)


def _part(rows: Rows, which: np.ndarray) -> Rows:
    return Rows(*(part[which] for part in rows))


def in_wholes(values: np.ndarray, precise: int) -> np.ndarray:
    """The values in units of 2**-24, then what is left of the first ``precise`` ones, in units of 2**-64: int64."""
    wide = np.clip(values, -families.LARGE, families.LARGE) * COARSE
    whole = np.rint(wide)
    return np.concatenate([whole, np.rint((wide - whole)[:precise] * FINE)]).astype(np.int64)


def from_wholes(total: np.ndarray, precise: int) -> np.ndarray:
    """The values of a sum of :func:`in_wholes`."""
    wholes, rest = np.split(total.astype(np.float64), [len(total) - precise])
    values = wholes / COARSE
    values[:precise] += rest / FINE / COARSE
    return np.asarray(values)


def read_sum(setup: Setup, total: np.ndarray) -> Exchange:
    """What the sum of sites' :func:`summand` says, (setup.numbers,) int64."""
    values = from_wholes(total, setup.precise)
    count, free = len(setup.penalties), setup.free
    cut = setup.models * (free + 2)
    held = values[cut : setup.vectors].reshape(count, setup.folds, 2)
    ends = setup.vectors + len(setup.curved) * free * (free + 1) // 2
    hessian = _from_halves(values[setup.vectors : ends], len(setup.curved), free)
    return Exchange(
        values[:cut].reshape(setup.models, free + 2), held, hessian, _from_halves(values[ends:], count, free + 1)
    )


def _from_halves(values: np.ndarray, count: int, size: int) -> np.ndarray:
    """So many symmetric squares by their lower halves, (count, size, size); zeros where there are none."""
    squares, lower = np.zeros((count, size, size)), families.lower_half_of(size)
    if len(values):
        squares[:, lower[0], lower[1]] = squares[:, lower[1], lower[0]] = values.reshape(count, -1)
    return squares


def advance(setup: Setup, state: State, sums: Exchange) -> State:
    """The state after an exchange: a new step for each model whose objective has not risen, of others half the last.

    Firth's takes two exchanges a step: the second has the leverages, for which the Hessian came of the first.
    """
    if rests(setup, state):
        step = -solve(setup, sums.hessian[0], sums.models[:, 2:].T).T
        return state._replace(theta=state.last + step, step=step)
    now = _objectives(setup, state, sums)
    others = not np.allclose(sums.models[:: setup.folds + 1, 0], state.weight)  # answer now than last time
    slack = SLACK * np.maximum(1, np.abs(np.nan_to_num(state.objective, posinf=0)))
    small = np.abs(state.step).max(axis=1) <= SHORT  # so that halving alone never looks as if nothing moved
    good = np.isfinite(now) & (others | small | (now <= state.objective + slack))
    last = np.where(good[:, None], state.theta, state.last)
    step = state.step / 2
    among, stride = setup.folds + 1, setup.curved.step
    for m in np.flatnonzero(good & (not setup.firth)).tolist():
        near, bend = m - m % stride, penalty_of(setup, m // among)
        share = sums.models[m, 0] / max(sums.models[near, 0], 1e-9)
        matrix = sums.hessian[near // stride] * share + np.diag(bend)
        gradient = sums.models[m, 2:] + bend * last[m]
        step[m] = -solve(setup, matrix, gradient)
        is_as_long = np.abs(step[m]).max() > max(OF_FOLDS, np.abs(state.step[m]).max() / 2)
        if m % among and is_as_long and abs(step[m] @ gradient) <= NO_GAIN:
            step[m] = 0  # it would go on for ever, as of a class that is not among its patients
    whole, full = good[::among], sums.models[::among]
    hessian = np.where(whole[:, None, None], sums.hessian[:: among // stride], state.hessian)
    meat = np.where(whole[:, None, None], sums.meat, state.meat)
    loss, weight = np.where(whole, full[:, 1], state.loss), np.where(whole, full[:, 0], state.weight)
    objective = np.where(good, now, state.objective)
    step, theta = (state.step, last) if setup.firth and good.all() else (step, last + step)
    return State(theta, last, step, objective, sums.held[..., 0].sum(axis=1), hessian, meat, loss, weight)


def rests(setup: Setup, state: State) -> bool:
    """Whether the next exchange is one for Firth's leverages, at parameters of which the Hessian is known."""
    return setup.firth and bool(np.isfinite(state.objective).all() and (state.theta == state.last).all())


def _objectives(setup: Setup, state: State, sums: Exchange) -> np.ndarray:
    bends = np.stack([penalty_of(setup, m // (setup.folds + 1)) for m in range(setup.models)])
    made = sums.models[:, 1] + (bends * state.theta**2).sum(axis=1) / 2
    if setup.firth:
        sizes = np.linalg.eigvalsh(sums.hessian[0])
        made -= np.log(sizes[sizes > NOTHING * sizes.max()]).sum() / 2
    return np.asarray(np.where(sums.models[:, 1] < families.LARGE, made, np.inf))


def penalty_of(setup: Setup, place: int) -> np.ndarray:
    """The ridge penalty number ``place`` on each parameter, (P,): half of it times a square is added to the loss."""
    penalty, slopes = setup.penalties[place], families.penalised(setup.family, setup.columns, setup.predictors)
    # else an interval without an event has a hazard of 0, and who has it there later an endless loss
    return penalty * slopes + LIGHT * (penalty > 0 and setup.family == "hazard") * (1 - slopes)


def solve(setup: Setup, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """What ``matrix`` (P, P), positive semidefinite, takes to ``right``; the shortest where there are many.

    Softmax has a direction for each column in which nothing changes, as all classes move alike; there it is 0.
    """
    matrix = _with_alike(setup, matrix)
    try:
        factor = cho_factor(matrix, lower=True)
        pivots = np.diag(factor[0]) ** 2
        if pivots.min() > 10 * NOTHING * pivots.max():
            return np.asarray(cho_solve(factor, right))
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(matrix)  # half the time of scipy's pinvh
    kept = np.abs(values) > NOTHING * np.abs(values).max()
    return np.asarray((vectors[:, kept] / values[kept]) @ (vectors[:, kept].T @ right))


def free_directions(setup: Setup, matrix: np.ndarray) -> np.ndarray:
    """What projects on directions in which ``matrix`` is 0, (P, P): of columns that follow from others."""
    values, vectors = np.linalg.eigh(_with_alike(setup, matrix))
    free = vectors[:, values <= NOTHING * values.max()]
    return np.asarray(free @ free.T)


def _with_alike(setup: Setup, matrix: np.ndarray) -> np.ndarray:
    if setup.family != "softmax":
        return matrix
    alike = np.kron(np.ones((setup.predictors, setup.predictors)), np.eye(setup.columns))
    return np.asarray(matrix + alike * max(1.0, np.trace(matrix) / len(matrix)))


def chosen(setup: Setup, state: State) -> int:
    """The number of the penalty with the least loss in left-out folds; of equal ones the strongest."""
    return len(setup.penalties) - 1 - int(np.argmin(state.held[::-1]))


def is_converged(setup: Setup, state: State) -> bool:
    """Whether no parameter moves any more: of the models of all patients by 1e-8, of the chosen one's folds by 1e-3."""
    moves = np.abs(state.step).max(axis=1).reshape(-1, setup.folds + 1)
    still = bool((moves[:, 0] <= TOLERANCE).all() and (moves[chosen(setup, state)] <= OF_FOLDS).all())
    return still and bool(np.isfinite(state.objective).all())
