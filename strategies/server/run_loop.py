"""A run, contact by contact: what Flower's own loop does, and what a long run needs besides.

The loop calls the same two hooks as ``Strategy.start``. It walks the schedule's contacts instead of counting rounds,
lets an evaluator look where the scenario asks for it, writes a journal, reports progress and stops when told.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedsmall.plan import Plan
from fedsmall.privacy import Ledger
from fedsmall.schedule import Action, Contact
from fedsmall.wire import PLAN, Arrays
from strategies.daisy_chain import DaisyChain
from strategies.records import to_arrays, to_record
from strategies.server.state import restore, state_of
from strategies.slots import Slot


@dataclass(frozen=True)
class Evaluation:
    """What the models were worth after round ``t``.

    ``common`` are the metrics of the common model, or None where there is none at that time. ``sites`` are the metrics
    of the sites' own models after their local training: means and spreads under "accuracy_mean", "accuracy_sd" and the
    like, and under "per_site" the metrics of each. ``extra`` holds the same two for further test sets by name.
    """

    t: int
    common: dict[str, float] | None
    sites: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run left behind. ``model`` is None where none is common at the end; ``stopped`` if it was cut short."""

    model: Arrays | None
    evaluations: list[Evaluation]
    contacts: int
    rounds: int
    bytes_sent: int
    client_updates: int
    seconds: float
    events: list[dict[str, Any]]
    stopped: bool = False
    privacy: dict[str, float] = field(default_factory=dict)


Evaluator = Callable[[int, Arrays | None, Mapping[str, ArrayRecord]], Evaluation | None]


class Walker(Protocol):
    """A grid that can walk contacts which only pass models on, without a message; returns how many it walked."""

    def walk(self, strategy: DaisyChain, contacts: list[Contact], config: ConfigRecord) -> int:
        """Train, move the travellers, and leave the strategy as the messages would have."""


class Journal(Protocol):
    """Where a run is written down after each contact."""

    def save(self, contact: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write the state after ``contact`` contacts, all or nothing."""

    def latest(self) -> tuple[int, Arrays, dict[str, Any]] | None:
        """The last state that was written whole, or None."""


@dataclass
class RunLoop:
    """Runs a plan with a strategy over a grid. ``initial`` gives each site its own model, or all one under None."""

    strategy: DaisyChain
    grid: Grid
    plan: Plan
    initial: Callable[[str | None], Arrays]
    evaluator: Evaluator | None = None
    progress: Callable[[int, int], None] | None = None
    stop: Callable[[], bool] | None = None
    journal: Journal | None = None
    timeout_s: float = 3600.0
    looks: bool = True

    def run(self) -> Outcome:
        """Walk all contacts (from the journal's last one on, where there is one) and say what came of them."""
        started = time.perf_counter()
        look_every = self.plan.evaluate_every if self.looks else None
        contacts = self.strategy.plan_contacts(self.plan.rounds, look_every)
        config = ConfigRecord({PLAN: self.plan.model_dump_json(exclude_defaults=True)})
        self.evaluations: list[Evaluation] = []
        self.updates = 0
        privacy = self.plan.method.privacy
        self.ledger = Ledger(privacy, self.plan.method.fraction) if privacy else None
        done = self._begin(config)
        if self.ledger is not None:
            self.ledger.releases = sum(contact.action is not Action.LOOK for contact in contacts[:done])
        stopped = False
        while done < len(contacts) and not stopped:
            done = self._advance(done, contacts, config)
            self._after(contacts[done - 1], done)
            stopped = self.stop is not None and done < len(contacts) and self.stop()
        common = self.strategy.common if self.strategy.aggregations else None
        return Outcome(
            model=to_arrays(common) if common is not None else None,
            evaluations=self.evaluations,
            contacts=sum(contact.action is not Action.LOOK for contact in contacts[:done]),
            rounds=contacts[done - 1].t if done else 0,
            bytes_sent=self.strategy.bytes_sent,
            client_updates=self.updates,
            seconds=time.perf_counter() - started,
            events=self.strategy.events,
            stopped=stopped,
            privacy=self.ledger.report() if self.ledger else {},
        )

    def _begin(self, config: ConfigRecord) -> int:
        strategy = self.strategy
        strategy.meet(self.grid, to_record(self.initial(None)), config)
        found = self.journal.latest() if self.journal else None
        if found is not None:
            done, arrays, meta = found
            restore(strategy, arrays, meta)
            self.updates = int(meta["client_updates"])
            self.evaluations = [Evaluation(**saved) for saved in meta["evaluations"]]
            return done
        if self.plan.initial_models == "independent":
            strategy.slots = {site: Slot(to_record(self.initial(site))) for site in strategy.sites}
        return 0

    def _advance(self, done: int, contacts: list[Contact], config: ConfigRecord) -> int:
        """Take the next contact, or a whole stretch that a walking grid takes at once; return how many are done."""
        strategy = self.strategy
        if self.ledger is not None and contacts[done].action is not Action.LOOK:
            self.ledger.charge()
        walk = getattr(self.grid, "walk", None)
        if walk is not None and self.ledger is None and strategy.fraction >= 1.0 and self.journal is None:
            stretch = self._until_due(strategy.walkable(done + 1))
            walked = walk(strategy, stretch, config) if len(stretch) else 0
            if walked:
                self.updates += sum(c.rounds for c in stretch[:walked]) * len(strategy.sites)
                return done + int(walked)
        orders = list(strategy.configure_train(done + 1, strategy.common or ArrayRecord(), config, self.grid))
        replies = self.grid.send_and_receive(orders, timeout=self.timeout_s)
        strategy.aggregate_train(done + 1, list(replies))
        self.updates += contacts[done].rounds * len(orders)
        return done + 1

    def _until_due(self, stretch: list[Contact]) -> list[Contact]:
        for index, contact in enumerate(stretch):
            if self._due(contact):
                return stretch[: index + 1]
        return stretch

    def _due(self, contact: Contact) -> bool:
        """Whether a contact is the first at or after a round in which an evaluation is asked for."""
        every = self.plan.evaluate_every
        if contact.t == self.plan.rounds:
            return True
        return every is not None and contact.t // every > (contact.t - contact.rounds) // every

    def _after(self, contact: Contact, done: int) -> None:
        strategy = self.strategy
        if self.evaluator is not None and self._due(contact):
            is_common = contact.action is Action.AGGREGATE and strategy.common is not None
            common = to_arrays(strategy.common) if is_common and strategy.common is not None else None
            seen = {site: strategy.seen[site].model for site in strategy.sites if site in strategy.seen}
            evaluation = self.evaluator(contact.t, common, seen)
            if evaluation is not None:
                self.evaluations.append(evaluation)
        if self.journal is not None:
            arrays, meta = state_of(strategy)
            kept = [vars(evaluation) for evaluation in self.evaluations]
            self.journal.save(done, arrays, {**meta, "client_updates": self.updates, "evaluations": kept})
        if self.progress is not None:
            self.progress(contact.t, self.plan.rounds)
