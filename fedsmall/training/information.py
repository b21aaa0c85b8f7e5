"""How much of each patient's record is in an update: the squares of what a small change of the record moves in it.

With Gaussian noise of standard deviation ``s`` in every number of an update, ``squares / s**2`` is the Fisher
information about the record, averaged over its features (Hannun, Guo & van der Maaten 2021, section 3). Whoever sees
the noised update and knows everything else, the site's other patients among it, errs by 1 / sqrt(information) standard
deviations or more (Cramer & Rao); information adds up over contacts.

The derivatives are taken by training again from the same start with one record changed a little, all changes as one
stack, so they hold for every model, rule and optimizer that a :class:`fedsmall.training.cohort.Cohort` trains.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.plan import Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.trainer import Leg, Seat, Signals
from fedsmall.wire import Arrays, Traveller

EXACT = 64  # features up to which each is changed by itself; beyond, a few random directions stand for all
DIRECTIONS = 8
STEP = 1e-5  # of a change, in standard deviations
BYTES = 2**26  # what the samples of the models that train together may take


def record_squares(
    plan: Plan,
    task: Task,
    site: str,
    samples: Samples,
    start: Traveller,
    leg: Leg,
    signals: Signals,
    rng: np.random.Generator,
) -> np.ndarray:
    """For each patient, |d update / d record|**2 averaged over features, in standard deviations; (patients,), float64.

    Random directions (signs, of which the mean square is the trace) are drawn from ``rng`` where features are many.
    """
    plan = plan.model_copy(update={"dtype": "float64"})
    x = samples.x.astype(np.float64)
    directions = _directions(x[0].size, rng)
    changes = [(patient, direction) for patient in range(len(x)) for direction in range(len(directions))]
    unit = float(x.std()) or 1.0
    squares = np.zeros(len(x))
    base = _updates(plan, task, site, [samples], start, leg, signals)[0]
    for part in _parts(changes, x.nbytes + 2 * base.nbytes):
        changed = [_changed(samples, x, patient, STEP * unit * directions[direction]) for patient, direction in part]
        moved = (_updates(plan, task, site, changed, start, leg, signals) - base) / STEP
        np.add.at(squares, [patient for patient, _ in part], np.square(moved).sum(axis=1))
    squares /= (directions**2).sum()
    return squares


def _directions(features: int, rng: np.random.Generator) -> np.ndarray:
    if features <= EXACT:
        return np.eye(features)
    return rng.choice([-1.0, 1.0], size=(DIRECTIONS, features))


def _changed(samples: Samples, x: np.ndarray, patient: int, change: np.ndarray) -> Samples:
    x = x.copy()
    x[patient] += change.reshape(x[patient].shape)
    return replace(samples, x=x)


def _parts(changes: list[tuple[int, int]], each: int) -> Iterator[list[tuple[int, int]]]:
    size = max(1, BYTES // each)
    for first in range(0, len(changes), size):
        yield changes[first : first + size]


def _updates(
    plan: Plan, task: Task, site: str, samples: list[Samples], start: Traveller, leg: Leg, signals: Signals
) -> np.ndarray:
    """The parameters that training from ``start`` on each of the samples gives, (len(samples), numbers)."""
    count = len(samples)
    trainer = Cohort(plan, task, [site] * count, samples, seat=Seat((0,) * count, 1))
    stack = trainer.stack([Traveller(_doubled(start.model), _doubled(start.carried))] * count)
    memory = {name: np.repeat(array, count, axis=0) for name, array in signals.memory.items()}
    flags = None if signals.common is None else np.repeat(np.asarray(signals.common), count)
    trainer.walk(
        stack, [leg._replace(sites=np.arange(count))], replace(signals, memory=memory, common=flags, losses=False)
    )
    numbers: np.ndarray = torch.cat([tensor.double().flatten(1) for tensor in stack.parameters.values()], 1).numpy()
    return numbers


def _doubled(arrays: Arrays) -> Arrays:
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in arrays.items()}
