"""How long a daisy chain must be, and what Radon points make of it: the papers' bounds, and a simulation beside them.

A model must visit enough sites to have seen enough samples before models are aggregated; the visits are counted and
walked in :mod:`fedsmall.theory.visits`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log, sqrt

from scipy.special import bdtrc

from fedsmall.aggregation.radon import check_radon
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.theory.visits import check_chance, expected_draws, simulate_visits


def rounds_to_visit(
    sites: int, visits: int, permute_every: int = 1, failure: float = 0.01, models: int | None = None
) -> float:
    """The bound on the rounds in which a model visits ``visits`` sites: d * m / rho^(1/m) * (H_m - H_(m - k)).

    ``failure`` is rho. Mind what it bounds. By Markov's inequality a given model has not got so far with a chance of at
    most rho^(1/m), which is close to one; rho bounds only the chance that all m of them have not, none being through.
    So it promises next to nothing of a given model, and nothing of all: :func:`simulate_visits` says how many rounds
    either takes. The proof multiplies m chances as if models walked apart, but they share their permutations: two
    models at two sites always fall short together. The bound is so slack that rho holds all the same for up to three
    sites, reckoned exactly, and in every simulation of more.

    Of ``models`` of them, a group's, the same holds with rho^(1/models): the fewer they are, the longer it takes until
    they hardly ever fall short all together. Of one model it is Markov's inequality, and promises what it says.
    Source: Kamp et al. 2023, Lemma 5.
    """
    check_chance("failure", failure)
    slack: float = failure ** (1 / (models or sites))
    return permute_every * expected_draws(sites, visits) / slack


def samples_for(error: float, failure: float) -> float:
    """Samples for an error of at most ``error`` with a chance of 1 - ``failure``: n0 = ln(1 / failure) / error.

    The count of a learner whose hypothesis fits all it has seen, for one hypothesis; of a richer class it is a lower
    bound. It is what the worked example of Kamp et al. 2023 takes.
    """
    check_chance("error", error)
    check_chance("failure", failure)
    return log(1 / failure) / error


def rounds_between_aggregations(
    sites: int, visits: int, permute_every: int = 1, failure: float = 0.01, models: int | None = None
) -> float:
    """The bound on the aggregation period b: d * m / delta^(1/(2 m)) * (H_m - H_(m - K)).

    ``failure`` is delta, of which the visits get the square root: it is :func:`rounds_to_visit` at sqrt(delta), of all
    models or of so many ``models`` as a group has. The sites to visit,
    K = ceil(n0(epsilon, sqrt(delta)) / n), come from :func:`sites_to_visit`.
    Source: Kamp et al. 2023, Proposition 4.
    """
    check_chance("failure", failure)
    return rounds_to_visit(sites, visits, permute_every, sqrt(failure), models)


def sites_to_visit(samples_needed: float, samples_per_site: int) -> int:
    """K, the sites whose samples together are ``samples_needed``."""
    if samples_per_site < 1:
        raise PlanError(f"samples_per_site is at least 1; got {samples_per_site}")
    return ceil(samples_needed / samples_per_site)


def period_for(
    sites: int, samples_per_site: int, permute_every: int = 1, error: float = 0.05, failure: float = 0.01
) -> float | None:
    """Proposition 4's bound on b as a function of the federation; None where all its sites hold too few samples.

    The sweeps of the paper's Appendix A.5.1 are made of it. The authors' notebook draws a number there, with H of a
    negative index as zero.
    """
    visits = sites_to_visit(samples_for(error, sqrt(failure)), samples_per_site)
    return rounds_between_aggregations(sites, visits, permute_every, failure) if visits <= sites else None


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
    seed: int = 0,
) -> Advice:
    """How many rounds to leave between two aggregations, for a federation of so many sites and samples.

    ``error`` and ``failure`` are epsilon and delta of Proposition 4, ``samples_needed`` the learner's n0, and ``runs``
    the chains that are walked: at least a hundred, and enough for ten to fall short with a chance of sqrt(delta).

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
    runs = runs or max(100, ceil(10 / sqrt(failure)))
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


def radon_failure_as_printed(radon_number: int, height: int, failure: float) -> float:
    """The chance that an iterated Radon point of models that fail with ``failure`` fails: (r * delta)**(2**h), or 1.

    It says something only for delta < 1/r, and it holds for h = 1. From h = 2 on it can be exceeded: with r = 10, h = 2
    and delta = .05 it says .06, and models that fail far out in one direction make 21% of the points fail. See
    :func:`radon_failure`.
    Source: Kamp et al. 2023, Eq. 1.
    """
    check_chance("failure", failure)
    expected = radon_number * failure
    return 1.0 if expected >= 1 else float(expected ** (2.0**height))


def radon_failure(radon_number: int, height: int, failure: float) -> float:
    """The same chance at most, for every convex loss: P(at least two of r fail), applied ``height`` times.

    Models that do not fail are a convex set. Where at most one of r fails, the part without it lies in that set, and
    the Radon point with it. It is reached by models that fail far out in one direction, so no smaller number holds.
    """
    check_chance("failure", failure)
    for _ in range(height):
        failure = float(bdtrc(1, radon_number, failure))  # the binomial chance of more than one
    return failure


@dataclass(frozen=True)
class RadonAdvice:
    """What theory says of Radon points as the aggregate; ``failure`` is delta, the chance that one site's model fails.

    ``samples_alone`` are what each site has to hold without daisy-chaining: with fewer, aggregation by Radon points
    alone improves no guarantee (Corollary 3).
    """

    radon_number: int
    height: int
    failure: float
    failure_as_printed: float
    failure_at_most: float
    samples_alone: float


def advise_radon(
    sites: int,
    parameters: int,
    height: int | None = None,
    error: float = 0.05,
    failure: float = 0.01,
    *,
    samples_needed: Callable[[float, float], float] = samples_for,
) -> RadonAdvice:
    """What Radon points promise for a model of so many parameters, at the largest height that m allows if none given.

    Raises PlanError where Proposition 4 does not speak, which takes m >= r**h and delta < 1/r.
    Source: Kamp et al. 2023, Eq. 1, Corollary 3 and Proposition 4.
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
    return RadonAdvice(
        radon_number=r,
        height=height,
        failure=failure,
        failure_as_printed=radon_failure_as_printed(r, height, failure),
        failure_at_most=radon_failure(r, height, failure),
        samples_alone=samples_needed(error, 1 / r),
    )
