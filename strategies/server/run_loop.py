"""The loop over a run's communication rounds: evaluation, journal, progress and stopping."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.algorithm.topologies import Topology, United
from fedsmall.errors import PlanError
from fedsmall.evaluation.stopping import best_round, has_run_dry, looks
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import Ledger
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.training.trainer import Trainer
from fedsmall.travel.journey import Initial, RoundResult, Watcher
from fedsmall.travel.schedule import Action, CommRound, comm_rounds_of, times_travelled
from fedsmall.wire import Arrays, join, parts


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run's models after round ``t``.

    ``common`` are those of the global model, None where there is none. ``sites`` are those of the sites' own models
    after local training: "accuracy_mean", "accuracy_sd" and the like, and under "per_site" each site's; ``extra`` holds
    the same two for further test sets by name. ``spread`` is how far the members of an ensemble differ
    (:func:`fedsmall.evaluation.outputs.spread`), ``validation`` what to expect at an unseen hospital, with routes.
    ``told`` is what real sites add, by site: the number of "samples", "sums" (:mod:`fedsmall.evaluation.site_sums`),
    and what was "charged". ``stop`` is the loss on the validation set.
    """

    t: int
    common: dict[str, float] | None
    sites: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    stop: dict[str, float] = field(default_factory=dict)


@dataclass
class Outcome:
    """A run's results so far. ``model`` is the last global one; ``stopped`` where the run was cut short.

    ``seconds`` is the wall time of the rounds alone, ``bytes_between`` the traffic between servers of regions,
    ``chosen`` the round of ``model`` where ``stop`` keeps the best. ``averaged`` says of every optional average how
    many models it took and whether these were all, ``sent_by`` the bytes sent by then.
    """

    model: Arrays | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    comm_rounds: int = 0
    rounds: int = 0
    bytes_sent: int = 0
    bytes_between: int = 0
    client_updates: int = 0
    seconds: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    privacy: dict[str, float] = field(default_factory=dict)
    chosen: int = 0
    averaged: list[tuple[int, bool]] = field(default_factory=list)
    sent_by: list[int] = field(default_factory=list)

    def count(self, result: RoundResult) -> None:
        """Add what a result has cost."""
        self.rounds = result.comm_round.t
        self.client_updates += result.updates
        self.bytes_sent += result.bytes_sent
        self.bytes_between += result.bytes_between
        self.events += result.events
        if result.averaged is not None:
            self.averaged.append(result.averaged)
            self.sent_by.append(self.bytes_sent)

    def words(self) -> dict[str, Any]:
        """All but the model, for JSON."""
        kept = {name: value for name, value in vars(self).items() if name in _KEPT}
        return kept | {"evaluations": [vars(evaluation) for evaluation in self.evaluations]}

    def take_up(self, words: Mapping[str, Any]) -> None:
        """Restore what :meth:`words` gave; an earlier release's has less, or more."""
        vars(self).update({name: words[name] for name in _KEPT if name in words})
        known = {of.name for of in fields(Evaluation)}
        self.evaluations = [Evaluation(**{n: saved[n] for n in known & saved.keys()}) for saved in words["evaluations"]]
        self.averaged = [(int(models), bool(whole)) for models, whole in self.averaged]


_KEPT = {known.name for known in fields(Outcome)} - {"model"}
Evaluator = Callable[[RoundResult], Evaluation | None]
Progress = Callable[[int, int], None]
Stop = Callable[[], bool]


def due_in(plan: Plan) -> Callable[[CommRound], bool]:
    """Whether it is the first communication round at or after an evaluation, or one that may stop the run."""
    period, rounds = plan.evaluate_every, {plan.rounds} if plan.stop is None else looks(plan)

    def due(comm_round: CommRound) -> bool:
        reached = period is not None and comm_round.t // period > (comm_round.t - comm_round.rounds) // period
        return reached or comm_round.t in rounds

    return due


def ledger_of(plan: Plan) -> Ledger | None:
    """The ledger of noise at communication rounds, where the plan's privacy is counted; blur claims nothing."""
    return Ledger(plan.privacy) if plan.privacy.at_comm_rounds and plan.privacy.counted else None


def has_ended(plan: Plan, global_model: Arrays | None) -> bool:
    """Whether a model that is no network is as good as it gets, before the last round."""
    extension = plan.method.extension
    return extension is not None and global_model is not None and bool(extension.has_ended(plan, global_model))


def _charged(comm_rounds: Sequence[CommRound], ledger: Ledger | None) -> Iterator[CommRound]:
    """The communication rounds, each charged before it takes place; a segment of one is no release."""
    for comm_round in comm_rounds:
        if ledger is not None and comm_round.travels:
            ledger.charge()
        yield comm_round


def _is_over(plan: Plan, outcome: Outcome) -> bool:
    """Whether a run ends before its last round: nothing would change any more, or its early stop says so."""
    dry = plan.stop is not None and has_run_dry(plan, outcome.evaluations)
    return dry or has_ended(plan, outcome.model)


def _take(plan: Plan, result: RoundResult, outcome: Outcome) -> None:
    """Take the result's global model: the last, or with ``stop`` the best so far."""
    if plan.stop is not None:
        now, best = result.comm_round.t, best_round(outcome.evaluations)
        if best is not None and best != now:
            return
        outcome.chosen = best or 0
    outcome.model = result.global_model if result.global_model is not None else outcome.model


@dataclass
class KeptRun:
    """A run's state in its journal."""

    topology: Topology
    outcome: Outcome
    comm_rounds: Sequence[CommRound]
    journal: FileJournal | None

    def restore(self) -> int:
        """Go back to the last saved state; the communication rounds done, or PlanError for an old release's."""
        latest = self.journal.latest() if self.journal else None
        if latest is None:
            return 0
        done, arrays, meta = latest
        if "states" not in meta:
            cure = "Go on with that release, or start a new run."
            raise PlanError(f"The journal of this run was written by an earlier release of fedsmall. {cure}")
        sets, outcome, states = parts(arrays), self.outcome, self.topology.states
        states.trainer.restore(sets.get("trainer", {}), meta["trainer"])
        states.restore(sets["states"], meta["states"], self.comm_rounds[done - 1])
        self.topology.restore(sets.get("topology", {}), meta["topology"])
        outcome.take_up(meta)
        outcome.rounds = self.comm_rounds[done - 1].t
        if meta["has_model"]:
            outcome.model = sets.get("chosen") or states.global_models.result()
        return done

    def save(self) -> None:
        """Write the state after the last round, unless it is unsound: a resumed run would go on with it."""
        assert self.journal is not None
        states = self.topology.states
        if not states.is_sound():
            return
        outcome, done = self.outcome, 1 + [comm_round.t for comm_round in self.comm_rounds].index(self.outcome.rounds)
        arrays, numbers = states.state()
        beside, words = states.trainer.state()
        meta = outcome.words()
        meta |= {"states": numbers, "trainer": words, "has_model": outcome.model is not None}
        between, meta["topology"] = self.topology.state()
        if self.topology.has_places:  # for people who look at the run
            meta["places"] = states.places(self.comm_rounds[done] if done < len(self.comm_rounds) else None)
        chosen = outcome.model if outcome.chosen and outcome.model else {}
        sets = join(states=arrays, trainer=beside, topology=between, chosen=chosen)
        lasting = self.comm_rounds[done - 1].action is Action.AGGREGATE
        self.journal.save(done, sets, meta, lasting=lasting)


def run_rounds(
    plan: Plan,
    trainer: Trainer,
    initial: Initial,
    *,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    watcher: Watcher | None = None,
    journal: FileJournal | None = None,
    in_pieces: bool = True,
    outcome: Outcome | None = None,
    united: United | None = None,
) -> Outcome:
    """Run a plan over the sites of ``trainer`` from the journal's last communication round on.

    ``initial`` gives each site its own model, or all one under None. ``progress(round, rounds)`` is called after each
    communication round, a true ``stop()`` ends the run. ``in_pieces``: communication rounds are cut where an evaluation
    is due between them, as only a simulation can. ``outcome`` is filled as the run goes on. ``united`` is a region's
    line to the others (:class:`~fedsmall.algorithm.topologies.Region`).
    """
    outcome, ledger, due = outcome or Outcome(), ledger_of(plan), due_in(plan)
    topology = topology_for(plan, trainer, initial, united=united)
    comm_rounds = comm_rounds_of(plan, in_pieces=in_pieces and evaluator is not None)
    kept = KeptRun(topology, outcome, comm_rounds, journal)
    done = kept.restore()
    if ledger is not None:
        ledger.releases = sum(comm_round.travels for comm_round in comm_rounds[:done])

    def is_seen(comm_round: CommRound) -> bool:
        return (watcher is not None and watcher.needs(comm_round)) or (evaluator is not None and due(comm_round))

    started, moments = time.perf_counter(), daisy_chain(topology, _charged(comm_rounds[done:], ledger), is_seen)
    for result in moments if not _is_over(plan, outcome) else ():
        comm_round = result.comm_round
        if watcher is not None:
            watcher.see(result)
        outcome.count(result)
        if evaluator is not None and (due(comm_round) or has_ended(plan, result.global_model)) and result.sites:
            evaluation = evaluator(result)
            outcome.events += trainer.take_events()
            outcome.evaluations += [evaluation] if evaluation is not None else []
        _take(plan, result, outcome)
        if journal is not None:
            kept.save()
        if progress is not None:
            progress(comm_round.t, plan.rounds)
        if stop is not None and comm_round.t < plan.rounds and stop():
            outcome.stopped = True
            break
        if _is_over(plan, outcome):
            break
    outcome.comm_rounds = times_travelled(plan, outcome.rounds)
    outcome.seconds = time.perf_counter() - started
    outcome.privacy = ledger.report() if ledger else {}
    return outcome
