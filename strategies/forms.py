"""How models travel: what an order holds of a row of a stack, and what a reply must hold to become the row after it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import wire
from fedsmall.codec import BITS, GAPS, PACKED, VALUES, CodecError, SentModel, difference, pack, read_part
from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.strategies import checks
from fedsmall.strategies.records import array_records, size_in_bytes, to_arrays, to_record
from fedsmall.strategies.roster import Roster, ask, records_of
from fedsmall.training.stack import Rows, Stack, leaving_state
from fedsmall.training.trainer import FORGOT, Delivery, Fault, Phase, TrainInput
from fedsmall.wire import CARRIED, MODEL, Arrays, join, parts, split

Records = dict[str, ArrayRecord]


@dataclass
class Exchange:
    """The orders of one communication round and their replies: the rows of a ``stack``, by site in ``row_of``."""

    stack: Stack
    phase: Phase
    inputs: TrainInput
    row_of: Mapping[str, int]

    def __post_init__(self) -> None:
        """Copy the rows' flags, which a form may change."""
        self.is_global, self.carries = self.inputs.flags(len(self.stack)).copy(), self.inputs.carries.copy()
        self.state = Rows(self.stack.state)

    def sent_model(self, row: int) -> SentModel:
        """The global model of a row's group, as sites are sent it."""
        return self.inputs.sent[int(self.inputs.group[row])]

    @cached_property
    def expected(self) -> checks.Signature:
        """Names, shapes and dtypes of a model."""
        state = self.stack.state.items()
        return {name: (tuple(rows.shape[1:]), str(rows.dtype).removeprefix("torch.")) for name, rows in state}

    @property
    def bytes_of_model(self) -> int:
        """The bytes of a model in full."""
        return self.state.bytes_per_row


class Sent(NamedTuple):
    """An order's part of a site: equal ``key`` means equal orders, ``words`` go into the config."""

    key: Hashable
    words: dict[str, Any]
    records: Callable[[], Records]


class Form(Delivery, ABC):
    """How models travel in messages; most forms need no more than to send and to check."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abstractmethod
    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """What a site is sent of its row."""

    @abstractmethod
    def check(self, exchange: Exchange, site: str, reply: Message, limits: checks.Limits) -> None:
        """Raise ReplyError unless a reply may be used; decompress its content."""

    def write(self, exchange: Exchange, site: str, row: int, content: RecordDict, note: checks.Note) -> Fault | None:
        """Write a reply into its row; the fault that keeps it from being used, if any."""
        write_row(exchange.stack, row, array_records(content))
        return None

    def size(self, row: int, content: RecordDict) -> int:
        """The bytes of a row's reply."""
        return size_in_bytes(array_records(content))

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Do what comes before a communication round's orders."""

    def compare(self, good: dict[str, Message], note: checks.Note) -> None:
        """Remove replies that do not go with the others."""


@final
class OpenModels(Form):
    """Models that the server sees: in full, in codes (handed over as they came), or as changes."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._codes: dict[int, Records] = {}  # by row
        self._came: dict[int, Records] = {}  # in this exchange, until it is known what is used

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Forget the codes of the last exchange."""
        self._came = {}

    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """The model with its companions; as a change where the site is known to have a base."""
        is_global, known = bool(exchange.is_global[row]), exchange.inputs.known
        sent_model, words = exchange.sent_model(row), dict[str, Any]()
        reference = None
        if self.plan.method.top_share is not None:
            base, reference, taken = known.base_version(site)
            words = {wire.BASE: base, wire.TAKEN: taken} | ({wire.MADE: known.now} if is_global else {})

        def records() -> Records:
            if self.plan.method.top_share is not None:
                model = to_record(difference(sent_model.read if is_global else exchange.state.row(row), reference))
            elif is_global:
                model = to_record(sent_model.sent or sent_model.read)
            else:
                model = self._model(exchange, site, row)
            return {MODEL: model, **({CARRIED: self._beside(exchange, row)} if exchange.carries[row] else {})}

        key = (id(sent_model) if is_global else -1 - row, row if exchange.carries[row] else None, *words.values())
        return Sent(key, words, records)

    def check(self, exchange: Exchange, site: str, reply: Message, limits: checks.Limits) -> None:
        """Raise ReplyError unless the model is like the one that was sent, with finite numbers."""
        if exchange.phase.leaves and self.plan.method.is_compressed and not reply.has_error():
            row = exchange.row_of[site]
            model = exchange.sent_model(row).read if exchange.is_global[row] else exchange.state.row(row)
            self._came[row] = decode_content(self.plan, reply.content, exchange.sent_model(row).sent, model)
        checks.check_reply(reply, exchange.expected, limits)

    def compare(self, good: dict[str, Message], note: checks.Note) -> None:
        """Remove replies whose companions are unusual."""
        checks.leave_out_unusual(good, note)

    def size(self, row: int, content: RecordDict) -> int:
        """The bytes of a row's reply as it came."""
        return size_in_bytes({**array_records(content), **self._came.get(row, {})})

    def accept(self, rows: Sequence[int]) -> None:
        """Keep the codes of these rows, to hand them on."""
        for row in rows:
            self._codes[row] = self._came.get(row, {})

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The codes."""
        return join(**{str(row): arrays_of(records) for row, records in self._codes.items()}), {}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up the codes."""
        self._codes = {int(row): records_from(held) for row, held in parts(arrays).items()}

    def _model(self, exchange: Exchange, site: str, row: int) -> ArrayRecord:
        model = exchange.state.row(row)
        if not self.plan.method.is_compressed or not exchange.phase.arrived:
            return to_record(model)
        if MODEL in (codes := self._codes.get(row, {})):
            return codes[MODEL]
        return to_record(split(pack(self.plan, join(**{MODEL: model}), site, 0), MODEL))  # with which the site begins

    def _beside(self, exchange: Exchange, row: int) -> ArrayRecord:
        if CARRIED in (codes := self._codes.get(row, {})):
            return codes[CARRIED]
        optimizer = Rows(exchange.stack.optimizer).row(row)
        return to_record(leaving_state(self.plan.recipe, optimizer) if exchange.phase.arrived else optimizer)


@final
class KeptModels(Form):
    """Models that stay at their sites while they are near the last global one (dynamic averaging).

    An order holds a model or nothing, a reply a model or a word; ``words`` go into every question.
    """

    def __init__(self, plan: Plan, words: Mapping[str, Any]) -> None:
        super().__init__(plan)
        self._words, self._reference = dict(words), 0  # the round of the last model that all had
        self._grid: Grid
        self._roster: Roster
        self._exchange: Exchange
        self._here: set[int] = set()  # rows whose models the server has

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Remember whom to ask for a model later."""
        self._exchange, self._grid, self._roster, self._here = exchange, grid, roster, set()
        self._kept_by = self._reference  # which orders of this communication round name

    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """A model, where the site has another; else nothing."""
        words = {wire.REFERENCE: self._reference, wire.ANSWER_BYTES: exchange.bytes_of_model}
        if not exchange.inputs.fresh[row]:
            return Sent("its own", words, lambda: {MODEL: ArrayRecord()})
        if exchange.is_global[row]:
            return Sent(id(exchange.sent_model(row)), words, lambda: {MODEL: to_record(exchange.sent_model(row).read)})
        return Sent(-1 - row, words, lambda: {MODEL: to_record(exchange.state.row(row))})

    def check(self, exchange: Exchange, site: str, reply: Message, limits: checks.Limits) -> None:
        """Raise ReplyError unless this is a model, or a word in its place."""
        if reply.has_error():
            raise ReplyError((reply.error.reason or "no reason given")[:300])
        content, metrics = reply.content, reply.content.metric_records.get(wire.METRICS)
        if metrics is None:
            raise ReplyError(f"expected a record {wire.METRICS!r} with the sample count; the reply has none")
        if len(metrics.keys() & wire.KNOWN) != (MODEL not in content):
            raise ReplyError("expected a model, or one word in its place")
        if MODEL not in content:
            return checks.check_metrics(
                metrics, limits._replace(metrics=limits.metrics and limits.metrics | wire.KNOWN)
            )
        checks.check_content(content, exchange.expected, limits)
        if len(array_records(content)) > 1:
            raise ReplyError("expected a model and nothing beside it")

    def write(self, exchange: Exchange, site: str, row: int, content: RecordDict, note: checks.Note) -> Fault | None:
        """Write a model into its row; a word may keep the row from being used."""
        metrics = content.metric_records[wire.METRICS]
        if wire.FORGOT in metrics:
            return Fault(FORGOT, "it had no model to go on with; it is sent the last that all had")
        if wire.UNSOUND in metrics:
            return Fault("set aside", "by itself: its update is too large or not finite", stays=True)
        if MODEL in content:
            self._here.add(row)
            write_row(exchange.stack, row, array_records(content))
        return None

    def publish(self, t: int, sent: Sequence[SentModel], rule: Arrays) -> None:
        """All have the same model again."""
        self._reference = t

    def fetch(self, stack: Stack, rows: Sequence[int]) -> tuple[list[int], int]:
        """Ask the sites of these rows for the models that have stayed there."""
        exchange, t = self._exchange, self._exchange.phase.t
        missing = {site: row for site, row in sorted(exchange.row_of.items()) if row in set(rows) - self._here}
        words = {wire.ROUND: t, wire.REFERENCE: self._kept_by, wire.ANSWER_BYTES: exchange.bytes_of_model}
        question = RecordDict({wire.CONFIG: ConfigRecord({**self._words, **words})})
        replies = ask(self._roster, self._grid, f"{MessageType.QUERY}.{wire.BALANCE}", dict.fromkeys(missing, question))
        fetched = []
        for site, row in missing.items():
            try:
                records = records_of(replies.get(site))
                if list(records) != [MODEL]:
                    raise ReplyError("expected a model and nothing beside it")
                checks.check_headers(records[MODEL])
                checks.check_record(records[MODEL], exchange.expected)
            except ReplyError as error:
                self._roster.note(t, site, "set aside", f"asked for its model: {error}")
                continue
            write_row(stack, row, records)
            fetched.append(row)
        self._here |= set(fetched)
        return [row for row in rows if row in self._here], len(fetched) * exchange.bytes_of_model

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The round of the last model that all had."""
        return {}, {"reference": self._reference}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take it up."""
        self._reference = int(words["reference"])


def write_row(stack: Stack, row: int, records: Mapping[str, ArrayRecord]) -> None:
    """Write a reply into its row; missing companions are zero."""
    for name, array in to_arrays(records[MODEL]).items():
        stack.state[name][row] = torch.from_numpy(np.array(array))
    carried = to_arrays(records.get(CARRIED, ArrayRecord()))
    for name, array in carried.items():
        tensor = torch.from_numpy(np.array(array))
        stack.optimizer.setdefault(name, tensor.new_zeros((len(stack), *tensor.shape)))[row] = tensor
    for name in stack.optimizer.keys() - carried.keys():
        stack.optimizer[name][row] = 0


def arrays_of(records: Records) -> Arrays:
    """Records as one set of arrays, which :func:`records_from` takes apart."""
    return join(**{key: to_arrays(record) for key, record in records.items()})


def records_from(arrays: Arrays) -> Records:
    """The inverse of :func:`arrays_of`."""
    return {key: to_record(record) for key, record in parts(arrays).items()}


def decode_content(plan: Plan, content: RecordDict, coded: Arrays, model: Arrays) -> Records:
    """Decompress a site's answer in place; returns its records as they came, or ReplyError.

    ``coded`` is a model in codes, ``model`` the one that the site was sent.
    """
    kept = {key: record for key, record in array_records(content).items() if key in PACKED}
    for key, record in kept.items():
        checks.check_headers(record)
        if key == MODEL and plan.method.top_share is not None:
            _check_difference(record, checks.signature(model))
        elif key == MODEL:
            checks.check_record(record, checks.signature(coded))
        arrays = {name: checks.read_array(name, array) for name, array in record.items()}
        try:
            content[key] = to_record(read_part(plan, key, arrays, model, model))
        except CodecError as error:
            raise ReplyError(str(error)) from None
    return kept


def _check_difference(record: ArrayRecord, model: checks.Signature) -> None:
    received, most = checks.signature(record), sum(math.prod(shape) for shape, _ in model.values())
    for name, (shape, _) in received.items():
        part = name in (VALUES, GAPS, BITS) and len(shape) == 1 and shape[0] <= 2 * most
        if not part and received[name] != model.get(name):
            raise ReplyError(f"array {name[:80]!r}: is not of a model of this run, nor of a difference from one")
