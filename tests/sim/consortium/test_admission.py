"""A clock that Flower would refuse is told before anything starts; so is what expires soon."""

import pytest

from fedsmall.sim.consortium import admission, gate, keys
from fedsmall.wire import PROTOCOL


@pytest.mark.parametrize("ahead", [-299.0, 0.0, 4.0])
def test_a_clock_that_flower_takes_passes(ahead):
    admission.check_clock(ahead)


@pytest.mark.parametrize(("ahead", "words"), [(6.0, "6 s ahead of"), (-400.0, "400 s behind")])
def test_a_clock_that_flower_would_refuse_is_told(ahead, words):
    with pytest.raises(ValueError, match=rf"clock is {words} the server's; Flower takes 5 s ahead and 300 s behind"):
        admission.check_clock(ahead)


@pytest.mark.parametrize("protocol", ["", str(PROTOCOL)])
def test_a_server_of_this_protocol_or_of_none_that_it_names_passes(protocol):
    admission.check_protocol(protocol)


def test_a_server_of_another_protocol_is_known_before_anything_starts():
    with pytest.raises(ValueError, match=rf"the server speaks protocol 9, and fedsmall .* here {PROTOCOL}"):
        admission.check_protocol("9")


def test_what_expires_within_a_month_or_has_is_told():
    lines = keys.warnings({"the certificate": 30, "the admission": 31, "the other": 0, "the old one": -1})

    assert lines == ["the certificate expires in 30 days", "the other expires in 0 days", "the old one has expired"]


def test_the_calls_that_ask_are_among_those_the_gate_passes():
    assert {"activate-node", "deactivate-node", "send-node-heartbeat"} <= set(gate.FLEET_CALLS)
