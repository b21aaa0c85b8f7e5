"""``fedsmall tune`` and ``choose``: learning rates, and a class of models, by training samples alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedsmall.errors import PlanError
from fedsmall.sim.cli.commands import from_repository
from fedsmall.sim.cli.options import DATA_ROOT, DEVICE, ENGINE, SET, check_unwritten, grid, terminal
from fedsmall.sim.cli.output import give
from fedsmall.sim.report.sentences import amount, metric_name
from fedsmall.sim.report.tables import is_percent
from fedsmall.sim.runs.files import write, write_json
from fedsmall.sim.runs.scenario import Scenario, as_toml, find, load

if TYPE_CHECKING:
    from fedsmall.sim.tuning.choose import Choice
    from fedsmall.sim.tuning.grid import Grid
    from fedsmall.sim.tuning.search import RateChoice, Try

console = terminal()


def tune(
    scenario: Annotated[str, Argument(help="a scenario's file or name, or an item of `reproduce list`")],
    rates: Annotated[str, Option(help="the rates to try, separated by commas")] = "0.01,0.03,0.1,0.3",
    draws: Annotated[
        int | None, Option(help="draw this many rates at random between the smallest and the largest")
    ] = None,
    tries_of: Annotated[
        list[str] | None,
        Option(
            "--try",
            help="try a method's key with several values too, as in aggregate_every=50,10; ties go to the first",
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="at most this many seeds; fewer where the choices are stable")] = 6,
    metric: Annotated[
        str | None, Option(help="what makes a rate better: else the scenario's metric, by routes the loss")
    ] = None,
    by: Annotated[
        str | None, Option(help="folds: some sites are left out; routes: none is (where the scenario has validate)")
    ] = None,
    engine: Annotated[str | None, ENGINE] = None,
    device: Annotated[str | None, DEVICE] = None,
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    out: Annotated[Path | None, Option(help="where the search is written (CSV, and a figure beside it)")] = None,
    write: Annotated[Path | None, Option(help="write the scenario with the chosen rates to this .toml")] = None,
) -> None:
    """Choose a learning rate for every method of a scenario, by validation on training sites; test data are not read.

    Every method gets the same rates, seeds and folds; ties go to the smaller rate. Of trees depth and number are
    searched in its place; a regression chooses its own penalty, and is left as it is. With --try, periods and other
    keys of methods are chosen with it, by what models are worth and not by what they cost to send. For an item of
    `fedsmall reproduce` the search is kept beside its scenario and used when the item is run.
    """
    from fedsmall.sim.tuning.grid import grid, settings_in
    from fedsmall.sim.tuning.search import measure_of, plans_of, spaced_rates

    kept = from_repository("evidence.items")
    item = kept.items().get(scenario) if kept else None
    _check_item(item is not None, write=write, tries_of=tries_of)
    plain = item.scenarios("quick") if item else {"": load(find(Path(scenario)), setting or [])}
    boosts = not item and any(plan.method.boosting is not None for plan in plans_of(plain[""]))
    whole = grid(plain[""], settings_in(tries_of or ())) if tries_of or boosts else None
    tried = item.search if item and item.search else numbers(rates)
    if draws is not None:
        tried = spaced_rates(min(tried), max(tried), draws, seed=0)
    options = {"by": by, "engine": engine, "device": device, "data_root": data_root, "most_seeds": seeds}
    metric = measure_of(plain[""], by, metric or (item.metric if item else None), data_root)
    path = out or (item.kept_search if item else Path(f"tune-{Path(scenario).stem}.csv"))
    folder = item.figures if item and out is None else path.parent
    asked = {"": whole.scenario} if whole else plain
    tries = _search(asked, tried, metric, path, folder / f"lr-{item.name if item else path.stem}", **options)
    _write_choice(write, asked[""], tries[""], whole, path)


def _search(
    asked: Mapping[str, Scenario], tried: Sequence[float], metric: str, path: Path, figure: Path, **options: Any
) -> "dict[str, list[Try]]":
    """All runs of every variant's search, with lines and tables as they end, a file, and figures."""
    from fedsmall.sim.report.figures import save as save_figure
    from fedsmall.sim.tuning.search import choose, draw_rates, save, search

    tries: dict[str, list[Try]] = {}
    for variant, scenario in asked.items():

        def report(seed: int, so_far: "list[Try]", variant: str = variant) -> None:
            worst = max(choice.regret for choice in choose(so_far).values())
            loses = f"{_value(worst, metric)}{' points' if is_percent(metric) else ''}"
            console.print(f"{variant} seed {seed}: {len(so_far)} runs; a resampled choice loses {loses}")

        tries[variant] = search(scenario, tried, metric=metric, on_seed=report, **options)
        _show(choose(tries[variant], metric), metric)
    save(path, tries)
    for variant, scenario in asked.items():
        drawn = draw_rates(choose(tries[variant], metric), [plan.method for plan in scenario.plans()], metric)
        save_figure(drawn, figure.with_name(f"{figure.name}{'-' + variant if variant else ''}.svg"))
    return tries


def _write_choice(
    write_to: Path | None, scenario: Scenario, tries: "list[Try]", whole: "Grid | None", path: Path
) -> None:
    """Print the choice and where the search lies; write the scenario with it to ``write_to``."""
    from fedsmall.sim.tuning.search import choose, with_rates

    for method, (settings, lr) in whole.taken(tries).items() if whole is not None else ():
        settings_text = ", ".join(f"{key} = {value}" for key, value in {**settings, "lr": f"{lr:g}"}.items())
        console.print(f"{method}: {settings_text}")
    console.print(f"\nSearch: {path}")
    if write_to is not None:
        rates_of = {label: choice.lr for label, choice in choose(tries).items()}
        write(write_to, as_toml(whole.with_taken(tries) if whole else with_rates(scenario, rates_of)))
        console.print(f"Scenario: {write_to}")


def _check_item(of_item: bool, write: Path | None, tries_of: list[str] | None) -> None:
    if tries_of and of_item:
        raise PlanError("--try is for a scenario; an item of `reproduce list` has the settings of its paper")
    if write is not None and of_item:
        raise PlanError("--write is for a scenario; the search of an item of `reproduce list` is used where it is kept")
    if write is not None and write.exists():
        raise PlanError(f"{write} exists already; choose another with --write, or remove it")


def numbers(text: str) -> tuple[float, ...]:
    """The positive numbers in a text such as "0.01,0.1"."""
    try:
        rates = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(f"--rates takes numbers separated by commas, as in 0.01,0.1; got {text!r}") from None
    if rates[0] <= 0:
        raise typer.BadParameter(f"a learning rate is positive; got {rates[0]:g}")
    return rates


def _show(choices: "dict[str, RateChoice]", metric: str) -> None:
    head = f"{metric_name(metric)} on left-out samples"
    rows = []
    give(rates={label: {"lr": choice.lr, "rounds": choice.rounds} for label, choice in choices.items()})
    for label, choice in choices.items():
        score = choice.scores[choice.lr]
        shown = (_value(number, metric) for number in (score.mean, score.low, score.high))
        note = "at the edge of what was tried" if choice.at_the_edge else ""
        rows.append([label, f"{choice.lr:g}", str(choice.rounds or "all"), "{} [{}, {}]".format(*shown), note])
    console.print(grid(("method", "rate", "rounds", head, "note"), rows))


def _value(number: float, metric: str) -> str:
    return f"{100 * number:.1f}" if is_percent(metric) else f"{number:.4f}"


def choose(
    scenario: Annotated[Path, Argument(help="a scenario's file or name; its methods, if it has any, do not matter")],
    use: Annotated[
        str | None,
        Option("--for", help="new-hospitals or same-hospitals: who comes next; default: whether sites are natural"),
    ] = None,
    folds: Annotated[int, Option(min=2, help="left out in turn; fewer than eight tell nothing apart")] = 10,
    rates: Annotated[str, Option(help="the network's learning rates to try")] = "0.01,0.03,0.1,0.3",
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    out: Annotated[Path | None, Option(help="where the table is written (JSON); choose-NAME.json if not given")] = None,
) -> None:
    """Choose a class of models: ridge, additive, random features, boosting, or a network; test data are not read.

    Each is tuned and judged on left-out training samples of hospitals, or of patients where the hospitals stay.
    """
    from fedsmall.sim.tuning.choose import choose_class

    path = out or Path(f"choose-{scenario.stem}.json")
    check_unwritten(path)
    asked = load(find(scenario), setting or [], methods=[{"name": "Ridge"}])
    choice = choose_class(asked, numbers(rates), use, folds, data_root, _say_fold)
    print_choice(choice)
    verdict = {"pick": choice.verdict.pick, "reason": choice.verdict.reason, "nested": choice.nested}
    made = {"for": choice.use, "folds": choice.folds, **verdict, "rows": choice.rows}
    give(**made)
    write_json(path, made)
    console.print(f"\nTable: {path}", markup=False)


def _say_fold(fold: int, folds: int) -> None:
    if fold < folds and console.is_terminal:
        console.print(f"fold {fold} of {folds}", style="dim")


def print_choice(choice: "Choice") -> None:
    """The table, the pick with its reason, and what it is worth."""
    from fedsmall.sim.report.sentences import metric_name
    from fedsmall.sim.tuning.choose import DECISIVE

    left = "hospitals" if choice.use == "new-hospitals" else "patients of the same hospitals"
    title = f"Judged on left-out {left}, {choice.folds} folds"
    loss, score = "square error / variance" if choice.score == "mae" else "log loss", metric_name(choice.score)
    right, rows = (loss, score, "exchanges", "sent", "p against the best"), []
    for name, row in choice.rows.items():
        settings = ", ".join(f"{key} {value:g}" for key, value in row["settings"].items())
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        worth = f"{row['loss']:.3f}", f"{row[choice.score]:.3f}", f"{row['exchanges']:g}", amount(row["bytes"])
        rows.append([name, *worth, p, settings])
    console.print(grid(("candidate", *right, "settings"), rows, right, title))
    few = "" if choice.folds >= DECISIVE else f" {choice.folds} folds are too few to tell candidates apart."
    nested = f"{loss} {choice.nested['loss']:.3f}, {score} {choice.nested[choice.score]:.3f}"
    console.print(f"Take {choice.verdict.pick}: {choice.verdict.reason}.{few}", markup=False)
    console.print(f"On folds that did not choose, such a pick has {nested}.", markup=False)
