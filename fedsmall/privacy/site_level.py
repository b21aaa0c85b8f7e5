"""Clip and noise on what leaves a site, and the ledger of what that has cost.

The unit is a whole site: whoever sees every model that a site sent could hardly tell whether it had trained or had sent
back the models that it received: (epsilon, delta)-differential privacy where neighbours differ by one site's updates,
zero in one of the two. (For exchange of a site's data for any other, the sensitivity doubles: halve ``noise``.) A model
that hops is seen by the next site, so *every communication round is a release*, and what later sites do to it is
post-processing. No amplification is claimed, by shuffling or by the draw of a ``fraction`` of the sites: the ledger is
that of a site that took part every time; a real site counts its own releases.

What is sent without noise holds nothing of the site: running statistics and counters go back as they were received;
moments that travel and controls are refused (:mod:`fedsmall.features`); the training loss stays. Sample and step counts
are taken to be public, and metrics on held-out samples are outside the guarantee. Source: Geyer, Klein & Nabi 2017,
"Differentially private federated learning: a client level perspective", where the server adds the noise to a sum.

Blur, in place of the ledger's noise, has standard deviation ``kappa`` * |update| / sqrt(numbers). Over the sites it
averages out; in a division of two numbers of one site (:mod:`fedsmall.privacy.reading`) it does not. It claims no
epsilon: it hides records, not membership, and who sees many updates of the same patients can average it away. It can
feed on itself: at ``kappa`` = 1 we have not seen that, at 2 with a large learning rate.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedsmall.aggregation.server_optimizers import parameters_of
from fedsmall.errors import PlanError
from fedsmall.parts import Privacy
from fedsmall.plan import Method, Plan
from fedsmall.privacy.discrete_gaussian import Noise, add_noise, keyed_words, widened
from fedsmall.randomness import rng_for
from fedsmall.wire import Arrays, first_of, is_buffer, stack_of_one

HIDES = 1.0  # the exposure up to which nobody can tell a record to within a standard deviation
PROMISE = 10.0  # the epsilon above which a promise to patients is none
SHRINK = 10.0  # a running variance falls to no less than this part at one round: noise could bring it to zero


def as_blur(privacy: Privacy, numbers: int) -> float:
    """The ``kappa`` that a plan's privacy is at least as much as, for a model of so many ``numbers``.

    Clipped updates are no longer than the clip, so noise of deviation noise * clip is at least blur of noise *
    sqrt(numbers). Of one patient the same holds; an epsilon of :data:`PROMISE` or less is better than any blur.
    """
    if privacy.epsilon is not None:
        return math.inf if privacy.epsilon <= PROMISE else 0.0
    if privacy.exposure is not None:
        return math.inf if privacy.exposure <= HIDES else 0.0
    return privacy.noise * numbers**0.5 if privacy.blur is None else privacy.blur


def add_blur(sent: Arrays, received: Arrays, kappa: float, noises: Sequence[Noise]) -> Arrays:
    """The models that may leave: what was ``sent`` plus noise of deviation ``kappa`` * |update| / sqrt(numbers).

    Arrays are (models, ...), ``noises`` one source a model. Running statistics have their own size; integers stay.
    """
    if kappa == 0:
        return sent
    floats = [name for name in sorted(sent) if np.issubdtype(sent[name].dtype, np.floating)]
    weights = [name for name in floats if not is_buffer(name)]
    out = {name: array.copy() for name, array in sent.items() if name not in floats}
    for names in (weights, [name for name in floats if name not in weights]):
        if names:
            out |= _with_noise({name: sent[name] for name in names}, received, kappa, noises)
    for name in floats:
        if name.endswith("running_var"):
            out[name] = np.maximum(out[name], received[name] / SHRINK).astype(sent[name].dtype)
    return {name: out[name] for name in sent}


def _with_noise(sent: Arrays, received: Arrays, kappa: float, noises: Sequence[Noise]) -> Arrays:
    models, sizes = len(noises), [array[0].size for array in sent.values()]
    moves = [np.subtract(array, received[name], dtype=np.float64) for name, array in sent.items()]
    update = np.concatenate([move.reshape(models, -1) for move in moves], axis=1)  # (models, numbers)
    norms = np.linalg.norm(update, axis=1)
    steps = _add_noise(update, kappa * norms / sum(sizes) ** 0.5, noises)
    return {
        name: (received[name] + step.reshape(array.shape)).astype(array.dtype)
        for (name, array), step in zip(sent.items(), np.split(steps, np.cumsum(sizes)[:-1], axis=1), strict=True)
    }


def _add_noise(updates: np.ndarray, deviations: np.ndarray, noises: Sequence[Noise]) -> np.ndarray:
    """Noise of each row's own deviation and source on (models, numbers)."""
    return np.stack([add_noise(*row) for row in zip(updates, deviations.tolist(), noises, strict=True)])


def hands_on(method: Method, sites: int, least: int = 2) -> bool:
    """Whether sites are sent models that fewer than ``least`` others made: handed on, or averages over so few."""
    averaged = min(method.averaged(sites), sites if method.divergence is None else 2)  # two may be balanced
    joined = method.boosting is not None and not method.boosting.histogram  # all see whose trees are whose
    return method.is_federated and (method.permute_every is not None or averaged < least or joined)


def noise_for_comm_round(seed: int, site: str, t: int, key: bytes | None = None) -> Noise:
    """Where a site's noise at communication round ``t`` comes from.

    A simulation names the stream alone, and repeats. A real site must pass a secret ``key``, or others draw it too.
    """
    return rng_for(seed, "noise", site, t) if key is None else keyed_words(key + t.to_bytes(8))


def privatise(sent: Arrays, received: Arrays, privacy: Privacy, noises: Sequence[Noise]) -> Arrays:
    """The models that may leave: each update clipped to norm ``clip``, plus noise of deviation ``noise * clip``.

    Arrays have shape (models, ...); ``noises`` holds one source a model. The update is what was sent minus what was
    received, over all float parameters together. Buffers and integers are those received: they depend on the site's
    samples and the ledger does not cover them. Blurs instead where the plan asks for it.
    """
    if privacy.exposure is not None:
        return sent  # what trains has noised it, for it can train again with a record changed
    if privacy.clip is None:
        return add_blur(sent, received, privacy.blur or 0.0, noises)
    names = sorted(parameters_of(sent))
    update = np.concatenate(  # (models, parameters)
        [(sent[name].astype(np.float64) - received[name]).reshape(len(noises), -1) for name in names], axis=1
    )
    update *= privacy.clip / np.maximum(np.linalg.norm(update, axis=1, keepdims=True), privacy.clip)
    if privacy.noise:
        deviation = widened(privacy.clip, privacy.noise, update.shape[1])
        update = _add_noise(update, np.full(len(noises), deviation), noises)
    steps = np.split(update, np.cumsum([received[name][0].size for name in names])[:-1], axis=1)
    out = dict(received)
    for name, step in zip(names, steps, strict=True):
        out[name] = (received[name] + step.reshape(received[name].shape)).astype(sent[name].dtype)
    return {name: out[name] for name in sent}


def privatise_one(sent: Arrays, received: Arrays, privacy: Privacy, noise: Noise) -> Arrays:
    """:func:`privatise` for one model, as at a hospital: arrays without the leading axis."""
    return first_of(privatise(stack_of_one(sent), stack_of_one(received), privacy, [noise]))


def tells_loss(plan: Plan) -> bool:
    """Whether a site may tell the loss of its training: a number of its patients to which no noise is added."""
    return plan.privacy.open and not plan.privacy.hidden


@lru_cache(maxsize=4096)
def epsilon(noise: float, delta: float, releases: int) -> float:
    """The epsilon at ``delta`` of that many releases with noise multiplier ``noise``, by the Renyi accountant."""
    if releases == 0:
        return 0.0
    if noise == 0:
        return float("inf")
    from dp_accounting import dp_event  # takes its time, and most that know this module do not count
    from dp_accounting.rdp import RdpAccountant

    return float(RdpAccountant().compose(dp_event.GaussianDpEvent(noise), releases).get_epsilon(delta))


class Ledger:
    """What a run has spent of its privacy budget, at the level of one site; ``releases`` are those of earlier."""

    def __init__(self, privacy: Privacy, releases: int = 0):
        self.privacy = privacy
        self.releases = releases

    def epsilon_after(self, releases: int) -> float:
        """The epsilon that ``releases`` communication rounds in all would have cost."""
        return epsilon(self.privacy.noise, self.privacy.delta, releases)

    @property
    def spent(self) -> float:
        """The epsilon so far."""
        return self.epsilon_after(self.releases)

    def allows(self, comm_rounds: int = 1) -> bool:
        """Whether that many further communication rounds stay within the budget."""
        budget = self.privacy.budget
        return budget is None or self.epsilon_after(self.releases + comm_rounds) <= budget

    def charge(self) -> None:
        """Count one communication round. Raises PlanError where the budget forbids it: the run must stop before."""
        if not self.allows():
            raise PlanError(
                f"the privacy budget of epsilon {self.privacy.budget:g} is spent: {self.releases} communication rounds "
                f"cost {self.spent:.3g}, one more would cost {self.epsilon_after(self.releases + 1):.3g}"
            )
        self.releases += 1

    def affordable(self) -> int | None:
        """How many communication rounds the budget allows in all, or None where it sets no limit."""
        if self.privacy.budget is None:
            return None
        high = 1
        while self.epsilon_after(high) <= self.privacy.budget:
            high *= 2
        return bisect_right(range(high), self.privacy.budget, key=self.epsilon_after) - 1

    def report(self) -> dict[str, float]:
        """The ledger's last line, for a run's record."""
        return {"epsilon": self.spent, "delta": self.privacy.delta, "releases": self.releases}


def check_private(plan: Plan, comm_rounds: int, buffers: Sequence[str] = ()) -> None:
    """Raise PlanError where a plan with privacy would send something without noise, or would overspend.

    ``comm_rounds`` is how often models leave a site; ``buffers`` the names of the model's running statistics.
    """
    if not plan.privacy.at_comm_rounds:
        return
    if not plan.privacy.blur and any("running" in name for name in buffers):
        raise PlanError("BatchNorm's running statistics would leave without noise; use GroupNorm with privacy")
    privacy = plan.privacy
    if privacy.budget is None:
        return
    if privacy.noise == 0:
        raise PlanError(
            "a privacy budget needs noise above 0: without it the first communication round costs infinitely much"
        )
    ledger = Ledger(privacy)
    if not ledger.allows(comm_rounds):
        raise PlanError(
            f"{comm_rounds} communication rounds with noise {privacy.noise:g} cost epsilon "
            f"{ledger.epsilon_after(comm_rounds):.3g} at delta {privacy.delta:g}, more than the budget of "
            f"{privacy.budget:g}; it allows {ledger.affordable()} "
            "communication rounds. Take fewer or more noise"
        )
