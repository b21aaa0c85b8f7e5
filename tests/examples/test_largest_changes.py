"""The table of the largest changes: what it would run, what it has kept, and what is claimed of it."""

import numpy as np
import pytest

from examples.fewer_bytes import METHODS, Cell, frames_of, scenario_of, table
from examples.largest_changes import KEPT, SEEDS, SETS, SHARES, draw
from fedsmall.evaluation.statistics import paired
from fedsmall.sim.runs.files import read_json
from tests import ROOT

CELLS = [Cell(**cell) for cell in read_json(KEPT)]


def cell_of(data: str, method: str, form: str) -> Cell:
    return next(cell for cell in CELLS if (cell.data, cell.method, cell.form) == (data, method, form))


@pytest.mark.parametrize("data", SETS)
def test_every_set_has_both_methods_in_all_forms_which_differ_in_nothing_else(data):
    plans = [scenario_of(data, 1, SHARES).plan(index, 0) for index in range(len(METHODS) * len(SHARES.forms))]

    assert [plan.method.wire for plan in plans] == list(SHARES.forms) * len(METHODS)
    assert len({plan.model_copy(update={"method": None}).model_dump_json() for plan in plans}) == 1


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_kept_is_whole_and_less_is_sent_the_fewer_numbers_go(data, method):
    cells = [cell_of(data, method, form) for form in ("full", "top10%", "top1%")]

    assert {len(cell.accuracy) for cell in cells} == {SEEDS}
    assert cells[0].counted > cells[1].counted > cells[2].counted
    assert cells[0].frames > cells[1].frames > cells[2].frames


@pytest.mark.parametrize("method", METHODS)
def test_one_number_in_a_hundred_needs_rounds(method):
    short, long = (
        paired(cell_of(data, method, "top1%").accuracy, cell_of(data, method, "full").accuracy).difference
        for data in ("digits, 100 rounds", "digits")
    )

    assert short.high < -0.1
    assert long.low > -0.01


@pytest.mark.thorough
def test_frames_are_weighed_as_they_were(data_root, monkeypatch):
    monkeypatch.setenv("FEDSMALL_DATA", str(data_root))
    plan = scenario_of("heart disease", 1, SHARES).plan(SHARES.forms.index("top10%"), 0)

    kept = cell_of("heart disease", "FedAvg, b = 1", "top10%")
    assert frames_of(plan, SHARES.weighed) == pytest.approx(kept.frames, rel=0.02)  # orders have lost a word since


@pytest.mark.thorough
def test_the_page_has_the_table_and_the_figure_is_drawn(tmp_path):
    draw(CELLS, tmp_path / "figure.svg")

    assert table(CELLS, SHARES) in (ROOT / "docs" / "bytes.md").read_text(encoding="utf-8")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_bytes_are_a_small_part_without_moments():
    shares = [
        cell_of(data, method, "top1%").counted / cell_of(data, method, "full").counted
        for data in SETS
        for method in METHODS
        if "Adam" not in data
    ]

    assert np.max(shares) < 0.06
