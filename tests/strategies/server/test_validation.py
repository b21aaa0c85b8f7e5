"""Sums that cannot be sums over one set of samples are set aside, with the site's name and one line."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.models.registry import initial_model
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.judging import Judging
from fedsmall.strategies.server.site_judges import SiteJudges
from fedsmall.wire import OUT_OF_FOLD
from tests.sim.engines.harness import ByMessages, federation_of, plan_of

PLAN = plan_of("FedAvg", {"aggregate_every": 1, "validate": {"routes": 2}}, rounds=2)


class Lying(InProcessGrid):
    """The third site tells something else than it found, or nothing."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        orders = list(messages)
        replies = super().send_and_receive(orders, timeout=timeout)
        if orders[0].metadata.message_type != "evaluate.validate":
            return replies
        told = {name: array.numpy() for name, array in replies[2].content[OUT_OF_FOLD].items()}
        self.lie(told)
        replies[2].content[OUT_OF_FOLD] = ArrayRecord({name: Array(np.asarray(a)) for name, a in told.items()})
        return [reply for k, reply in enumerate(replies) if told or k != 2]


def outcome_of(lie: Any) -> Any:
    federation = federation_of(PLAN)
    give_federation(PLAN, federation)
    roster, grid = Roster(), Lying(app, 5)
    grid.lie = lie
    judges = SiteJudges(roster, grid, PLAN, federation.task)
    evaluator = Judging(PLAN, federation.task, judges, roster.counts, on_test=lambda result: None)
    initial = lambda site: initial_model(PLAN, federation.task, site)  # noqa: E731
    return ByMessages(PLAN, grid, initial, evaluator, roster=roster).run()


LIES = {
    "a sum is missing": (lambda told: told.pop("brier"), "expected 6 sums by name, and others came"),
    "another shape": (lambda told: told.update(loss=np.zeros(3)), "'loss' is not of the shape and dtype"),
    "another dtype": (lambda told: told.update(loss=np.float32(1)), "'loss' is not of the shape and dtype"),
    "below zero": (lambda told: told.update(brier=np.float64(-1)), "below zero or not finite"),
    "no number": (lambda told: told.update(loss=np.float64("nan")), "below zero or not finite"),
    "half a patient": (lambda told: told.update(correct=np.float64(1.5)), "a count is no whole number"),
    "nobody": (lambda told: told.update({name: 0 * array for name, array in told.items()}), "there is nobody"),
    "more than there are": (lambda told: told.update(count=told["count"] + 1), "do not add up"),
    "more right than there are": (lambda told: told.update(correct=told["count"] + 1), "do not add up"),
    "more than it said at the handshake": (
        lambda told: told.update({name: 2 * array for name, array in told.items()}),
        "more samples than",
    ),
    "a bin too many": (lambda told: told["scores"].__iadd__(1), "do not add up"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_set_aside_and_the_others_count(lie: str) -> None:
    change, reason = LIES[lie]

    outcome = outcome_of(change)

    (event,) = outcome.events
    assert (event["kind"], event["site"]) == ("set aside", "site-002")
    assert event["reason"].startswith("its sums: ")
    assert reason in event["reason"]
    assert "\n" not in event["reason"]
    assert (outcome.evaluations[-1].validation["sites"], outcome.evaluations[-1].validation["samples"]) == (4, 32)


def test_a_silent_site_is_left_out_and_an_honest_one_counts() -> None:
    honest, silent = outcome_of(lambda told: None), outcome_of(lambda told: told.clear())

    assert silent.events == honest.events == []
    assert silent.evaluations[-1].validation["sites"] == 4
    assert (
        honest.evaluations[-1].validation == run_plan(PLAN, federation_of(PLAN), "inprocess").evaluations[-1].validation
    )
