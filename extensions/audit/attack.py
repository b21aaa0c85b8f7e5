"""The audit of a scenario: every method, attacked as every party sees it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedsmall.extensions.audit.membership import Leak, leak, scores
from fedsmall.extensions.audit.one_run import lower_bound
from fedsmall.extensions.audit.record import Finding
from fedsmall.extensions.audit.side_by_side import batches_of, side_by_side
from fedsmall.extensions.audit.sightings import READ_RUNS, Notes, Route, Sightings, joined
from fedsmall.extensions.audit.views import VIEWS, Case, InHand
from fedsmall.extensions.audit.world import World
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.validation import parameter_count

OBSERVERS = 4  # sites whose views are averaged; any site is as good as another

Progress = Callable[[float], None]  # is told which share of a method's work is done


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
    batches = batches_of(members, len(route.legs[0][1]), parameter_count(plan, world.task))
    for number, some in enumerate(batches):
        notes = Notes(plan, world, some, route, 0 if parts else READ_RUNS)
        for place, step in enumerate(side_by_side(plan, world, some)):
            notes.take(place, step)
            progress((number + (place + 1) / len(route.legs)) / len(batches))
        parts.append(notes.result())
    return Case(world, route, joined(parts), observers, group)


def findings(case: Case, members: np.ndarray | None = None, views: Sequence[str] = tuple(VIEWS)) -> Iterator[Finding]:
    """What each party can tell; ``members`` other than the case's own are for tests of the attack itself."""
    bits = case.seen.members if members is None else members
    plan = case.world.plan
    for view in views:
        hand = VIEWS[view](case)
        if hand is not None:
            yield _finding(case, view, hand, bits, plan)


def _finding(case: Case, view: str, hand: InHand, members: np.ndarray, plan: Plan) -> Finding:
    inside = members[:, hand.candidates]
    found = scores(hand.features, inside)
    told: Leak = leak(found, inside, rng_for(plan.seed, "audit", "resample", view), hand.candidates)
    privacy = plan.method.privacy
    delta = privacy.delta if privacy is not None and privacy.noise else 0.0
    bounds = _bounds(found, inside, hand.candidates, delta)
    read, there = hand.read if hand.read is not None and case.seen.readable else (None, None)
    return Finding(plan.method.label, view, told.auc, told.found, float(np.median(bounds)), max(bounds), read, there)


def _bounds(found: np.ndarray, inside: np.ndarray, candidates: np.ndarray, delta: float) -> list[float]:
    """The one-run bound of every federation; where several observers look, of the first alone, who guesses once."""
    once = np.arange(len(candidates)) < _first_repeat(candidates)
    return [lower_bound(row[once], bits[once], delta=delta) for row, bits in zip(found, inside, strict=True)]


def _first_repeat(candidates: np.ndarray) -> int:
    """How many units come before a candidate is seen a second time."""
    return int(np.argmax(np.diff(candidates, prepend=candidates[0]) < 0)) or len(candidates)
