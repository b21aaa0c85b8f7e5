"""What a report says of models that answer together."""

import pytest

from fedsmall.sim.report.facts import ensemble_sentences
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.scenario import build

TABLE = {
    "name": "together",
    "task": "breast_cancer",
    "metric": "accuracy",
    "model_options": {"hidden": [8]},
    "sites": 4,
    "samples_per_site": 6,
    "rounds": 4,
    "seeds": [3, 4],
    "method": [
        {"name": "FedAvg"},
        {"name": "FedDC", "aggregate_every": 4},
        {"name": "TravellingGroups", "groups": 2},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return execute(build(TABLE), tmp_path_factory.mktemp("r") / "run")


def test_an_ensemble_says_how_far_its_members_differ(run: Run) -> None:
    spreads = [one.row["spread"] for one in run.done if one.label == "TravellingGroups"]

    line = next(line for line in ensemble_sentences(run) if line.startswith("TravellingGroups"))

    assert f"the members differ by {50 * sum(row['deviation'] for row in spreads):.1f} points" in line
    assert all(row["information"] > 0 for row in spreads)
