"""The kit that a hospital's commands work on, and what is read from it."""

from pathlib import Path
from typing import Annotated

import typer

from fedsmall.clients.policy import Policy, load_policy
from fedsmall.sim.consortium.site import Site

Kit = Annotated[Path, typer.Option("--kit", "-k", help="the folder that the coordinator sent")]
Home = Annotated[Path | None, typer.Option(help="where the site's programs write; by default the kit's state folder")]
RunName = Annotated[str, typer.Argument(help="the run's name; `fedsmall site log` shows it")]
HERE = Path()


def site_of(kit: Path, home: Path | None) -> Site:
    """The site of a kit, whose programs write to ``home``."""
    return Site(kit, home or kit / "state")


def policy_of(kit: Path) -> Policy:
    """The policy that lies in a kit; the default one where none does."""
    return load_policy(kit / "policy.toml") if (kit / "policy.toml").exists() else Policy()
