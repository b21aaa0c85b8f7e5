"""What methods come to by the number of hospitals: nested, judged on the same patients, on the page of a run."""

from itertools import pairwise

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.runs.hospitals import counts_up_to, first_of_order, growth_of, read_growth
from fedsmall.sim.runs.scenario import build


def scenario(*methods, **changes):
    table = {
        "name": "grown",
        "task": "breast_cancer",
        "sites": 6,
        "samples_per_site": 4,
        "rounds": 20,
        "model": "linear",
    }
    table |= {"seeds": [0, 1], "recipe": {"lr": 0.1}, "metric": "loss"} | changes
    return build(table | {"method": [{"name": name} if isinstance(name, str) else name for name in methods]})


@pytest.mark.parametrize(
    ("sites", "expected"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (40, [1, 2, 5, 10, 20, 40]), (100, [1, 2, 5, 10, 20, 50, 100])],
)
def test_counts_are_1_2_5_of_each_decade_and_all(sites, expected):
    assert counts_up_to(sites) == expected


def test_smaller_federations_are_within_the_larger_and_judged_on_the_same_patients():
    whole = build_federation(scenario("FedAvg").plans()[0])

    names = [set(first_of_order(whole, 0, count).names) for count in (1, 2, 5, 6)]

    assert [len(found) for found in names] == [1, 2, 5, 6]
    assert all(few < more for few, more in pairwise(names))
    assert first_of_order(whole, 0, 2).test is whole.test
    assert {first_of_order(whole, seed, 1).names for seed in range(9)} != {tuple(names[0])}
    with pytest.raises(ValueError, match="take 1 to all"):
        first_of_order(whole, 0, 7)


def test_more_hospitals_are_worth_more_and_a_secure_sum_of_two_has_no_value():
    secure = {"name": "Ridge", "regression": {"penalty": 1.0}, "privacy": {"secure": True}}

    grown = growth_of(scenario("FedAvg", "Standalone", secure))

    assert list(grown.values) == ["FedAvg", "Ridge"]
    assert list(grown.values["FedAvg"]) == [1, 2, 5, 6]
    assert min(grown.values["Ridge"]) == 5
    assert np.mean(grown.values["FedAvg"][6]) < np.mean(grown.values["FedAvg"][1])
    with pytest.raises(PlanError, match="no method here"):
        growth_of(scenario("Standalone"))


@pytest.mark.thorough
def test_a_page_shows_the_curve_where_it_was_asked_for(fedsmall, tmp_path):
    (tmp_path / "s.toml").write_text("""
name = "s"
task = "breast_cancer"
sites = 3
samples_per_site = 4
rounds = 2
[[method]]
name = "FedAvg"
""")

    code, said, _ = fedsmall("run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--hospitals")
    plain, _, _ = fedsmall("run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "plain"))

    assert (code, plain) == (0, 0), said
    assert set(read_growth(tmp_path / "out").values["FedAvg"]) == {1, 2, 3}
    assert "Does joining pay" in (tmp_path / "out" / "report.html").read_text()
    assert read_growth(tmp_path / "plain") is None
    assert "Does joining pay" not in (tmp_path / "plain" / "report.html").read_text()
