"""What stands beside the core and is found by its name: entry points, of ours (``extensions/``) and of anybody's.

Groups, and what an entry of each is:

- ``fedsmall.commands``: a Typer app or a function, the command of that name (:mod:`fedsmall.sim.cli.commands`).
"""

import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedsmall.errors import PlanError

BESIDE = Path(__file__).parents[1] / "pyproject.toml"  # of a checkout or Flower's bundle, which may not be installed


@cache
def extensions(group: str) -> dict[str, EntryPoint]:
    """The entries of a group ("fedsmall.commands") by their names, in the order of the names; none is loaded."""
    found = {entry.name: entry for entry in entry_points(group=group)}
    if BESIDE.is_file():
        project = tomllib.loads(BESIDE.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "fedsmall":
            ours = project.get("entry-points", {}).get(group, {})
            found |= {name: EntryPoint(name, value, group) for name, value in ours.items()}
    return dict(sorted(found.items()))


def load_extension(group: str, name: str) -> Any:
    """What an entry of a group stands for, imported now. Raises PlanError where nothing of that name is installed."""
    known = extensions(group)
    if name not in known:
        raise PlanError(f"no extension of {group} is called {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name].load()
