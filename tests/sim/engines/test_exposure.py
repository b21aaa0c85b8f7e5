"""Who could be read by whom: the counts are those of a slow loop over messages, and counting changes nothing."""

from typing import Any

import numpy as np
import pytest

from fedsmall.audit_log import digest_of
from fedsmall.data.federation import Federation
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy import reading
from fedsmall.privacy.reading import records_read
from fedsmall.sim.engines.run import run_plan
from fedsmall.training.trees import cohort_for
from fedsmall.travel.schedule import Action, comm_rounds_of
from fedsmall.wire import ModelState
from tests.oracles import permutation

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "FedAvg", "aggregate_every": 1},
    "FedDC": {"name": "FedDC", "permute_every": 1, "aggregate_every": 4},
    "DaisyChain": {"name": "DaisyChain"},
    "FedDC, d = 2": {"name": "FedDC", "permute_every": 2, "aggregate_every": 6},
}


def plan_of(which: str = "FedDC", **more: Any) -> Plan:
    settings = {**METHODS[which], **more.pop("settings", {})}
    name = settings.pop("name")
    fields = {"sites": 6, "samples_per_site": 3, "rounds": 12, "recipe": Recipe(lr=0.05), "dtype": "float64"}
    fields |= {"task": "breast_cancer", "model": "mlp", "model_options": {"hidden": [16]}, **more}
    return Plan(name="p", method=method(name, **settings), **fields)


def ragged(plan: Plan) -> Federation:
    """Sites of 3, 1, 2, ... patients."""
    federation = build_federation(plan)
    from dataclasses import replace

    train = tuple(replace(s, x=s.x[: 1 + k % 3], y=s.y[: 1 + k % 3]) for k, s in enumerate(federation.train))
    return replace(federation, train=train)


def seen_by_the_server(plan: Plan, hop: bool, knows: str) -> bool:
    privacy = plan.method.privacy or Privacy(blur=0)
    if hop:
        return not privacy.sealed
    return not (privacy.secure or (privacy.sealed and knows != "everybody"))


def by_hand(plan: Plan, federation: Federation) -> dict[str, Any]:
    """The counts by a loop that trains one site after the other, and asks of every update who knows its start."""
    names = federation.names
    trainers = {
        n: cohort_for(plan, federation.task, [n], [s], path="loop")
        for n, s in zip(names, federation.train, strict=True)
    }
    global_model = initial_model(plan, federation.task, None)
    holds = {name: (global_model, "everybody") for name in names}
    server: set[tuple[str, int]] = set()
    of: dict[str, set[tuple[str, int]]] = {name: set() for name in names}
    for comm_round in comm_rounds_of(plan):
        sent = {}
        for name, samples in zip(names, federation.train, strict=True):
            start, knows = holds[name]
            stack = trainers[name].stack([ModelState(start)])
            trainers[name].train(stack, [0], comm_round.t, comm_round.rounds, is_global=[True], rule={}, memory={})
            model = {key: array.copy() for key, array in stack.model_state(0).model.items()}
            found = {(name, int(k)) for k in np.flatnonzero(records_read(start, model, samples.x))}
            if seen_by_the_server(plan, comm_round.action is Action.PERMUTE, knows):
                server |= found
            sent[name] = model
            if comm_round.action is Action.PERMUTE:
                reader = permutation(plan.seed, comm_round.t, names)[name]
                if reader != name and knows in ("everybody", reader):
                    of[reader] |= found
        if comm_round.action is Action.PERMUTE:
            route = permutation(plan.seed, comm_round.t, names)
            holds = {route[name]: (sent[name], name) for name in names}
        else:
            global_model = {key: np.mean([sent[name][key] for name in names], axis=0) for key in global_model}
            holds = {name: (global_model, "everybody") for name in names}
    counts = [len(read) for read in of.values()]
    return {
        "server": len(server),
        "neighbours": len(set().union(*of.values())),
        "curious": [float(np.median(counts)), max(counts)],
    }


@pytest.mark.parametrize("which", METHODS)
def test_the_counts_are_those_of_a_loop_over_sites(which: str) -> None:
    plan = plan_of(which)
    federation = ragged(plan)

    told = run_plan(plan, federation, "cohort", exposed=True).read

    expected = by_hand(plan, federation)
    if plan.method.permute_every is None:
        expected = {"server": expected["server"]}
    assert expected["server"] > 5, "an attacker that finds nobody shows nothing"
    assert {key: told[key] for key in expected} == expected
    assert told["patients"] == sum(len(s) for s in federation.train)


@pytest.mark.parametrize(
    ("which", "hidden", "least", "most"),
    [
        ("FedDC", {"sealed": True}, 0, 0),  # it makes an average of models that came from another site, sealed
        ("FedDC", {"secure": True}, 6, 18),  # hops are in the clear
        ("FedDC", {"sealed": True, "secure": True}, 0, 0),
        ("FedDC, d = 5", {"sealed": True}, 6, 18),  # some averages are of models that it had sent out
        ("FedAvg", {"secure": True}, 0, 0),
    ],
)
def test_the_server_reads_nobody_from_models_that_it_does_not_see(
    which: str, hidden: dict[str, bool], least: int, most: int
) -> None:
    seldom = {"permute_every": 5, "aggregate_every": 2} if which == "FedDC, d = 5" else {}
    plan = plan_of(which.partition(",")[0], settings={"privacy": Privacy(**hidden), **seldom})
    federation = ragged(plan)

    told = run_plan(plan, federation, "cohort", exposed=True).read

    expected = by_hand(plan, federation)
    assert told["server"] == expected["server"]
    assert least <= told["server"] <= most
    assert told.get("neighbours", expected["neighbours"]) == expected["neighbours"]
    assert which == "FedAvg" or told["neighbours"] > 0, "a seal hides nothing from who opens it"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"initial_models": "independent"},
        {"settings": {"fraction": 0.5}},
        {"evaluate_every": 5},
        {"settings": {"random_schedule": True}},
        {"recipe": Recipe(lr=0.05, momentum=0.9)},
        {"settings": {"privacy": Privacy(blur=0.01)}},
        {"dtype": "float32"},
    ],
)
def test_counting_changes_no_bit_and_all_engines_count_the_same(more: dict[str, Any]) -> None:
    plan = plan_of(**more)
    federation = ragged(plan)

    unseen = run_plan(plan, federation, "cohort")
    seen = run_plan(plan, federation, "cohort", exposed=True)
    by_messages = run_plan(plan, federation, "inprocess", exposed=True)

    assert digest_of(unseen.model or {}) == digest_of(seen.model or {})
    assert (unseen.bytes_sent, unseen.comm_rounds, unseen.client_updates) == (
        seen.bytes_sent,
        seen.comm_rounds,
        seen.client_updates,
    )
    assert unseen.read == {}
    assert seen.read == by_messages.read
    assert seen.read["looked"] == seen.read["contacts"]


def test_blur_as_large_as_the_update_leaves_nobody_to_read() -> None:
    federation = build_federation(plan_of())

    told = [
        run_plan(plan_of(settings={"privacy": Privacy(blur=k)}), federation, "cohort", exposed=True).read
        for k in (0.0, 1.0)
    ]

    assert told[0]["neighbours"] > 5
    assert told[1]["server"] == told[1]["neighbours"] == told[1]["curious"][1] == 0


def test_of_a_long_run_fewer_comm_rounds_are_looked_at_and_no_bit_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("DaisyChain", rounds=40)
    federation = ragged(plan)
    whole = run_plan(plan, federation, "cohort", exposed=True)
    monkeypatch.setattr(reading, "LOOKS", 5)

    part = run_plan(plan, federation, "cohort", exposed=True)

    assert 5 <= part.read["looked"] < 12
    assert part.read["contacts"] == 40
    assert part.read["server"] <= whole.read["server"]
    assert digest_of(part.model or {}) == digest_of(whole.model or {})


def test_a_model_without_a_layer_behind_the_input_is_not_said_to_be_safe() -> None:
    plan = plan_of(task="digits", model="cnn", model_options={"norm": "group"}, rounds=2)

    assert run_plan(plan, build_federation(plan), "cohort", exposed=True).read == {"blind": True}


def test_who_trains_alone_gives_nothing_away() -> None:
    plan = plan_of().model_copy(update={"method": method("Standalone")})

    assert run_plan(plan, build_federation(plan), "cohort", exposed=True).read == {}


def test_an_average_over_two_sites_can_be_read_too() -> None:
    """Two sites of one patient: the change of the global model is the mean of two updates, and some unit is one's."""
    plan = plan_of("FedAvg", sites=2, samples_per_site=1, rounds=8)

    assert run_plan(plan, build_federation(plan), "cohort", exposed=True).read["averages"] > 0


def test_blur_of_zero_is_the_run_without_it_to_the_bit() -> None:
    plan = plan_of()
    federation = build_federation(plan)

    written = run_plan(plan_of(settings={"privacy": Privacy(blur=0.0)}), federation, "cohort")

    assert digest_of(written.model or {}) == digest_of(run_plan(plan, federation, "cohort").model or {})


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiny_sites_are_read_and_blur_hides_them(samples: int, dtype: str) -> None:
    bare, hidden = (
        plan_of(
            settings={"privacy": Privacy(blur=k)},
            samples_per_site=samples,
            dtype=dtype,
            model="linear",
            model_options={},
        )
        for k in (0.0, 1.0)
    )
    federation = build_federation(bare)

    before, after = (run_plan(plan, federation, "cohort", exposed=True).read for plan in (bare, hidden))

    if samples == 1:
        assert before["server"] == before["patients"] == 6
    assert after["server"] == after["neighbours"] == 0


def test_images_are_read_from_a_dense_layer_behind_them() -> None:
    plan = plan_of(task="digits", rounds=4)

    told = run_plan(plan, build_federation(plan), "cohort", exposed=True).read

    assert told["server"] > told["patients"] / 2
