"""Differential privacy for each patient: what a site's local steps must do, and what they cost.

The unit is a patient: whoever sees every model that a site sent, and knows all its other patients, could hardly tell
whether this one was among them: (epsilon, delta)-differential privacy under add-or-remove of a patient. One with k
samples counts as one (:func:`shares_of`): each gives a k-th of its clipped gradient. Some of them are in a lot with
probability 1 - (1 - rate)**k, at which it is charged, for the largest k (gradients of fewer are shorter: divergences
are convex). A site's number of samples and its largest k are not hidden: they decide the noise.

DP-SGD (Abadi et al. 2016, algorithm 1): every sample joins a step's lot with probability ``rate``, independently; each
one's gradient is clipped; noise is added to the sum; the sum is divided by the lot's *expected* size, which is public.
Epochs that are shuffled and cut are not such lots (Chua et al. 2024). Local steps are charged, not communication
rounds, by the privacy loss distributions of Google's dp-accounting; no amplification is claimed, by the chain or by who
takes part. From ``epsilon`` a site finds the noise for its own number of samples, so the server cannot weaken its
promise. Lots and noise are drawn from named streams in a simulation, from the operating system at a real site.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsmall.data.federation import Samples
from fedsmall.data.sources.pool import Part
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.privacy.discrete_gaussian import discrete_gaussian, system_words, widened
from fedsmall.randomness import rng_for
from fedsmall.travel.journey import journey

if TYPE_CHECKING:  # both take seconds to import, and most that know this module use neither
    from dp_accounting import dp_event
    from torch import Tensor

REACH = 1000  # the largest epsilon that is counted: above some ten it promises little, above this nothing


class Charge(NamedTuple):
    """So many ``steps`` of lots at sampling ``rate``, with noise multiplier ``noise``."""

    rate: float
    noise: float
    steps: int


class Protection(NamedTuple):
    """What a site's local steps do: ``lot`` is the expected size of a lot and what sums are divided by."""

    rate: float
    noise: float
    lot: int
    clip: float
    least: float = 1.0  # share of a sample

    def charge(self, steps: int) -> Charge:
        """What that many steps are charged as."""
        rate = self.rate if self.least == 1 else 1 - (1 - self.rate) ** round(1 / self.least)
        return Charge(rate, self.noise, steps)

    def deviation(self, numbers: int) -> float:
        """The standard deviation of the noise in every one of a gradient's ``numbers``, which are rounded to a grid."""
        return widened(self.clip / self.lot, self.noise, numbers)


def shares_of(samples: Samples | Part) -> np.ndarray:
    """What each sample counts, (samples,): all of a patient's together count as one."""
    if samples.patients is None:
        return np.ones(len(samples))
    _, whose, counts = np.unique(samples.patients, return_inverse=True, return_counts=True)
    return np.asarray(1 / counts[whose])


def lot_of(plan: Plan) -> int:
    """The expected samples of a lot. Raises PlanError where the plan does not say."""
    lot = plan.privacy.lot or plan.recipe.batch
    if lot is None:
        raise PlanError('privacy with level = "patient" needs lot, the expected number of samples in a step')
    return lot


def reported_samples(plan: Plan, samples: int) -> int:
    """The number of samples that a site tells: its own; under patient-level privacy the lot, which everybody knows."""
    return lot_of(plan) if plan.privacy.is_patient_level else samples


def steps_of(plan: Plan, place: int, sites: int, rounds: int | None = None) -> int:
    """The local steps of a site in the whole plan, or up to round ``rounds``; it takes part where it is drawn."""
    assert plan.recipe.steps is not None
    rounds = plan.rounds if rounds is None else min(rounds, plan.rounds)
    if not plan.method.is_federated or plan.method.everyone(sites):
        return rounds * plan.recipe.steps
    taken = (comm_round for comm_round, at in journey(plan, sites) if place in at)
    return plan.recipe.steps * sum(c.rounds - max(0, c.t - rounds) for c in taken if c.t - c.rounds < rounds)


def check_patient_level(plan: Plan, buffers: Sequence[str] = ()) -> None:
    """Raise PlanError where a plan would break its promise to patients; ``buffers`` are names of running statistics."""
    lot_of(plan)
    if (plan.privacy.epsilon or 0) > REACH:
        raise PlanError(f"epsilon = {plan.privacy.epsilon:g} promises patients nothing; give {REACH:,} at most")
    if any("running" in name for name in buffers):
        raise PlanError(
            'BatchNorm mixes the patients of a lot, and its statistics leave without noise; model_options = { norm = "'
            'group" } goes with patient-level privacy'
        )


GRID = 1e-3  # of the privacy loss: five times quicker than the library's 1e-4, and dearer by less than a thousandth
CLOSE = 1e-3  # how near a multiplier's epsilon comes to the one that is asked for, from below
ORDERS = (2, 4, 8, 16, 32, 64)  # of Renyi's divergence: enough for a bound that says which noise is far too small


def protection_of(plan: Plan, own: np.ndarray, place: int, sites: int, pooled: int = 1) -> Protection:
    """What the local steps of the site at ``place`` of ``sites``, in the order of names, do for its patients.

    ``own`` are its samples' shares (:func:`shares_of`); the lot grows by how many sites' samples are ``pooled`` here.
    """
    privacy, lot = plan.privacy, lot_of(plan) * pooled
    assert privacy.clip is not None
    rate = min(1.0, lot / max(len(own), 1))
    guard = Protection(rate, privacy.noise, lot, privacy.clip, float(own.min(initial=1.0)))
    if privacy.epsilon is None:
        return guard
    charge = guard.charge(steps_of(plan, place, sites))
    return guard._replace(noise=noise_for(privacy.epsilon, privacy.delta, charge.rate, charge.steps))


def check_noise(plan: Plan, own: Mapping[int, np.ndarray], sites: int) -> None:
    """Raise PlanError where a plan's own noise is so small that what it costs is out of the accountant's reach.

    ``own`` are the shares of each site's samples, by its place; nothing of them is in the message.
    """
    privacy = plan.privacy
    if not privacy.is_patient_level or privacy.epsilon is not None:
        return
    for place, shares in own.items():
        steps = steps_of(plan, place, sites)
        if _is_out_of_reach(protection_of(plan, shares, place, sites).charge(steps), privacy.delta):
            raise PlanError(
                f"noise = {privacy.noise:g} is too small for {steps} steps at delta {privacy.delta:g}: epsilon above "
                f"{REACH:,} is no promise, and is not counted. {_enough_noise(steps, privacy.delta):.2g} is always "
                "enough for that; or say epsilon, for which every site finds its noise"
            )


def _is_out_of_reach(charge: Charge, delta: float) -> bool:
    if charge.steps == 0 or charge.noise >= _enough_noise(charge.steps, delta):
        return False
    from dp_accounting.rdp import RdpAccountant

    return bool(RdpAccountant(ORDERS).compose(event_of(charge), charge.steps).get_epsilon(delta) > REACH)


def _enough_noise(steps: int, delta: float) -> float:
    """The noise with which so many steps cost at most REACH, whatever the rate: Mironov 2017, proposition 3, at 1."""
    tail = 2 * math.log(1 / delta)
    return math.sqrt(steps) / (math.sqrt(tail + 2 * REACH) - math.sqrt(tail))


def epsilon_of(charges: Iterable[Charge], delta: float) -> float:
    """The epsilon at ``delta`` of all the charges together; 0 for none."""
    steps: dict[tuple[float, float], int] = {}
    for charge in charges:
        steps[charge[:2]] = steps.get(charge[:2], 0) + charge.steps
    return _epsilon(tuple(sorted(Charge(*key, count) for key, count in steps.items() if count)), delta)


@lru_cache(maxsize=4096)
def _epsilon(charges: tuple[Charge, ...], delta: float) -> float:
    if not charges:
        return 0.0
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=GRID)
    for charge in charges:
        accountant.compose(event_of(charge), charge.steps)
    return float(accountant.get_epsilon(delta))


def event_of(charge: Charge) -> "dp_event.DpEvent":
    """One step of a charge, in the accounting library's words."""
    from dp_accounting import dp_event

    gaussian = dp_event.GaussianDpEvent(charge.noise)
    return gaussian if charge.rate >= 1 else dp_event.PoissonSampledDpEvent(charge.rate, gaussian)


@lru_cache(maxsize=4096)
def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The least noise multiplier, to one in a thousand, with which so many steps cost ``epsilon`` at ``delta`` or less.

    Raises PlanError where an epsilon is out of the accountant's reach.
    """
    if steps == 0:
        return 1.0
    # many small steps together are nearly one Gaussian, which gives a start; epsilon falls as a power of the noise
    goal, low, high = math.log((1 - CLOSE / 2) * epsilon), -math.inf, math.inf
    middle, slope = math.log(max(rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / epsilon, 0.4)), -1.2
    before: tuple[float, float] | None = None
    for _ in range(60):
        spent = _epsilon((Charge(rate, math.exp(middle), steps),), delta)
        if (1 - CLOSE) * epsilon <= spent <= epsilon:
            return math.exp(middle)
        low, high = (middle, high) if spent > epsilon else (low, middle)
        off = math.log(spent) - goal
        if before is not None and before[0] != middle:
            slope = min((off - before[1]) / (middle - before[0]), -0.1)
        before, guess = (middle, off), middle - off / slope
        middle = guess if low < guess < high else (max(low, high - 2) + min(high, low + 2)) / 2
    raise PlanError(f"no noise gives epsilon {epsilon:g} at delta {delta:g} in {steps} steps; take fewer rounds")


class NamedChance:
    """A site's draws in a round that the seed, the site and the round name: of a simulation."""

    def __init__(self, seed: int, site: str, t: int) -> None:
        import torch

        rng = rng_for(seed, "lots and noise", site, t)
        # torch fills at twice numpy's speed, and noise is what a step under privacy costs; 32 bits of its seed count,
        # which is no matter where nothing is secret
        self._noise = torch.Generator().manual_seed(int(rng.integers(2**32)))
        self._lots = rng

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in [0, 1), (count,)."""
        return self._lots.random(count)

    def multiples(self, count: int, ratio: float) -> "Tensor":
        """Whole numbers of standard deviation ``ratio``, which is large, (count,), float64."""
        import torch

        return torch.empty(count).normal_(generator=self._noise).double().mul_(ratio).round_()


class SystemChance:
    """Draws of the operating system's cryptographic generator, for a real site; noise is a discrete Gaussian's."""

    def uniform(self, count: int) -> np.ndarray:
        """As :meth:`NamedChance.uniform`."""
        return (system_words(count) >> np.uint64(11)) * 2.0**-53

    def multiples(self, count: int, ratio: float) -> "Tensor":
        """As :meth:`NamedChance.multiples`."""
        import torch

        return torch.from_numpy(discrete_gaussian(count, ratio, system_words).astype(np.float64))


Chance = NamedChance | SystemChance


def chance_for(seed: int, site: str, t: int, secret: bool) -> Chance:
    """The draws of a site in a round; ``secret`` ones, of a real site, are never the same again."""
    return SystemChance() if secret else NamedChance(seed, site, t)
