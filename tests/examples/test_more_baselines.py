"""The table of two more baselines: what is kept, how fair a model is by hand, and that the page has it."""

import numpy as np
import pytest

from examples.more_baselines import KEPT, METHODS, RATES, SEEDS, SETS, Cell, measure, spread, table
from fedsmall.evaluation.statistics import paired
from fedsmall.federation import Federation, Samples, Task
from fedsmall.sim.runs.files import read_json
from tests import ROOT

CELLS = [Cell(**cell) for cell in read_json(KEPT)]


@pytest.mark.parametrize("data", SETS)
def test_what_is_kept_is_whole_and_has_a_rate_within_those_tried(data):
    mine = [cell for cell in CELLS if cell.data == data]

    assert [cell.method for cell in mine] == [method["name"] for method in METHODS]
    assert {len(cell.accuracy) for cell in mine} == {len(cell.spread) for cell in mine} == {SEEDS}
    assert all(cell.lr in RATES for cell in mine)


@pytest.mark.parametrize(("data", "ahead"), list(zip(SETS, [{"SCAFFOLD", "FedDC", "FedPAGE"}, set()], strict=True)))
def test_those_are_ahead_of_averaging_of_whom_the_page_says_so(data, ahead):
    mine = {cell.method: cell.accuracy for cell in CELLS if cell.data == data}

    shown = {name for name, accuracy in mine.items() if paired(accuracy, mine["FedAvg"]).difference.low > 0}

    assert shown == ahead


def test_the_spread_is_that_of_test_accuracies_on_each_sites_own_classes():
    def site(*y):
        return Samples(np.zeros((len(y), 1)), np.array(y))

    test = site(0, 0, 1, 1)
    federation = Federation(Task("two", (1,), 2), ("a", "b"), (site(0, 0), site(0, 1)), test)

    assert spread(np.array([True, True, True, False]), federation) == pytest.approx(np.std([1.0, 0.75]))


def test_a_set_is_measured_as_it_was_for_the_first_seed(monkeypatch):
    monkeypatch.setattr("examples.more_baselines.METHODS", [{"name": "FedFa"}])
    monkeypatch.setattr("examples.more_baselines.RATES", [0.1])
    data = "breast cancer, 20 x 10"

    again = measure(data, seeds=1, most_seeds=1)[0]

    kept = next(cell for cell in CELLS if (cell.data, cell.method) == (data, "FedFa"))
    assert kept.lr == 0.1
    assert again.sent == kept.sent
    assert again.accuracy[0] == pytest.approx(kept.accuracy[0], abs=0.015)  # a sample or two, elsewhere


def test_the_page_has_the_table():
    assert table(CELLS) in (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
