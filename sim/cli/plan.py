"""``fedsmall plan``: the papers' bounds for your federation, and the simulated numbers beside them."""

from math import ceil, inf
from typing import Annotated

import typer
from rich.table import Table
from typer import Option

from fedsmall.aggregation.sums import LEAST
from fedsmall.errors import PlanError
from fedsmall.features import refused_partners
from fedsmall.planning.theory import Advice, RadonAdvice, advise, advise_radon
from fedsmall.privacy.reading import BORNE, noise_in_average
from fedsmall.sealing.envelopes import OVERHEAD
from fedsmall.sealing.masks import BYTES, committee_size, threshold
from fedsmall.sim.cli.options import grid, terminal
from fedsmall.sim.report.sentences import amount

console = terminal()

PATIENTS_EPSILON = 60  # patients a site times epsilon from which it costs a few points: about 20 at epsilon 3
SUMS = 1000  # of a run, for the size of its committees
PLAIN, NUMBER = 4, 8  # bytes of a number as it is, and in the fixed point of a secure sum


def _say_together(asked: bool) -> None:
    if asked:
        for name, others in refused_partners().items():
            console.print(f"{name}: not with {', '.join(others)}" if others else f"{name}: with all", markup=False)
        raise typer.Exit


def plan(
    sites: Annotated[int, Option(min=1, help="m, the number of sites")],
    samples: Annotated[int, Option(min=1, help="n, the samples of each site")],
    error: Annotated[float, Option(help="epsilon, the error that is aimed for")] = 0.05,
    failure: Annotated[float, Option(help="delta, the chance with which it may be missed")] = 0.01,
    permute_every: Annotated[int, Option(min=1, help="d, the rounds between two permutations")] = 1,
    parameters: Annotated[
        int | None, Option(min=1, help="the numbers of a model: adds what Radon points make of it")
    ] = None,
    height: Annotated[int | None, Option(min=1, help="h of the Radon point (default: what sites allow)")] = None,
    comm_rounds: Annotated[
        int, Option("--communication-rounds", "--contacts", min=1, help="T: with --features, what noise they have")
    ] = 30,
    patients: Annotated[float, Option(help="the epsilon that privacy may cost a patient in the whole run")] = 3.0,
    features: Annotated[
        int | None, Option(min=1, help="of a record: --parameters is then for the noise of an exposure of 1")
    ] = None,
    together: Annotated[
        bool, Option("--together", callback=_say_together, is_eager=True, help="say what goes together, and end")
    ] = False,
) -> None:
    """How many rounds to leave between two aggregations, so that models have seen enough samples before they meet.

    Prints Proposition 4 of Kamp et al. 2023, and what a simulation of the daisy chain says, which is what to take.
    """
    if height and not parameters:
        raise PlanError("--height takes --parameters, the numbers of the model that Radon points combine")
    if not 0 < patients < inf:
        raise PlanError(f"--patients is an epsilon above 0; got {patients:g}")
    radon = advise_radon(sites, parameters, height, error, failure) if parameters and not features else None
    advice = advise(sites, samples, permute_every, error, failure)
    console.print(
        f"For an error of {error:g} but for a chance of {failure:g}, a model has to see about "
        f"{advice.samples_needed:.0f} samples: those of [bold]{advice.sites_to_visit}[/bold] of {sites} sites."
    )
    console.print(_table(advice))
    console.print(_recommendation(advice))
    console.print(_privacy(advice, patients))
    if parameters and features:
        stretch = max(1, advice.aggregate_every // permute_every)
        size = noise_in_average(1.0, parameters, comm_rounds, samples, features, sites, stretch)
        console.print(BORNE.format(label=f"{comm_rounds} communication rounds", exposure=1.0, size=size))
    console.print(_hidden(advice, parameters))
    if radon:
        console.print()
        console.print(_radon(radon, advice))


def _table(advice: Advice) -> Table:
    chance = _chance(1 - advice.failure**0.5)
    rows = {
        f"simulated: every model is through ({chance})": f"{advice.all_models}",
        f"simulated: a given model is through ({chance})": f"{advice.one_model}",
        "bound of Proposition 4, n0(epsilon, sqrt(delta)), as printed": f"{advice.bound:.3f}",
    }
    return grid(("rounds between aggregations", "rounds"), rows.items(), ("rounds",))


def _privacy(advice: Advice, epsilon: float) -> str:
    """Whether privacy for each patient at ``epsilon`` is worth it: samples * epsilon decides (docs/methods.md)."""
    enough, samples, sites = ceil(PATIENTS_EPSILON / epsilon), advice.samples_per_site, advice.sites
    asked = f"Privacy for each patient at epsilon {epsilon:g} takes about {enough} patients a site"
    once = 'take Ridge with level = "patient": its sums are noised once, in one exchange.'
    if samples >= enough:
        less = f" On a table with two classes {once}" if epsilon <= 1 else ""
        return f"{asked}; {samples} are enough for it to cost a few points, chain or no chain.{less}"
    return (
        f"{asked}, and {samples} are too few: the noise of a step is divided by them, a model gathers it "
        f"between two averages, and an average over {sites} sites divides it by {sites**0.5:.1f}. "
        f"On a table with two classes {once} Else average at every round, or take privacy = {{exposure = 1.0}}, which "
        "promises less."
    )


def _hidden(advice: Advice, parameters: int | None) -> str:
    sites = advice.sites
    sealed = f"Sealed handovers (privacy = {{sealed = true}}) cost about {OVERHEAD:,} bytes each and no exchange."
    if sites < LEAST:
        return f"{sealed}\nSecure sums take three sites at least."
    decryptors = committee_size(sites, SUMS)
    comm_rounds = max(1, advice.aggregate_every // advice.permute_every)
    often = "at every communication round" if comm_rounds == 1 else f"one for {comm_rounds} communication rounds"
    numbers = f"{NUMBER} bytes a number instead of {PLAIN}"
    if parameters:
        numbers = f"{amount(NUMBER * parameters)} a site instead of {amount(PLAIN * parameters)}"
    size = amount(decryptors * (OVERHEAD + BYTES * sites))
    numbers += (
        f", and {size} in encrypted messages to {decryptors} decryptors, of whom {threshold(decryptors)} must answer"
    )
    return (
        f"{sealed}\nSecure sums (secure = true, experimental) cost an exchange more for each average, {often}, and "
        f"there {numbers}; one for each evaluation, and three before the first communication round."
    )


def _recommendation(advice: Advice) -> str:
    periods = f"permute_every = {advice.permute_every}, aggregate_every = {advice.aggregate_every}"
    return (
        f"\nIn a scenario: [bold]{periods}[/bold], by the simulation: but for a chance of "
        f"{_chance(advice.failure**0.5)} every model has then visited that many sites.\n"
        f"The bound proves less than it seems to: only that not all {advice.sites} models fall short together, but for "
        f"a chance of {_chance(advice.failure**0.5)}.\n"
        f"After its rounds a given model is through with a chance of {_chance(advice.chance_of_one_at_bound)}, all "
        f"{advice.sites} with {_chance(advice.chance_of_all_at_bound)}. Both are for learners that fit their data, and "
        "no law for yours; compare two or three periods."
    )


def _radon(radon: RadonAdvice, advice: Advice) -> Table:
    r, h = radon.radon_number, radon.height
    short = "too few" if advice.samples_per_site < radon.samples_alone else "enough"
    needed = f"{radon.samples_alone:.0f}; {advice.samples_per_site} are {short}"
    rows = {
        "chance that a site's model fails, delta": f"{radon.failure:.3g}",
        "that the aggregate does, (r delta)^(2^h), Eq. 1 as printed": f"{radon.failure_as_printed:.3g}",
        "at most, for every convex loss: two of r fail, h times": f"{radon.failure_at_most:.3g}",
        "samples a site takes without daisy-chaining, n0(epsilon, 1/r), Corollary 3": needed,
    }
    head = f"Radon points, r = {r}, height {h}: {r}**{h} = {r**h} of {advice.sites} models"
    return grid((head, ""), rows.items(), ("",))


def _chance(share: float) -> str:
    if 0.005 <= share < 0.995:
        return f"{100 * share:.0f}%"
    return "less than 1%" if share < 0.5 else "more than 99%"
