"""The table of accuracy against bytes: what it would run, what it has kept, and what it claims of 8 bits."""

import numpy as np
import pytest

from examples.fewer_bytes import FORMS, KEPT, METHODS, SEEDS, SETS, Cell, draw, frames_of, scenario_of, table
from fedsmall.evaluation.statistics import paired
from fedsmall.sim.runs.files import read_json
from tests import ROOT

CELLS = [Cell(**cell) for cell in read_json(KEPT)]


def cell_of(data: str, method: str, form: str) -> Cell:
    return next(cell for cell in CELLS if (cell.data, cell.method, cell.form) == (data, method, form))


@pytest.mark.parametrize("data", SETS)
def test_every_set_has_both_methods_in_all_forms_which_differ_in_nothing_else(data):
    plans = [scenario_of(data).plan(index, 0) for index in range(len(METHODS) * len(FORMS))]

    assert [plan.method.wire for plan in plans] == list(FORMS) * len(METHODS)
    like = {plan.model_copy(update={"method": None}).model_dump_json() for plan in plans}
    assert len(like) == 1


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_kept_is_whole_and_8_bits_cost_less_than_half_a_point(data, method):
    full, eight = cell_of(data, method, "full"), cell_of(data, method, "int8")

    assert len(full.accuracy) == len(eight.accuracy) == SEEDS
    assert paired(eight.accuracy, full.accuracy).difference.low > -0.005


@pytest.mark.parametrize("data", [data for data in SETS if "Adam" not in data])
@pytest.mark.parametrize("method", METHODS)
def test_arrays_shrink_to_a_half_and_a_quarter(data, method):
    full = cell_of(data, method, "full")

    shares = [cell_of(data, method, form).counted / full.counted for form in FORMS[1:]]

    np.testing.assert_allclose(shares, [1 / 2, 1 / 4], atol=0.02)
    assert all(cell_of(data, method, form).frames < full.frames for form in FORMS[1:])


@pytest.mark.thorough
def test_frames_are_weighed_as_they_were():
    data, method = "breast cancer, 20 x 10", "FedAvg, b = 1"
    plan = scenario_of(data, 1).plan(list(FORMS).index("int8"), 0)

    assert frames_of(plan) == pytest.approx(cell_of(data, method, "int8").frames, rel=0.01)  # versions are in words


@pytest.mark.thorough
def test_the_page_has_the_table_and_the_figure_is_drawn(tmp_path):
    draw(CELLS, tmp_path / "figure.svg")

    assert table(CELLS) in (ROOT / "docs" / "bytes.md").read_text(encoding="utf-8")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
