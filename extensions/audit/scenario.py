"""The audit of a scenario, method by method."""

import time
from collections.abc import Sequence
from pathlib import Path

from fedsmall.errors import PlanError
from fedsmall.extensions.audit.attack import audit
from fedsmall.extensions.audit.record import Audit, Finding
from fedsmall.extensions.audit.world import World, world_of
from fedsmall.methods import nearest
from fedsmall.plan import Plan
from fedsmall.sim.engines.allocator import keep_freed_memory
from fedsmall.sim.engines.record import versions
from fedsmall.sim.runs.progress import Watcher
from fedsmall.sim.runs.scenario import Scenario

POOLED = "it pools all patients in one place: there is nothing that a party would see"
SEVERAL = "moving averages, snapshots and the models of groups are not attacked yet: this says nothing of them"
OF_TREES = "what trees tell of patients is not attacked yet: this says nothing of them"
CHANGED = "images that are changed as they are trained on are not attacked yet: this says nothing of them"


def chosen(scenario: Scenario, labels: Sequence[str] | None) -> list[Plan]:
    """The plans of the methods with these labels, all by default, with the scenario's first seed.

    Raises PlanError for a label that no method has.
    """
    plans = [scenario.plan(index, scenario.seeds[0]) for index in range(len(scenario.method))]
    known = [plan.method.label for plan in plans]
    for label in labels or ():
        if label not in known:
            raise PlanError(f"no method of this scenario has the label {label!r}. {nearest(label, known)}")
    return [plan for plan in plans if not labels or plan.method.label in labels]


def audit_scenario(
    scenario: Scenario, plans: Sequence[Plan], runs: int, colluders: int, data_root: Path | None, watcher: Watcher
) -> Audit:
    """Attack the methods of ``plans``; those that give nobody anything to see are left out, and it is said why."""
    keep_freed_memory()
    world, started = world_of(plans[0], data_root), time.monotonic()
    found: list[Finding] = []
    left_out: dict[str, str] = {}
    with watcher:
        before = 0
        for plan in plans:

            def progress(share: float, before: int = before, rounds: int = plan.rounds) -> None:
                watcher.moved(before + int(share * rounds))

            if plan.method.family == "central":
                left_out[plan.method.label] = POOLED
            elif plan.method.is_ensemble or plan.method.ema:
                left_out[plan.method.label] = SEVERAL
            elif plan.method.boosting is not None:
                left_out[plan.method.label] = OF_TREES
            elif plan.recipe.augment:
                left_out[plan.method.label] = CHANGED
            else:
                found += audit(plan, world.under(plan), runs, colluders, progress)
            before += plan.rounds
            watcher.end(plan)
    return Audit(scenario.name, _about(world, plans[0], runs, colluders, time.monotonic() - started), found, left_out)


def _about(world: World, plan: Plan, runs: int, colluders: int, seconds: float) -> dict[str, object]:
    return {
        "runs": runs,
        "sites": len(world.names),
        "candidates": len(world.site_of),
        "mean": world.mean,
        "expected": world.expected,
        "colluders": colluders,
        "seed": plan.seed,
        "seconds": round(seconds, 1),
        "versions": versions(),
    }
