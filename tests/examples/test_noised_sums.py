"""Noised sums against noised steps: the same sets and seeds, the promises kept, and a table of what is there."""

import pytest

from examples import noised_sums, patient_privacy
from examples.noised_sums import EPSILONS, KEPT, ONCE, STEPS, SUMS, scenario_of, table
from examples.patient_privacy import SETS, Cell
from fedsmall.sim.runs.files import read_json


@pytest.mark.parametrize("data", SETS)
def test_sums_and_steps_are_of_the_same_patients_at_the_same_epsilon(data):
    sums, once, steps = (scenario_of(data, method).plans() for method in (SUMS, ONCE, STEPS))

    known = patient_privacy.scenario_of(data).plans()
    assert {plan.method.shares_noise for plan in once} == {True}
    assert {plan.method.shares_noise for plan in (*sums, *steps)} == {False}
    assert (
        {plan.data_key for plan in sums}
        == {plan.data_key for plan in once}
        == {plan.data_key for plan in steps}
        == {plan.data_key for plan in known}
    )
    assert sorted({plan.privacy.epsilon for plan in sums}) == list(EPSILONS)
    assert {plan.privacy.delta for plan in sums} == {plan.privacy.delta for plan in known if plan.privacy.epsilon}


def test_what_is_kept_kept_its_promise_and_what_was_not_run_says_so():
    cells = [Cell(**cell) for cell in read_json(KEPT)]

    shown = table(cells)

    assert all(
        cell.method in (SUMS, ONCE) and cell.spent <= cell.epsilon and len(cell.accuracy) == 10 for cell in cells
    )
    sets = {cell.data for cell in cells}
    assert shown.count("not run") == 3 * len(EPSILONS) * len(sets) - len(cells)  # all noised steps, at the least
    before = [Cell(**cell) for cell in read_json(patient_privacy.KEPT) if cell["method"] == STEPS]
    assert table([*cells, *before]).count("±") == 3 * len(sets)
    assert noised_sums.KEPT_STEPS.name == "noised-steps.json"
