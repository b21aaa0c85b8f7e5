"""Sealed and secure runs give the bits of a simulation."""

import pytest

from tests.sim.engines.harness import assert_equal_bits
from tests.sim.sealing.federation import BOTH, Federation, plan_of, run, simulated
from tests.sim.sealing.test_bad_models import gone_wild

pytestmark = pytest.mark.slow

PRIVACY = {"both": BOTH, "sealed": {"sealed": True}, "secure": {"secure": True}}


@pytest.mark.parametrize("privacy", PRIVACY)
@pytest.mark.parametrize("sites", [3, 5])
def test_envelopes_change_no_bit(tmp_path, monkeypatch, sites, privacy):
    method = {"permute_every": 1, "aggregate_every": 3}
    takes = "" if "sealed" in PRIVACY[privacy] else "sealed = false"
    federation = Federation(tmp_path, sites, monkeypatch, takes)

    outcome = run(federation, plan_of("FedDC", sites, PRIVACY[privacy], method=method))

    assert outcome.events == []
    assert_equal_bits(outcome.model, simulated(federation).model)


ROUNDED = {
    "8 bits": {"wire": "int8"},
    "8 bits and moments": {"wire": "int8", "recipe": {"lr": 0.1, "batch": 4, "momentum": 0.9}},
    "Adam": {"wire": "int8", "recipe": {"lr": 0.01, "batch": 4, "optimizer": "adam"}},
    "own starts": {"wire": "half", "initial_models": "independent"},
    "groups": {"wire": "int8", "groups": 2},
}


@pytest.mark.parametrize("case", ROUNDED)
def test_rounded_travellers_in_envelopes_have_the_bits_of_a_simulation_and_envelopes_are_smaller(
    tmp_path, monkeypatch, case
):
    more = dict(ROUNDED[case])
    method = {"permute_every": 1, "aggregate_every": 3, "wire": more.pop("wire"), "groups": more.pop("groups", 1)}
    outcomes = {}
    for wire in ("full", method["wire"]):
        (tmp_path / wire).mkdir()
        federation = Federation(tmp_path / wire, 4, monkeypatch)
        plan = plan_of("FedDC", 4, {"sealed": True}, method={**method, "wire": wire}, **more)
        outcomes[wire] = run(federation, plan)

    outcome = outcomes[method["wire"]]
    assert outcome.events == []
    assert_equal_bits(outcome.model, simulated(federation).model)
    assert outcome.bytes_sent < 0.9 * outcomes["full"].bytes_sent


def test_a_rounded_traveller_that_stays_as_it_came_is_not_rounded_again(tmp_path, monkeypatch):
    gone_wild(monkeypatch, "site-001", 2, 1e9)
    federation = Federation(tmp_path, 5, monkeypatch)
    method = {"permute_every": 1, "aggregate_every": 4, "wire": "int8"}

    outcome = run(federation, plan_of("FedDC", 5, {"sealed": True}, rounds=4, method=method))

    assert [(e["t"], e["site"], e["kind"]) for e in outcome.events] == [(2, "site-001", "set aside")]
    assert_equal_bits(outcome.model, simulated(federation).model)


CHAIN = {"permute_every": 1, "aggregate_every": 3}
AVERAGE = {"aggregate_every": 2}
RECIPE = {"lr": 0.1, "batch": 4}
CASES = {
    "FedAvg": ("FedAvg", AVERAGE, {}),
    "weighted": ("FedAvg", {**AVERAGE, "weighted": True}, {"partition": {"dirichlet": 0.5}, "samples_per_site": None}),
    "FedProx": ("FedProx", {**AVERAGE, "proximal_mu": 0.1}, {}),
    "a chain with FedProx": ("FedDC+FedProx", CHAIN, {}),
    "FedAvgM": ("FedAvgM", AVERAGE, {}),
    "FedAdam": ("FedAdam", AVERAGE, {}),
    "FedYogi": ("FedYogi", AVERAGE, {}),
    "FedNova": ("FedNova", AVERAGE, {"recipe": {"lr": 0.1, "batch": 4, "local_epochs": 1}}),
    "SCAFFOLD": ("SCAFFOLD", AVERAGE, {}),
    "FedDyn": ("FedDyn", {**AVERAGE, "feddyn_alpha": 0.1}, {}),
    "RepTreeFL": ("RepTreeFL", AVERAGE, {}),
    "a chain of trees": ("FedDC+RepTreeFL", CHAIN, {}),
    "moments that travel": ("FedDC", CHAIN, {"recipe": {**RECIPE, "momentum": 0.9}}),
    "Adam's moments": ("FedDC", CHAIN, {"recipe": {"lr": 0.01, "batch": 4, "optimizer": "adam"}}),
    "groups": ("TravellingGroups", {"permute_every": 1, "aggregate_every": 2, "groups": 2}, {}),
    "groups with moments": (
        "TravellingGroups",
        {"permute_every": 1, "aggregate_every": 2, "groups": 2},
        {"recipe": {**RECIPE, "momentum": 0.9}},
    ),
    "half of the sites": ("FedDC", {**CHAIN, "fraction": 0.5}, {}),
    "four models": ("FedDC", {**CHAIN, "models": 4}, {}),
    "a moving average": ("FedAvg", {**AVERAGE, "ema": 0.9}, {}),
    "snapshots": ("FedAvg", {**AVERAGE, "snapshots": 2}, {}),
    "own starts": ("FedDC", CHAIN, {"initial_models": "independent"}),
    "ridge": ("Ridge", {}, {"rounds": 12}),
    "boosted trees": ("FedHistogramXGB", {"boosting": {"depth": 2, "bins": 8}}, {"rounds": 7}),
}


@pytest.mark.parametrize("case", CASES)
def test_methods_that_need_a_mean_run_sealed(tmp_path, monkeypatch, case):
    name, method, more = CASES[case]
    federation = Federation(tmp_path, 6, monkeypatch)

    outcome = run(federation, plan_of(name, 6, method=method, **more))

    assert outcome.events == []
    assert_equal_bits(outcome.model, simulated(federation).model)
