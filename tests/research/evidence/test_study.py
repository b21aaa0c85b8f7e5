from dataclasses import replace

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.study import FULL, METHODS, Cell, CellOutcome, _write, cells, read, study
from fedsmall.research.evidence.study_page import judge, section
from fedsmall.research.evidence.study_walk import final_accuracies, side_by_side, train
from fedsmall.sim.engines.run import run_plan

OUTCOME = CellOutcome(0.9, 0.0, -0.1, 0.1, 1.0, 0.0, -0.1, 0.1, 1.0, 0.1, 0.1, 0.1, 0.0, 0, 10, 1.0)


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


@pytest.mark.thorough
def test_every_cell_can_be_planned():
    for cell in cells():
        plans = cell.scenario().plans()
        assert len({plan.method.label for plan in plans}) == len(METHODS)
        assert cell.sites * cell.samples <= 1347  # the training samples of digits


def test_cells_and_outcomes_are_read_back_as_they_were_written(tmp_path):
    held = {cells()[0]: OUTCOME, cells()[1]: outcome(0.5, 0.25, 0.125)}

    _write(tmp_path / "study.csv", held)

    assert dict(read(tmp_path / "study.csv")) == held


def test_names_with_quotes_and_commas_survive_a_study(tmp_path):
    cell = replace(cells()[0], model='CNN, "deep"', optimizer="SGD, 1/t")

    _write(tmp_path / "study.csv", {cell: OUTCOME})

    assert dict(read(tmp_path / "study.csv")) == {cell: OUTCOME}


def test_a_file_of_another_design_is_not_added_to(tmp_path):
    _write(tmp_path / "study.csv", {replace(cells()[0], samples=999): OUTCOME})

    with pytest.raises(PlanError, match="1 cells of another design"):
        study(tmp_path / "study.csv", minutes=0)


def test_a_study_without_time_runs_nothing_and_keeps_what_there_is(tmp_path):
    path = tmp_path / "study.csv"
    _write(path, {cells()[0]: OUTCOME})

    assert study(path, minutes=0) == 1


@pytest.mark.slow
def test_cells_come_out_the_same_from_two_processes(tmp_path, monkeypatch):
    quick = [
        cell for cell in cells() if (cell.samples, cell.sites, cell.model, cell.comm_rounds) == (2, 5, "linear", 20)
    ][:2]
    monkeypatch.setattr("fedsmall.research.evidence.study.cells", lambda: quick)

    for name, processes in (("one", 1), ("two", 2)):
        assert study(tmp_path / name, processes=processes) == 2

    timeless = [[replace(outcome, seconds=0) for _, outcome in read(tmp_path / name)] for name in ("one", "two")]
    assert timeless[0] == timeless[1]
    assert [cell for cell, _ in read(tmp_path / "two")] == quick


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
    # held to 5%: .01 <= .05 / 4, .02 <= .05 * 2 / 4, .03 <= .05 * 3 / 4, and .2 is more than .05
    found = [(cell, outcome(0.05, 0.01, p)) for cell, p in zip(cells(), (0.03, 0.01, 0.2, 0.02), strict=False)]

    assert [one.word for one in judge(found, "same")] == ["pays", "pays", "undecided", "pays"]


@pytest.mark.thorough
def test_the_section_is_empty_without_a_study_and_counts_its_cells_with_one(tmp_path):
    assert section(tmp_path) == ""

    _write(tmp_path / "study.csv", {cell: outcome(0.05, 0.01, 0.002) for cell in cells()[:30]})
    text = section(tmp_path)

    assert "Of 30 cells: 30 pays, 0 costs" in text
    assert "Of 30 cells: 0 pays, 0 costs, 0 no difference, 30 undecided" in text
    assert (tmp_path / "study-same.svg").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["SGD", "mini-batch SGD", "Adam, moments travel", "Adam, moments reset"])
@pytest.mark.parametrize("index", range(len(METHODS)))
def test_the_short_simulation_ends_with_the_model_of_an_engine(optimizer, index):
    scenario = Cell(4, 10, 2, "MLP", optimizer, 4, 40).scenario()
    scenario = scenario.model_copy(update={"rounds": 12, "dtype": "float64", "sites": 5})
    plan = scenario.plan(index, 3)
    # Adam divides by the root of second moments near zero: an epsilon above rounding keeps rounding from growing
    recipe = plan.recipe.model_copy(update={"epsilon": 1e-3, "lr": 0.1 if "SGD" in optimizer else 0.01})
    plan = plan.model_copy(update={"recipe": recipe})
    federation = build_federation(plan)

    cohort, stack, sides = side_by_side([plan], [federation])
    train(cohort, stack, sides)
    expected = run_plan(plan, federation, "inprocess")

    for name, array in expected.model.items():
        np.testing.assert_allclose(stack.model_state(0).model[name], array, atol=1e-9)
    accuracy = expected.evaluations[-1].common["accuracy"]
    assert final_accuracies([plan], [federation]) == [pytest.approx(accuracy)]


@pytest.mark.parametrize("index", range(len(METHODS)))
def test_federations_side_by_side_end_as_each_alone(index):
    scenario = Cell(4, 10, 2, "MLP", "SGD", 4, 40).scenario()
    scenario = scenario.model_copy(update={"rounds": 12, "dtype": "float64", "sites": 5})
    plans = [scenario.plan(index, seed) for seed in (1, 2, 3)]
    federations = [build_federation(plan) for plan in plans]

    together = final_accuracies(plans, federations)

    assert together == [final_accuracies([p], [f])[0] for p, f in zip(plans, federations, strict=True)]


def test_the_short_simulation_refuses_what_it_does_not_know():
    plan = Cell(4, 10, 2, "MLP", "SGD", 1, 40).scenario().plan(0, 0)
    prox = plan.model_copy(update={"method": method("FedProx")})

    with pytest.raises(PlanError, match="'FedProx' is more than that"):
        final_accuracies([prox], [build_federation(plan)])


def test_a_cell_is_named_by_its_levels():
    cell = Cell(4, 10, 2, "CNN, GroupNorm", "Adam, moments reset", 4, 40)

    plan = cell.scenario().plan(0, 0)

    assert (plan.model, plan.model_options) == ("cnn", {"norm": "group"})
    assert (plan.recipe.optimizer, plan.recipe.optimizer_state, plan.recipe.steps) == ("adam", "reset", 4)
    assert plan.partition == {"classes_per_site": 2}
