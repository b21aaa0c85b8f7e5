"""The server's keeper: lets go of sites whose admission expires, and restores what a killed SuperLink forgot.

A SuperLink keeps its state in memory unless the server is ``durable``. After a restart the sites are registered anew
and every run is resumed, to the same bits; on a durable server too, for no ServerApp outlives a restart. So is a run
whose ServerApp has died, of a full disk too: after a minute and a half, and then in twice the time of the try before.
"""

import json
import sys
import time
import traceback
from pathlib import Path

from fedsmall.files import one_line
from fedsmall.sim.consortium import flower_cli, runs, server

LOOK_S = 2.0
DIED_S, LONGEST_S = 90.0, 3600.0  # how long a run may have no ServerApp, which takes time to start: first, at most
ENDS_S = 90.0  # how long a ServerApp may take to see that its SuperLink has forgotten it


def keep(folder: Path, durable: bool) -> None:
    """Look after the server in ``folder`` for ever; what fails is tried again at the next look."""
    while True:
        try:
            look(folder, durable)
        except Exception as error:
            traceback.print_exc()
            say(f"failed, and is tried again: {one_line(error, 300)}")
        time.sleep(LOOK_S)


def look(folder: Path, durable: bool) -> None:
    """Compare what is with what was, and act where they differ."""
    before, now = _seen(folder), server.state(folder)
    if before == now:
        return resume_died(folder)
    if before is None or not server.is_up(folder):
        return
    server.register(folder, say)
    if server.STARTED in before or (not durable and before["superlink"] != now["superlink"]):
        for run in interrupted(folder):
            if flower_cli.wait_until(lambda run=run: not runs.is_running(folder / "runs" / run), ENDS_S):  # type: ignore[misc]
                say(f"# {run} goes on")
                runs.resume(folder, run, say)
    server.note(folder, now)


def interrupted(folder: Path) -> list[str]:
    """The runs that were under way when an earlier SuperLink ended: launched before this one began, and not over."""
    began, homes = server.began(folder), sorted((folder / "runs").glob("*"))
    return [home.name for home in homes if (since := runs.under_way_since(home)) is not None and since < began]


def resume_died(folder: Path) -> None:
    """Go on with the runs of :func:`died_runs`; the log tells of every try, before it."""
    for run in died_runs(folder):
        if server.is_up(folder):
            say(f"# {run} has lost its ServerApp, and goes on")
            runs.log_of(folder / "runs" / run).write(runs.DIED)
            runs.resume(folder, run, say)


def died_runs(folder: Path) -> list[str]:
    """The runs that were launched, have not ended, and had no ServerApp for as long as it may take to start one."""
    return [path.parent.name for path in sorted((folder / "runs").glob("*/log.jsonl")) if _has_died(path.parent)]


def _has_died(home: Path) -> bool:
    quiet = time.time() - (home / "log.jsonl").stat().st_mtime
    if quiet < DIED_S or runs.is_running(home) or runs.under_way_since(home) is None:
        return False
    events = [event for event, _ in runs.events_of(home)]
    in_vain = events[len(events) - events[::-1].index("answer") :] if "answer" in events else events
    return quiet > min(DIED_S * 2.0 ** in_vain.count(runs.DIED), LONGEST_S)


def _seen(folder: Path) -> dict[str, object] | None:
    path = folder / "state" / server.SEEN
    return json.loads(path.read_text()) if path.exists() else None


def say(line: str) -> None:
    """A line in the keeper's own log."""
    print(line, flush=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), "--durable" in sys.argv[2:])
