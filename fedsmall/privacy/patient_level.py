"""Differential privacy for each patient: what a site's local steps must do, and what they cost.

What is promised. The unit is a patient: whoever sees every model that a site sent, and knows all its other patients,
could hardly tell whether this one was among them. That is (epsilon, delta)-differential privacy under add-or-remove of
a sample (where a patient has several samples, of each sample and not of the patient). The number of a site's samples
is not hidden: it decides ``rate`` and the noise, as in every implementation that we know, and so it can be estimated
from the noise. It is not told, but take it to be known.

How. DP-SGD (Abadi et al. 2016, algorithm 1): every sample joins a step's lot with probability ``rate``, independently
of all others and of all other steps; each one's gradient is clipped; noise is added to the sum; the sum is divided by
the lot's *expected* size, which is public, never by the size that came or by the site's number of samples. Epochs that
are shuffled and cut are not such lots, and accounting for them as if they were is an error (Chua et al. 2024).

What is charged: local steps, not contacts. A model that hops, an average, momentum, Adam's moments that travel, a
proximal term, SCAFFOLD's and FedDyn's corrections are computed from noised gradients: post-processing, at no cost. No
amplification by the chain is claimed. The server cannot weaken a site's promise: from ``epsilon`` a site finds the
noise for its own number of samples, which it does not tell.

Where a ``fraction`` of the sites takes part, or fewer ``models`` travel than there are sites, a site counts the steps
of the contacts for which a model is with it. The draw is public (a named stream of the plan's seed), so this is the
exact number, and no amplification by it is claimed.

What it costs in all says :mod:`fedsmall.privacy.accountant`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.travel.journey import journey

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

    def charge(self, steps: int) -> Charge:
        """What that many steps are charged as."""
        return Charge(self.rate, self.noise, steps)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in every number of a gradient."""
        return self.noise * self.clip / self.lot


def is_patient_level(plan: Plan) -> bool:
    """Whether the plan promises privacy to each patient."""
    return plan.method.privacy is not None and plan.method.privacy.level == "patient"


def lot_of(plan: Plan) -> int:
    """The expected samples of a lot. Raises PlanError where the plan does not say."""
    privacy = plan.method.privacy
    assert privacy is not None
    lot = privacy.lot or plan.recipe.batch
    if lot is None:
        raise PlanError('privacy with level = "patient" needs lot, the expected number of samples in a step')
    return lot


def told_samples(plan: Plan, samples: int) -> int:
    """The number of samples that a site tells: its own; under patient-level privacy the lot, which everybody knows."""
    return lot_of(plan) if is_patient_level(plan) else samples


def steps_of(plan: Plan, place: int, sites: int, rounds: int | None = None) -> int:
    """The local steps of a site in the whole plan, or up to round ``rounds``; it takes part where it is drawn."""
    assert plan.recipe.steps is not None
    rounds = plan.rounds if rounds is None else min(rounds, plan.rounds)
    if plan.method.family != "federated" or plan.method.everyone(sites):
        return rounds * plan.recipe.steps
    taken = (contact for contact, at in journey(plan, sites) if place in at)
    return plan.recipe.steps * sum(c.rounds - max(0, c.t - rounds) for c in taken if c.t - c.rounds < rounds)


def check_patient_level(plan: Plan, buffers: Sequence[str] = ()) -> None:
    """Raise PlanError where a plan that promises privacy to patients would break its promise.

    ``buffers`` are the names of the model's running statistics.
    """
    privacy = plan.method.privacy
    lot_of(plan)
    if privacy is not None and (privacy.epsilon or 0) > REACH:
        raise PlanError(f"epsilon = {privacy.epsilon:g} promises patients nothing; give {REACH:,} at most")
    if any("running" in name for name in buffers):
        raise PlanError(
            'BatchNorm mixes the patients of a lot, and its statistics leave without noise; model_options = { norm = "'
            'group" } goes with patient-level privacy'
        )
