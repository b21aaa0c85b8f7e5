"""fedsmall in Python, for notebooks: three lines from arrays to a table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from fedsmall.errors import PlanError
from fedsmall.tasks import federation_from_arrays
from sim.report.sentences import sentences
from sim.report.tables import table
from sim.runs.execute import execute
from sim.runs.folder import Run
from sim.runs.progress import watcher
from sim.runs.scenario import Scenario, build, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch.nn import Module

Sites = Mapping[str, tuple[np.ndarray, np.ndarray]]
METHODS = ("Standalone", "FedAvg", "FedDC", "Central")


class Result:
    """What came of a run: numbers, figures and models. ``run`` holds everything; printing it gives the table."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def table(self, metric: str | None = None) -> "DataFrame":
        """A row for each method: the common model and the sites' own, with 95% intervals, and paired differences.

        "lead" is the first chaining (or else non-averaging) method minus this one, seed by seed.
        """
        import pandas

        rows = {}
        for line in table(self.run, metric).lines:
            row: dict[str, Any] = {}
            ends = {"common": line.common, "sites": line.sites, "lead": line.lead.difference if line.lead else None}
            for name, found in ends.items():
                row |= (
                    {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high} if found else {name: None}
                )
            row |= {
                "sites_sd": line.spread,
                "runs": line.runs,
                "contacts": line.contacts,
                "bytes_sent": line.bytes_sent,
            }
            rows[line.label] = row
        return pandas.DataFrame.from_dict(rows, orient="index")

    def figure(self, kind: str = "curves") -> "Figure":
        """A matplotlib figure: "curves" (the course of the run), "overview" (its end), or "chain" (who went where)."""
        from sim.report import figures

        known: dict[str, Callable[[Run], Figure | None]] = {
            "curves": figures.curves,
            "overview": figures.overview,
            "chain": figures.chain,
        }
        if kind not in known:
            raise PlanError(f"There is no figure {kind!r}. Known: {', '.join(known)}.")
        made = known[kind](self.run)
        if made is None:
            raise PlanError("no method of this run hands models on, so there is no chain to draw")
        return made

    @property
    def models(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """The common models at the end, as arrays by name, by method and seed."""
        found = {(one.label, one.plan.seed): self.run.model_of(one) for one in self.run.done}
        return {key: model for key, model in found.items() if model is not None}

    @property
    def model(self) -> "Module":
        """The common model of the run's main method (see :meth:`table`) with its first seed, in eval mode.

        It takes samples as the sites saw them: features at mean 0 and spread 1 over the federation.
        """
        from sim.rebuild import common_model

        return common_model(self.run)

    @property
    def summary(self) -> list[dict[str, Any]]:
        """The rows of summary.json."""
        return [one.row for one in self.run.done]

    def __str__(self) -> str:
        from sim.report.terminal import grid

        console = Console(record=True, width=120, file=StringIO())
        console.print(grid(table(self.run), self.run.scenario.name))
        return console.export_text() + "\n".join(sentences(self.run))

    def _repr_html_(self) -> str:
        from sim.report.html import table_of

        words = "".join(f"<p>{line}</p>" for line in sentences(self.run))
        return table_of(table(self.run)) + words


def run(
    scenario: Scenario | Path | str | None = None,
    *,
    sites: Sites | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    methods: Sequence[str | Mapping[str, Any]] = METHODS,
    out: Path | str | None = None,
    engine: str | None = None,
    data_root: Path | str | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Run a scenario (a record, or a TOML file), or ``methods`` on arrays of one's own.

    ``sites`` gives every site's samples and labels by its name: x of shape (samples, features), or images; ``test`` is
    a common test set, without which each site holds a quarter back. ``settings`` are the keys of a scenario
    (``rounds``, ``seeds``, ``recipe``, ...). With ``out`` a folder is written as on the command line.

    Raises PlanError or DataError, before anything trains, for what cannot be run.
    """
    if (scenario is None) == (sites is None):
        raise PlanError("run() takes a scenario or sites={name: (x, y), ...}, one of the two")
    asked = _scenario(scenario, methods, settings) if scenario is not None else _of_arrays(methods, settings)
    console = Console(stderr=True, highlight=False)
    made = execute(
        asked,
        Path(out) if out is not None else None,
        engine=engine,
        data_root=Path(data_root) if data_root is not None else None,
        watcher=watcher(console, asked.plans(), asked.name) if progress else None,
        data=partial(federation_from_arrays, sites=sites, test=test) if sites is not None else None,
    )
    if out is not None:
        from sim.report.html import write_report

        write_report(Path(out), [made], asked.name)
    return Result(made)


def _scenario(scenario: Scenario | Path | str, methods: Sequence[Any], settings: Mapping[str, Any]) -> Scenario:
    asked = scenario if isinstance(scenario, Scenario) else load(scenario)
    return build({**asked.model_dump(exclude_defaults=True), **settings}) if settings else asked


def _of_arrays(methods: Sequence[str | Mapping[str, Any]], settings: Mapping[str, Any]) -> Scenario:
    tables = [{"name": each} if isinstance(each, str) else dict(each) for each in methods]
    return build({"name": "arrays", "task": "arrays", **settings, "method": tables})
