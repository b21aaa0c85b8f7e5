"""The ServerApp: reads the plan of the run, calls the roll, and conducts it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.federation import Task
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan, Recipe
from fedsmall.validation import check_plan
from strategies.build import strategy_for
from strategies.roster import await_sites
from strategies.server.journal import put
from strategies.server.remote import evaluator_for, task_from_roll
from strategies.server.run_loop import Outcome, RunLoop

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan that the run's config holds, as JSON under ``plan`` or in Flower's flat keys."""
    plan = plan_from(dict(context.run_config))
    outcome = conduct(plan, grid)
    out = str(context.run_config.get("out", ""))
    if out:
        write_outcome(Path(out), plan, outcome)


def conduct(plan: Plan, grid: Grid) -> Outcome:
    """Run a plan over real sites: the task's shapes come from the roll call, the evaluation from the sites."""
    strategy = strategy_for(plan)
    await_sites(grid, plan.sites or 1)
    task: Task = task_from_roll(strategy.roster, grid, plan)
    check_plan(plan, task, len(strategy.sites))
    return RunLoop(
        strategy=strategy,
        grid=grid,
        plan=plan,
        initial=lambda site: initial_model(plan, task, site),
        evaluator=evaluator_for(strategy, grid, plan),
        in_pieces=False,
    ).run()


def plan_from(config: dict[str, Any]) -> Plan:
    """The plan in a run's config. Raises PlanError or pydantic's ValidationError where it makes no sense."""
    if config.get("plan"):
        return Plan.model_validate_json(str(config["plan"]))
    periods = {key.replace("-", "_"): config[key] or None for key in ("permute-every", "aggregate-every")}
    return Plan(
        name="flwr-run",
        task=str(config["task"]),
        model=str(config["model"]),
        sites=int(config["sites"]),
        samples_per_site=int(config["samples-per-site"]),
        rounds=int(config["rounds"]),
        seed=int(config["seed"]),
        recipe=Recipe(lr=float(config["lr"])),
        method=method(str(config["method"]), **periods),
    )


def write_outcome(folder: Path, plan: Plan, outcome: Outcome) -> None:
    """The common model (safetensors) and what was measured (JSON), each written whole or not at all.

    The outcome comes last: whoever sees it may take it that the run is finished and the model is there.
    """
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "plan": json.loads(plan.model_dump_json()),
        "evaluations": [asdict(evaluation) for evaluation in outcome.evaluations],
        "contacts": outcome.contacts,
        "bytes_sent": outcome.bytes_sent,
        "events": outcome.events,
    }
    if outcome.model is not None:
        put(folder / "model.safetensors", save(outcome.model))
    put(folder / "outcome.json", json.dumps(told, indent=1).encode())
