"""The rows that a run's folder holds of a finished plan: its row of summary.json, and those of rounds.csv."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedsmall.package.record import CENTRAL, COMMON
from fedsmall.plan import Plan

if TYPE_CHECKING:  # the engines bring Flower and torch, which reading a folder does not need
    from fedsmall.sim.engines.record import RunRecord

SINGLE = "per_site"


def evaluations_of(record: "RunRecord") -> list[dict[str, Any]]:
    """The evaluations of a plan that an engine has run; numbers become plain JSON numbers."""
    evaluations: list[dict[str, Any]] = json.loads(json.dumps([asdict(e) for e in record.evaluations], default=float))
    return evaluations


def summary_row(
    record: "RunRecord", evaluations: Sequence[dict[str, Any]], trivial: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The plan's row of summary.json, by the last of its ``evaluations`` or that of the round whose model it keeps.

    What the ``trivial`` predictor gets stands beside it.
    """
    last = evaluations[-1] if evaluations else {"common": None, "sites": {}, "extra": {}}
    last = next((each for each in evaluations if record.chosen and each["t"] == record.chosen), last)
    row = {
        "method": record.plan.method.name,
        "label": record.plan.method.label,
        "seed": record.plan.seed,
        "engine": record.engine,
        "device": record.device,
        "common": last["common"],
        "sites": {name: value for name, value in last["sites"].items() if isinstance(value, float)},
        "rounds": record.rounds,
        "contacts": record.contacts,
        "bytes_sent": record.bytes_sent,
        "seconds": round(record.seconds, 4),
        "client_updates_per_second": round(record.client_updates / max(record.seconds, 1e-9), 1),
        "fold": record.plan.fold,
        "stopped": record.stopped,
        "extra": _without_singles(last["extra"]),
    }
    row |= _only_in_some(record, last)
    if trivial is not None:
        row["trivial"] = trivial
    return row


def _only_in_some(record: "RunRecord", last: dict[str, Any]) -> dict[str, Any]:
    """What only some plans have: worth of visitors, a distilled model, privacy, routes, a stop, readers, thresholds.

    And the sites' training samples, where models travel: a report tells how many a model has met.
    """
    row: dict[str, Any] = {}
    for word in ("kept", "spread"):
        if last.get(word):
            row[word] = _without_singles({word: last[word]})[word]
    if record.distilled is not None:
        told = record.distilled
        row["distilled"] = {"common": told.metrics, "rounds": told.rounds, "bytes_sent": told.bytes_sent}
    if record.privacy:
        row["privacy"] = record.privacy
    if last.get("validation"):
        row["validation"] = last["validation"]
    if record.plan.method.region_count > 1:
        row["bytes_between"] = record.bytes_between
    if record.averaged:
        took = [models for models, _ in record.averaged]
        whole = sum(of_all for _, of_all in record.averaged)
        left_out = took.count(0)
        row["averages"] = {"whole": whole, "partial": len(took) - whole - left_out, "left_out": left_out}
        row["averages"] |= {"models": took, "bytes_sent": record.sent_by}
    if record.chosen:
        row |= {"chosen": record.chosen, "stop": last["stop"]}
    if record.read:
        row["read"] = record.read
    if record.thresholds:
        row["thresholds"] = record.thresholds
    if record.plan.method.moves:
        alone = {whose: each.samples for whose, each in record.trained_on.items() if whose not in (COMMON, CENTRAL)}
        row |= {"samples": alone} if alone else {}
    return row


def _without_singles(tree: Any) -> Any:
    """A tree of metrics without the value of every single site: those are in rounds.json."""
    if not isinstance(tree, dict):
        return tree
    return {name: _without_singles(value) for name, value in tree.items() if name != SINGLE}


def curve_rows(plan: Plan, evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each evaluation: the metrics of the common model and of the sites', as columns."""
    rows: list[dict[str, Any]] = []
    for evaluation in evaluations:
        row: dict[str, Any] = {"label": plan.method.label, "seed": plan.seed, "fold": plan.fold}
        row["round"] = evaluation["t"]
        for whose in ("common", "sites"):
            for name, value in (evaluation[whose] or {}).items():
                if isinstance(value, float):
                    row[f"{whose}_{name}"] = value
        if evaluation.get("stop"):
            row["stop_loss"] = evaluation["stop"]["loss"]
        rows.append(row)
    return rows
