"""How much of a record is in an update, and the noise that keeps it within a budget.

With Gaussian noise of standard deviation ``s`` in every number of an update, ``squares / s**2`` is the Fisher
information about a record, averaged over its features, where ``squares`` are those of what a small change of the record
moves in the update (Hannun, Guo & van der Maaten 2021, section 3). Whoever sees the noised update and knows everything
else, the site's other patients among it, errs by 1 / sqrt(information) standard deviations or more (Cramer & Rao);
information adds up over communication rounds, and over runs.

The derivatives are taken by training again from the same start with one record changed a little, all changes as one
stack, so they hold for every network, rule and optimizer that a :class:`fedsmall.training.cohort.Cohort` trains.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.plan import Plan
from fedsmall.privacy.discrete_gaussian import add_noise, system_words
from fedsmall.privacy.site_level import noise_for_comm_round
from fedsmall.randomness import rng_for
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import Indices, Phase, TrainInput, TrainResult, WrappedTrainer, phase_at
from fedsmall.travel.schedule import comm_rounds_of

EXACT = 32  # features up to which each is changed by itself; beyond, as many random directions stand for all
MARGIN = 1.5  # by which their mean is raised: where one direction tells all, it is too small at one round of thirteen
STEP = 1e-9  # of a change, in standard deviations: so small that next to no unit is switched on or off by it
BYTES = 2**26  # what the samples and the models that train together may take


class Change(NamedTuple):
    """A record that is changed a little: of which row of the stack, whose, and by how much in each feature."""

    row: int
    patient: int
    direction: np.ndarray


class BudgetedCohort(WrappedTrainer):
    """A cohort whose models leave with so much noise that no record is told better than the plan's budget allows.

    The budget is shared out evenly over the communication rounds of the patient who is in most batches, so nothing need
    be remembered; no order gains. ``of_sites`` are the cohort's samples; noise is the system's where ``secret``.
    """

    def __init__(self, cohort: Cohort, of_sites: Sequence[Samples], secret: bool) -> None:
        super().__init__(cohort.plan, cohort.names, cohort.samples, cohort)
        self._cohort, self._of_sites, self._secret = cohort, tuple(of_sites), secret
        self._phases = {c.t: phase_at(self.plan, [0], c.t, c.rounds) for c in comm_rounds_of(self.plan) if c.travels}
        self._shares: dict[int, float] = {}

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`, of one phase: every communication round is by itself where models are noised."""
        (phase,) = phases
        start = stack.clone()
        trained = self._cohort.walk(stack, phases, inputs)
        if not phase.leaves:
            return trained
        names, samples = ([every[site] for site in phase.sites] for every in (self.names, self._of_sites))
        memory = {name: array[phase.sites] for name, array in inputs.memory.items()}
        inputs = replace(inputs, memory=memory)
        patients = [self._cohort.taken(site, phase) for site in phase.sites.tolist()]
        squares = record_squares(self.plan, self.task, names, samples, patients, start, phase, inputs, self._secret)
        for row, square in enumerate(squares.max(axis=1).tolist()):
            deviation = deviation_for(square, self.exposure_of_comm_round(int(phase.sites[row])))
            noise = system_words if self._secret else noise_for_comm_round(self.plan.seed, names[row], phase.t)
            for name, tensor in sorted(stack.parameters.items()):
                before = start.parameters[name][row].double().cpu().numpy()
                moved = add_noise(tensor[row].double().cpu().numpy() - before, deviation, noise)
                tensor[row] = torch.from_numpy(before + moved).to(tensor)
        return trained

    def exposure_of_comm_round(self, site: int) -> float:
        """The most that a site's communication round tells of a record that it holds; of others it tells nothing."""
        assert self.plan.privacy.exposure is not None
        if site not in self._shares:
            self._shares[site] = self.plan.privacy.exposure / max(1, self._most_comm_rounds(site, list(self._phases)))
        return self._shares[site]

    def exposure_after(self, site: int, rounds: Sequence[int]) -> float:
        """The most that the updates after these ``rounds``, some more than once, have told of a record."""
        return self._most_comm_rounds(site, rounds) * self.exposure_of_comm_round(site)

    def _most_comm_rounds(self, site: int, rounds: Sequence[int]) -> int:
        """In how many of these updates the patient is who is in most: batches are public, by the plan's seed."""
        counts = np.zeros(self.samples[site], dtype=np.int64)
        for t in rounds:
            counts[self._cohort.taken(site, self._phases[t])] += 1
        return int(counts.max())


def deviation_for(square: float, exposure: float) -> float:
    """The noise's deviation: the power of two at or above the least that keeps within ``exposure``.

    The size of noise shows in what leaves, to one part in sqrt(2 numbers). One that followed records told more of them
    than the models do (tests/fedsmall/training/test_information.py).
    """
    least = math.sqrt(square / exposure)
    return least if least == 0 or not math.isfinite(least) else 2.0 ** math.ceil(math.log2(least))


def record_squares(
    plan: Plan,
    task: Task,
    names: Sequence[str],
    samples: Sequence[Samples],
    patients: Sequence[np.ndarray],
    start: Stack,
    phase: Phase,
    inputs: TrainInput,
    secret: bool = False,
) -> np.ndarray:
    """|d update / d record|**2 averaged over features, in standard deviations of the inputs: (rows, most patients).

    Row k of ``start`` trains on ``samples[k]`` of the site ``names[k]``, of whom it sees the numbers ``patients[k]`` at
    most; of others an update tells nothing. ``inputs.memory`` holds a row each. Beyond :data:`EXACT` features it is
    the mean over random signs, of which the trace is the mean; they are the system's where ``secret``.
    """
    wide = plan.model_copy(update={"dtype": "float64", "method": plan.method.model_copy(update={"privacy": None})})
    changes = list(_changes(plan, names, samples, patients, phase.t, secret))
    squares = np.zeros((len(samples), max(map(len, samples))))
    base = _updates(wide, task, names, samples, range(len(samples)), start, phase, inputs)
    units = [float(part.x.std()) or 1.0 for part in samples]
    size = max(1, BYTES // (max(part.x.size for part in samples) * 8 + 2 * base[0].nbytes))
    for first in range(0, len(changes), size):
        part = changes[first : first + size]
        changed = [_with_change(samples[c.row], c, STEP * units[c.row]) for c in part]
        rows = [change.row for change in part]
        moved = (
            _updates(wide, task, [names[row] for row in rows], changed, rows, start, phase, inputs) - base[rows]
        ) / STEP
        for change, square in zip(part, np.square(moved).sum(axis=1), strict=True):
            squares[change.row, change.patient] += square / np.square(change.direction).sum()
    features = samples[0].x[0].size
    squares *= MARGIN / EXACT if features > EXACT else 1 / features
    return squares


def _changes(
    plan: Plan, names: Sequence[str], samples: Sequence[Samples], patients: Sequence[np.ndarray], t: int, secret: bool
) -> Iterator[Change]:
    for row, (name, part, taken) in enumerate(zip(names, samples, patients, strict=True)):
        features = part.x[0].size
        directions = np.eye(features)
        if features > EXACT:
            rng = np.random.default_rng() if secret else rng_for(plan.seed, "changes", name, t)
            directions = rng.choice([-1.0, 1.0], size=(EXACT, features))
        yield from (Change(row, patient, direction) for patient in taken.tolist() for direction in directions)


def _with_change(samples: Samples, change: Change, length: float) -> Samples:
    x = samples.x.astype(np.float64)
    x[change.patient] += length * change.direction.reshape(x[change.patient].shape)
    return Samples(x, samples.y, pooled=samples.pooled)


def _updates(
    plan: Plan,
    task: Task,
    names: Sequence[str],
    samples: Sequence[Samples],
    rows: Sequence[int],
    start: Stack,
    phase: Phase,
    inputs: TrainInput,
) -> np.ndarray:
    """The parameters after training from these rows of ``start``, (len(rows), numbers), float64."""
    index = np.asarray(rows)
    trainer = Cohort(plan, task, names, samples, indices=Indices((0,) * len(names), 1))
    stack = start.rows(index)
    for part in (stack.parameters, stack.buffers, stack.optimizer):
        part.update({name: t.cpu().double() if t.is_floating_point() else t.cpu() for name, t in part.items()})
    inputs = replace(
        inputs,
        memory={name: array[index] for name, array in inputs.memory.items()},
        is_global=None if inputs.is_global is None else np.asarray(inputs.is_global)[index],
        losses=False,
    )
    trainer.walk(stack, [phase._replace(sites=np.arange(len(index)))], inputs)
    numbers: np.ndarray = torch.cat([t.flatten(1) for t in stack.parameters.values()], 1).cpu().numpy()
    return numbers
