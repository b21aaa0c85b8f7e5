"""The table of searched periods: what is kept, what the search takes, and that the page has it."""

import pytest

from examples.tuned_periods import KEPT, METHODS, RATES, SEEDS, SETS, TRIED, Cell, measure, table
from fedsmall.evaluation.statistics import paired
from fedsmall.sim.runs.files import read_json
from tests import ROOT

CELLS = [Cell(**cell) for cell in read_json(KEPT)]


def both(data: str, method: str) -> list[Cell]:
    return [next(c for c in CELLS if (c.data, c.method, c.own) == (data, method, own)) for own in (True, False)]


@pytest.mark.parametrize("data", SETS)
def test_what_is_kept_is_whole_and_of_the_whole_search(data):
    mine = [cell for cell in CELLS if cell.data == data]
    settings = 1 + len(TRIED["aggregate_every"]) * (len(TRIED["permute_every"]) + len(TRIED["proximal_mu"]))

    assert [(cell.method, cell.own) for cell in mine] == [(m["label"], own) for m in METHODS for own in (True, False)]
    assert {len(cell.accuracy) for cell in mine} == {SEEDS}
    assert {cell.searched for cell in mine} == {settings * len(RATES) * 4 * 5}


@pytest.mark.parametrize("data", SETS)
def test_a_search_is_not_shown_to_change_what_feddc_is_worth_and_takes_a_longer_period(data):
    own, taken = both(data, "FedDC")
    difference = paired(taken.accuracy, own.accuracy).difference

    assert difference.low < 0 < difference.high
    assert taken.setting.startswith("aggregate_every = 50")
    assert taken.sent <= own.sent


@pytest.mark.parametrize(("data", "pays"), [("digits, 50 x 8, two classes", True), ("breast cancer, 20 x 10", False)])
def test_a_search_of_fedprox_pays_where_the_page_says_so(data, pays):
    own, taken = both(data, "FedProx")

    assert (paired(taken.accuracy, own.accuracy).difference.low > 0) == pays


def test_a_set_is_searched_and_both_settings_run(monkeypatch):
    monkeypatch.setattr("examples.tuned_periods.METHODS", METHODS[2:])
    monkeypatch.setattr("examples.tuned_periods.RATES", (0.3,))
    monkeypatch.setattr("examples.tuned_periods.TRIED", {"proximal_mu": (0.01, 0.1)})
    monkeypatch.setitem(SETS["breast cancer, 20 x 10"], "rounds", 4)

    own, taken = measure("breast cancer, 20 x 10", seeds=2, searched=1)

    assert (own.own, own.setting, own.lr) == (True, "proximal_mu = 0.1", 0.3)
    assert taken.setting.startswith("proximal_mu = ")
    assert own.searched == 2 * 4
    assert len(taken.accuracy) == 2


def test_the_page_has_the_table():
    assert table(CELLS) in (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
