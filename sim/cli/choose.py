"""``fedsmall choose``: a table of classes of models, the pick and its reason, before any method is named."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Option

from fedsmall.sim.cli.options import DATA_ROOT, SET, check_unwritten, terminal
from fedsmall.sim.cli.tune import numbers

if TYPE_CHECKING:
    from fedsmall.sim.tuning.choose import Choice

console = terminal()


def choose(
    scenario: Annotated[Path, Argument(help="a scenario's file or name; its methods, if it has any, do not matter")],
    use: Annotated[
        str | None,
        Option(
            "--for", help="new-hospitals or same-hospitals: who comes next; by default by whether sites are natural"
        ),
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
    from fedsmall.sim.runs.files import write_json
    from fedsmall.sim.runs.scenario import find, load
    from fedsmall.sim.tuning.choose import choose_class

    path = out or Path(f"choose-{scenario.stem}.json")
    check_unwritten(path)
    asked = load(find(scenario), setting or [], methods=[{"name": "Ridge"}])
    choice = choose_class(asked, numbers(rates), use, folds, data_root, _say_fold)
    print_choice(choice)
    verdict = {"pick": choice.verdict.pick, "reason": choice.verdict.reason, "nested": choice.nested}
    write_json(path, {"for": choice.use, "folds": choice.folds, **verdict, "rows": choice.rows})
    console.print(f"\nTable: {path}", markup=False)


def _say_fold(fold: int, folds: int) -> None:
    if fold < folds and console.is_terminal:
        console.print(f"fold {fold} of {folds}", style="dim")


def print_choice(choice: "Choice") -> None:
    """The table, the pick with its reason, and what it is worth."""
    from fedsmall.sim.report.sentences import amount
    from fedsmall.sim.tuning.choose import DECISIVE

    left = "hospitals" if choice.use == "new-hospitals" else "patients of the same hospitals"
    table = Table(title=f"Judged on left-out {left}, {choice.folds} folds", box=None, pad_edge=False)
    for head in ("candidate", "log loss", "AUC", "exchanges", "sent", "p against the best", "settings"):
        table.add_column(head, justify="left" if head in ("candidate", "settings") else "right")
    for name, row in choice.rows.items():
        settings = ", ".join(f"{key} {value:g}" for key, value in row["settings"].items())
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        worth = f"{row['loss']:.3f}", f"{row['auc']:.3f}", f"{row['exchanges']:g}", amount(row["bytes"])
        table.add_row(name, *worth, p, settings)
    console.print(table)
    few = "" if choice.folds >= DECISIVE else f" {choice.folds} folds are too few to tell candidates apart."
    nested = f"log loss {choice.nested['loss']:.3f}, AUC {choice.nested['auc']:.3f}"
    console.print(f"Take {choice.verdict.pick}: {choice.verdict.reason}.{few}", markup=False)
    console.print(f"On folds that did not choose, such a pick has {nested}.", markup=False)
