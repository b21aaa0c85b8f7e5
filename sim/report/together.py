"""What a report says of models that answer together: how far they differ, and what a site's last visitors are worth."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.sim.report.sentences import named
from fedsmall.sim.report.tables import AREAS, by_label, primary
from fedsmall.sim.report.traffic import amount
from fedsmall.sim.runs.folder import PlanRun, Run


def together(run: Run) -> list[str]:
    """A line for each method whose models answer together, and one where its sites keep visitors."""
    metric = primary(run)
    return [line for group in by_label(run.done).values() for line in _of_method(group, metric)]


def _of_method(group: list[PlanRun], metric: str) -> Iterator[str]:
    label, rows = group[0].label, [one.row for one in group]
    if all(row.get("spread") for row in rows):
        yield f"{label}: {_differ([row['spread'] for row in rows])}."
    if all(metric in row.get("distilled", {}).get("common", {}) for row in rows):
        one = [row["distilled"] for row in rows]
        worth = _value(metric, _mean([each["common"] for each in one], metric))
        sent = amount(_mean(one, "bytes_sent"))
        yield f"{label}: distilled into one model {named(metric)} {worth}, for {one[0]['rounds']} rounds more ({sent})."
    if all(f"{metric}_mean" in row.get("kept", {}) for row in rows):
        kept = [row["kept"] for row in rows]
        last = f"the last {group[0].plan.method.keep_last} visitors of a site together"
        mean = _value(metric, _mean(kept, f"{metric}_mean"))
        sd = _value(metric, _mean(kept, f"{metric}_sd"))
        yield f"{label}: {last} reach {named(metric)} {mean} (mean of the sites, sd {sd}); {_differ_of(kept)}."


def _differ_of(kept: list[dict[str, Any]]) -> str:
    return _differ([each["spread"] for each in kept])


def _differ(spreads: list[dict[str, float]]) -> str:
    """How far members differ, in words; outputs that are no probabilities have units of their own."""
    deviation = _mean(spreads, "deviation")
    if "information" not in spreads[0]:
        return f"their outputs differ by {deviation:.3g} (sd, mean of the test samples)"
    information = _mean(spreads, "information")
    return (
        f"the members differ by {100 * deviation:.1f} points of probability (sd, mean of the test samples; "
        f"mutual information {information:.3f} nats)"
    )


def _value(metric: str, value: float) -> str:
    return f"{value:.3f}" if metric in (*LOWER_IS_BETTER, *AREAS) else f"{100 * value:.1f}%"


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))
