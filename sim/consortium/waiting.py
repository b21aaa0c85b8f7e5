"""Who is waited for: sites that a run is to begin with, and hospitals that have not said yes or have paused."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fedsmall.errors import PlanError
from fedsmall.files import one_line
from fedsmall.sim.consortium import server

Say = Callable[[str], None]
LOOK_S = 3.0  # each look starts a program of Flower's
WAITS_FILE = "waits.json"  # as fedsmall.strategies.server.deployment writes it


def wait_for(
    names: Iterable[str],
    within_s: float,
    online: Callable[[], set[str]],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until all of these sites are connected; ``say`` is told whenever that changes.

    ``online`` gives the names of those that are. Raises PlanError that names who is missing when the time is over.
    """
    wanted, deadline, told = set(names), clock() + within_s, None
    while missing := sorted(wanted - online()):
        if clock() >= deadline:
            raise PlanError(
                f"{', '.join(missing)} did not connect within {within_s / 60:g} minutes; nothing was started."
            )
        if missing != told:
            say(f"waiting for {', '.join(missing)}: {len(wanted) - len(missing)} of {len(wanted)} sites are connected")
            told = missing
        sleep(LOOK_S)


def online(folder: Path) -> set[str]:
    """The sites that are connected now."""
    return {name for name, node in server.registered(folder).items() if node.status == "online"}


def waits(home: Path) -> str:
    """Which hospitals a run waits for, and why, in one line; empty where it waits for none."""
    path = home / WAITS_FILE
    try:
        reasons = json.loads(path.read_text())
    except (OSError, ValueError):  # none, or one that is being replaced
        return ""
    return one_line("; ".join(dict.fromkeys(_named(site, reason) for site, reason in sorted(reasons.items()))), 1000)


def _named(site: str, reason: str) -> str:
    return f"{site}: {reason.removeprefix(f'{site}: ')}"
