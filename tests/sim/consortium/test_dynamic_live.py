"""Averages that are left out over a real consortium: sites keep their models, and are asked for them."""

import pytest

from examples.loopback import LoopbackConsortium
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.runs import scenario
from tests import ROOT

SITES = ("bonn", "essen", "ulm")
OPEN = "least_samples = 1\ncount_floor = 1\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"


@pytest.mark.slow
def test_real_sites_answer_with_words_and_are_asked_for_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("d")  # the path of a socket may not be long
    data = {name: tmp_path / f"{name}.csv" for name in SITES}
    sample_data.write(list(data.values()))
    shipped = scenario.load(ROOT / "sim" / "scenarios" / "consortium_demo.toml", ["rounds=8", "evaluate_every=100"])
    (plan,) = shipped.plans()
    changed = {"permute_every": None, "aggregate_every": 1, "divergence": 0.05, "privacy": None}
    plan = plan.model_copy(update={"method": plan.method.model_copy(update=changed)})

    with LoopbackConsortium(tmp_path, data, OPEN) as live:
        told = live.finish("run", live.start("run", plan, round_deadline_s=120.0, start_deadline_s=120.0))

    assert not told["events"]
    assert [0, False] in told["averaged"]
    assert told["averaged"][-1] == [3, True]
    assert told["sent_by"] == sorted(told["sent_by"])
    assert told["sent_by"][-1] == told["bytes_sent"]
