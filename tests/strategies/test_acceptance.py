"""A site that blurred what it sent says so, and the server writes it down with the site's name."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedsmall.strategies.checks import Limits, accept_replies, check_reply
from fedsmall.wire import BLURRED, EXAMPLES, METRICS, MODEL, STEPS

LIMITS = Limits(metrics=frozenset((EXAMPLES, STEPS, BLURRED)))


def reply(site: str, **metrics: Any) -> Any:
    told = MetricRecord({EXAMPLES: 8, STEPS: 1, **metrics})
    content = RecordDict({MODEL: ArrayRecord({"w": Array(np.ones(2))}), METRICS: told})
    return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=site), content=content, has_error=lambda: False)


def taken(*replies: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
    sites = [r.metadata.reply_to_message_id for r in replies]
    orders: Any = [(SimpleNamespace(metadata=SimpleNamespace(message_id=site)), site) for site in sites]
    notes: list[tuple[str, str, str]] = []
    expected = {"w": ((2,), "float64")}
    good, _ = accept_replies(
        orders, replies, lambda *told: notes.append(told), lambda site, told: check_reply(told, expected, LIMITS)
    )
    return list(good), notes


def test_a_site_that_blurred_is_named_and_its_model_is_used() -> None:
    good, notes = taken(reply("bonn"), reply("essen", **{BLURRED: 2.0}))

    assert good == ["bonn", "essen"]
    assert notes == [("essen", "blurred", "patients could be read from its update: it added noise 2 times as large")]


def test_a_blur_that_is_no_number_ends_no_run() -> None:
    good, notes = taken(reply("bonn"), reply("essen", **{BLURRED: [1.0, 2.0]}), reply("ulm", **{BLURRED: float("nan")}))

    assert good == ["bonn"]
    assert [kind for _, kind, _ in notes] == ["set aside", "set aside"]
