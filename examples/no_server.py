"""FedDC without a server beside FedDC with one, at equal bytes: gossip and a ring, sound lines and lossy ones.

    python -m examples.no_server            # some minutes on one core; kept in docs/evidence/no-server.json
    python -m examples.no_server --show     # the table of what is kept, put into the page too

Runs the scenario ``no_server``. A difference is a method minus FedDC with a server, paired by seed. Of a method without
a server two figures are given: the mean of the sites' own models, and the one model that is kept, that of a site drawn
by lot.
"""

import sys
from dataclasses import asdict, dataclass

import numpy as np

from fedsmall.evaluation.statistics import interval
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.runs.scenario import Scenario, load, scenarios

KEPT = DOCS / "evidence" / "no-server.json"
SERVED = "FedDC, server"


@dataclass(frozen=True)
class Row:
    """A method, seed by seed: accuracy of the model that is kept, the mean of the sites' own, megabytes, trainings."""

    label: str
    kept: list[float]
    sites: list[float]
    megabytes: float
    trainings: float

    @property
    def counted(self) -> list[float]:
        """What it is judged by: the global model, or the mean of the sites' own where there is no server."""
        return self.kept if self.label.endswith("server") else self.sites


def measure(scenario: Scenario) -> list[Row]:
    """Run all methods and seeds."""
    run, rows = execute(scenario), []
    for label in dict.fromkeys(plan.method.label for plan in scenario.plans()):
        mine = [one.row for one in run.done if one.label == label]
        kept = [float(row["common"]["accuracy"]) for row in mine if row["common"]]
        trainings = [row["client_updates_per_second"] * row["seconds"] for row in mine]
        sites = [float(row["sites"]["accuracy_mean"]) for row in mine]
        megabytes = float(np.mean([row["bytes_sent"] for row in mine])) / 1e6
        rows.append(Row(label, kept, sites, round(megabytes, 1), round(float(np.mean(trainings)), -1)))
    return rows


def table(rows: list[Row]) -> str:
    """Accuracies in percent with 95% intervals over seeds, and paired differences from FedDC with a server."""
    heads = "method | accuracy | minus FedDC with a server | the kept model | MB sent | trainings"
    lines = [f"| {heads} |", "|" + "---|" * 6]
    served = np.array(next(row for row in rows if row.label == SERVED).counted)
    for row in rows:
        counted = np.array(row.counted)
        apart = "" if row.label == SERVED else _written(counted - served, "+.1f")
        own = "" if row.counted is row.kept else " (sites)"
        kept = f"{100 * np.mean(row.kept):.1f}" if row.kept else "none"
        cost = f"{row.megabytes:.1f} | {row.trainings:,.0f}"
        lines.append(f"| {row.label} | {_written(counted)}{own} | {apart} | {kept} | {cost} |")
    return "\n".join(lines)


def _written(values: np.ndarray, form: str = ".1f") -> str:
    found = interval(values.tolist())
    return f"{100 * found.mean:{form}} [{100 * found.low:{form}}, {100 * found.high:{form}}]"


def main(arguments: list[str]) -> None:
    """Measure, keep what was measured, and print the table; or print what is kept."""
    if arguments == ["--show"]:
        rows = [Row(**row) for row in read_json(KEPT)]
    else:
        rows = measure(load(scenarios()["no_server"]))
        write_json(KEPT, [asdict(row) for row in rows])
    fill(DOCS, {"no-server": table(rows)}.get)
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
