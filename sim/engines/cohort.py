"""The engine ``cohort``: all sites of a contact train as one batched computation, in this process.

A strategy sees an ordinary Flower grid. Its replies hold records that stand for rows of one stack of models
(:mod:`sim.engines.row_record`), so what it merely passes on is never read; and a stretch of contacts that only passes
models on is walked without messages, which the run loop asks for (:class:`strategies.server.run_loop.Walker`).
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from clients.hospital import HospitalClient
from clients.site_data import site_in
from fedsmall import __version__
from fedsmall.federation import Federation
from fedsmall.plan import Plan
from fedsmall.privacy import noise_rng, privatise
from fedsmall.replicas.tree import plan_at
from fedsmall.schedule import Action, Contact
from fedsmall.training.cohort import Cohort, Leg, Trained
from fedsmall.training.mixed import MixedCohort
from fedsmall.training.stack import Rows, Stack, Tensors
from fedsmall.wire import (
    CARRIED,
    COMMON,
    CONFIG,
    EXAMPLES,
    LEAVES,
    LOSS,
    METRICS,
    MODEL,
    NAMES,
    ROUND,
    ROUNDS,
    RULE,
    STEPS,
    Arrays,
    Traveller,
)
from sim.engines.allocator import keep_freed_memory
from sim.engines.local_grid import LocalGrid, number_message
from sim.engines.row_record import RowRecord
from sim.engines.workers import ParallelCohort, SomeCohort
from strategies.daisy_chain import DaisyChain
from strategies.records import record_bytes, to_arrays
from strategies.slots import Seen, Slot


class CohortGrid(LocalGrid):
    """A Flower grid whose sites are the rows of a stack; ``cohort`` trains them, whatever they are asked in one go."""

    def __init__(self, plan: Plan, federation: Federation, cohort: SomeCohort, run_id: int = 1) -> None:
        super().__init__(len(federation.names), run_id)
        keep_freed_memory()
        self.plan, self.federation, self.cohort = plan, federation, cohort
        self._memory: Arrays = {}
        self._diverged = False

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Every site's answer, in the order of the messages; orders to train are carried out together."""
        orders = list(messages)
        for order in orders:
            number_message(order)
        kind = {order.metadata.message_type.split(".")[0] for order in orders}
        if kind == {MessageType.TRAIN}:
            return self._train(orders)
        answer = self._told if kind == {MessageType.QUERY} else self._judged
        return [Message(answer(order), reply_to=order) for order in orders]

    def walk(self, strategy: DaisyChain, contacts: list[Contact], config: ConfigRecord) -> int:
        """Walk all ``contacts`` without a message, and leave the strategy as the messages would have left it.

        The last one may aggregate, if the strategy can end a contact by itself. A model that is not finite is for the
        strategy to judge, reply by reply: the walk is then undone, 0 is returned, and this run walks no more.
        """
        if self._diverged:
            return 0
        names = list(self.federation.names)
        slots = [strategy.slots[name] for name in names]
        stack = self._stack([slot.model for slot in slots], [slot.carried for slot in slots])
        traffic = _Traffic(strategy, contacts, stack, self.plan)
        legs = self._legs(strategy, contacts)
        order_rule = getattr(strategy.strategy, "order_rule", dict)
        common = [slot.common for slot in slots]
        trained = self.cohort.walk(stack, legs, common=common, rule=order_rule(), memory=self._memory)
        self._diverged = not all(map(Rows(stack.state | stack.optimizer).finite, range(len(stack))))
        if self._diverged:
            return 0
        self._memory = trained.memory
        strategy.bytes_sent += traffic.bytes(trained.rule)
        self._settle(strategy, legs[-1].sites, stack, trained)
        getattr(strategy, "close", strategy.pass_on)(contacts[-1])
        return len(contacts)

    def _settle(self, strategy: DaisyChain, sites: np.ndarray, stack: Stack, trained: Trained) -> None:
        """Put the trained models into the slots of the sites where they were trained."""
        models, carried, rule = _records(stack, trained)
        for row, site in enumerate(sites.tolist()):
            name = self.federation.names[site]
            strategy.slots[name] = Slot(models[row], carried[row])
            strategy.seen[name] = Seen(models[row], float(trained.examples[row]), float(trained.steps[row]), rule[row])
            strategy.roster.answers.setdefault(name, {})[LOSS] = float(trained.loss[row])

    def _legs(self, strategy: DaisyChain, contacts: Sequence[Contact]) -> list[Leg]:
        """Where each row trains, contact by contact."""
        names = list(self.federation.names)
        number = {name: site for site, name in enumerate(names)}
        legs = [Leg(np.arange(len(names)), contacts[0].t, contacts[0].rounds)]
        for before, contact in pairwise(contacts):
            where = legs[-1].sites
            if before.action is Action.PERMUTE:
                route = strategy.route(before.t, names)
                where = np.array([number[route[name]] for name in names])[where]
            legs.append(Leg(where, contact.t, contact.rounds))
        return legs

    def _train(self, orders: list[Message]) -> list[Message]:
        """All orders of a contact at once; they ask for the same rounds."""
        contents = [order.content for order in orders]
        config: dict[str, Any] = dict(contents[0][CONFIG])
        stack = self._stack([_held(c, MODEL) for c in contents], [_held(c, CARRIED) for c in contents])
        received = Rows(stack.clone().state).arrays() if self.plan.method.privacy else {}
        rule = _held(contents[0], RULE)
        sites = np.array([self._site[order.metadata.dst_node_id] for order in orders])
        trained = self.cohort.train(
            stack,
            sites,
            int(config[ROUND]),
            int(config[ROUNDS]),
            common=[bool(dict(content[CONFIG]).get(COMMON, False)) for content in contents],
            rule=to_arrays(rule) if rule else {},
            memory=self._memory,
        )
        self._memory = trained.memory
        if config.get(LEAVES, True):
            self._make_private(stack, received, sites, int(config[ROUND]))
        return _replies(orders, stack, trained)

    def _make_private(self, stack: Stack, received: Arrays, sites: np.ndarray, t: int) -> None:
        """Clip and noise what leaves the sites, as each would do it, where the plan asks for privacy."""
        if self.plan.method.privacy is None:
            return
        rngs = [noise_rng(self.plan.seed, self.federation.names[site], t) for site in sites]
        sent = privatise(Rows(stack.state).arrays(), received, self.plan.method.privacy, rngs)
        for name, tensor in stack.state.items():
            tensor.copy_(torch.from_numpy(sent[name]))

    def _stack(self, models: Sequence[ArrayRecord | None], carried: Sequence[ArrayRecord | None]) -> Stack:
        """A stack of its own for models that came as records; rows of one stack are never read one by one."""
        if isinstance(self.cohort, Cohort | ParallelCohort):
            return self.cohort.stack_of(_tensors(models), _tensors(carried))
        pairs = zip(models, carried, strict=True)
        return self.cohort.stack([Traveller(to_arrays(m), to_arrays(c) if c else {}) for m, c in pairs if m])

    @cached_property
    def _site(self) -> dict[int, int]:
        return {node: site for site, node in enumerate(self.nodes)}

    @cached_property
    def _properties(self) -> dict[str, Any]:
        return dict(self._client(0).get_properties({}))

    def _client(self, site: int) -> HospitalClient:
        home = site_in(self.federation, self.plan, site)
        cohort = self.cohort.inner if isinstance(self.cohort, ParallelCohort) else self.cohort
        return HospitalClient(home, plan_at(self.plan, home.place, home.sites), cohort, _Known(self._memory))

    def _told(self, order: Message) -> RecordDict:
        """The answer at the roll call: what any client says, and the site's own name and number of samples."""
        site = self._site[order.metadata.dst_node_id]
        own: dict[str, Any] = {"site": self.federation.names[site], EXAMPLES: len(self.federation.train[site])}
        if isinstance(self.cohort, MixedCohort):
            own = dict(self._client(site).get_properties({}))
        return RecordDict({CONFIG: ConfigRecord({**self._properties, **own, "version": __version__})})

    def _judged(self, order: Message) -> RecordDict:
        """What the site's client says of a model, on what the site has held out."""
        arrays = to_arrays(order.content[MODEL])  # type: ignore[arg-type]
        names: Any = [f"{MODEL}/{name}" for name in arrays]
        client = self._client(self._site[order.metadata.dst_node_id])
        _, examples, metrics = client.evaluate(list(arrays.values()), {NAMES: names})
        return RecordDict({METRICS: MetricRecord({EXAMPLES: examples, **metrics})})  # type: ignore[dict-item]


class _Known:
    """What a site's client reads of what all sites remember here; only the grid writes it."""

    def __init__(self, memory: Arrays) -> None:
        self._memory = memory

    def read(self) -> Arrays:
        """The memory of all sites."""
        return self._memory

    def write(self, arrays: Arrays) -> None:
        """Raises RuntimeError: sites train together here, and the grid remembers for them."""
        raise RuntimeError("a client of the cohort engine only judges; its sites train together")


class _Traffic:
    """The bytes that the messages of a walk would have carried: counted, not made."""

    def __init__(self, strategy: DaisyChain, contacts: Sequence[Contact], stack: Stack, plan: Plan) -> None:
        self._models = len(stack)
        self._state, self._moments = Rows(stack.state).bytes_per_row, Rows(stack.optimizer).bytes_per_row
        slots = strategy.slots.values()
        self._first = sum(record_bytes(s.model) + (record_bytes(s.carried) if s.carried else 0) for s in slots)
        rule: Arrays = getattr(strategy.strategy, "order_rule", dict)()
        self._rule = sum(array.nbytes for array in rule.values())
        self._alone, self._resets = strategy.alone, plan.recipe.optimizer_state == "reset"
        start = strategy.contacts.index(contacts[0])
        before = strategy.contacts[start - 1].action if start else Action.PERMUTE
        self._actions = [before, *(contact.action for contact in contacts)]

    def bytes(self, sent: Arrays) -> int:
        """All of them: an order follows unless the models were only looked at, a reply leaves unless they are.

        ``sent`` is what the local rule sends with the last reply.
        """
        total, size = sum(array.nbytes for array in sent.values()), self._first
        for before, action in pairwise(self._actions):
            if not self._alone and before is not Action.LOOK:
                total += size + self._models * self._rule
            dropped = self._resets and action is not Action.LOOK
            size = self._models * (self._state + (0 if dropped else self._moments))
            if action is not Action.LOOK:
                total += size
        return total


def _replies(orders: Sequence[Message], stack: Stack, trained: Trained) -> list[Message]:
    models, carried, rule = _records(stack, trained)
    replies = []
    for row, order in enumerate(orders):
        told: dict[str, Any] = {
            EXAMPLES: int(trained.examples[row]),
            LOSS: float(trained.loss[row]),
            STEPS: int(trained.steps[row]),
        }
        content = RecordDict({METRICS: MetricRecord(told), MODEL: models[row]})
        for part, record in ((CARRIED, carried[row]), (RULE, rule[row])):
            if record is not None:
                content[part] = record
        replies.append(Message(content, reply_to=order))
    return replies


_Records = Sequence[RowRecord | None]


def _records(stack: Stack, trained: Trained) -> tuple[list[RowRecord], _Records, _Records]:
    """Records that stand for the stack's models, for what travels with them, and for what the local rule sends."""
    sent = {name: torch.from_numpy(array) for name, array in trained.rule.items()}
    models, carried, rule = (
        [RowRecord(rows, row) for row in range(len(stack))] if rows.tensors else []
        for rows in (Rows(stack.state), Rows(stack.optimizer), Rows(sent))
    )
    nothing = [None] * len(stack)
    return models, carried or nothing, rule or nothing


def _held(content: RecordDict, part: str) -> ArrayRecord | None:
    record = content.get(part)
    return record if isinstance(record, ArrayRecord) else None


def _tensors(records: Sequence[ArrayRecord | None]) -> Tensors:
    """The records' arrays as fresh tensors with a leading axis; empty where records are absent."""
    present = [record for record in records if record is not None]
    if len(present) < len(records) or not present:
        return {}
    places = [record.stack_row() for record in present if hasattr(record, "stack_row")]
    if len(places) == len(present) and all(rows is places[0][0] for rows, _ in places):
        index = torch.tensor([row for _, row in places])
        return {name: tensor[index.to(tensor.device)] for name, tensor in places[0][0].tensors.items()}
    if all(record is present[0] for record in present):
        one = {name: torch.from_numpy(np.array(array)) for name, array in to_arrays(present[0]).items()}
        return {name: tensor.repeat(len(present), *[1] * tensor.dim()) for name, tensor in one.items()}
    read = [to_arrays(record) for record in present]
    return {name: torch.from_numpy(np.stack([arrays[name] for arrays in read])) for name in read[0]}
