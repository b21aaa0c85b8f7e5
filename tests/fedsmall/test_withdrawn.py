"""What earlier releases had and this one has not: refused with what to write, and read where it said nothing."""

import pytest

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import INSTEAD, Method
from fedsmall.sim.runs.scenario import build

GIVEN = {
    "FedTM": {"name": "FedTM"},
    "ParallelFedAvg": {"name": "ParallelFedAvg"},
    "FedPAGE": {"name": "FedAvg", "rule": "page"},
    "FedFa": {"name": "FedAvg", "server": "fedfa"},
    "keep_last": {"name": "FedDC", "keep_last": 5},
    "distil": {"name": "TravellingGroups", "groups": 2, "distil": 10},
    "phases": {"name": "FedDC", "phases": [{"rounds": 3}, {}]},
    "turns": {"name": "TravellingGroups", "turns": True},
    "matched_mean": {"name": "FedAvg", "aggregator": "matched_mean"},
    "int4": {"name": "FedAvg", "wire": "int4"},
}


@pytest.mark.parametrize("word", INSTEAD)
def test_a_scenario_that_asks_for_it_is_told_what_to_write(word):
    with pytest.raises(PlanError, match=f"{word} was withdrawn: (take|leave it out)"):
        build({"name": "s", "task": "breast_cancer", "sites": 4, "method": [GIVEN[word]]}).plans()


@pytest.mark.parametrize("name", ["FedTM", "ParallelFedAvg", "FedPAGE", "FedFa"])
def test_so_is_who_asks_for_the_method_by_its_name(name):
    with pytest.raises(PlanError, match=f"{name} was withdrawn"):
        method(name)


def test_keys_of_an_earlier_folder_that_said_nothing_are_read():
    assert Method.model_validate({"name": "FedAvg", "phases": [], "turns": False}) == Method(name="FedAvg")


def test_turns_of_routes_are_folds_of_samples():
    earlier = Method.model_validate({"name": "FedAvg", "turns": True, "validate": {"routes": 3}})

    assert earlier == Method(name="FedAvg", validate={"routes": 3, "by_samples": True})
