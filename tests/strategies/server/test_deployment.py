"""The end of a run on the disk."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsmall.plan import Method, Plan
from strategies.server import deployment
from strategies.server.run_loop import Outcome

PLAN = Plan(name="p", task="t", method=Method(name="FedDC"))


def outcome():
    model = {"w": np.array([1.0, 2.0])}
    return Outcome(model, [], contacts=1, rounds=1, bytes_sent=16, client_updates=1, seconds=0.0, events=[])


def test_a_run_that_ends_leaves_its_model_and_its_outcome_and_nothing_half_written(tmp_path):
    deployment.write_outcome(tmp_path, PLAN, outcome())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "outcome.json"]
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1.0, 2.0]
    assert json.loads((tmp_path / "outcome.json").read_text())["contacts"] == 1


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_run_killed_while_it_ends_is_not_finished_without_its_model(tmp_path, monkeypatch, killed_at):
    writes, put = [], deployment.put

    def put_until_killed(path, content):
        writes.append(path.name)
        if len(writes) == killed_at:
            raise KeyboardInterrupt
        put(path, content)

    monkeypatch.setattr(deployment, "put", put_until_killed)

    with pytest.raises(KeyboardInterrupt):
        deployment.write_outcome(tmp_path, PLAN, outcome())

    assert not (tmp_path / "outcome.json").exists()
