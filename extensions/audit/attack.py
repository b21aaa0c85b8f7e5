"""The audit of a scenario: every method, attacked as every party sees it."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.extensions.audit.by_likelihood import Explained, explain
from fedsmall.extensions.audit.federations import World, batches_of, side_by_side, world_of
from fedsmall.extensions.audit.findings import Audit, Finding
from fedsmall.extensions.audit.membership import leak, lower_bound, scores
from fedsmall.extensions.audit.sightings import READ_RUNS, Notes, Route, Sightings, join_sightings
from fedsmall.extensions.audit.views import VIEWS, Case, InHand
from fedsmall.methods import nearest
from fedsmall.plan import Plan
from fedsmall.planning.validation import parameter_count
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import versions
from fedsmall.sim.runs.progress import Watcher
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.training.device import keep_freed_memory

OBSERVERS = 4  # sites whose views are averaged; any site is as good as another

Progress = Callable[[float], None]  # takes the share of a method's work that is done


def audit(
    plan: Plan, world: World, runs: int, colluders: int = 3, progress: Progress = lambda share: None
) -> list[Finding]:
    """What every party can tell under the plan's method, from ``runs`` federations of the world."""
    return list(findings(play(plan, world, runs, colluders, progress)))


def play(plan: Plan, world: World, runs: int, colluders: int, progress: Progress = lambda share: None) -> Case:
    """Train the federations, and write down what there is to be seen."""
    order = rng_for(plan.seed, "audit", "observers").permutation(len(world.names)).tolist()
    observers, group = tuple(order[:OBSERVERS]), tuple(order[:colluders])
    route = Route(plan, len(world.names), tuple(dict.fromkeys(observers + group)))
    members = np.stack([world.coins(run) for run in range(runs)])
    parts: list[Sightings] = []
    batches = batches_of(members, len(route.comm_rounds[0][1]), parameter_count(plan, world.task))
    for number, batch in enumerate(batches):
        notes = Notes(plan, world, batch, route, 0 if parts else READ_RUNS)
        for place, step in enumerate(side_by_side(plan, world, batch)):
            notes.take(place, step)
            progress((number + (place + 1) / len(route.comm_rounds)) / len(batches))
        parts.append(notes.result())
    return Case(world, route, join_sightings(parts), observers, group)


def findings(case: Case, members: np.ndarray | None = None, views: Sequence[str] = tuple(VIEWS)) -> Iterator[Finding]:
    """What each party can tell; ``members`` other than the case's own are for tests of the attack itself."""
    for view in views:
        hand = VIEWS[view](case)
        if hand is not None:
            yield _finding(case, view, hand, case.seen.members if members is None else members)


def _finding(case: Case, view: str, hand: InHand, members: np.ndarray) -> Finding:
    plan, inside, candidates = case.world.plan, members[:, hand.candidates], hand.candidates
    sureness = scores(hand.features, inside)
    leakage = leak(sureness, inside, rng_for(plan.seed, "audit", "resample", view), candidates)
    delta = plan.privacy.delta if plan.privacy.noise else 0.0
    # the one-run bound of every federation; where several observers look, of the first alone, who guesses once
    first_repeat = int(np.argmax(np.diff(candidates, prepend=candidates[0]) < 0)) or len(candidates)
    once = np.arange(len(candidates)) < first_repeat
    bounds = [lower_bound(row[once], bits[once], delta=delta) for row, bits in zip(sureness, inside, strict=True)]
    read, present = hand.read if hand.read is not None and case.seen.readable else (None, None)
    median, highest = float(np.median(bounds)), max(bounds)
    return Finding(plan.method.label, view, leakage.auc, leakage.found, median, highest, read, present)


POOLED = "it pools all patients in one place: there is nothing that a party would see"
SEVERAL = "moving averages, snapshots and the models of groups are not attacked yet: this says nothing of them"
OF_SUMS = "what trees and the sums of regressions tell of patients is not attacked yet: this says nothing of them"
CHANGED = "images that are changed as they are trained on are not attacked yet: this says nothing of them"


def plans_of(scenario: Scenario, labels: Sequence[str] | None) -> list[Plan]:
    """The plans of the methods with these labels (default: all), with the first seed; PlanError for an unknown one."""
    plans = [scenario.plan(index, scenario.seeds[0]) for index in range(len(scenario.method))]
    known = [plan.method.label for plan in plans]
    for label in labels or ():
        if label not in known:
            raise PlanError(f"no method of this scenario has the label {label!r}. {nearest(label, known)}")
    return [plan for plan in plans if not labels or plan.method.label in labels]


def why_left_out(plan: Plan) -> str:
    """Why a plan is not attacked; "" where it is."""
    method = plan.method
    if method.is_central:
        return POOLED
    if not method.keeps_global:
        return SEVERAL
    if not method.trains_networks:
        return OF_SUMS
    return "" if plan.recipe.augment is None else CHANGED


def audit_scenario(
    scenario: Scenario, plans: Sequence[Plan], runs: int, colluders: int, data_root: Path | None, watcher: Watcher
) -> Audit:
    """Attack the methods of ``plans``; those that give nobody anything to see are left out, and it is said why."""
    keep_freed_memory()
    world, started, before = world_of(plans[0], data_root), time.monotonic(), 0
    findings: list[Finding] = []
    left_out: dict[str, str] = {}
    explained: dict[str, Explained | str] = {}
    with watcher:
        for plan in plans:

            def progress(share: float, before: int = before, rounds: int = plan.rounds) -> None:
                watcher.moved(before + int(share * rounds))

            if why := why_left_out(plan):
                left_out[plan.method.label] = why
            else:
                findings += audit(plan, world.under(plan), runs, colluders, progress)
                explained[plan.method.label] = explain(plan, data_root)
            before += plan.rounds
            watcher.end(plan)
    about: dict[str, Any] = {"runs": runs, "sites": len(world.names), "candidates": len(world.site_of)}
    about |= {"mean": world.mean, "expected": world.expected, "colluders": colluders, "seed": plans[0].seed}
    about |= {"seconds": round(time.monotonic() - started, 1), "versions": versions()}
    return Audit(scenario.name, about, findings, left_out, explained)
