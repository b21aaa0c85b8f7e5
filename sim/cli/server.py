"""``fedsmall server``: the coordinator's SuperLink, SuperExec and gate."""

from typing import Annotated

import typer

from fedsmall.sim.cli.consortium import HERE, Folder
from fedsmall.sim.cli.terminal import say
from fedsmall.sim.consortium import members, server, supervisor
from fedsmall.sim.consortium.supervisor import stay

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run the coordinator's server.")


@app.command("up")
def up(
    folder: Folder = HERE,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="return when it is up; stop with `down`")] = False,
    only: Annotated[str, typer.Option(help="superlink, superexec or gate alone: a container each")] = "",
    durable: Annotated[
        bool,
        typer.Option("--durable", help="the SuperLink's state on the disk: slower; a run survives its death"),
    ] = False,
) -> None:
    """Start the server and bring its register of sites up to date; every command that is run is shown."""
    from fedsmall.sim.consortium.keeper import interrupted  # brings torch, which takes its time

    server.up(folder, say, only, durable=durable)
    record = members.load(folder)
    say(f"The server is up: sites dial {record.address}; only this machine may command it.")
    for run in interrupted(folder) if only in ("", "superexec") else ():
        say(f"The run {run!r} was under way and goes on by itself; `fedsmall stop {run}` ends it.")
    if not detach:
        stay(server.process_folder(folder, only), say)


@app.command("down")
def down(
    folder: Folder = HERE,
    only: Annotated[str, typer.Option(help="superlink, superexec or gate alone, as at `up`")] = "",
) -> None:
    """Stop the server; a run that is under way goes on when it is up again, unless it was stopped."""
    say("stopped" if server.down(folder, only) else "nothing ran")


@app.command("status")
def status(folder: Folder = HERE) -> None:
    """Which programs run, and which sites are connected."""
    running = supervisor.pids(server.process_folder(folder))
    for name in ("superlink", "superexec", "gate", "keeper"):
        say(f"{name}: {'runs' if name in running else 'does not run'}")
    if not running:
        raise typer.Exit(1)
    present = server.registered(folder)
    for name, member in sorted(members.load(folder).members.items()):
        node = present.get(name)
        say(f"{name}: {node.status if node else member.standing(members.today())}")
