"""Which sites a travelling model has been at: expected numbers, and walks that are simulated.

Where models are handed on at random, every stay of one model is at a uniformly random site, and visiting sites is
collecting coupons: of m sites, the first k different ones take m * (H_m - H_(m - k)) stays on average, where H_i is the
i-th harmonic number.
"""

from dataclasses import dataclass
from itertools import count
from math import fsum

import numpy as np

from fedsmall.errors import PlanError


def expected_draws(sites: int, visits: int) -> float:
    """The draws that ``visits`` different of ``sites`` equally likely sites take on average: m * (H_m - H_(m - k)).

    Raises PlanError unless ``visits`` is between 1 and ``sites``.
    """
    if not 1 <= visits <= sites:
        raise PlanError(f"a model can visit 1 to {sites} different sites of {sites}; {visits} were asked for")
    return sites * fsum(1 / i for i in range(sites - visits + 1, sites + 1))


def sites_seen(sites: int, contacts: int, travellers: int = 1) -> float:
    """The different sites that a traveller has been at after so many contacts, on average: m * (1 - (1 - 1/m)**T).

    At every contact the ``travellers`` go to different sites, drawn uniformly anew; how many others travel decides
    nothing for one of them. A first stay at home counts as a contact.

    Raises PlanError unless every traveller can have a site of its own.
    """
    _check_range("travellers", travellers, sites)
    return _seen(sites, contacts, 1 / sites)


def sites_seen_of_fraction(sites: int, contacts: int, fraction: float) -> float:
    """The same where a fraction of the sites, drawn anew at every contact, takes part and each holds one traveller.

    As many travel as sites are drawn, at least one, so none waits: it is :func:`sites_seen` of that many travellers.
    """
    if not 0 < fraction <= 1:
        raise PlanError(f"fraction is a number above 0 and at most 1; got {fraction}")
    return sites_seen(sites, contacts, max(1, round(fraction * sites)))


def sites_seen_in_groups(sites: int, contacts: int, groups: int, models: int | None = None) -> float:
    """The different sites whose data a group's model has seen after so many contacts: m * (1 - (1 - M/(G m))**T).

    At every contact M ``models`` (one a site if not given) sit at different sites, drawn uniformly anew, M / G of each
    group; where that is no whole number, the larger parts go to random groups. It counts what the members of a group
    have seen together, so it holds of their next average, however often they average. One group of a model a site sees
    all sites at once; a model by itself is a traveller.

    Raises PlanError unless every model can have a site, and every group a model.
    """
    models = sites if models is None else models
    _check_range("models", models, sites)
    if not 1 <= groups <= models:
        raise PlanError(f"groups is 1 to the number of models, {models}; got {groups}")
    return _seen(sites, contacts, models / (groups * sites))


@dataclass(frozen=True)
class Visits:
    """When models had visited enough different sites: ``rounds`` has shape (runs, sites), a number for each model."""

    rounds: np.ndarray

    def one(self, failure: float) -> int:
        """The rounds in which a given model is through, but for a chance of ``failure``."""
        return _quantile(self.rounds.ravel(), failure)

    def all(self, failure: float) -> int:
        """The rounds in which every model is through, but for a chance of ``failure``."""
        return _quantile(self.rounds.max(axis=1), failure)

    def chance_of_one(self, rounds: float) -> float:
        """How likely a given model is through after so many rounds."""
        return float((self.rounds <= rounds).mean())

    def chance_of_all(self, rounds: float) -> float:
        """How likely every model is through after so many rounds."""
        return float((self.rounds.max(axis=1) <= rounds).mean())

    def of(self, models: int) -> "Visits":
        """The same of so many of the models; of any as many, for none is like no other."""
        return Visits(self.rounds[:, :models])

    def chance_of_none(self, rounds: float) -> float:
        """How likely all models fall short together after so many rounds."""
        return float((self.rounds > rounds).all(axis=1).mean())


def simulate_visits(
    sites: int, visits: int, permute_every: int = 1, *, runs: int = 100, rng: np.random.Generator
) -> Visits:
    """Daisy chains without aggregation, walked until every model has visited ``visits`` different sites.

    A model starts at its own site, the first that it visits, and every ``permute_every`` rounds a uniformly random
    permutation hands all models on; a visit counts when its rounds are done. Costs about runs * permutations * sites.
    """
    expected_draws(sites, visits)  # the same limits
    return Visits(permute_every * np.stack([_stays(sites, visits, rng) for _ in range(runs)]))


def check_chance(name: str, value: float) -> None:
    """Raise PlanError unless ``value`` is a chance that is neither none nor certain."""
    if not 0 < value < 1:
        raise PlanError(f"{name} is a number between 0 and 1, both excluded; got {value}")


def _seen(sites: int, contacts: int, share: float) -> float:
    if contacts < 0:
        raise PlanError(f"contacts is at least 0; got {contacts}")
    return sites * (1 - (1 - share) ** contacts)


def _check_range(name: str, value: int, sites: int) -> None:
    if not 1 <= value <= sites:
        raise PlanError(f"{name} is 1 to the number of sites, {sites}; got {value}")


def _stays(sites: int, visits: int, rng: np.random.Generator) -> np.ndarray:
    """The stays, own site included, until each model has been at ``visits`` different sites: (sites,)."""
    models = np.arange(sites)
    visited, different, stays = np.zeros((sites, sites), dtype=bool), np.zeros(sites, int), np.zeros(sites, int)
    where = models  # at home
    for walked in count(1):
        different += ~visited[models, where]
        visited[models, where] = True
        stays[(stays == 0) & (different == visits)] = walked
        if stays.all():
            break
        where = rng.permutation(sites)
    return stays


def _quantile(rounds: np.ndarray, failure: float) -> int:
    check_chance("failure", failure)
    return int(np.quantile(rounds, 1 - failure, method="inverted_cdf"))
