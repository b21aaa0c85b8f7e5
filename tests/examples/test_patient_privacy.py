"""The table of accuracy against a patient's epsilon: what it would run, and what it has kept."""

import pytest

from examples.patient_privacy import EPSILONS, KEPT, METHODS, SETS, Cell, scenario_of, table
from fedsmall.privacy.patient_level import lot_of
from fedsmall.sim.runs.files import read_json


@pytest.mark.parametrize("data", SETS)
def test_every_set_has_every_method_at_every_epsilon_and_without(data):
    plans = [scenario_of(data).plan(index, 0) for index in range(len(METHODS) * len(EPSILONS))]

    private = [plan for plan in plans if plan.privacy.is_patient_level]

    assert len(private) == len(METHODS) * (len(EPSILONS) - 1)
    assert {lot_of(plan) for plan in private} == {plan.recipe.batch for plan in plans} == {SETS[data]["lot"]}


def test_what_is_kept_is_of_these_sets_and_kept_its_promise():
    cells = [Cell(**cell) for cell in read_json(KEPT)]

    assert {cell.data for cell in cells} <= set(SETS)
    assert all(cell.spent is None or cell.spent <= cell.epsilon for cell in cells)
    assert all(len(cell.accuracy) == len(cell.auc) == 10 for cell in cells)
    assert table(cells).count("\n") == 1 + len({(cell.data, cell.method) for cell in cells})
