import json

import pytest
import torch

from tests.sim.engines.digests import FILE, SCENARIOS, digests, machine


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_method_of_a_scenario_gives_the_recorded_bits(name, one_thread):
    recorded = json.loads(FILE.read_text())

    found = digests(name)

    assert found.keys() == recorded[name].keys()
    same = recorded["machine"] == machine()  # elsewhere float32 may round another way
    for label, now in found.items():
        then = recorded[name][label]
        assert now["norm"] == pytest.approx(then["norm"], rel=1e-5), label
        exact = ("bytes", "updates", "contacts", "events") + (("model", "evaluations") if same else ())
        assert {key: now[key] for key in exact} == {key: then[key] for key in exact}, label
