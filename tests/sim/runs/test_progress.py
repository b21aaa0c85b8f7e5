from io import StringIO

import pytest
from rich.console import Console

from fedsmall.sim.runs.execute import Federations
from fedsmall.sim.runs.progress import Bars, InCell, Lines, watcher


def test_lines_say_what_is_done_and_what_is_left(small_run):
    console = Console(file=StringIO(), width=120)
    plans = small_run.plans[:2]

    with Lines(console, plans, "small") as lines:
        lines.end(plans[0])
        lines.end(plans[1])

    first, second = console.file.getvalue().splitlines()
    assert first.startswith("small: Standalone, seed 0 done, 50%")
    assert second.startswith("small: FedAvg, b = 3, seed 0 done, 100%")
    assert second.endswith("about 0 s left")


def test_bars_name_the_plan_that_was_done_last_and_the_share(small_run):
    console = Console(file=StringIO(), width=120, force_terminal=True)

    with Bars(console, small_run.plans[:2], "small") as bars:
        bars.moved(6)
        bars.end(small_run.plans[0])

    shown = console.file.getvalue()
    assert "Standalone, seed 0" in shown
    assert "50%" in shown


def test_a_pipe_gets_lines_and_no_bars(small_run):
    assert isinstance(watcher(Console(file=StringIO()), small_run.plans, "small"), Lines)


def test_plans_that_differ_in_their_method_share_their_federation(small_run):
    built = []
    federations = Federations(lambda plan: built.append(plan) or object())

    same = {id(federations.of(plan)) for plan in small_run.plans[:5]}
    federations.of(small_run.plans[5])

    assert len(same) == 1
    assert [plan.seed for plan in built] == [0, 1]


def test_a_long_plan_says_how_far_it_is_at_least_every_half_minute(small_run, monkeypatch):
    console, clock = Console(file=StringIO(), width=120), [0.0]
    monkeypatch.setattr("fedsmall.sim.runs.progress.time.monotonic", lambda: clock[0])

    with Lines(console, small_run.plans[:2], "small") as lines:
        for rounds in range(1, 9):
            clock[0] += 10
            lines.moved(rounds)
            if rounds == 4:
                lines.end(small_run.plans[0])

    said = console.file.getvalue().splitlines()
    assert said[0] == "small: 3 of 12 rounds, 25%, 30 s"
    assert said[1].startswith("small: Standalone, seed 0 done")
    assert said[2] == "small: 7 of 12 rounds, 58%, 70 s"
    assert len(said) == 3


def test_a_notebook_has_one_bar_that_moves(small_run, monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown, clock = [], [0.0]

    class Handle:
        def update(self, html):
            shown.append(html.data)

    monkeypatch.setattr("fedsmall.sim.runs.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(display, "display", lambda html, display_id: (shown.append(html.data), Handle())[1])

    with InCell(small_run.plans[:2], "<small>") as bar:
        for rounds in range(1, 7):
            clock[0] += 0.1
            bar.moved(rounds)
        bar.end(small_run.plans[0])

    assert 'max="12" value="0"' in shown[0]
    assert "&lt;small&gt;" in shown[0]
    assert "50% Standalone, seed 0 done" in shown[-2]
    assert shown[-1] == ""
    assert len(shown) < 1 + 6 + 1 + 1  # not for every round
