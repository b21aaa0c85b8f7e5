"""A posterior that goes from hospital to hospital: one regression of all patients, without anybody who adds up.

What travels is a Gaussian over the parameters theta (P,), as its precision and its precision times its mean: the prior,
which is the ridge penalty, times a factor of each hospital. A hospital takes its old factor out, goes to the mode of
what is left times its own likelihood by Newton's method, and puts in the Laplace factor there. One pass is online
Bayes; where nothing moves any more, gradients of all hospitals and the penalty add up to 0: the fit of pooled samples.
Source: Opper 1998 (online Bayes); Minka 2001 (expectation propagation); Ypma 1995 (Newton's method).
"""

from typing import NamedTuple

import numpy as np

from fedsmall.aggregation.combiners import Combiner
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.errors import PlanError
from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.families import MOST_STEPS, Rows, Sums, coefficients, penalised, sums_at
from fedsmall.extensions.regression.inference import inverse
from fedsmall.extensions.regression.model import COEFFICIENTS, COVARIANCE, STATUS, SUMS, THETA
from fedsmall.extensions.regression.newton import SLACK, Setup, penalty_of, solve
from fedsmall.plan import Plan
from fedsmall.wire import Arrays

WEAK = 0.01  # the precision of intercepts while hospitals are missing: the first may have patients of one class alone
OPEN = (
    "each hospital reads the posterior of those before it, and the second one the first one's own factor, which can be "
    "solved for its patients where they are few; Ridge with privacy = {secure = true} shows sums over all sites alone"
)
STILL = 1e-11  # of the largest change of a parameter, in steps at home


class Posterior(NamedTuple):
    """What a hospital hands on: ``precision`` (P, P), ``shift`` (P,), precision times mean, and of its (sites,) visits.

    ``points`` (sites, P) are where each hospital's factor was made, which it makes again to take it out; ``visits``
    (sites,) how often each was there; ``weak`` (1,) is 1 while :data:`WEAK` is part of it.
    """

    precision: np.ndarray
    shift: np.ndarray
    points: np.ndarray
    visits: np.ndarray
    weak: np.ndarray


def check(plan: Plan, family: str) -> None:
    """Raise PlanError, in one line, for a chain with another schedule, likelihood or privacy than it can have."""
    method, settings = plan.method, plan.method.regression
    assert settings is not None
    label = f"Method {method.label!r} hands a posterior on"
    if (method.models, method.permute_every, method.aggregate_every) != (1, 1, None) or method.route == "random":
        raise PlanError(f'{label}: take models = 1, permute_every = 1, and route = "shuffled" or "cyclic".')
    if family not in ("logistic", "softmax"):
        raise PlanError(f"{label}, which is for classes; take Ridge for numbers, counts, grades and times.")
    if method.hidden and plan.privacy.secure:
        raise PlanError(f"{label}, and the next hospital reads it: nothing is masked; take Ridge.")
    plain = settings.basis != "additive" and settings.intercepts == "common" and not (settings.firth or settings.robust)
    if settings.penalty == "cv" or not settings.penalty or not plain:
        raise PlanError(f"{label}: it has a penalty above 0, a number, on columns or random features, without more.")


def visit(setup: Setup, model: Arrays, rows: Rows, place: int) -> Arrays:
    """The model as hospital number ``place`` hands it on."""
    was = _read(setup, model)
    precision, shift, weak = was.precision, was.shift, bool(was.weak)
    slack = WEAK * np.diag(1 - penalised(setup.family, setup.columns, setup.predictors))
    if not was.visits.any():
        precision, weak = np.diag(penalty_of(setup, 0)) + slack, True
    elif weak and was.visits.all():
        precision, weak = precision - slack, False
    if was.visits[place]:
        old = sums_at(setup.family, was.points[place], rows)
        precision = precision - old.hessian
        shift = shift - (old.hessian @ was.points[place] - old.gradient)
    mode, sums = mode_of(setup, precision, shift, rows, form.theta_of(model)[0])
    precision, shift = precision + sums.hessian, shift + (sums.hessian @ mode - sums.gradient)
    points, visits = was.points.copy(), was.visits.copy()
    points[place], visits[place] = mode, visits[place] + 1
    made = {name: np.array(array) for name, array in model.items()}
    posterior = Posterior(precision, shift, points, visits, np.array([float(weak)]))
    bits = np.concatenate([part.ravel() for part in posterior]).astype(np.float64).view(np.int64)
    made[SUMS][...] = bits  # of float64, which every plan's dtype leaves as they are
    made[COEFFICIENTS][...] = coefficients(setup.family, mode, setup.columns, setup.predictors)
    made[THETA][...] = np.rint(np.clip(mode, -(2.0**14), 2.0**14) * form.ONE)
    made[COVARIANCE][...] = np.clip(inverse(setup, precision), -1e6, 1e6)
    return made


def mode_of(
    setup: Setup, precision: np.ndarray, shift: np.ndarray, rows: Rows, start: np.ndarray
) -> tuple[np.ndarray, Sums]:
    """The mode of a Gaussian times the likelihood of ``rows``, (P,), by Newton's method from ``start``; the sums there.

    Steps are halved where the objective rises.
    """

    def at(theta: np.ndarray) -> tuple[Sums, float]:
        sums = sums_at(setup.family, theta, rows)
        return sums, sums.loss + float(theta @ precision @ theta) / 2 - float(shift @ theta)

    theta, (sums, now) = start, at(start)
    step = np.full_like(theta, np.inf)
    for _ in range(MOST_STEPS):
        step = -solve(setup, sums.hessian + precision, sums.gradient + precision @ theta - shift)
        there, new = at(theta + step)
        while new > now + SLACK * max(1.0, abs(now)) and np.abs(step).max() > STILL:
            step = step / 2
            there, new = at(theta + step)
        theta, sums, now = theta + step, there, new
        if np.abs(step).max() <= STILL:
            break
    return theta, sums


def _read(setup: Setup, model: Arrays) -> Posterior:
    values, free = np.ascontiguousarray(model[SUMS]).view(np.float64), setup.free
    sites = (len(values) - free * free - free - 1) // (free + 1)
    parts = np.split(values, np.cumsum([free * free, free, sites * free, sites]))
    return Posterior(parts[0].reshape(free, free), parts[1], parts[2].reshape(sites, free), *parts[3:])


class LastOfChain(Combiner):
    """Takes the posterior of the last hospital as the global model, which keeps nothing of single hospitals."""

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The one model there is."""
        made = {name: np.array(array[0]) for name, array in updates.stack.items()}
        made[SUMS][...] = 0
        made[STATUS][form.CONVERGED] = 1
        return made
