"""The routing table: every model's route, which each site works out from the plan alone.

So nobody can steer a model: a site seals to whom the plan says, and all draw the ``route_seed`` by commitments.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.sealing.envelopes import digest
from fedsmall.sealing.masks import committee_size, least_in_sum
from fedsmall.travel.journey import groups_of, journey
from fedsmall.travel.schedule import Action, CommRound

SUMS_A_ROUND = 3  # at most: of models, of what they are worth, and of what they are worth to who has not trained them


@dataclass(frozen=True)
class RoutingTable:
    """The routes of all models of a run of these sites, whose ``names`` are in order."""

    plan: Plan
    names: tuple[str, ...]

    @cached_property
    def comm_rounds(self) -> list[tuple[CommRound, dict[str, int]]]:
        """Every communication round, and which model trains at each site for it."""
        walked = journey(self.plan, len(self.names))
        return [(comm_round, {self.names[site]: k for k, site in enumerate(at.tolist())}) for comm_round, at in walked]

    def number(self, t: int) -> int:
        """The place of round ``t`` among the communication rounds. Raises PlanError where the plan has none then."""
        place = bisect_left(self.comm_rounds, t, key=lambda known: known[0].t)
        if place == len(self.comm_rounds) or self.comm_rounds[place][0].t != t:
            raise PlanError(f"the plan has no communication round after round {t}")
        return place

    def comm_round(self, t: int) -> CommRound:
        """The communication round after round ``t``."""
        return self.comm_rounds[self.number(t)][0]

    def model_at(self, t: int, site: str) -> int:
        """The model that trains at a site for the communication round of round ``t``. PlanError where none does."""
        places = self.comm_rounds[self.number(t)][1]
        if site not in places:
            raise PlanError(f"by the plan {site} trains no model for the communication round of round {t}")
        return places[site]

    def next_site(self, t: int, site: str) -> str | None:
        """Where the model that a site trained for round ``t`` trains next; None after the last communication round."""
        following = self.number(t) + 1
        if following == len(self.comm_rounds):
            return None
        return self.site_of(self.comm_rounds[following][0].t, self.model_at(t, site))

    def site_of(self, t: int, model: int) -> str:
        """The site where a model trains for the communication round of round ``t``."""
        return next(name for name, who in self.comm_rounds[self.number(t)][1].items() if who == model)

    def last_average(self, t: int, through: bool = False) -> int:
        """The round of the last average before round ``t``, or ``through`` it; 0 where there was none."""
        known = self.number(t) + through if t else 0
        averages = [c.t for c, _ in self.comm_rounds[:known] if c.action is Action.AGGREGATE]
        return averages[-1] if averages else 0

    def group(self, t: int, site: str) -> int:
        """The group of the model that trains at a site for round ``t``."""
        method, places = self.plan.method, self.comm_rounds[self.number(t)][1]
        groups = method.group_count(len(self.names))
        if method.by_samples:
            return sum(c.action is Action.AGGREGATE for c, _ in self.comm_rounds[: self.number(t)]) % groups
        return int(groups_of(method, len(places), groups)[self.model_at(t, site)])

    def members(self, t: int, group: int) -> list[str]:
        """The sites whose models of a group train for the communication round of round ``t``, in order."""
        places = self.comm_rounds[self.number(t)][1]
        return sorted(site for site in places if self.group(t, site) == group)

    def summed(self, t: int, group: int, of: str = "") -> list[str]:
        """The sites that a sum of round ``t`` is of, by the plan: those of a group's models, of a tally all."""
        return list(self.names) if of else self.members(t, group)

    def least_in_sum(self, t: int, group: int, of: str = "") -> int:
        """How many sites a sum of round ``t`` must have to be opened; noised ones are of all sites' rows."""
        noised = self.plan.method.shares_noise and not of
        return least_in_sum(len(self.names if noised else self.summed(t, group, of)), noised)

    def decryptors(self, t: int, of: str = "") -> list[str]:
        """The committee that opens the sums of round ``t``, drawn from all sites, whoever trains then."""
        size = committee_size(len(self.names), SUMS_A_ROUND * (self.plan.rounds + 1))
        rng = rng_for(self.plan.travel_seed, *(("helpers", of) if of else ("helpers",)), t)
        return sorted(self.names[k] for k in rng.permutation(len(self.names))[:size].tolist())


def seed_of(nonces: Mapping[str, str], seed: int) -> int:
    """The seed of a run's routes, from the parts that its sites drew and the plan's own seed; below 2**63."""
    return int(digest("routes", seed, sorted(nonces.items())), 16) >> 193
