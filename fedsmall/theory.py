"""How long a daisy chain must be: the papers' bounds, and the simulated numbers beside them.

A model must visit enough sites to have seen enough samples before models are aggregated. Visiting sites drawn at random
is collecting coupons: of m sites, the first k different ones take m * (H_m - H_(m - k)) draws on average, where H_i is
the i-th harmonic number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import ceil, fsum, log, sqrt

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for


def expected_draws(sites: int, visits: int) -> float:
    """The draws that ``visits`` different of ``sites`` equally likely sites take on average: m * (H_m - H_(m - k)).

    Raises PlanError unless ``visits`` is between 1 and ``sites``.
    """
    if not 1 <= visits <= sites:
        raise PlanError(f"a model can visit 1 to {sites} different sites of {sites}; {visits} were asked for")
    return sites * fsum(1 / i for i in range(sites - visits + 1, sites + 1))


def rounds_to_visit(sites: int, visits: int, permute_every: int = 1, failure: float = 0.01) -> float:
    """The bound on the rounds in which a model visits ``visits`` sites: d * m / rho^(1/m) * (H_m - H_(m - k)).

    ``failure`` is rho. Mind what it bounds. By Markov's inequality a given model has not got so far with a chance of at
    most rho^(1/m), which is close to one; all m of them together have not with a chance of at most rho. So after that
    many rounds some model is through almost surely, a given one more likely than not, and all of them hardly ever:
    :func:`simulate_visits` says how many rounds either takes.
    Source: Kamp et al. 2023, Lemma 5.
    """
    _check_chance("failure", failure)
    slack: float = failure ** (1 / sites)
    return permute_every * expected_draws(sites, visits) / slack


def samples_for(error: float, failure: float) -> float:
    """Samples for an error of at most ``error`` with a chance of 1 - ``failure``: n0 = ln(1 / failure) / error.

    The count of a learner whose hypothesis fits all it has seen, for one hypothesis; of a richer class it is a lower
    bound. It is what the worked example of Kamp et al. 2023 takes.
    """
    _check_chance("error", error)
    _check_chance("failure", failure)
    return log(1 / failure) / error


def rounds_between_aggregations(sites: int, visits: int, permute_every: int = 1, failure: float = 0.01) -> float:
    """The bound on the aggregation period b: d * m / delta^(1/(2 m)) * (H_m - H_(m - K)).

    ``failure`` is delta, of which the visits get the square root: it is :func:`rounds_to_visit` at sqrt(delta). The
    sites to visit, K = ceil(n0(epsilon, sqrt(delta)) / n), come from :func:`sites_to_visit`.
    Source: Kamp et al. 2023, Proposition 4.
    """
    _check_chance("failure", failure)
    return rounds_to_visit(sites, visits, permute_every, sqrt(failure))


def sites_to_visit(samples_needed: float, samples_per_site: int) -> int:
    """K, the sites whose samples together are ``samples_needed``."""
    if samples_per_site < 1:
        raise PlanError(f"samples_per_site is at least 1; got {samples_per_site}")
    return ceil(samples_needed / samples_per_site)


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


def simulate_visits(
    sites: int, visits: int, permute_every: int = 1, *, runs: int = 100, rng: np.random.Generator
) -> Visits:
    """Daisy chains without aggregation, walked until every model has visited ``visits`` different sites.

    A model starts at its own site, the first that it visits, and every ``permute_every`` rounds a uniformly random
    permutation hands all models on; a visit counts when its rounds are done. Costs about runs * permutations * sites.
    """
    expected_draws(sites, visits)  # the same limits
    return Visits(permute_every * np.stack([_stays(sites, visits, rng) for _ in range(runs)]))


@dataclass(frozen=True)
class Advice:
    """What theory and simulation say about one federation; every number is in rounds unless its name says otherwise.

    ``bound`` is Proposition 4 as printed, with ``sites_to_visit`` from n0(epsilon, sqrt(delta)); ``notebook_bound`` is
    the value of the authors' notebook, which takes n0(epsilon, delta), and is None where that asks for more sites than
    there are. ``one_model`` and ``all_models`` are the simulated rounds in which a given model and every model has
    visited ``sites_to_visit`` sites but for a chance of sqrt(delta); the two chances are those at the bound.
    """

    sites: int
    samples_per_site: int
    permute_every: int
    error: float
    failure: float
    samples_needed: float
    sites_to_visit: int
    bound: float
    notebook_sites_to_visit: int
    notebook_bound: float | None
    one_model: int
    all_models: int
    chance_of_one_at_bound: float
    chance_of_all_at_bound: float

    @property
    def aggregate_every(self) -> int:
        """The smallest aggregation period that satisfies Proposition 4, b."""
        return ceil(self.bound)


def advise(
    sites: int,
    samples_per_site: int,
    permute_every: int = 1,
    error: float = 0.05,
    failure: float = 0.01,
    *,
    samples_needed: Callable[[float, float], float] = samples_for,
    runs: int = 100,
    seed: int = 0,
) -> Advice:
    """How many rounds to leave between two aggregations, for a federation of so many sites and samples.

    ``error`` and ``failure`` are epsilon and delta of Proposition 4, ``samples_needed`` the learner's n0.

    Raises PlanError where all sites together hold too few samples.
    """
    needed = samples_needed(error, sqrt(failure))
    visits = sites_to_visit(needed, samples_per_site)
    notebook_visits = sites_to_visit(samples_needed(error, failure), samples_per_site)
    if visits > sites:
        raise PlanError(
            f"an error of {error:g} with a chance of failure of {failure:g} takes {ceil(needed)} samples for a model; "
            f"{sites} sites with {samples_per_site} samples hold {sites * samples_per_site}. "
            "Allow a larger error or failure, or find more sites"
        )
    walked = simulate_visits(sites, visits, permute_every, runs=runs, rng=rng_for(seed, "visits"))
    bound = rounds_between_aggregations(sites, visits, permute_every, failure)
    in_reach = notebook_visits <= sites
    return Advice(
        sites=sites,
        samples_per_site=samples_per_site,
        permute_every=permute_every,
        error=error,
        failure=failure,
        samples_needed=needed,
        sites_to_visit=visits,
        bound=bound,
        notebook_sites_to_visit=notebook_visits,
        notebook_bound=rounds_between_aggregations(sites, notebook_visits, permute_every, failure)
        if in_reach
        else None,
        one_model=walked.one(sqrt(failure)),
        all_models=walked.all(sqrt(failure)),
        chance_of_one_at_bound=walked.chance_of_one(ceil(bound)),
        chance_of_all_at_bound=walked.chance_of_all(ceil(bound)),
    )


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
    _check_chance("failure", failure)
    return int(np.quantile(rounds, 1 - failure, method="inverted_cdf"))


def _check_chance(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise PlanError(f"{name} is a number between 0 and 1, both excluded; got {value}")
