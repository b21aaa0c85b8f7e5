"""The sites behind a Flower grid, as a trainer: orders carry rows of a stack, replies the rows after training."""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import wire
from fedsmall.plan import Plan
from fedsmall.strategies.checks import Note, accept_replies, limits_of, plan_in, samples_told
from fedsmall.strategies.forms import Exchange, Form, KeptModels, OpenModels
from fedsmall.strategies.records import array_records, size_in_bytes, to_arrays, to_record, with_our_count
from fedsmall.strategies.roster import Roster
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import ABSENT, SPOILT, Fault, Messages, Phase, Trainer, TrainInput, TrainResult
from fedsmall.travel.journey import Event
from fedsmall.wire import CONFIG, EXAMPLES, METRICS, PLAN, RULE, Arrays, is_buffer

TIMEOUT_S = 3600.0
Orders = list[tuple[Message, str]]  # each with its site


@final
class GridTrainer(Trainer):
    """Sites that are reached over a ``grid``, simulated or real; their memory stays with them.

    ``sent`` is the plan in orders, where it is not the one that is run; ``roster`` has the sites that have answered
    already; ``form`` is how models travel, where the plan alone does not say so. The row of a silent site, or of a bad
    reply, stays. Sites of others' apps get ``words`` for a plan and tell ``count``; ``contents`` has last replies.
    """

    path, device = "remote", torch.device("cpu")  # sites train their models themselves
    is_remote = True

    def __init__(
        self,
        plan: Plan,
        grid: Grid,
        *,
        sent: Plan | None = None,
        roster: Roster | None = None,
        form: Form | None = None,
        timeout_s: float = TIMEOUT_S,
        words: Mapping[str, Any] | None = None,
        count: str = EXAMPLES,
    ) -> None:
        self.plan, self.grid, self.timeout_s, self.roster = plan, grid, timeout_s, roster or Roster()
        self.words = {PLAN: (sent or plan).model_dump_json(exclude_defaults=True)} if words is None else dict(words)
        self._sent, self._count = plan if words is None else plan_in(words), count
        self._is_app, self.contents = words is not None, dict[str, RecordDict]()
        self._meet()
        if (words is None and roster is None) or not self.roster.nodes:  # an own app goes on with those who are there
            self.roster.check()
        self.names = tuple(self.roster.sites)
        for site in self.names:
            self.roster.samples.setdefault(site, samples_told(self.roster.answers[site]))
        self.form: Form = form or (KeptModels(plan, self.words) if plan.method.is_dynamic else OpenModels(plan))
        self.delivery = self.form

    @property
    def samples(self) -> tuple[int, ...]:  # type: ignore[override]
        """Each site's number of samples, as it said when it was first met."""
        return tuple(self.roster.samples[site] for site in self.names)

    def check_room(self, models: int, like: Arrays) -> None:
        """There is room at the sites, or they say so."""

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of tensors; ``carried`` is what travels beside the models."""
        parameters = {name: tensor for name, tensor in state.items() if not is_buffer(name)}
        buffers = {name: tensor for name, tensor in state.items() if is_buffer(name)}
        return Stack(tuple(state), parameters, buffers, dict(carried or {}))

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """Send every row to its site, and write the replies into it; takes one phase."""
        (phase,) = phases
        self._meet()  # a program that was started again has another node id
        online = set(self.grid.get_node_ids())
        row_of = {self.names[site]: row for row, site in enumerate(phase.sites)}
        connected = {site: row_of[site] for site in sorted(row_of) if self.roster.nodes[site] in online}
        absent = Fault(ABSENT, "its program is not connected")
        lost = {row: absent for site, row in row_of.items() if site not in connected}
        exchange = Exchange(stack, phase, inputs, connected)
        self.form.prepare(exchange, self.grid, self.roster)
        orders, noted = self._orders(exchange), list[tuple[str, str, str]]()
        replies = self.grid.send_and_receive([order for order, _ in orders], timeout=self.timeout_s)
        replies = [with_our_count(reply, self._count) for reply in replies]
        contents = self._accept_replies(exchange, orders, replies, lambda *words: noted.append(words), lost)
        notes = []
        for site, kind, reason in noted:
            row = connected.get(site)
            if row is None or row in contents or row in lost:
                notes.append((site, kind, reason))
            else:
                lost[row] = Fault(kind, reason)
        return self._train_result(exchange, orders, contents, lost, notes)

    def take_events(self) -> list[Event]:
        """The events of sites since the last call."""
        return self.roster.take_events()

    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """Sites elsewhere judge models themselves: ask them."""
        raise TypeError("models are judged at their sites, which are elsewhere")

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What a restart needs: the form's state, and the sites' numbers of samples."""
        arrays, words = self.form.state()
        return arrays, {"form": words, "samples": self.roster.samples}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.form.restore(arrays, words["form"])
        self.roster.samples |= words["samples"]

    def _meet(self) -> None:
        """Learn who is there; our own clients, which are sent a plan, answer a handshake."""
        if PLAN in self.words:
            self.roster.call(self.grid, {PLAN: self.words[PLAN]})
        else:
            self.roster.list_unasked(self.grid)

    def _orders(self, exchange: Exchange) -> Orders:
        phase, rule = exchange.phase, to_record(exchange.inputs.rule) if exchange.inputs.rule else None
        words = {**self.words, wire.ROUND: phase.t, wire.ROUNDS: phase.rounds, wire.LEAVES: phase.leaves}
        contents: dict[Hashable, RecordDict] = {}
        orders = []
        for site, row in exchange.row_of.items():
            is_global, sent = bool(exchange.is_global[row]), self.form.send(exchange, site, row)
            key = (sent.key, is_global)
            if key not in contents:
                config = ConfigRecord({**words, wire.IS_GLOBAL: is_global, **sent.words})
                contents[key] = RecordDict({CONFIG: config, **sent.records(), **({RULE: rule} if rule else {})})
            orders.append((Message(contents[key], self.roster.nodes[site], MessageType.TRAIN), site))
        return orders

    def _accept_replies(
        self, exchange: Exchange, orders: Orders, replies: Any, note: Note, lost: dict[int, Fault]
    ) -> dict[int, RecordDict]:
        """The good replies by row, written into the stack; why the others are not goes into ``lost``."""
        phase = exchange.phase
        limits = partial(limits_of, self._sent, phase.rounds, self.roster.answers)
        good, spoilt = accept_replies(
            orders, replies, note, lambda site, reply: self.form.check(exchange, site, reply, limits(site))
        )
        self.form.compare(good, note)
        lost |= {exchange.row_of[site]: Fault(SPOILT, reason) for site, reason in spoilt.items()}
        contents = {}
        for site, reply in good.items():
            row = exchange.row_of[site]
            fault = self.form.write(exchange, site, row, reply.content, note)
            if fault is None:
                contents[row] = reply.content
            else:
                lost[row] = fault
        if self._is_app:
            self.contents = {site: reply.content for site, reply in good.items()}
            for content in self.contents.values() if self._count != EXAMPLES else ():
                del content.metric_records[METRICS][EXAMPLES]  # it was ours
        return contents

    def _train_result(
        self,
        exchange: Exchange,
        orders: Orders,
        contents: Mapping[int, RecordDict],
        lost: Mapping[int, Fault],
        notes: Sequence[tuple[str, str, str]],
    ) -> TrainResult:
        rows, phase = len(exchange.stack), exchange.phase
        records = {row: array_records(content) for row, content in contents.items()}
        rules = {row: to_arrays(record_of[RULE]) for row, record_of in records.items() if RULE in record_of}
        zeros = {name: np.zeros_like(array) for name, array in next(iter(rules.values()), {}).items()}
        federated = self.plan.method.is_federated
        sizes = {row: self.form.size(row, content) for row, content in contents.items() if phase.leaves and federated}
        messages = Messages(
            orders=bytes_of(orders) if phase.arrived and federated else 0,
            replies=np.array([sizes.get(row, 0) for row in range(rows)]),
            carries=np.array([bool(records.get(row, {}).get(wire.CARRIED)) for row in range(rows)]),
            models=np.array([wire.MODEL in records.get(row, {}) for row in range(rows)]),
        )
        return TrainResult(
            loss=np.full(rows, np.nan),
            steps=_numbers(contents, wire.STEPS, 1.0, rows),
            examples=_numbers(contents, EXAMPLES, 0.0, rows),
            rule={name: np.stack([rules.get(row, zeros)[name] for row in range(rows)]) for name in zeros},
            memory={},
            lost=lost,
            notes=notes,
            messages=messages,
        )


def bytes_of(orders: Orders) -> int:
    """The bytes of the arrays that orders carry; many orders share theirs."""
    sizes: dict[int, int] = {}
    for order, _ in orders:
        if id(order.content) not in sizes:
            sizes[id(order.content)] = size_in_bytes(array_records(order.content))
    return sum(sizes[id(order.content)] for order, _ in orders)


def _numbers(contents: Mapping[int, RecordDict], name: str, default: float, rows: int) -> np.ndarray:
    """A metric of every row, (rows,); zero where no reply came."""
    values = np.zeros(rows)
    for row, content in contents.items():
        metrics: Any = content.metric_records[METRICS]
        values[row] = float(metrics.get(name, default))
    return values
