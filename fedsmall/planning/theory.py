"""The papers' bounds, and simulations beside them: how long a daisy chain must be before models are aggregated.

Handed on at random, a model's every stay is at a uniformly random site: visiting sites is collecting coupons. Of m
sites, the first k different ones take m * (H_m - H_(m - k)) stays on average, H_i being the i-th harmonic number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import ceil, fsum, log, sqrt

import numpy as np
from scipy.special import bdtrc

from fedsmall.aggregation.radon import check_radon
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for


def expected_draws(sites: int, visits: int) -> float:
    """The draws that ``visits`` different of ``sites`` equally likely sites take on average: m * (H_m - H_(m - k)).

    Raises PlanError unless ``visits`` is between 1 and ``sites``.
    """
    if not 1 <= visits <= sites:
        raise PlanError(f"a model can visit 1 to {sites} different sites of {sites}; {visits} were asked for")
    return sites * fsum(1 / i for i in range(sites - visits + 1, sites + 1))


def simulate_visits(
    sites: int, visits: int, permute_every: int = 1, *, runs: int = 100, rng: np.random.Generator
) -> np.ndarray:
    """The rounds until each model has visited ``visits`` different sites, (runs, sites), without aggregation.

    A model starts at its own site; every ``permute_every`` rounds a random permutation hands all on. Full visits count.
    """
    expected_draws(sites, visits)  # the same limits
    return np.stack([permute_every * _simulate_stays(sites, visits, rng) for _ in range(runs)])


def rounds_but_for(failure: float, rounds: np.ndarray) -> int:
    """How many of the simulated ``rounds`` are enough, but for a chance of ``failure``."""
    _check_chance("failure", failure)
    return int(np.quantile(rounds, 1 - failure, method="inverted_cdf"))


def _simulate_stays(sites: int, visits: int, rng: np.random.Generator) -> np.ndarray:
    """The stays, own site included, until each model has been at ``visits`` different sites: (sites,)."""
    models = np.arange(sites)
    visited, stays = np.zeros((sites, sites), dtype=bool), np.zeros(sites, int)
    where = models  # at home
    for walked in count(1):
        visited[models, where] = True
        stays[(stays == 0) & (visited.sum(axis=1) == visits)] = walked
        if stays.all():
            break
        where = rng.permutation(sites)
    return stays


def rounds_to_visit(
    sites: int, visits: int, permute_every: int = 1, failure: float = 0.01, models: int | None = None
) -> float:
    """The bound on the rounds in which a model visits ``visits`` sites: d * m / rho^(1/m) * (H_m - H_(m - k)).

    ``failure`` is rho. By Markov's inequality a given model falls short with a chance of at most rho^(1/m), close to
    one; rho bounds only the chance that all m models (or of a group ``models``) fall short; for others see
    :func:`simulate_visits`. The proof multiplies m chances as if models walked independently, but they share their
    permutations: two models at two sites always fall short together. The bound is so slack that rho still holds for up
    to three sites (exactly) and in every simulation of more. Source: Kamp et al. 2023, Lemma 5.
    """
    _check_chance("failure", failure)
    slack: float = failure ** (1 / (models or sites))
    return permute_every * expected_draws(sites, visits) / slack


def samples_for(error: float, failure: float) -> float:
    """Samples for an error of at most ``error`` with a chance of 1 - ``failure``: n0 = ln(1 / failure) / error.

    For one hypothesis that fits its data, as in Kamp et al.'s worked example; a lower bound for a richer class.
    """
    _check_chance("error", error)
    _check_chance("failure", failure)
    return log(1 / failure) / error


def rounds_between_aggregations(
    sites: int, visits: int, permute_every: int = 1, failure: float = 0.01, models: int | None = None
) -> float:
    """The bound on the aggregation period b: d * m / delta^(1/(2 m)) * (H_m - H_(m - K)).

    ``failure`` is delta: :func:`rounds_to_visit` at its root, K = ceil(n0(epsilon, sqrt(delta)) / n) (Proposition 4).
    """
    _check_chance("failure", failure)
    return rounds_to_visit(sites, visits, permute_every, sqrt(failure), models)


def sites_to_visit(samples_needed: float, samples_per_site: int) -> int:
    """K, the sites whose samples together are ``samples_needed``."""
    if samples_per_site < 1:
        raise PlanError(f"samples_per_site is at least 1; got {samples_per_site}")
    return ceil(samples_needed / samples_per_site)


@dataclass(frozen=True)
class Advice:
    """What theory and simulation say about one federation; every number is in rounds unless its name says otherwise.

    ``bound`` is Proposition 4's, with ``sites_to_visit`` from n0(epsilon, sqrt(delta)). In ``one_model`` and
    ``all_models`` simulated rounds a given and every model has been there, but for a chance of sqrt(delta).
    """

    sites: int
    samples_per_site: int
    permute_every: int
    error: float
    failure: float
    samples_needed: float
    sites_to_visit: int
    bound: float
    one_model: int
    all_models: int
    chance_of_one_at_bound: float
    chance_of_all_at_bound: float

    @property
    def aggregate_every(self) -> int:
        """The aggregation period to take, b: what the simulation says of every model, not the bound."""
        return self.all_models


def advise(
    sites: int,
    samples_per_site: int,
    permute_every: int = 1,
    error: float = 0.05,
    failure: float = 0.01,
    *,
    samples_needed: Callable[[float, float], float] = samples_for,
    runs: int | None = None,
) -> Advice:
    """How many rounds to leave between two aggregations, for a federation of so many sites and samples.

    ``error`` and ``failure`` are epsilon and delta of Proposition 4, ``samples_needed`` a learner's n0 of them, and
    ``runs`` the simulated chains, by default at least a hundred, and enough for ten to fall short with a chance of
    sqrt(delta). Raises PlanError where all sites together hold too few samples.
    """
    needed = samples_needed(error, sqrt(failure))
    visits = sites_to_visit(needed, samples_per_site)
    if visits > sites:
        raise PlanError(
            f"an error of {error:g} with a chance of failure of {failure:g} takes {ceil(needed)} samples for a model; "
            f"the sites hold {sites * samples_per_site} ({sites} x {samples_per_site}). "
            "Allow a larger error or failure, or find more sites"
        )
    runs = runs or max(100, ceil(10 / sqrt(failure)))
    rounds = simulate_visits(sites, visits, permute_every, runs=runs, rng=rng_for(0, "visits"))
    slowest, bound = rounds.max(axis=1), rounds_between_aggregations(sites, visits, permute_every, failure)
    enough = [rounds_but_for(sqrt(failure), times) for times in (rounds, slowest)]
    chances = [float((times <= ceil(bound)).mean()) for times in (rounds, slowest)]
    return Advice(sites, samples_per_site, permute_every, error, failure, needed, visits, bound, *enough, *chances)


def radon_failure_as_printed(radon_number: int, height: int, failure: float) -> float:
    """The chance that an iterated Radon point of models that fail with ``failure`` fails: (r * delta)**(2**h), or 1.

    True for h = 1. From h = 2 on it can be exceeded: with r = 10, h = 2 and delta = .05 it says .06, and models that
    fail far out in one direction make 21% of the points fail. Source: Kamp et al. 2023, Eq. 1.
    """
    _check_chance("failure", failure)
    expected = radon_number * failure
    return 1.0 if expected >= 1 else float(expected ** (2.0**height))


def radon_failure(radon_number: int, height: int, failure: float) -> float:
    """An upper bound on that chance for every convex loss: P(at least two of r fail), applied ``height`` times.

    Models that do not fail are convex: where at most one of r fails, the Radon point is among them. Far ones reach it.
    """
    _check_chance("failure", failure)
    for _ in range(height):
        failure = float(bdtrc(1, radon_number, failure))  # the binomial chance of more than one
    return failure


@dataclass(frozen=True)
class RadonAdvice:
    """What theory says of Radon points as the aggregate; ``failure`` is delta, the chance that one site's model fails.

    With ``samples_alone`` at each site they improve the guarantee without daisy-chaining (Corollary 3).
    """

    radon_number: int
    height: int
    failure: float
    failure_as_printed: float
    failure_at_most: float
    samples_alone: float


def advise_radon(
    sites: int, parameters: int, height: int | None = None, error: float = 0.05, failure: float = 0.01
) -> RadonAdvice:
    """What Radon points promise for a model of so many parameters, at the largest height that m allows if none given.

    PlanError where Proposition 4 does not speak, which takes m >= r**h and delta < 1/r. Source: Kamp et al. 2023.
    """
    r = check_radon(sites, parameters).radon_number
    height = max(h for h in range(1, sites.bit_length() + 1) if r**h <= sites) if height is None else height
    if height < 1:
        raise PlanError(f"height is at least 1; got {height}")
    if r**height > sites:
        raise PlanError(
            f"Proposition 4 takes m >= r**h sites: {r}**{height} = {r**height} for {parameters} parameters at height "
            f"{height}; there are {sites}. Take a smaller height or model, or more sites"
        )
    if failure >= 1 / r:
        raise PlanError(
            f"Proposition 4 takes a chance of failure below 1/r = 1/{r} = {1 / r:.3g} for {parameters} parameters; "
            f"got {failure:g}. Take a smaller failure or model"
        )
    chances = radon_failure_as_printed(r, height, failure), radon_failure(r, height, failure)
    return RadonAdvice(r, height, failure, *chances, samples_alone=samples_for(error, 1 / r))


def _check_chance(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise PlanError(f"{name} is a number between 0 and 1, both excluded; got {value}")
