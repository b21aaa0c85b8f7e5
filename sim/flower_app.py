"""The ServerApp of ``flwr run .``: a scenario over the SuperNodes that are there, each of which makes its own data."""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError
from fedsmall.evaluation.baselines import trivial
from fedsmall.files import one_line
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.app import raised_by_us
from fedsmall.sim.cli.options import terminal
from fedsmall.sim.engines.out_of_fold import with_unseen
from fedsmall.sim.engines.run import RunRecord, Tell, run_on, run_plan
from fedsmall.sim.report.sentences import metric_name, metric_value
from fedsmall.sim.report.tables import PRIMARY
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import Federations
from fedsmall.sim.runs.files import check_free, free_folder
from fedsmall.sim.runs.folder import Run, start
from fedsmall.sim.runs.progress import called
from fedsmall.sim.runs.scenario import Scenario, build, find, load
from fedsmall.strategies.roster import await_all, await_sites
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.travel.schedule import Action, CommRound

DOES = {Action.TRAIN: "trained", Action.PERMUTE: "handed over", Action.AGGREGATE: "averaged"}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run's config asks for; what ends it early is told in one line."""
    logging.getLogger("flwr").addFilter(without_traceback)
    console, config = terminal(), context.run_config
    run = conduct(grid, config, console)
    print_run(console, run)
    console.print(f"\nRun: {run.folder}", markup=False)
    console.print(f"Report: {report_of(run)}", markup=False)
    for plan_run in run.done:
        if (weights := run.weights_of(plan_run)) is not None:
            console.print(f"Model: {weights}", markup=False)


def report_of(run: Run) -> str:
    """Where the run's report is; the installed fedsmall makes it, for Flower's bundle leaves its templates out."""
    folder = Path(str(run.folder))
    command = [sys.executable, "-P", "-m", "fedsmall.sim.cli.app", "report", str(folder)]
    bundle = str(Path(__file__).parents[1])  # Flower puts it on the path of all processes that come after
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != bundle]
    installed = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    made = subprocess.run(command, cwd=folder, env=installed, capture_output=True, check=False).returncode == 0
    return str(folder / "report.html") if made else f"`fedsmall report {folder}`, where fedsmall is installed, makes it"


def without_traceback(record: logging.LogRecord) -> bool:
    """Make one line of what Flower logs of a run that cannot be as asked; a fault of ours keeps its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    line = str(error) if isinstance(error, ValueError) and raised_by_us(error) else ""
    if isinstance(error, OSError) and error.filename:
        line = f"{error.strerror}: {error.filename}"
    if line:
        record.msg, record.args, record.exc_info = f"fedsmall: {one_line(line)}", None, None
    return True


def conduct(grid: Grid, config: Mapping[str, Any], console: Console) -> Run:
    """Run all plans of the scenario of ``config`` over all nodes; prints a line for each communication round."""
    wanted = int(config["sites"])
    if wanted:
        await_sites(grid, wanted)
    scenario = scenario_of(config, wanted or await_all(grid))
    folder = (Path(str(config["out"])) if config["out"] else free_folder(scenario.name)).absolute()
    check_free(folder)
    federations = Federations(build_federation)
    run = start(folder, scenario, federations.of(scenario.plans()[0]), "flower")
    for index, plan in enumerate(run.plans):
        federation = federations.of(plan)
        record = run_one(grid, plan, federation, partial(tell, console, plan))
        run.add(index, with_unseen(record, federation), trivial(federation, plan.has_own_models))
    run.save()
    return run


def run_one(grid: Grid, plan: Plan, federation: Federation, say: Tell) -> RunRecord:
    """Run one plan over all nodes; PlanError where the task has another number of sites."""
    if plan.method.is_central:
        return run_plan(plan, federation, "cohort")  # no node holds all data
    sites, nodes = len(federation.names), len(list(grid.get_node_ids()))
    if sites != nodes:
        raise PlanError(
            f"The task has {sites} sites and {nodes} SuperNodes are connected. Give each site one, in a simulation by "
            f'--federation-config "num-supernodes={sites}".'
        )
    return run_on(grid, plan, federation, say)


def tell(console: Console, plan: Plan, comm_round: CommRound, evaluation: Evaluation | None) -> None:
    """Print what a communication round was, and what models are worth after it."""
    words = [f"{called(plan)}: round {comm_round.t} of {plan.rounds}, {DOES[comm_round.action]}"]
    if evaluation is not None:
        sites = evaluation.sites.items()
        means = {name.removesuffix("_mean"): value for name, value in sites if name.endswith("_mean")}
        words += [f"global model {_worth(evaluation.common)}"] if evaluation.common else []
        words += [f"local models {_worth(means)}"] if means else []
    console.print("; ".join(words), markup=False)


def _worth(metrics: Mapping[str, float]) -> str:
    metric = next((name for name in PRIMARY if name in metrics), next(iter(metrics)))
    return f"{metric_name(metric)} {metric_value(metric, metrics[metric])}"


def scenario_of(config: Mapping[str, Any], sites: int) -> Scenario:
    """The scenario that the config names or its flat keys describe, for so many sites; PlanError for a wrong one."""
    if config["scenario"]:
        asked = load(find(Path(str(config["scenario"]))))
        dealt = {"sites": sites} if asked.sites is not None else {}
        return build({**asked.model_dump(exclude_defaults=True), **dealt, "evaluate_every": 1})
    periods = {key.replace("-", "_"): config[key] or None for key in ("permute-every", "aggregate-every")}
    table = {name: config[name] for name in ("task", "model", "rounds")} | {"name": "flwr-run", "sites": sites}
    table |= {"samples_per_site": config["samples-per-site"], "seeds": [config["seed"]], "evaluate_every": 1}
    return build(table | {"recipe": {"lr": config["lr"]}, "method": [{"name": config["method"], **periods}]})
