"""The packages of a plan that an engine has run: what its models need to be used, made from its record."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedsmall.evaluation.clinical import chosen_threshold
from fedsmall.models.own_models import has_own_models
from fedsmall.package.record import CENTRAL, COMMON, DISTILLED, VISITORS, describe, visitors_of
from fedsmall.package.store import Stored
from fedsmall.travel.schedule import times_travelled
from fedsmall.wire import Arrays

if TYPE_CHECKING:
    from fedsmall.sim.engines.record import RunRecord


def packages_of(record: "RunRecord", row: dict[str, Any], notes: Sequence[str] = ()) -> list[Stored]:
    """The common model or Central's, then the one that was made of several, then what sites kept: their own, and
    their visitors. ``row`` is the plan's in the summary.

    Empty where sites have models of their own that nobody else has whole, or nothing is known of the data.
    """
    if record.preparation is None or record.task is None or has_own_models(record.plan):
        return []
    models: dict[str, Arrays] = {} if record.model is None else {COMMON: record.model}
    if record.distilled is not None:
        models[DISTILLED] = record.distilled.model
    models |= record.own | {visitors_of(site): members for site, members in record.kept.items()}
    return [_stored(record, row, whose, model, notes) for whose, model in models.items()]


def _stored(record: "RunRecord", row: dict[str, Any], whose: str, model: Arrays, notes: Sequence[str]) -> Stored:
    assert record.preparation is not None
    assert record.task is not None
    several = whose.startswith(VISITORS) or (record.plan.method.is_ensemble and whose == COMMON)
    more = {
        "whose": whose,
        "performance": _performance(row, whose),
        "notes": (*_notes(record), *notes),
        "rounds": record.chosen or record.rounds,
        "contacts": times_travelled(record.plan, record.chosen) if record.chosen else record.contacts,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": record.versions,
    }
    chosen = chosen_threshold(record.plan, record.thresholds) if whose in (COMMON, CENTRAL) else None
    if chosen is not None and record.task.classes == 2:
        more |= {"threshold": chosen[0], "threshold_from": chosen[1]}
    members = len(next(iter(model.values()))) if several else None
    trained_on = record.trained_on.get(whose, record.trained_on[COMMON])
    package = describe(record.plan, record.task, record.preparation, trained_on, members, **more)
    return Stored(package, model)


def _performance(row: dict[str, Any], whose: str) -> dict[str, dict[str, float]]:
    """The metrics at the end, and what a prediction without looking gets on the same samples."""
    if whose.startswith(VISITORS):
        site = whose.removeprefix(VISITORS)
        measured = {f"held out at {site}": row.get("kept", {}).get("held_out", {}).get(site)}
    elif whose in (COMMON, CENTRAL, DISTILLED):
        trivial, told = row.get("trivial") or {}, row["distilled"] if whose == DISTILLED else row
        measured = {"test samples": told.get("common"), str(trivial.get("label")): trivial.get("common")}
    else:
        measured = {}
    return {
        where: {name: float(value) for name, value in metrics.items()} for where, metrics in measured.items() if metrics
    }


def _notes(record: "RunRecord") -> list[str]:
    """What happened in this run that a user of its model should know."""
    told = []
    if record.stopped:
        told.append(f"The run was cut short after round {record.rounds} of {record.plan.rounds}.")
    if record.chosen:
        ended = f"The run ended after round {record.rounds} of {record.plan.rounds}; this is its model of round"
        told.append(f"{ended} {record.chosen}, where the loss on training samples that it had not seen was lowest.")
    if "epsilon" in record.privacy:
        told.append(f"Trained under differential privacy, epsilon {record.privacy['epsilon']:.3g}.")
    return told
