"""``fedsmall tune``: learning rates chosen on training sites alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tomli_w
import typer
from rich.console import Console
from rich.table import Table

from fedsmall.errors import PlanError
from sim.cli.options import DATA_ROOT, DEVICE, ENGINE, SET

if TYPE_CHECKING:
    from sim.evidence.search import RateChoice, Try
    from sim.runs.scenario import Scenario

console = Console(highlight=False, soft_wrap=True)


def tune(
    scenario: Annotated[
        str, typer.Argument(help="a scenario's file or name, or an item of `reproduce list`", show_default=False)
    ],
    rates: Annotated[str, typer.Option(help="the rates to try, separated by commas")] = "0.01,0.03,0.1,0.3",
    draws: Annotated[
        int | None, typer.Option(help="draw this many rates at random between the smallest and the largest")
    ] = None,
    seeds: Annotated[int, typer.Option(help="at most this many seeds; fewer where the choices are stable")] = 6,
    metric: Annotated[str, typer.Option(help="what makes a rate better")] = "accuracy",
    engine: Annotated[str | None, ENGINE] = None,
    device: Annotated[str | None, DEVICE] = None,
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    out: Annotated[
        Path | None, typer.Option(help="where the search is written (CSV, and a figure beside it)", show_default=False)
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="write the scenario with the chosen rates to this .toml", show_default=False)
    ] = None,
) -> None:
    """Choose a learning rate for every method of a scenario, by validation on training sites; test data are not read.

    Every method gets the same rates, seeds and folds; ties go to the smaller rate. For an item of `fedsmall reproduce`
    the search is kept beside its scenario and used when the item is run.
    """
    from sim.evidence.items import SEARCHES, items
    from sim.evidence.search import Try, choose, save, search, spaced_rates
    from sim.runs.files import write as put
    from sim.runs.scenario import load
    from sim.runs.shipped import find

    item = items().get(scenario)
    if write is not None and item is not None:
        raise PlanError("--write is for a scenario; the search of an item of `reproduce list` is used where it is kept")
    if write is not None and write.exists():
        raise PlanError(f"{write} exists already; choose another with --write, or remove it")
    asked = item.scenarios("quick") if item else {"": load(find(Path(scenario)), setting or [])}
    tried = item.search if item and item.search else numbers(rates)
    if draws is not None:
        tried = spaced_rates(min(tried), max(tried), draws, seed=0)
    tries: dict[str, list[Try]] = {}
    for variant, one in asked.items():

        def report(seed: int, so_far: list[Try], variant: str = variant) -> None:
            worst = max(choice.regret for choice in choose(so_far).values())
            console.print(
                f"{variant} seed {seed}: {len(so_far)} runs; a resampled choice loses {100 * worst:.1f} points"
            )

        tries[variant] = search(
            one,
            tried,
            metric=metric,
            engine=engine,
            device=device,
            data_root=data_root,
            most_seeds=seeds,
            on_seed=report,
        )
        _show(choose(tries[variant]))
    path = out or (SEARCHES / f"{item.name}.csv" if item else Path(f"tune-{Path(scenario).stem}.csv"))
    save(path, tries)
    _draw(tries, asked, path, item.name if item else None, beside=item is None or out is not None)
    console.print(f"\nSearch: {path}")
    if write is not None:
        put(write, tomli_w.dumps(with_rates(asked[""], choose(tries[""]))).encode())
        console.print(f"Scenario: {write}")


def with_rates(scenario: "Scenario", choices: "Mapping[str, RateChoice]") -> dict[str, object]:
    """The keys of a scenario, each method with the rate that was chosen for it."""
    table = scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    labels = [scenario.plan(index, scenario.seeds[0]).method.label for index in range(len(scenario.method))]
    for entry, label in zip(table["method"], labels, strict=True):
        if label in choices:
            entry["recipe"] = {**entry.get("recipe", {}), "lr": choices[label].lr}
    return table


def _draw(
    tries: "dict[str, list[Try]]", asked: "Mapping[str, Scenario]", path: Path, item: str | None, beside: bool
) -> None:
    """A figure for every variant: ``beside`` the search, or among those of the docs."""
    from sim.evidence.figures import save, sensitivity
    from sim.evidence.run import DOCS
    from sim.evidence.search import choose

    folder = path.parent if beside else DOCS / "evidence"
    for variant, some in tries.items():
        name = f"lr-{item or path.stem}{'-' + variant if variant else ''}.svg"
        save(sensitivity(choose(some), [plan.method for plan in asked[variant].plans()]), folder / name)


def numbers(text: str) -> tuple[float, ...]:
    """The positive numbers in a text such as "0.01,0.1"."""
    try:
        rates = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(f"--rates takes numbers separated by commas, as in 0.01,0.1; got {text!r}") from None
    if rates[0] <= 0:
        raise typer.BadParameter(f"a learning rate is positive; got {rates[0]:g}")
    return rates


def _show(choices: "dict[str, RateChoice]") -> None:
    table = Table("method", "rate", "score on left-out sites", "note", box=None, header_style="dim", pad_edge=False)
    for label, choice in choices.items():
        score = choice.scores[choice.lr]
        note = "at the edge of what was tried" if choice.at_the_edge else ""
        table.add_row(
            label, f"{choice.lr:g}", f"{100 * score.mean:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]", note
        )
    console.print(table)
