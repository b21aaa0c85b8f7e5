"""A sealed run over five real sites: its bits, what the server's disk holds, and what the hospitals' logs say."""

import json

import pytest
from safetensors.numpy import load_file

from examples.loopback import LoopbackConsortium
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.engines.run import run_plan
from tests.sim.consortium.real_run import plan_of

NAMES = ("bonn", "essen", "koeln", "mainz", "ulm")
PATIENCE = {"round_deadline_s": 300.0, "start_deadline_s": 300.0}
POLICY = "least_sites = 3\nleast_blur = 0\nmost_read = 1000\nsealed = true\nsecure = true\n"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.needs("nginx"),
]


def test_five_sites_end_with_the_bits_of_a_simulation_and_the_server_holds_envelopes_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")  # short, for the path of a socket
    data = {name: folder / "data" / f"{name}.csv" for name in NAMES}
    sample_data.write(list(data.values()))
    plan = plan_of("method.0.privacy.sealed=true", "method.0.privacy.secure=true", "rounds=6")
    with LoopbackConsortium(folder, data, POLICY) as loopback:
        loopback.finish("sealed", loopback.start("sealed", plan, **PATIENCE))
        home = loopback.home("sealed")

        told = json.loads((home / "outcome.json").read_text())
        drawn = Plan.model_validate(told["plan"])
        here = drawn.model_copy(update={"task": {**drawn.task, "csv": str(folder / "data")}})
        model = load_file(home / "model.safetensors")

        assert told["events"] == []
        record = run_plan(here, build_federation(here), "inprocess")
        assert all(model[name].tobytes() == array.tobytes() for name, array in record.model.items())
        for journal in sorted((home / "journal").glob("*.safetensors")):
            held = load_file(journal)
            envelopes = [name for name in held if name.endswith("/letter")]
            between = {name.removeprefix("states/model/"): a for name, a in held.items() if "/model/" in name}
            assert len(envelopes) == (len(NAMES) if between else 0)
            # what stands for the models on their way is the last global one: the server has none of theirs
            assert all((rows == held[f"states/global_model/{name}"]).all() for name, rows in between.items())
        for name in NAMES:
            log = (loopback.kit(name).home / "log.jsonl").read_text()
            assert '"arrays/letter"' in log
            assert '"arrays/masked"' in log
            assert '"arrays/0.weight"' not in log
