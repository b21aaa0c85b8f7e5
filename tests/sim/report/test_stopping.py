"""What a report says of runs that ended early."""

import json

import pytest

from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build

SCENARIO = {
    "name": "stops",
    "task": "breast_cancer",
    "sites": 5,
    "samples_per_site": 12,
    "rounds": 200,
    "evaluate_every": 3,
    "seeds": [0, 1],
    "recipe": {"lr": 2.0},
    "stop": {"patience": 2, "hold_out": 0.25},
    "method": [
        {"name": "FedAvg"},
        {"name": "FedAvg", "label": "by routes", "validate": {"routes": 3}},
        {"name": "DaisyChain", "stop": False},
        {"name": "Standalone"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    execute(build(SCENARIO), folder)
    return read(folder)


@pytest.mark.thorough
def test_the_row_is_that_of_the_round_that_is_kept_and_the_package_is_its_model(run):
    for one in run.done:
        if one.label == "DaisyChain":
            assert one.row["rounds"] == 200
            assert "chosen" not in one.row
            continue
        best = next(each for each in one.evaluations if each["t"] == one.row["chosen"])
        assert (one.row["common"], one.row["stop"]) == (best["common"], best["stop"])
        assert one.row["rounds"] in (one.row["chosen"] + 2 * 3, 200)
        for stored in run.packages_of(one):
            assert stored.package.rounds == one.row["chosen"]
            assert f"this is its model of round {one.row['chosen']}, where" in " ".join(stored.package.notes)


@pytest.mark.thorough
def test_the_rounds_hold_the_loss_by_which_it_was_decided(run):
    head = (run.folder / "rounds.csv").read_text().splitlines()[0]

    assert "stop_loss" in head.split(",")
    assert "stop" in json.loads((run.folder / "rounds.json").read_text())[0]["evaluations"][0]
