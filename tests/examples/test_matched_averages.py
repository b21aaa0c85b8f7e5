"""What is kept of matched averages: whole, on the page, and what the page concludes."""

import numpy as np

from examples.matched_averages import EVERY, KEPT, METHODS, SEEDS, SETS, STARTS, table
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.files import read_json

FOUND = read_json(KEPT)


def after(data: str, start: str, label: str, t: int) -> float:
    return float(np.mean(FOUND[data][start][label][str(t)]))


def test_every_set_start_and_method_is_kept_with_every_seed():
    assert [*FOUND] == [*SETS]
    for starts in FOUND.values():
        assert [*starts] == [*STARTS]
        assert all([*methods] == [*METHODS] for methods in starts.values())
        values = [one for methods in starts.values() for rounds in methods.values() for one in rounds.values()]
        assert {len(one) for one in values} == {SEEDS}


def test_the_page_has_the_table():
    assert f"<!-- table matched-averages -->\n{table(FOUND)}\n<!-- end -->" in (DOCS / "findings.md").read_text("utf-8")


def test_the_matched_first_average_is_worth_more_and_less_than_a_common_start():
    for data in SETS:
        for name in ("FedAvg", "FedDC"):
            plain, matched = (after(data, "independent", f"{name}, {way}", EVERY) for way in ("mean", "matched mean"))
            assert plain + 0.2 < matched < after(data, "common", f"{name}, mean", EVERY)
