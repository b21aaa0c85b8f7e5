"""Numbers, times, grades and labels, predicted over hospitals: Markdown tables of what each method comes to.

    python -m examples.outcomes

Runs the scenarios of `METRICS` as they are written: twenty sites, ten seeds, one learning rate for all
methods. Intervals are 95%, over seeds and test patients.
"""

import sys
from collections.abc import Sequence

from fedsmall.sim.report.sentences import metric_name, with_interval
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.scenario import load, scenarios

METRICS = {
    "diabetes": ("mae", "rmse", "r2"),
    "gbsg2": ("c_index", "ibs"),
    "diabetes_grades": ("kappa", "mae", "accuracy"),
    "digit_properties": ("auc", "macro_f1", "subset_accuracy"),
}


def run(name: str, changes: Sequence[str] = ()) -> Run:
    """The run of a shipped scenario, ``changes`` as `fedsmall run --set` takes them."""
    return execute(load(scenarios()[name], changes))


def rows(run: Run, metrics: Sequence[str]) -> list[list[str]]:
    """A row for each method and for the prediction that looks at no sample; of Standalone the mean over its sites."""
    found: dict[str, list[str]] = {}
    for metric in metrics:
        shown = table(run, metric)
        for row in shown.rows:
            mean = row.common or row.sites
            found.setdefault(row.label, [row.label]).append(with_interval(shown, mean) if mean else "-")
    return list(found.values())


def markdown(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(changes: Sequence[str] = ()) -> None:
    for name, metrics in METRICS.items():
        told = run(name, changes)
        print(f"\n{name}, {len(told.scenario.seeds)} seeds\n")
        print(markdown(["method", *(metric_name(metric) for metric in metrics)], rows(told, metrics)))


if __name__ == "__main__":
    main(sys.argv[1:])
