"""Models that no site should train on: their own site keeps them, and where it does not, the next one refuses them."""

import numpy as np
import pytest

from fedsmall.clients import key_store, sealing
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.key_store import arrays_in, check_beside, check_model, fault_of
from fedsmall.clients.shelf import bytes_of
from fedsmall.sealing.envelopes import EnvelopeError
from fedsmall.wire import ROUND
from tests.sim.sealing.federation import Federation, plan_of, run

METHOD = {"permute_every": 1, "aggregate_every": 4}
MODEL = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.ones(3, np.float32)}
MOMENTS = {"exp_avg_sq/0.weight": np.ones((3, 2), np.float32), "step": np.array(3, np.int64)}


def gone_wild(monkeypatch, site, t, factor):
    """Let one site's training come to something absurd, once."""
    fit = HospitalClient.fit

    def wild(self, parameters, config):
        leaving, *rest = fit(self, parameters, config)
        if self.home.site == site and config[ROUND] == t:
            leaving = [array * np.asarray(factor, array.dtype) for array in leaving]
        return leaving, *rest

    monkeypatch.setattr(HospitalClient, "fit", wild)


@pytest.mark.thorough
@pytest.mark.parametrize("factor", [1e9, float("nan")])
def test_a_site_keeps_its_own_absurd_update_and_passes_on_what_came(tmp_path, monkeypatch, factor):
    gone_wild(monkeypatch, "site-001", 2, factor)
    federation = Federation(tmp_path, 5, monkeypatch)

    outcome = run(federation, plan_of(sites=5, method=METHOD, rounds=4))

    assert [(e["t"], e["site"], e["kind"]) for e in outcome.events] == [(2, "site-001", "set aside")]
    assert outcome.events[0]["reason"] == "by itself: its update is too large or not finite"
    assert all(np.isfinite(array).all() and np.abs(array).max() < 10 for array in outcome.model.values())


@pytest.mark.thorough
def test_at_an_average_it_is_left_out_of_the_sum(tmp_path, monkeypatch):
    gone_wild(monkeypatch, "site-001", 4, 1e9)
    federation = Federation(tmp_path, 5, monkeypatch)

    outcome = run(federation, plan_of(sites=5, method=METHOD, rounds=4))

    (event,) = outcome.events
    assert (event["site"], event["kind"]) == ("site-001", "set aside")
    assert "what was trained here may not be used: its update is more than a million times" in event["reason"]
    assert all(np.abs(array).max() < 10 for array in outcome.model.values())


@pytest.mark.thorough
def test_of_a_site_that_sends_it_all_the_same_the_next_one_takes_the_last_common_model(tmp_path, monkeypatch):
    gone_wild(monkeypatch, "site-001", 2, 1e9)
    monkeypatch.setattr(sealing, "fault_of", lambda *arguments: None)
    federation = Federation(tmp_path, 5, monkeypatch)

    outcome = run(federation, plan_of(sites=5, method=METHOD, rounds=4))

    (event,) = outcome.events
    assert (event["t"], event["site"], event["kind"]) == (3, "site-001", "replaced")
    assert event["reason"].endswith("could not use its encrypted message; it took the last global model")
    taker = event["reason"].split()[0]
    log = (tmp_path / taker / "log.jsonl").read_text()
    assert "the model that site-001 sent is absurdly large" in log
    assert all(np.abs(array).max() < 10 for array in outcome.model.values())


BAD = {
    "a name more": ({**MODEL, "x": np.ones(1)}, {}, "is no model of this run"),
    "another shape": ({**MODEL, "0.bias": np.ones(4, np.float32)}, {}, "is no model of this run"),
    "another dtype": ({**MODEL, "0.bias": np.ones(3)}, {}, "is no model of this run"),
    "no number": ({**MODEL, "0.bias": np.full(3, np.inf, np.float32)}, {}, "holds a number that is not finite"),
    "absurd": ({**MODEL, "0.bias": np.full(3, 1e6, np.float32)}, {}, "is absurdly large"),
    "moments of nothing": (MODEL, {"exp_avg/1.weight": np.ones(2)}, "fits no part of it"),
    "moments of another shape": (MODEL, {"exp_avg/0.bias": np.ones(4)}, "fits no part of it"),
    "moments not finite": (MODEL, {"exp_avg/0.bias": np.full(3, np.nan)}, "is not finite, or below zero"),
    "squares below zero": (MODEL, {"exp_avg_sq/0.bias": -np.ones(3)}, "is not finite, or below zero"),
    "a count below zero": (MODEL, {"step": np.array(-1)}, "is not finite, or below zero"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_no_site_should_train_on_is_refused_with_the_senders_name(case):
    model, carried, words = BAD[case]

    with pytest.raises(EnvelopeError, match=f"essen sent.*{words}"):
        check_model(model, carried, MODEL, MODEL, "essen")


def test_what_is_sound_is_taken_and_without_a_gate_any_size_is():
    check_model(MODEL, MOMENTS, MODEL, MODEL, "essen")
    check_beside(MODEL, {}, "essen")
    check_model({name: array * 1e6 for name, array in MODEL.items()}, {}, MODEL, None, "essen")


def test_the_senders_gate_names_what_is_wrong():
    huge = {name: array * 1e9 for name, array in MODEL.items()}

    assert fault_of(MODEL, MOMENTS, MODEL, MODEL, 20.0) is None
    assert fault_of(huge, {}, MODEL, MODEL, 20.0) == (
        "its update is more than a million times the size of the model that it was sent"
    )
    assert fault_of(huge, {}, MODEL, MODEL, False) is None
    assert fault_of({"w": np.array([np.nan])}, {}, {"w": np.zeros(1)}, {"w": np.zeros(1)}, False) == (
        "it holds a number that is not finite"
    )


def test_arrays_go_through_a_envelope_as_they_are():
    arrays = {"a/b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "count": np.array(7, np.int64)}

    back = arrays_in(bytes_of(arrays), "essen")

    assert {name: (array.dtype, array.shape, array.tolist()) for name, array in back.items()} == {
        name: (array.dtype, array.shape, array.tolist()) for name, array in arrays.items()
    }
    with pytest.raises(EnvelopeError, match="what essen sealed cannot be read"):
        arrays_in(b"nothing of the kind", "essen")
    assert key_store.arrays_in(bytes_of({}), "essen") == {}
