"""Many federations of one plan at once: equal sites, routes and initial models, and other patients in each.

All federations' models are one stack, and train in one batched computation; contacts are walked one by one, for the
attacker looks at each. A test holds this walk to :func:`fedsmall.travel.daisy_chain.daisy_chain`, federation by
federation. What it leaves out is the gate's look at single updates, which sets aside what no honest run holds.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedsmall.aggregation.combiners import Combiner, Updates, combiner_for
from fedsmall.extensions.audit.world import World
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.privacy.leaving import make_private
from fedsmall.training.stack import Rows, Stack, Tensors, stacked
from fedsmall.training.trainer import Leg, Signals, Trained, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.travel.commons import combined, sound_means
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action, Contact
from fedsmall.wire import Arrays, Traveller


class Step(NamedTuple):
    """A contact of all federations: row r * travellers + k is traveller k of federation r, at site ``at[k]``.

    ``received`` are the models that came to the sites and ``sent`` those that left them; ``commons`` the common models
    that an aggregation made of them, {name: (federations, ...)}, and empty where there was none.
    """

    contact: Contact
    at: np.ndarray
    received: Tensors
    sent: Tensors
    commons: Tensors


def side_by_side(plan: Plan, world: World, members: np.ndarray, device: str = "cpu") -> Iterator[Step]:
    """Every contact of ``len(members)`` federations of the plan; ``members`` (federations, candidates) are in.

    The models of a step are those in training, and change at the next one.
    """
    runs, sites = len(members), len(world.names)
    samples = [each for row in members for each in world.samples(row)]
    names = [f"{run:05d}/{site}" for run in range(runs) for site in world.names]
    trainer = cohort_for(_for_so_many(plan, runs), world.task, names, samples, device=device)
    combiners = [combiner_for(plan) for _ in range(runs)]
    start = initial_model(plan, world.task)
    commons = stacked([start] * runs, list(start))
    stack, before = None, None
    memory: Arrays = {}
    for contact, at in journey(plan, sites):
        places = (np.arange(runs)[:, None] * sites + at).ravel()
        if stack is None:
            stack = _departing(plan, world, trainer, at, runs)
        fresh = before is None or before.action is Action.AGGREGATE
        leg = Leg(
            places, contact.t, contact.rounds, before is None or before.travels, contact.action is Action.AGGREGATE
        )
        common = np.full(len(places), fresh and not (before is None and plan.initial_models == "independent"))
        received = stack.clone()
        trained = trainer.walk(stack, [leg], Signals(common, _rules(combiners, len(at)), memory))
        memory = trained.memory
        if contact.travels:
            make_private(plan, stack, received, [names[place] for place in places], contact.t)
        made: Tensors = {}
        if contact.action is Action.AGGREGATE:
            made = commons = _means(plan, stack, commons) or _aggregated(
                plan, world, combiners, commons, Rows(stack.state).arrays(), trained, at, contact.t
            )
        yield Step(contact, at, received.state, stack.state, made)
        for name, tensor in made.items():
            held = stack.state[name]
            held.view(runs, len(at), *held.shape[1:]).copy_(tensor[:, None])
        before = contact


def _for_so_many(plan: Plan, runs: int) -> Plan:
    """The plan with a tree for every site of every federation, where sites have trees of their own."""
    tree = plan.method.tree
    if tree is None:
        return plan
    own = {
        word: value * runs for word in ("fanout", "depth", "drop") if isinstance(value := getattr(tree, word), tuple)
    }
    method = plan.method.model_copy(update={"tree": tree.model_copy(update=own)})
    return plan.model_copy(update={"method": method})


def _departing(plan: Plan, world: World, trainer: Trainer, at: np.ndarray, runs: int) -> Stack:
    own = plan.initial_models == "independent"
    starts = [initial_model(plan, world.task, world.names[site] if own else None) for site in (at if own else at[:1])]
    stack = trainer.stack([Traveller(model) for model in starts])
    return stack.rows(np.tile(np.arange(len(at)) if own else np.zeros(len(at), dtype=np.int64), runs))


def _rules(combiners: Sequence[Combiner], travellers: int) -> Arrays:
    """What the local rule needs from each federation's server, a row for each model."""
    rules = [combiner.order_rule() for combiner in combiners]
    return {name: np.repeat(np.stack([rule[name] for rule in rules]), travellers, axis=0) for name in rules[0]}


def _means(plan: Plan, stack: Stack, commons: Tensors) -> Tensors | None:
    """The next common models of all federations at once, where these are plain means; None where more is to be done,
    or where one of them may be refused.
    """
    method, runs = plan.method, len(next(iter(commons.values())))
    folded = method.tree is not None and method.tree.fold_at == "server"
    if method.aggregator != "mean" or method.server != "none" or method.weighted or folded:
        return None
    own = {name: tensor.view(runs, -1, *tensor.shape[1:]).transpose(0, 1) for name, tensor in stack.state.items()}
    return sound_means(own, commons)


def _aggregated(
    plan: Plan,
    world: World,
    combiners: Sequence[Combiner],
    commons: Tensors,
    sent: Arrays,
    trained: Trained,
    at: np.ndarray,
    t: int,
) -> Tensors:
    order, out = np.argsort(at), []
    names = tuple(world.names[site] for site in at[order])
    for run, combiner in enumerate(combiners):
        rows = run * len(at) + order
        updates = Updates(
            sites=names,
            stack={name: array[rows] for name, array in sent.items()},
            weights=trained.examples[rows] if plan.method.weighted else None,
            steps=trained.steps[rows],
            rule={name: array[rows] for name, array in trained.rule.items()},
            sites_in_all=len(world.names),
        )
        out.append(combined(combiner, Rows(commons).row(run), updates, t, float(plan.method.gate))[0])
    return stacked(out, list(commons))


def batches_of(members: np.ndarray, models: int, parameters: int, most: int = 2**26) -> list[np.ndarray]:
    """The federations in as many parts as keep one stack of models below ``most`` numbers."""
    runs = max(1, most // max(1, models * parameters))
    return [members[start : start + runs] for start in range(0, len(members), runs)]
