"""The world of an audit: a scenario's data, in which each candidate is in a run's training data by a coin of its own.

Coins are independent, so that the one-run bound (Steinke et al. 2023) holds. Routes, initial model and the candidates'
records are known to every attacker; who was in is not.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.federation import Federation, Samples, Task
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.tasks import build_federation
from fedsmall.validation import check_run

MOST_CANDIDATES = 64  # at a site; more tell nothing more and cost memory


@dataclass(frozen=True)
class World:
    """The sites' records: ``fixed`` ones are in every run, ``candidates`` in half of them.

    ``expected`` is how many samples a site has on average in the scenario, ``mean`` in the world: alike where the
    source has records to spare.
    """

    plan: Plan
    task: Task
    names: tuple[str, ...]
    fixed: tuple[Samples, ...]
    candidates: tuple[Samples, ...]
    expected: float

    @property
    def sizes(self) -> np.ndarray:
        """How many candidates each site has, (sites,)."""
        return np.array([len(some) for some in self.candidates])

    @property
    def site_of(self) -> np.ndarray:
        """The site of each candidate, (candidates,)."""
        return np.repeat(np.arange(len(self.names)), self.sizes)

    @property
    def mean(self) -> float:
        """Samples a site trains on, on average."""
        return float(np.mean([len(some) for some in self.fixed])) + float(self.sizes.mean()) / 2

    def under(self, plan: Plan) -> "World":
        """The same world for another method over the same data. PlanError where these sites cannot run it."""
        check_run(plan, self._federation(plan))
        return replace(self, plan=plan)

    def _federation(self, plan: Plan) -> Federation:
        everyone = np.ones(int(self.sizes.sum()), dtype=bool)
        return Federation(self.task, self.names, tuple(self.samples(everyone)), self.fixed[0])

    def coins(self, run: int) -> np.ndarray:
        """Who is in the data of a run, (candidates,) of bool."""
        return np.asarray(rng_for(self.plan.seed, "audit", "in", run).random(int(self.sizes.sum())) < 0.5)

    def samples(self, members: np.ndarray) -> list[Samples]:
        """The training samples of every site where ``members`` (candidates,) are in."""
        cuts = np.split(members, np.cumsum(self.sizes)[:-1])
        return [
            Samples(np.concatenate([fixed.x, some.x[taken]]), np.concatenate([fixed.y, some.y[taken]]))
            for fixed, some, taken in zip(self.fixed, self.candidates, cuts, strict=True)
        ]


def world_of(plan: Plan, data_root: Path | None = None) -> World:
    """The world of a plan's data. PlanError where they cannot be dealt so, or its sites have models of their own."""
    if has_own_models(plan):
        raise PlanError("the audit attacks models that all sites share; these sites have models of their own")
    federation, expected = _dealt(plan, data_root)
    check_run(plan, federation)
    fixed, candidates = [], []
    for place, site in enumerate(federation.names):
        own, held = federation.train[place], federation.held_out[place] if federation.held_out else None
        everything = own if held is None or not len(held) else _joined(own, held)
        trained = len(own) if expected is None else expected
        order = rng_for(plan.seed, "audit", "deal", site).permutation(len(everything))
        stay, toss = split(len(everything), trained)
        fixed.append(_some(everything, order[:stay]))
        candidates.append(_some(everything, order[stay : stay + toss]))
    if not sum(map(len, candidates)):
        raise PlanError("every site has one sample only and the source none to spare: nobody can be left out")
    mean = float(np.mean([len(own) for own in federation.train])) if expected is None else float(expected)
    return World(plan, federation.task, federation.names, tuple(fixed), tuple(candidates), mean)


def split(available: int, trained: int) -> tuple[int, int]:
    """How many of a site's samples are fixed, and how many candidates, so that it trains on ``trained`` on average.

    At least one is fixed, for a site cannot train on nothing. Where there are none to spare, half are candidates, and
    the site trains on fewer than it would.
    """
    spare = min(available - trained, MOST_CANDIDATES // 2, max(trained - 1, 1))
    if spare <= 0:
        toss = min(available // 2, MOST_CANDIDATES)
        return available - toss, toss
    stay = max(trained - spare, 1)
    return stay, min(2 * spare, available - stay)


def _dealt(plan: Plan, data_root: Path | None) -> tuple[Federation, int | None]:
    """Sites with samples to spare where the source has them, and how many each is to train on (None: as it has)."""
    wanted = plan.samples_per_site
    if wanted is not None:
        for spare in range(max(wanted - 1, 1), 0, -1):
            larger = plan.model_copy(update={"samples_per_site": wanted + spare})
            with suppress(PlanError):  # else fewer to spare
                return build_federation(larger, data_root), wanted
    return build_federation(plan, data_root), wanted


def _joined(one: Samples, other: Samples) -> Samples:
    return Samples(np.concatenate([one.x, other.x]), np.concatenate([one.y, other.y]))


def _some(samples: Samples, rows: np.ndarray) -> Samples:
    return Samples(samples.x[rows], samples.y[rows])
