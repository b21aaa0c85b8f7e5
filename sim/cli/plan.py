"""``fedsmall plan``: the papers' bounds for your federation, and the simulated numbers beside them."""

from typing import Annotated

import typer
from rich.table import Table

from fedsmall.theory import Advice, advise
from sim.report.terminal import terminal

console = terminal()


def plan(
    sites: Annotated[int, typer.Option(min=1, help="m, the number of sites", show_default=False)],
    samples: Annotated[int, typer.Option(min=1, help="n, the samples of each site", show_default=False)],
    error: Annotated[float, typer.Option(help="epsilon, the error that is aimed for")] = 0.05,
    failure: Annotated[float, typer.Option(help="delta, the chance with which it may be missed")] = 0.01,
    permute_every: Annotated[int, typer.Option(min=1, help="d, the rounds between two permutations")] = 1,
) -> None:
    """How many rounds to leave between two aggregations, so that models have seen enough samples before they meet.

    Prints Proposition 4 of Kamp et al. 2023, and what a simulation of the daisy chain says beside it.
    """
    advice = advise(sites, samples, permute_every, error, failure)
    console.print(
        f"For an error of {error:g} but for a chance of {failure:g}, a model has to see about "
        f"{advice.samples_needed:.0f} samples: those of [bold]{advice.sites_to_visit}[/bold] of {sites} sites."
    )
    console.print(_table(advice))
    periods = f"permute_every = {permute_every}, aggregate_every = {advice.aggregate_every}"
    console.print(f"\nIn a scenario: [bold]{periods}[/bold].")
    console.print(
        f"After so many rounds a given model has visited that many sites with a chance of "
        f"{_chance(advice.chance_of_one_at_bound)}, all {sites} of them with {_chance(advice.chance_of_all_at_bound)}: "
        "the bound speaks of one model.\nIt is enough for learners that fit their data, and no law for yours; "
        "compare two or three periods."
    )


def _table(advice: Advice) -> Table:
    table = Table("rounds between aggregations", "rounds", box=None, header_style="dim", pad_edge=False)
    table.columns[1].justify = "right"
    table.add_row("bound of Proposition 4, n0(epsilon, sqrt(delta)), as printed", f"{advice.bound:.3f}")
    notebook = f"{advice.notebook_bound:.3f}" if advice.notebook_bound is not None else "more sites than there are"
    table.add_row("the same in the authors' notebook, n0(epsilon, delta)", notebook)
    chance = 1 - advice.failure**0.5
    table.add_row(f"simulated: a given model is through ({_chance(chance)})", f"{advice.one_model}")
    table.add_row(f"simulated: every model is through ({_chance(chance)})", f"{advice.all_models}")
    return table


def _chance(share: float) -> str:
    return f"{100 * share:.0f}%"
