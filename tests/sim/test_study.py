from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedsmall.errors import PlanError
from sim.study import FULL, METHODS, Cell, Outcome, _write, cells, read, study
from sim.study_page import _discovered, judge, section

OUTCOME = Outcome(0.9, 0.0, -0.1, 0.1, 1.0, 0.0, -0.1, 0.1, 1.0, 0.1, 0.1, 0.1, 0.0, 0, 10, 1.0)


def outcome(mean, reach, p):
    return replace(OUTCOME, same_mean=mean, same_low=mean - reach, same_high=mean + reach, same_p=p)


def test_cells_are_all_different_and_always_in_the_same_order():
    assert len(set(cells())) == len(cells())
    assert cells() == cells()


def test_the_first_cells_are_a_balanced_sample_of_the_design():
    first = cells()[:160]

    for factor in ("samples", "classes", "steps"):
        counts = [sum(getattr(cell, factor) == level for cell in first) for level in FULL[factor]]
        assert min(counts) > 0.6 * len(first) / len(counts)


def test_every_cell_can_be_planned():
    for cell in cells():
        plans = cell.scenario().plans()
        assert len({plan.method.label for plan in plans}) == len(METHODS)
        assert cell.sites * cell.samples <= 1347  # the training samples of digits


def test_cells_and_outcomes_are_read_back_as_they_were_written(tmp_path):
    held = {cells()[0]: OUTCOME, cells()[1]: outcome(0.5, 0.25, 0.125)}

    _write(tmp_path / "study.csv", held)

    assert dict(read(tmp_path / "study.csv")) == held


def test_a_file_of_another_design_is_not_added_to(tmp_path):
    _write(tmp_path / "study.csv", {replace(cells()[0], samples=999): OUTCOME})

    with pytest.raises(PlanError, match="1 cells of another design"):
        study(tmp_path / "study.csv", minutes=0)


def test_a_study_without_time_runs_nothing_and_keeps_what_there_is(tmp_path):
    path = tmp_path / "study.csv"
    _write(path, {cells()[0]: OUTCOME})

    assert study(path, minutes=0, engine="inprocess") == 1


def test_words_for_a_cell():
    found = [
        (cells()[0], outcome(0.05, 0.01, 0.002)),
        (cells()[1], outcome(-0.05, 0.01, 0.002)),
        (cells()[2], outcome(0.001, 0.002, 0.9)),
        (cells()[3], outcome(0.02, 0.05, 0.4)),
    ]

    assert [one.word for one in judge(found, "same")] == ["pays", "costs", "no difference", "undecided"]


def test_a_lone_interval_that_misses_zero_among_many_is_not_believed():
    found = [(cell, outcome(0.0, 0.05, 0.5)) for cell in cells()[:100]]
    found[7] = (found[7][0], outcome(0.05, 0.045, 0.03))

    assert {one.word for one in judge(found, "same")} == {"undecided"}


def test_discoveries_are_those_of_benjamini_and_hochberg():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.uniform(0, 0.01, 20), rng.uniform(0, 1, 80)])

    np.testing.assert_array_equal(_discovered(p), stats.false_discovery_control(p) <= 0.05)


def test_the_section_is_empty_without_a_study_and_counts_its_cells_with_one(tmp_path):
    assert section(tmp_path) == ""

    _write(tmp_path / "study.csv", {cell: outcome(0.05, 0.01, 0.002) for cell in cells()[:30]})
    text = section(tmp_path)

    assert "Of 30 cells: 30 pays, 0 costs" in text
    assert "Of 30 cells: 0 pays, 0 costs, 0 no difference, 30 undecided" in text
    assert (tmp_path / "study-same.svg").is_file()


def test_a_cell_is_named_by_its_levels():
    cell = Cell(4, 10, 2, "CNN, GroupNorm", "Adam, moments reset", 4, 40)

    plan = cell.scenario().plan(0, 0)

    assert (plan.model, plan.model_options) == ("cnn", {"norm": "group"})
    assert (plan.recipe.optimizer, plan.recipe.optimizer_state, plan.recipe.steps) == ("adam", "reset", 4)
    assert plan.partition == {"classes_per_site": 2}
