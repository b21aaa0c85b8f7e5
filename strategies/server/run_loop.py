"""A run, moment by moment: what Flower's own loop does, and what a long run needs besides.

:func:`follow` lets an evaluator see the models where the scenario asks for it, keeps a journal, reports progress and
stops when told; it does not know where moments come from. :class:`RunLoop` makes them with a strategy over a grid, by
the same two hooks as ``Strategy.start``; the batched engine's come from
:func:`fedsmall.travel.daisy_chain.daisy_chain`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedsmall.plan import Plan
from fedsmall.privacy.site_level import Ledger, at_contacts
from fedsmall.stopping import best_round, looks, ran_dry
from fedsmall.travel.commons import starting
from fedsmall.travel.moments import Moment, Watcher, watching
from fedsmall.travel.schedule import Action, Contact, piece_length, times_travelled
from fedsmall.wire import PLAN, Arrays
from strategies.daisy_chain import DaisyChain
from strategies.dynamic.chain import DynamicChain
from strategies.parcels import own_slot
from strategies.records import stacked, to_record
from strategies.server.state import restore, state_of

CHOSEN = "chosen/"  # in a journal: the model that is the best by now


@dataclass(frozen=True)
class Evaluation:
    """What the models were worth after round ``t``.

    ``common`` are the metrics of the common model, or None where there is none at that time. ``sites`` are the metrics
    of the sites' own models after their local training: means and spreads under "accuracy_mean", "accuracy_sd" and the
    like, and under "per_site" the metrics of each. ``extra`` holds the same two for further test sets by name.
    ``kept``, at the end of a run whose sites keep visitors, is of each site's visitors together: what ``sites`` has,
    and under "held_out" the metrics on the site's own held-out samples. ``spread`` is how far the members of an
    ensemble differ (:func:`fedsmall.evaluation.ensembles.spread`), empty for one model.
    ``validation`` is what to expect at an unseen hospital (:func:`fedsmall.evaluation.unseen.expected`), where models
    travel by routes. ``told`` is what real sites tell beside their metrics, by site: under "samples" how
    many they judge by, under "sums" those of :mod:`fedsmall.evaluation.held_out`, under "charged" what the run was
    charged to its privacy budget. ``stop`` is the loss on training samples that the models never saw
    (:func:`fedsmall.stopping.loss_of`), by which a run ends early.
    """

    t: int
    common: dict[str, float] | None
    sites: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    stop: dict[str, float] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run has left behind so far. ``model`` is the last common one; ``stopped`` if the run was cut short.

    ``bytes_between`` are those that the servers of several regions sent each other. ``chosen`` is the round to which
    ``model`` belongs, where the plan's ``stop`` keeps the best and not the last.
    ``averaged`` says of every average that may be left out how many models it took, and whether these were all, and
    ``sent_by`` how many bytes had been sent by then.
    """

    model: Arrays | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    contacts: int = 0
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


Evaluator = Callable[[Moment], Evaluation | None]
Progress = Callable[[int, int], None]
Stop = Callable[[], bool]


def due_in(plan: Plan) -> Callable[[Contact], bool]:
    """Whether a contact is the first at or after a round in which an evaluation is asked for, or one that may stop."""
    every, rounds = plan.evaluate_every, looks(plan) | {plan.rounds}

    def due(contact: Contact) -> bool:
        reached = every is not None and contact.t // every > (contact.t - contact.rounds) // every
        return reached or contact.t in rounds

    return due


def ledger_of(plan: Plan) -> Ledger | None:
    """The ledger of what noise at contacts costs, where the plan asks for any; blur claims nothing."""
    privacy = at_contacts(plan)
    return Ledger(privacy) if privacy is not None and privacy.counted else None


def charged(contacts: Iterable[Contact], ledger: Ledger | None) -> Iterator[Contact]:
    """The contacts, each charged to the ledger before it takes place; a piece of one is no release."""
    for contact in contacts:
        if ledger is not None and contact.travels:
            ledger.charge()
        yield contact


def follow(
    moments: Iterable[Moment],
    plan: Plan,
    outcome: Outcome,
    *,
    ledger: Ledger | None = None,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    keep: Callable[[], None] | None = None,
) -> Outcome:
    """Go through a run's moments and write down in ``outcome`` what comes of them.

    ``progress(round, rounds)`` is called after each, ``keep()`` writes a journal, and where ``stop()`` is true the run
    ends early.
    """
    started, due = time.perf_counter(), due_in(plan)
    for moment in moments if not ran_dry(plan, outcome.evaluations) else ():
        contact = moment.contact
        outcome.rounds = contact.t
        outcome.client_updates += moment.updates
        outcome.bytes_sent += moment.bytes_sent
        outcome.bytes_between += moment.bytes_between
        outcome.events += moment.events
        if moment.averaged is not None:
            outcome.averaged.append(moment.averaged)
            outcome.sent_by.append(outcome.bytes_sent)
        if evaluator is not None and due(contact) and moment.sites:
            evaluation = evaluator(moment)
            outcome.evaluations += [evaluation] if evaluation is not None else []
        _take(plan, moment, outcome)
        if keep is not None:
            keep()
        if progress is not None:
            progress(contact.t, plan.rounds)
        if stop is not None and contact.t < plan.rounds and stop():
            outcome.stopped = True
            break
        if ran_dry(plan, outcome.evaluations):
            break
    outcome.contacts = times_travelled(plan, outcome.rounds)
    outcome.seconds = time.perf_counter() - started
    outcome.privacy = ledger.report() if ledger else {}
    return outcome


def _take(plan: Plan, moment: Moment, outcome: Outcome) -> None:
    """Let the outcome's model be the moment's common one: the last, or with ``stop`` the best by now."""
    if plan.stop is not None:
        now, best = moment.contact.t, best_round(outcome.evaluations)
        if best is not None and best != now:
            return
        outcome.chosen = best or 0
    outcome.model = moment.common if moment.common is not None else outcome.model


class Journal(Protocol):
    """Where a run is written down after each contact."""

    def save(self, contact: int, arrays: Arrays, meta: dict[str, Any], lasting: bool = False) -> None:
        """Write the state after ``contact`` contacts, all or nothing; a ``lasting`` one is to stay longer."""

    def latest(self) -> tuple[int, Arrays, dict[str, Any]] | None:
        """The last state that was written whole, or None."""


@dataclass
class RunLoop:
    """Runs a plan with a strategy over a grid. ``initial`` gives each site its own model, or all one under None.

    ``in_pieces``: contacts are cut where an evaluation is due between them, as only a simulation can. ``told`` is the
    plan that orders hold, where that is another.
    """

    strategy: DaisyChain
    grid: Grid
    plan: Plan
    initial: Callable[[str | None], Arrays]
    evaluator: Evaluator | None = None
    progress: Progress | None = None
    stop: Stop | None = None
    journal: Journal | None = None
    timeout_s: float = 3600.0
    in_pieces: bool = True
    watchers: Sequence[Watcher] = ()
    told: Plan | None = None

    def run(self) -> Outcome:
        """Walk all contacts (from the journal's last one on, where there is one) and say what came of them."""
        contacts = self.strategy.plan_contacts(self.plan.rounds, piece_length(self.plan) if self.in_pieces else None)
        config = ConfigRecord({PLAN: (self.told or self.plan).model_dump_json(exclude_defaults=True)})
        self._done, outcome = 0, Outcome()
        self._begin(config, outcome)
        ledger = ledger_of(self.plan)
        if ledger is not None:
            ledger.releases = sum(contact.travels for contact in contacts[: self._done])
        keep = partial(self._keep, outcome) if self.journal else None
        moments = self._moments(charged(contacts[self._done :], ledger), config)
        follow(
            watching(moments, self.watchers),
            self.plan,
            outcome,
            ledger=ledger,
            evaluator=self.evaluator,
            progress=self.progress,
            stop=self.stop,
            keep=keep,
        )
        outcome.events = self.strategy.events
        return outcome

    def _begin(self, config: ConfigRecord, outcome: Outcome) -> None:
        strategy = self.strategy
        strategy.meet(self.grid, to_record(self.initial(None)), config)
        latest = self.journal.latest() if self.journal else None
        if latest is not None:
            self._done, arrays, meta = latest
            restore(strategy, arrays, meta)
            outcome.client_updates, outcome.bytes_sent = int(meta["client_updates"]), strategy.bytes_sent
            outcome.evaluations = [Evaluation(**saved) for saved in meta["evaluations"]]
            outcome.rounds = strategy.contacts[self._done - 1].t if self._done else 0
            if strategy.aggregations and strategy.common is not None:
                outcome.model = strategy.result()
            outcome.chosen = int(meta.get("chosen", 0))
            outcome.averaged = [(int(models), bool(whole)) for models, whole in meta.get("averaged", ())]
            outcome.sent_by = list(meta.get("sent_by", ()))
            if outcome.chosen:
                outcome.model = {
                    name.removeprefix(CHOSEN): array for name, array in arrays.items() if name.startswith(CHOSEN)
                }
        elif self.plan.initial_models == "independent" and self.plan.method.grouped:
            start = starting(self.plan, len(strategy.sites), self.initial)
            strategy.begin_with([to_record(model) for model in start])
        elif self.plan.initial_models == "independent":
            strategy.slots = {site: own_slot(self.plan, self.initial(site), site) for site in strategy.sites}

    def _moments(self, contacts: Iterable[Contact], config: ConfigRecord) -> Iterator[Moment]:
        strategy = self.strategy
        for contact in contacts:
            sent, told = strategy.bytes_sent, len(strategy.events)
            number = self._done + 1
            orders = list(strategy.configure_train(number, strategy.common or ArrayRecord(), config, self.grid))
            replies = self.grid.send_and_receive(orders, timeout=self.timeout_s)
            strategy.aggregate_train(number, list(replies))
            self._done = number
            made = contact.action is Action.AGGREGATE
            sites, own = tuple(sorted(strategy.own)), strategy.own
            yield Moment(
                contact=contact,
                common=strategy.result() if made else None,
                commons=tuple(strategy.commons.models) if made else (),
                of_routes=strategy.commons.of_routes if made else tuple,
                sites=sites,
                models=lambda sites=sites, own=own: stacked([own[site] for site in sites]),  # type: ignore[misc]
                updates=contact.rounds * len(orders),
                bytes_sent=strategy.bytes_sent - sent,
                events=strategy.events[told:],
                averaged=strategy.averaged() if made and isinstance(strategy, DynamicChain) else None,
                memory={},
            )

    def _keep(self, outcome: Outcome) -> None:
        assert self.journal is not None
        if not self.strategy.sound():  # to go on from there would be to go on with what is wrong
            return
        arrays, meta = state_of(self.strategy)
        more = {
            "client_updates": outcome.client_updates,
            "evaluations": [vars(evaluation) for evaluation in outcome.evaluations],
            "chosen": outcome.chosen,
            "averaged": outcome.averaged,
            "sent_by": outcome.sent_by,
        }
        if outcome.chosen:
            arrays |= {f"{CHOSEN}{name}": array for name, array in (outcome.model or {}).items()}
        aggregated = self.strategy.contacts[self._done - 1].action is Action.AGGREGATE
        self.journal.save(self._done, arrays, {**meta, **more}, lasting=aggregated)
