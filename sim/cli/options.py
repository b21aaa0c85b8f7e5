"""What several commands share, so that they read and behave alike: options, and how they print."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from typer import Option

from fedsmall.errors import PlanError
from fedsmall.files import plain

if TYPE_CHECKING:
    from rich.table import Table

ENGINE = Option(help="cohort, inprocess or ray; the fastest one here if not given")
DEVICE = Option(
    help="where models train: auto, cpu, cuda, cuda:1, mps, kernel or kernel:4; what the scenario says if not given"
)
OUT = Option(help="the run's folder; runs/NAME if not given. Never written over")
SET = Option("--set", metavar="KEY=VALUE", help="change a key of the scenario: --set recipe.lr=0.1")
DATA_ROOT = Option(
    exists=True,
    file_okay=False,
    envvar="FEDSMALL_DATA",
    help="the folder with data files (MedMNIST, heart_disease, susy)",
)
PROCESSES = Option(min=1, help="how many plans run at once; one for each core if not given")
ADDRESS = Option(help='ray: a running Ray cluster ("auto", or its address) that the sites are spread over')

# a word of another's stands there as it came, and does nothing else
console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def command_group(help: str) -> typer.Typer:
    """An application of several commands, which says what they are where none is named."""
    return typer.Typer(no_args_is_help=True, add_completion=False, help=help)


def terminal() -> Console:
    """Where commands write: as wide as the terminal is, and wide enough for a table in a file or a pipe."""
    wide = Console(highlight=False, soft_wrap=True)
    return wide if wide.is_terminal else Console(highlight=False, soft_wrap=True, width=120)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), title: str = "") -> "Table":
    """Rows under ``heads``, some of which stand to the ``right``."""
    from rich.table import Table

    made = Table(title=title or None, header_style="dim", box=None, pad_edge=False)
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left")
    for row in rows:
        made.add_row(*row)
    return made


def say(text: str, style: str | None = None) -> None:
    """Print one line."""
    console.print(plain(text), style=style)


def say_roll(roll: Mapping[str, str]) -> None:
    """Names and identities, and their digest for people and for a policy."""
    from fedsmall.sealing.envelopes import digest_words, roll_digest

    for name, identity in sorted(roll.items()):
        say(f"{name:16} {identity}")
    say(f"to read to each other: {digest_words(roll)}")
    say(f'to pin in policy.toml: roll = "sha256:{roll_digest(roll)}"')


def say_faults(faults: Sequence[str]) -> None:
    """Print faults, and exit with 1 where there are any."""
    for fault in faults:
        say(fault, "red")
    if faults:
        raise typer.Exit(1)


def check_unwritten(path: Path | None) -> None:
    """Raise PlanError where a file to write is there already."""
    if path is not None and path.exists():
        raise PlanError(f"{path} is there already; it is not written over")


def complete_folder(folder: Path) -> Path:
    """The folder of a run; over real sites (PlanError where not finished) it gets the files of a simulation's first."""
    if (folder / "sheet.json").is_file() and not (folder / "run.json").is_file():
        from fedsmall.sim.consortium.finished import complete  # brings torch, which the others do without

        complete(folder)
    return folder
