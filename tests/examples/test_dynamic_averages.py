"""Accuracy against bytes where averages are left out: what would be run, what is kept, and what pages claim."""

import numpy as np
import pytest

from examples.dynamic_averages import (
    BOUNDS,
    KEPT,
    SEEDS,
    SETS,
    Cell,
    cell_of,
    draw,
    measure,
    period_like,
    scenario_of,
    settings,
    table,
)
from fedsmall.evaluation.statistics import paired
from fedsmall.sim.runs.files import read_json
from tests import ROOT

CELLS = [Cell(**cell) for cell in read_json(KEPT)]
DIGITS, SKEWED, BREAST, HEART = SETS


@pytest.mark.parametrize("data", SETS)
def test_what_is_compared_differs_in_when_models_are_averaged_alone(data):
    plans = [scenario_of(data).plan(index, 0) for index in range(len(settings()))]

    assert [(plan.method.aggregate_every, plan.method.divergence) for plan in plans] == settings()
    same = {"aggregate_every": None, "divergence": None, "label": ""}
    alike = [plan.model_copy(update={"method": plan.method.model_copy(update=same)}) for plan in plans]
    assert all(plan == alike[0] for plan in alike)


@pytest.mark.parametrize("data", SETS)
def test_what_is_kept_is_whole(data):
    cells = [cell_of(CELLS, data, *setting) for setting in settings()]

    assert {len(cell.accuracy) for cell in cells} == {len(cell.bytes) for cell in cells} == {SEEDS}
    for cell in cells:
        assert cell.left_out + cell.partial + cell.whole == pytest.approx(1)


@pytest.mark.parametrize("data", SETS)
def test_a_tight_bound_keeps_the_accuracy_of_every_round_for_half_of_the_bytes_or_less(data):
    every, tight = cell_of(CELLS, data, 1, None), cell_of(CELLS, data, 1, 0.1)

    assert paired(tight.accuracy, every.accuracy).difference.low > -0.01
    assert every.megabytes / 6.5 < tight.megabytes < every.megabytes / 2


def test_against_periods_of_as_many_bytes_tight_bounds_are_ahead_on_digits_alone_and_loose_ones_behind():
    leads = {
        (data, bound): paired(cell.accuracy, period_like(CELLS, cell).accuracy).difference
        for data in SETS
        for bound in BOUNDS[1]
        for cell in [cell_of(CELLS, data, 1, bound)]
    }

    assert [leads[data, 0.1].low > 0 for data in SETS] == [True, True, False, False]
    assert leads[SKEWED, 3.0].high < 0
    assert leads[SKEWED, 3.0].mean == pytest.approx(-0.061, abs=0.001)
    assert sum(len(bounds) for bounds in BOUNDS.values()) * len(SETS) == 32


@pytest.mark.thorough
def test_a_run_is_as_it_was(data_root, monkeypatch):
    monkeypatch.setenv("FEDSMALL_DATA", str(data_root))
    kept = cell_of(CELLS, HEART, 1, 0.3)

    again = cell_of(measure(HEART, 1), HEART, 1, 0.3)

    assert (again.accuracy, again.bytes) == (kept.accuracy[:1], kept.bytes[:1])


@pytest.mark.thorough
def test_the_page_has_the_table_and_the_figure_is_drawn(tmp_path):
    draw(CELLS, tmp_path / "figure.svg")

    assert table(CELLS) in (ROOT / "docs" / "averages.md").read_text(encoding="utf-8")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
    assert np.isfinite([cell.megabytes for cell in CELLS]).all()
