"""What a run says while it runs: a bar on a terminal and in a notebook, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any, Self, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsmall.plan import Plan

EVERY_S = 30.0  # the longest that a log is without a line
EVERY_CELL_S = 0.2


class Watcher:
    """Is told how far a run is, and says nothing of it. Used as a context: it is open while the run runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def moved(self, rounds: int) -> None:
        """All plans together have done so many rounds."""

    def end(self, plan: Plan) -> None:
        """A plan is done, or was cut short."""


@final
class Bars(Watcher):
    """One bar over all rounds of all plans, with the time that is left; it names the plan that was done last."""

    def __init__(self, console: Console, plans: Sequence[Plan], title: str) -> None:
        left = TextColumn("[dim]left[/dim]"), TimeRemainingColumn(elapsed_when_finished=False)
        share = TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), *share, *left
        self._bar, self._title = Progress(*columns, console=console, transient=True), title
        self._task = self._bar.add_task(title, total=sum(plan.rounds for plan in plans))

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def moved(self, rounds: int) -> None:
        """Move the bar, whose thread begins here: a process without threads can be forked."""
        self._bar.start()
        self._bar.update(self._task, completed=rounds)

    def end(self, plan: Plan) -> None:
        """Show the plan that was done last."""
        self._bar.update(self._task, description=f"{self._title} [dim]({called(plan)})[/dim]")


@final
class Lines(Watcher):
    """A line for every finished plan, and for every ``EVERY_S`` seconds without one: for logs and pipes."""

    def __init__(self, console: Console, plans: Sequence[Plan], title: str) -> None:
        self._console, self._title = console, title
        self._total, self._done = sum(plan.rounds for plan in plans), 0
        self._started = self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._started = self._last = time.monotonic()
        return self

    def moved(self, rounds: int) -> None:
        """Say how many rounds are done, where nothing was said for a while."""
        if time.monotonic() - self._last >= EVERY_S:
            self._say(rounds, f"{rounds} of {self._total} rounds")

    def end(self, plan: Plan) -> None:
        """Say that the plan is done, and how long the rest will take."""
        self._done += plan.rounds
        left = (time.monotonic() - self._started) * (self._total - self._done) / self._done
        self._say(self._done, f"{called(plan)} done", f", about {left:.0f} s left")

    def _say(self, rounds: int, words: str, left: str = "") -> None:
        self._last = time.monotonic()
        share, spent = 100 * rounds // self._total, self._last - self._started
        self._console.print(f"{self._title}: {words}, {share}%, {spent:.0f} s{left}")


@final
class InCell(Watcher):
    """One bar in the cell of a notebook, that moves and is gone when the run has ended."""

    def __init__(self, plans: Sequence[Plan], title: str) -> None:
        self._title, self._total, self._done = title, sum(plan.rounds for plan in plans), 0
        self._last, self._shown = "", -EVERY_CELL_S

    def __enter__(self) -> Self:
        from IPython.display import display

        self._handle = display(self._bar(), display_id=True)
        return self

    def __exit__(self, *error: object) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(""))

    def moved(self, rounds: int) -> None:
        """Move the bar, some times a second."""
        self._done = rounds
        if time.monotonic() - self._shown >= EVERY_CELL_S:
            self._shown = time.monotonic()
            self._handle.update(self._bar())

    def end(self, plan: Plan) -> None:
        """Show the plan that was done last."""
        self._last = f"{called(plan)} done"
        self._handle.update(self._bar())

    def _bar(self) -> Any:
        from IPython.display import HTML

        share = 100 * self._done // self._total
        bar = f'<progress max="{self._total}" value="{self._done}" style="width: 24em"></progress>'
        return HTML(f"{escape(self._title)} {bar} {share}% {escape(self._last)}")


def called(plan: Plan) -> str:
    """A plan in a few words."""
    fold = f", fold {plan.fold + 1} of {plan.folds}" if plan.folds else ""
    return f"{plan.method.label}, seed {plan.seed}{fold}"


def watcher(console: Console, plans: Sequence[Plan], title: str) -> Watcher:
    """Bars on a terminal, one in a notebook's cell, lines elsewhere."""
    python = sys.modules.get("IPython")
    if type(python.get_ipython() if python is not None else None).__name__ == "ZMQInteractiveShell":
        return InCell(plans, title)
    return (Bars if console.is_terminal and sys.stderr.isatty() else Lines)(console, plans, title)
