"""The sites behind a Flower grid, as a trainer: rows of a stack go out as orders, and replies are the rows after them.

So Algorithm 1 (:func:`fedsmall.travel.daisy_chain.daisy_chain`) is the same with messages as on a stack of models.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.aggregation.aggregate import is_buffer
from fedsmall.codec.check_wire import in_codes, top_share
from fedsmall.codec.differences import difference
from fedsmall.codec.known import Ground
from fedsmall.codec.parcels import Parcel, pack
from fedsmall.plan import Plan
from fedsmall.training.stack import Rows, Stack, Tensors, leaving
from fedsmall.training.trainer import ABSENT, SPOILT, Fault, Leg, Messages, Signals, Trained, Trainer
from fedsmall.travel.commons import Event, event
from fedsmall.travel.schedule import Action, Contact
from fedsmall.wire import (
    BASE,
    CARRIED,
    COMMON,
    CONFIG,
    EXAMPLES,
    LEAVES,
    MADE,
    METRICS,
    MODEL,
    PLAN,
    ROUND,
    ROUNDS,
    RULE,
    STEPS,
    TAKEN,
    Arrays,
    join,
    parts,
    split,
)
from strategies.acceptance import accepted
from strategies.checks import limits_of, samples_told
from strategies.folds import dealt_to
from strategies.parcels import Records, decode_content
from strategies.records import array_records, size_in_bytes, to_arrays, to_record
from strategies.roster import Roster

TIMEOUT_S = 3600.0


class GridTrainer(Trainer):
    """Sites that are reached over a ``grid``, simulated or real; what they remember stays with them.

    ``told`` is the plan that orders hold, where that is another than the one that is run; ``roster`` has the sites that
    have answered already. A site that is silent, or whose reply fails its check, loses nothing: its row is as it was.
    """

    path, reason, device = "remote", "sites train their models themselves", torch.device("cpu")
    is_remote = True

    def __init__(
        self,
        plan: Plan,
        grid: Grid,
        *,
        told: Plan | None = None,
        roster: Roster | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.plan, self.grid, self.timeout_s, self.roster = plan, grid, timeout_s, roster or Roster()
        self._asked = {PLAN: (told or plan).model_dump_json(exclude_defaults=True)}
        self.roster.call(grid, self._asked)
        self.names = tuple(self.roster.sites)
        self.samples = tuple(samples_told(self.roster.answers[site]) for site in self.names)
        self.fold_of = dealt_to(plan.method, plan, dict(zip(self.names, self.samples, strict=True)))
        self.events: list[Event] = []  # what was noted of sites between two walks
        self._codes: dict[int, Records] = {}  # by row, what came in codes and goes on as it came
        self._came: dict[int, Records] = {}  # the same of the last walk, until it is known what is used

    @property
    def sites(self) -> list[str]:
        """The names of the sites, in order."""
        return list(self.names)

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Write down what became of a site at round ``t`` that did not go as it should."""
        self.events.append(event(t, site, kind, reason))

    def take_events(self) -> list[Event]:
        """What was noted since the last call."""
        events, self.events = self.events, []
        return events

    def check_room(self, models: int, like: Arrays) -> None:
        """There is room at the sites, or they say so."""

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of tensors; what travels beside a model is known when it comes."""
        parameters = {name: tensor for name, tensor in state.items() if not is_buffer(name)}
        buffers = {name: tensor for name, tensor in state.items() if is_buffer(name)}
        return Stack(tuple(state), parameters, buffers, dict(carried or {}))

    def walk(self, stack: Stack, legs: Sequence[Leg], signals: Signals) -> Trained:
        """Send every row to its site, and write what comes back into it; one leg at a time."""
        (leg,) = legs
        self.roster.call(self.grid, self._asked)  # a program that was started again has another node id
        row_of, lost, notes = self._present(leg)
        orders = self._orders(stack, leg, signals, row_of)
        replies = self.grid.send_and_receive([order for order, _ in orders], timeout=self.timeout_s)
        noted: list[tuple[str, str, str]] = []
        expected = {name: (tuple(tensor.shape[1:]), _dtype(tensor)) for name, tensor in stack.state.items()}
        contact = Contact(leg.t, leg.rounds, Action.PERMUTE if leg.leaves else Action.TRAIN)
        opened = partial(self._open, stack, signals, row_of, leg)
        limits = partial(limits_of, self.plan, contact, self.roster.answers)
        self._came = {}
        good, spoilt = accepted(orders, replies, expected, lambda *words: noted.append(words), limits, opened)
        lost |= {row_of[site]: Fault(SPOILT, reason) for site, reason in spoilt.items()}
        for site, kind, reason in noted:
            if site in row_of and site not in good and row_of[site] not in lost:
                lost[row_of[site]] = Fault(kind, reason)
            else:
                notes.append((site, kind, reason))
        return self._take(
            stack, leg, {row_of[site]: reply.content for site, reply in good.items()}, orders, lost, notes
        )

    def accept(self, rows: np.ndarray) -> None:
        """Keep the codes of these rows, to hand them on as they came."""
        for row in rows.tolist():
            self._codes[row] = self._came.get(row, {})

    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """Sites elsewhere judge models themselves: ask them."""
        raise TypeError("models are judged at their sites, which are elsewhere")

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to go on after a restart: codes by row and record."""
        return join(**{str(row): _joined(records) for row, records in self._codes.items()}), {}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self._codes = {
            int(row): {key: to_record(record) for key, record in parts(records).items()}
            for row, records in parts(arrays).items()
        }

    def _present(self, leg: Leg) -> tuple[dict[str, int], dict[int, Fault], list[tuple[str, str, str]]]:
        """The rows of the sites that are connected, by name in order, and the faults of the others."""
        online = set(self.grid.get_node_ids())
        row_of = {self.names[site]: row for row, site in enumerate(leg.sites)}
        there = {site: row_of[site] for site in sorted(row_of) if self.roster.nodes[site] in online}
        lost = {row: Fault(ABSENT, "its program is not connected") for site, row in row_of.items() if site not in there}
        return there, lost, []

    def _orders(self, stack: Stack, leg: Leg, signals: Signals, row_of: Mapping[str, int]) -> list[tuple[Message, str]]:
        """An order for each row, with its site; sites that are sent the same share its content."""
        common, rule = signals.flags(len(stack)), to_record(signals.rule) if signals.rule else None
        config: dict[str, Any] = {**self._asked, ROUND: leg.t, ROUNDS: leg.rounds, LEAVES: leg.leaves}
        carries = np.zeros(len(stack), dtype=bool) if signals.carries is None else signals.carries
        state, contents = Rows(stack.state), dict[Any, RecordDict]()
        orders = []
        for site, row in row_of.items():
            ground = signals.known.ground(site) if top_share(self.plan) is not None else None
            words = _words(ground, signals.known.now if ground and common[row] else None)
            key = (id(signals.sent[row]) if common[row] else -1 - row, row if carries[row] else None, *words.items())
            if key not in contents:
                model = self._model(state, row, signals.sent[row] if common[row] else None, ground, site, leg)
                contents[key] = RecordDict(
                    {MODEL: model, CONFIG: ConfigRecord({**config, COMMON: bool(common[row]), **words})}
                )
                if carries[row]:
                    contents[key][CARRIED] = self._beside(stack, row, leg)
                if rule is not None:
                    contents[key][RULE] = rule
            orders.append((Message(contents[key], self.roster.nodes[site], MessageType.TRAIN), site))
        return orders

    def _model(
        self, state: Rows, row: int, parcel: Parcel | None, ground: Ground | None, site: str, leg: Leg
    ) -> ArrayRecord:
        """A row's model as its site is sent it: the global one, if that is its ``parcel``."""
        if ground is not None:
            return to_record(difference(parcel.read if parcel else state.row(row), ground.reference))
        if parcel is not None:
            return to_record(parcel.sent or parcel.read)
        if not in_codes(self.plan) or not leg.arrived:
            return to_record(state.row(row))
        if MODEL in (codes := self._codes.get(row, {})):
            return codes[MODEL]
        own = pack(self.plan, join(**{MODEL: state.row(row)}), site, 0)  # with which the site begins
        return to_record(split(own, MODEL))

    def _beside(self, stack: Stack, row: int, leg: Leg) -> ArrayRecord:
        codes = self._codes.get(row, {})
        if CARRIED in codes:
            return codes[CARRIED]
        optimizer = Rows(stack.optimizer).row(row)
        return to_record(leaving(self.plan.recipe, optimizer) if leg.arrived else optimizer)

    def _open(
        self, stack: Stack, signals: Signals, row_of: Mapping[str, int], leg: Leg, site: str, reply: Message
    ) -> None:
        """Put the numbers in place of the codes in a reply; ReplyError where there are none."""
        if not (leg.leaves and in_codes(self.plan)) or reply.has_error():
            return
        row = row_of[site]
        coded = signals.sent[row].sent
        signature = {name: (tuple(array.shape), str(array.dtype)) for name, array in coded.items()}
        self._came[row] = decode_content(self.plan, reply.content, signature, Rows(stack.state).row(row))

    def _take(
        self,
        stack: Stack,
        leg: Leg,
        contents: Mapping[int, RecordDict],
        orders: Sequence[tuple[Message, str]],
        lost: dict[int, Fault],
        notes: list[tuple[str, str, str]],
    ) -> Trained:
        """Write what came into its rows, and what was said of it into a record."""
        rows = len(stack)
        records = {row: array_records(content) for row, content in contents.items()}
        metrics = {row: content.metric_records[METRICS] for row, content in contents.items()}
        for row, own in records.items():
            _write(stack, row, own)
        rules = {row: to_arrays(own[RULE]) for row, own in records.items() if RULE in own}
        some = next(iter(rules.values()), {})
        rule = {
            name: np.stack([rules[row][name] if row in rules else np.zeros_like(array) for row in range(rows)])
            for name, array in some.items()
        }
        federated = self.plan.method.family == "federated"
        replies = np.zeros(rows, dtype=np.int64)
        for row, own in records.items() if leg.leaves and federated else ():
            replies[row] = size_in_bytes({**own, **self._came.get(row, {})})
        carries = np.array([bool(records.get(row, {}).get(CARRIED)) for row in range(rows)])
        sent = bytes_of(orders) if leg.arrived and federated else 0
        return Trained(
            loss=np.full(rows, np.nan),
            steps=_numbers(metrics, STEPS, 1.0, rows),
            examples=_numbers(metrics, EXAMPLES, 0.0, rows),
            rule=rule,
            memory={},
            lost=lost,
            notes=notes,
            messages=Messages(sent, replies, carries),
        )


def bytes_of(orders: Sequence[tuple[Message, str]]) -> int:
    """The bytes of the arrays that orders carry, each with its site."""
    contents = [order.content for order, _ in orders]
    sizes = {id(content): size_in_bytes(array_records(content)) for content in {id(c): c for c in contents}.values()}
    return sum(sizes[id(content)] for content in contents)


def _joined(records: Records) -> Arrays:
    return join(**{key: to_arrays(record) for key, record in records.items()})


def _words(ground: Ground | None, now: int | None) -> dict[str, int]:
    """What tells a site on what its order builds; ``now`` is the round of the global model where that is sent."""
    if ground is None:
        return {}
    return {BASE: ground.base, TAKEN: ground.taken} | ({} if now is None else {MADE: now})


def _numbers(metrics: Mapping[int, Any], name: str, default: float, rows: int) -> np.ndarray:
    """A metric of every row, (rows,); zero where nothing came."""
    return np.array([float(metrics[row].get(name, default)) if row in metrics else 0.0 for row in range(rows)])


def _write(stack: Stack, row: int, records: Mapping[str, ArrayRecord]) -> None:
    """Make a row what came for it; what did not come beside the model is zero."""
    for name, array in to_arrays(records[MODEL]).items():
        stack.state[name][row] = torch.from_numpy(np.array(array))
    carried = to_arrays(records[CARRIED]) if CARRIED in records else {}
    for name, array in carried.items():
        came = torch.from_numpy(np.array(array))
        if name not in stack.optimizer:
            stack.optimizer[name] = came.new_zeros((len(stack), *came.shape))
        stack.optimizer[name][row] = came
    for name in stack.optimizer.keys() - carried.keys():
        stack.optimizer[name][row] = 0


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
