"""Sealed and secure runs give the bits of a simulation."""

import pytest

from tests.sim.engines.test_one_algorithm import assert_equal_bits
from tests.sim.sealing.federation import BOTH, Federation, plan_of, run, simulated

PRIVACY = {"both": BOTH, "sealed": {"sealed": True}, "secure": {"secure": True}}


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("sites", [3, 5])
def test_letters_change_no_bit(tmp_path, monkeypatch, sites, privacy):
    method = {"permute_every": 1, "aggregate_every": 3}
    federation = Federation(tmp_path, sites, monkeypatch)

    outcome = run(federation, plan_of("FedDC", sites, PRIVACY[privacy], method=method))

    assert outcome.events == []
    assert_equal_bits(outcome.model, simulated(federation).model)
