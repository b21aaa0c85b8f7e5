"""``fedsmall site``: what a hospital runs: its key, its programs, its log."""

from collections.abc import Callable

import typer

from fedsmall.sim.cli.site import programs, runs

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run a hospital's side of a consortium.")
COMMANDS: dict[str, Callable[..., None]] = {  # as its help lists them
    "keygen": programs.keygen,
    "roll": programs.roll,
    "up": programs.up,
    "check": programs.check,
    "audit": runs.audit,
    "package": runs.package,
    "pause": programs.pause,
    "unpause": programs.unpause,
    "approve": programs.approve,
    "report": runs.report,
    "predictions": runs.predictions,
    "forget": runs.forget,
    "down": programs.down,
    "status": programs.status,
    "log": runs.log,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
