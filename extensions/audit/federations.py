"""The federations of an audit: the world of its records, and many runs of one plan in it at once.

Each candidate is in a run's data by a coin of its own, so that the one-run bound (Steinke et al. 2023) holds. Every
attacker knows routes, initial model and the candidates' records. All federations' models are one stack and train in one
batched computation, communication round by communication round. The norm check of single updates is left out.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsmall.aggregation.combiners import Combiner, combiner_for
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.algorithm.departing import make_private
from fedsmall.algorithm.global_models import combine_soundly, sound_means
from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.errors import PlanError
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_run
from fedsmall.randomness import rng_for
from fedsmall.replicas import with_trees_of
from fedsmall.training.stack import Rows, Stack, Tensors, stacked
from fedsmall.training.trainer import Phase, Trainer, TrainInput, TrainResult
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action, CommRound
from fedsmall.wire import Arrays, ModelState

MOST_CANDIDATES = 64  # at a site; more tell nothing more and cost memory


@dataclass(frozen=True)
class World:
    """Records of sites: ``fixed`` ones are in every run, ``candidates`` in half. ``expected``: the scenario's mean."""

    plan: Plan
    task: Task
    names: tuple[str, ...]
    fixed: tuple[Samples, ...]
    candidates: tuple[Samples, ...]
    expected: float

    @property
    def sizes(self) -> np.ndarray:
        """How many candidates each site has, (sites,)."""
        return np.array([len(records) for records in self.candidates])

    @property
    def site_of(self) -> np.ndarray:
        """The site of each candidate, (candidates,)."""
        return np.repeat(np.arange(len(self.names)), self.sizes)

    @property
    def mean(self) -> float:
        """Samples a site trains on, on average."""
        return float(np.mean([len(records) for records in self.fixed])) + float(self.sizes.mean()) / 2

    def under(self, plan: Plan) -> "World":
        """The same world for another method over the same data. PlanError where these sites cannot run it."""
        everyone = self.samples(np.ones(int(self.sizes.sum()), dtype=bool))
        check_run(plan, Federation(self.task, self.names, tuple(everyone), self.fixed[0]))
        return replace(self, plan=plan)

    def coins(self, run: int) -> np.ndarray:
        """Who is in the data of a run, (candidates,) of bool."""
        return np.asarray(rng_for(self.plan.seed, "audit", "in", run).random(int(self.sizes.sum())) < 0.5)

    def samples(self, members: np.ndarray) -> list[Samples]:
        """The training samples of every site where ``members`` (candidates,) are in."""
        cuts = np.split(members, np.cumsum(self.sizes)[:-1])
        drawn = (_rows(records, taken) for records, taken in zip(self.candidates, cuts, strict=True))
        return [_join_samples(fixed, records) for fixed, records in zip(self.fixed, drawn, strict=True)]


def world_of(plan: Plan, data_root: Path | None = None) -> World:
    """The world of a plan's data. PlanError where they cannot be dealt so, or its sites have models of their own."""
    if plan.has_own_models:
        raise PlanError("the audit attacks models that all sites share; these sites have models of their own")
    federation, expected = _deal_with_spares(plan, data_root)
    check_run(plan, federation)
    fixed, candidates = [], []
    for place, site in enumerate(federation.names):
        samples, held = federation.train[place], federation.held_out[place] if federation.held_out else None
        everything = samples if held is None or not len(held) else _join_samples(samples, held)
        trained = len(samples) if expected is None else expected
        order = rng_for(plan.seed, "audit", "deal", site).permutation(len(everything))
        stay, toss = split(len(everything), trained)
        fixed.append(_rows(everything, order[:stay]))
        candidates.append(_rows(everything, order[stay : stay + toss]))
    if not sum(map(len, candidates)):
        raise PlanError("every site has one sample only and the source none to spare: nobody can be left out")
    mean = float(np.mean([len(samples) for samples in federation.train])) if expected is None else float(expected)
    return World(plan, federation.task, federation.names, tuple(fixed), tuple(candidates), mean)


def world_as_it_is(plan: Plan, federation: Federation) -> World:
    """The world of a federation whose records are in every run: nobody is a candidate."""
    nobody = tuple(_rows(samples, np.arange(0)) for samples in federation.train)
    return World(plan, federation.task, federation.names, federation.train, nobody, 0.0)


def split(available: int, trained: int) -> tuple[int, int]:
    """How many of a site's samples are fixed, one at least, and how many candidates: ``trained`` on average."""
    spare = min(available - trained, MOST_CANDIDATES // 2, max(trained - 1, 1))
    if spare <= 0:
        toss = min(available // 2, MOST_CANDIDATES)
        return available - toss, toss
    stay = max(trained - spare, 1)
    return stay, min(2 * spare, available - stay)


def _deal_with_spares(plan: Plan, data_root: Path | None) -> tuple[Federation, int | None]:
    """Sites with samples to spare where the source has them, and how many each is to train on (None: as it has)."""
    wanted = plan.samples_per_site
    if wanted is not None:
        for spare in range(max(wanted - 1, 1), 0, -1):
            larger = plan.model_copy(update={"samples_per_site": wanted + spare})
            with suppress(PlanError):  # else fewer to spare
                return build_federation(larger, data_root), wanted
    return build_federation(plan, data_root), wanted


def _join_samples(first: Samples, second: Samples) -> Samples:
    return Samples(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))


def _rows(samples: Samples, rows: np.ndarray) -> Samples:
    return Samples(samples.x[rows], samples.y[rows])


class Step(NamedTuple):
    """A communication round of all federations: row r * models + k is model k of federation r, at site ``at[k]``.

    ``received`` came to the sites, ``sent`` left; ``global_models`` {name: (federations, ...)} are an aggregation's.
    """

    comm_round: CommRound
    at: np.ndarray
    received: Tensors
    sent: Tensors
    global_models: Tensors


def side_by_side(plan: Plan, world: World, members: np.ndarray, device: str = "cpu") -> Iterator[Step]:
    """All communication rounds of federations in parallel; ``members`` (federations, candidates) are in."""
    runs, sites = len(members), len(world.names)
    samples = [site_samples for row in members for site_samples in world.samples(row)]
    names = [name_in(run, site) for run in range(runs) for site in world.names]
    everyone = with_trees_of(plan, [*range(sites)] * runs, sites)
    trainer = cohort_for(everyone, world.task, names, samples, device=device)
    combiners = [combiner_for(plan) for _ in range(runs)]
    start = initial_model(plan, world.task)
    global_models = stacked([start] * runs, list(start))
    stack, before = None, None
    memory: Arrays = {}
    for comm_round, at in journey(plan, sites):
        places = (np.arange(runs)[:, None] * sites + at).ravel()
        if stack is None:
            stack = _initial_stack(plan, world, trainer, at, runs)
        fresh = before is None or before.action is Action.AGGREGATE
        travelled, ends = before is None or before.travels, comm_round.action is Action.AGGREGATE
        phase = Phase(places, comm_round.t, comm_round.rounds, travelled, ends)
        is_global = np.full(len(places), fresh and not (before is None and plan.initial_models == "independent"))
        received = stack.clone()
        each = [combiner.order_rule() for combiner in combiners]
        rules = {name: np.repeat(np.stack([rule[name] for rule in each]), len(at), axis=0) for name in each[0]}
        trained = trainer.walk(stack, [phase], TrainInput(is_global, rules, memory))
        memory = trained.memory
        if comm_round.travels:
            make_private(plan, stack, received, [names[place] for place in places], comm_round.t)
        made: Tensors = {}
        if comm_round.action is Action.AGGREGATE:
            made = global_models = _means(plan, stack, global_models) or _aggregated(
                plan, world, combiners, global_models, Rows(stack.state).arrays(), trained, at, comm_round.t
            )
        yield Step(comm_round, at, received.state, stack.state, made)
        for name, tensor in made.items():
            held = stack.state[name]
            held.view(runs, len(at), *held.shape[1:]).copy_(tensor[:, None])
        before = comm_round


def name_in(run: int, site: str) -> str:
    """The name under which a site of one of many federations draws."""
    return f"{run:05d}/{site}"


def _initial_stack(plan: Plan, world: World, trainer: Trainer, at: np.ndarray, runs: int) -> Stack:
    if plan.initial_models != "independent":
        rows = np.zeros(runs * len(at), dtype=np.int64)
        return trainer.stack([ModelState(initial_model(plan, world.task))]).rows(rows)
    starts = [ModelState(initial_model(plan, world.task, world.names[site])) for site in at]
    return trainer.stack(starts).rows(np.tile(np.arange(len(at)), runs))


def _means(plan: Plan, stack: Stack, global_models: Tensors) -> Tensors | None:
    """The next global models of all federations at once; None where they are no plain means, or one may be refused."""
    method, runs = plan.method, len(next(iter(global_models.values())))
    if method.aggregator != "mean" or method.server != "none" or method.weighted or method.server_tree:
        return None
    models = {name: tensor.view(runs, -1, *tensor.shape[1:]).transpose(0, 1) for name, tensor in stack.state.items()}
    return sound_means(models, global_models)


def _aggregated(
    plan: Plan,
    world: World,
    combiners: Sequence[Combiner],
    global_models: Tensors,
    sent: Arrays,
    trained: TrainResult,
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
        out.append(combine_soundly(combiner, Rows(global_models).row(run), updates, t, float(plan.method.gate))[0])
    return stacked(out, list(global_models))


def batches_of(members: np.ndarray, models: int, parameters: int, most: int = 2**26) -> list[np.ndarray]:
    """The federations in as many parts as keep one stack of models below ``most`` numbers."""
    runs = max(1, most // max(1, models * parameters))
    return [members[start : start + runs] for start in range(0, len(members), runs)]
