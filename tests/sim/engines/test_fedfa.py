"""FedFa on every engine: what sites tell, what it is made of, and what is refused."""

from typing import Any

import numpy as np
import pytest

from fedsmall.aggregation.combiners import ServerStep, Updates
from fedsmall.errors import PlanError, ReplyError
from fedsmall.federation import Task
from fedsmall.parts import Recipe
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.validation import check_plan
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_one_algorithm import (
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
)
from tests.sim.engines.test_stopping import conduct

RECIPE = Recipe(lr=0.02, batch=4, local_epochs=1, momentum=0.9, optimizer_state="reset")
CASES: dict[str, dict[str, Any]] = {
    "some of the sites": {"settings": {"fraction": 0.6}},
    "a long period, in pieces": {"settings": {"aggregate_every": 4}, "evaluate_every": 1},
    "by accuracy alone": {"settings": {"server_options": {"alpha": 1.0, "lr": 2.0}}, "recipe": RECIPE},
    "one output": {"task": {"name": "table"}, "sites": None, "samples_per_site": None, "recipe": RECIPE},
    "Adam, starting apart": {
        "recipe": Recipe(optimizer="adam", lr=0.01, optimizer_state="reset"),
        "initial_models": "independent",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_sites_one_by_one_do_what_a_stack_does(case: str) -> None:
    plan = plan_of("FedFa", **{"settings": {}, "rounds": 8, "evaluate_every": 4, **CASES[case]})

    assert_alike(batched(plan), loop_of(plan).run())


def test_sites_tell_how_well_the_common_model_does_on_their_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("FedFa", rounds=3, recipe=RECIPE, samples_per_site=11, dtype="float32")
    federation, seen = federation_of(plan), []
    combine = ServerStep.combine

    def watched(self: ServerStep, common: Any, updates: Updates, t: int) -> Any:
        hidden = [np.maximum(site.x @ common["0.weight"].T + common["0.bias"], 0) for site in federation.train]
        outputs = [rows @ common["2.weight"].T + common["2.bias"] for rows in hidden]
        own = [(out.argmax(1) == site.y).mean() for out, site in zip(outputs, federation.train, strict=True)]
        seen.append((updates.rule["accuracy"], own))
        return combine(self, common, updates, t)

    monkeypatch.setattr(ServerStep, "combine", watched)

    batched(plan, federation)

    assert len(seen) == 3
    assert len({round(each, 6) for _, own in seen for each in own}) > 2
    for told, own in seen:
        np.testing.assert_allclose(told, own, rtol=1e-6)


def test_an_evaluation_between_two_contacts_changes_no_weight() -> None:
    settings = {"aggregate_every": 4, "server_options": {"alpha": 1.0}}
    plan = plan_of("FedFa", settings, rounds=8, samples_per_site=11)

    assert_equal_bits(batched(plan).model, batched(plan.model_copy(update={"evaluate_every": 1})).model)


def test_real_sites_programs_make_the_model_of_the_simulation(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("FedFa", rounds=3, sites=3)
    federation = federation_of(plan)

    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert_equal_bits(loop_of(plan, federation).run().model, real.model)


def test_a_run_that_is_stopped_at_every_contact_and_resumed_is_the_run_in_one_go(tmp_path) -> None:
    plan = plan_of("FedFa", {"fraction": 0.6}, rounds=4)
    whole = loop_of(plan).run()

    for _ in range(10):
        part = loop_of(plan, journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_equal_bits(whole.model, part.model)


def test_models_without_an_accuracy_are_not_averaged() -> None:
    updates = Updates(("a", "b"), {"w": np.ones((2, 1))}, None, np.ones(2))

    with pytest.raises(ReplyError, match="FedFa expects an accuracy from 2 sites"):
        ServerStep("fedfa").combine({"w": np.ones(1)}, updates, 1)


REFUSED = [
    ({"privacy": {"clip": 1.0, "noise": 1.0}}, "which no noise covers"),
    ({"privacy": {"blur": 1.0}}, "which no noise covers"),
    ({"privacy": {"secure": True}}, "no sum hides"),
    ({"privacy": {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 4}}, "which no noise covers"),
    ({"weighted": True}, "leave weighted out"),
    ({"server_options": {"alpha": 1.5}}, "any from 0 to 1"),
    ({"permute_every": 1}, "FedFa has no meaning with permute_every"),
    ({"aggregator": "median"}, "defined for the mean"),
    ({"groups": 2}, "'fedfa' holds a model near"),
    ({"regions": 2}, "'fedfa' holds a model near"),
    ({"tree": {}}, "Replica trees do not go with rule 'fedfa'"),
    ({"server": "momentum"}, "set rule and server both to 'fedfa'"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_what_does_not_go_is_refused_in_a_line(settings: dict[str, Any], said: str) -> None:
    plan = plan_of("FedFa", settings, recipe=RECIPE)

    with pytest.raises(PlanError, match=said) as caught:
        check_plan(plan, Task("breast_cancer", (30,), 2), 5)

    assert "\n" not in str(caught.value)


def test_what_is_no_class_has_no_training_accuracy() -> None:
    with pytest.raises(PlanError, match="which only classes without an order have"):
        check_plan(plan_of("FedFa", recipe=RECIPE), Task("numbers", (30,), 1, "mse"), 5)
