"""Models that the server cannot read: envelopes from site to site, and masked summands of secure sums.

The server can check no more than an envelope's size, so the sites keep the gate; one to a silent site is sealed again
by its writer; an aggregation counts only models trained at its communication round. Summands are on the disk before any
decryptor is asked, which opens one sum of a round, of one set of sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall import wire
from fedsmall.aggregation.sums import length
from fedsmall.audit_log import digest_of
from fedsmall.codec import SentModel
from fedsmall.errors import PlanError, ReplyError
from fedsmall.exact import WORDS, from_words
from fedsmall.files import write
from fedsmall.plan import Plan
from fedsmall.sealing import terms
from fedsmall.sealing.envelopes import Transcript, after
from fedsmall.sealing.masks import BYTES, least_in_sum, threshold, unmasked
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import Average, From, Order
from fedsmall.strategies.checks import Limits, Note, check_metrics, read_array
from fedsmall.strategies.forms import Exchange, Form, OpenModels, Records, Sent, arrays_of, records_from, write_row
from fedsmall.strategies.records import array_records, size_in_bytes, to_arrays, to_record
from fedsmall.strategies.roster import Roster, ask, records_of
from fedsmall.training.trainer import Fault, Summed
from fedsmall.wire import ANSWER_BYTES, CARRIED, CONFIG, METRICS, MODEL, Arrays, join, parts, split

MOST_OF_A_MODEL = 4  # an envelope holds a model, and at most three times as much beside it
BESIDE = 1 << 20
FILE = "summands.safetensors"  # in a run's folder
OWN_NUMBERS, TOLD = "", "*"  # beside envelopes by decryptor, in the file


class Summand(NamedTuple):
    """A site's part of a sum: ``masked`` numbers, ``envelopes`` to the decryptors by name, and its counts."""

    masked: np.ndarray
    envelopes: Arrays
    examples: float
    steps: float

    def arrays(self) -> Arrays:
        """All of it by name, for the file."""
        return {OWN_NUMBERS: self.masked, TOLD: np.array([self.examples, self.steps]), **self.envelopes}


def _read(flat: Arrays) -> dict[str, Summand]:
    of_sites: dict[str, Arrays] = {}
    for key, array in sorted(flat.items()):
        site, _, name = key.partition("|")
        of_sites.setdefault(site, {})[name] = array
    return {site: Summand(of.pop(OWN_NUMBERS), of, *of.pop(TOLD).tolist()) for site, of in of_sites.items()}


@dataclass(frozen=True, eq=False)
class Envelope:
    """An envelope of site ``by`` from round ``t`` ``to`` another: a ``model``, or what goes ``beside`` an average."""

    by: str
    t: int
    to: str
    model: ArrayRecord | None = None
    beside: ArrayRecord | None = None


class DecryptorError(RuntimeError):
    """A sum that cannot be opened, for too few decryptors answer; resume the run when they are back."""


class Tally(NamedTuple):
    """The sum of the ``sites``, (numbers,) float64, and what each has reported in the clear beside it."""

    values: np.ndarray
    sites: tuple[str, ...]
    reported: dict[str, dict[str, Any]]


@final
class SealedModels(Form):
    """Envelopes, secure sums, or both, as the orders' ``plan`` says.

    ``begun`` is the transcript before the first round, ``nonces`` are by site. ``folder`` outlives the server.
    """

    def __init__(
        self,
        plan: Plan,
        roster: Roster,
        grid: Grid,
        begun: Transcript,
        nonces: Mapping[str, str],
        sites: Sequence[str],
        folder: Path | None = None,
    ) -> None:
        super().__init__(plan)
        self.roster, self.grid, self.transcript, self._drawn = roster, grid, begun, dict(nonces)
        self._written = plan.model_dump_json(exclude_defaults=True)
        self.routes = RoutingTable(plan, tuple(sorted(sites)))
        self._summands_file = None if folder is None else folder / FILE
        self.average: Average | None = None
        self._envelopes: dict[int, Envelope] = {}  # by row
        self._came: dict[int, Envelope] = {}  # in this exchange, until it is known what is used
        self._clear = OpenModels(plan)  # where models do not go in envelopes
        self._masked: dict[str, Summand] = {}
        self.sealed, self.secure = plan.privacy.sealed, plan.privacy.secure  # envelopes; averages as opened sums

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Note an event of a site at round ``t``."""
        self.roster.note(t, site, kind, reason)

    def words(self, t: int, **more: Any) -> ConfigRecord:
        """The config of a question to sites at round ``t``."""
        return ConfigRecord({wire.PLAN: self._written, wire.ROUND: t, terms.SEALED: self._order(), **more})

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Have envelopes sealed anew that lie at another site than they were written to."""
        self._came, self._masked, t = {}, {}, exchange.phase.t
        self._clear.prepare(exchange, grid, roster)
        if not self.sealed:
            return
        for row in [r for r, held in self._envelopes.items() if held.model is None and not exchange.carries[r]]:
            del self._envelopes[row]  # its group begins anew
        held = {site: self._envelopes[row] for site, row in exchange.row_of.items() if row in self._envelopes}
        wrong = {site: envelope for site, envelope in held.items() if envelope.to != site}
        readdressed = self._fetch_readdressed(t, {s: of for s, of in wrong.items() if of.model is not None})
        for site, envelope in wrong.items():
            row = exchange.row_of[site]
            if site in readdressed:
                self._envelopes[row] = replace(envelope, model=readdressed[site], to=site)
                continue
            del self._envelopes[row]
            if envelope.model is not None:
                why = f"the site it was sealed to was silent, and {envelope.by} did not seal it again"
                self.note(t, site, "replaced", f"{why}; the last global model takes its place")
        for row in exchange.row_of.values():
            own = self._envelopes.get(row)
            if not exchange.inputs.fresh[row] and (own is None or own.model is None):
                exchange.is_global[row] = True

    def _fetch_readdressed(self, t: int, envelopes: Mapping[str, Envelope]) -> dict[str, ArrayRecord]:
        """These ``envelopes``, by the site where each lies, sealed anew for it; a writer is asked for one at a time."""
        fetched: dict[str, ArrayRecord] = {}
        waiting = sorted(envelopes.items())
        while waiting:
            now = {envelope.by: (site, envelope) for site, envelope in reversed(waiting)}  # the first of each writer
            waiting = [(site, envelope) for site, envelope in waiting if now[envelope.by][0] != site]
            questions = {}
            for by, (_, envelope) in now.items():
                size = size_in_bytes({MODEL: envelope.model} if envelope.model else {})
                questions[by] = RecordDict({CONFIG: self.words(t, **{terms.WRITTEN: envelope.t, ANSWER_BYTES: size})})
            replies = ask(self.roster, self.grid, f"{MessageType.QUERY}.{terms.READDRESS}", questions)
            for by, (site, _) in sorted(now.items(), key=lambda item: item[1][0]):
                try:
                    fetched[site] = _envelope(replies.get(by))
                except ReplyError as error:
                    self.note(t, by, "set aside", f"it did not seal its circulating model again for {site}: {error}")
        return fetched

    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """An envelope, or the global model and perhaps an envelope with what goes beside it."""
        if not self.sealed:
            sent = self._clear.send(exchange, site, row)
            return sent._replace(words={**sent.words, terms.SEALED: self._order()})
        envelope, sent_model = self._envelopes.get(row), exchange.sent_model(row)
        sealed = envelope is not None and envelope.model is not None and not exchange.is_global[row]
        beside = envelope.beside if envelope is not None and exchange.is_global[row] else None

        def records() -> Records:
            if sealed and envelope is not None and envelope.model is not None:
                return {MODEL: envelope.model}
            model = sent_model.sent or sent_model.read if exchange.is_global[row] else exchange.state.row(row)
            return {MODEL: to_record(model), **({CARRIED: beside} if beside is not None else {})}

        by = From(site=envelope.by, t=envelope.t) if envelope is not None else None
        words = {terms.SEALED: self._order(by if sealed else None, by if beside is not None else None)}
        is_shared = bool(exchange.is_global[row]) and beside is None
        return Sent(id(sent_model) if is_shared else -1 - row, words, records)

    def check(self, exchange: Exchange, site: str, reply: Message, limits: Limits) -> None:
        """Raise ReplyError unless this is an envelope, a masked summand of the right size, or a model."""
        if reply.has_error():
            raise ReplyError((reply.error.reason or "no reason given")[:300])
        closes, records = exchange.phase.closes, array_records(reply.content)
        metrics = reply.content.metric_records.get(METRICS)
        if metrics is None or MODEL not in records:
            raise ReplyError("expected a model's record and one with metrics")
        limits = limits._replace(metrics=frozenset(limits.metrics or ()) | {terms.REFUSED, terms.NOT_TAKEN})
        check_metrics(metrics, limits)
        beside = reply.content.pop(CARRIED, None) if self.sealed else None
        if CARRIED in records and self.sealed:
            check_envelope(records[CARRIED], exchange.bytes_of_model)
        if closes and self.secure:
            self._check_masked(records, exchange)
        elif not closes and self.sealed:
            check_envelope(records[MODEL], exchange.bytes_of_model)
        else:
            self._clear.check(exchange, site, reply, limits)
        if beside is not None:
            reply.content[CARRIED] = beside

    def write(self, exchange: Exchange, site: str, row: int, content: RecordDict, note: Note) -> Fault | None:
        """Take an envelope for the next site, a summand, or a model."""
        records, metrics, t = array_records(content), content.metric_records[METRICS], exchange.phase.t
        before = self._envelopes.get(row)
        if metrics.pop(terms.NOT_TAKEN, None) is not None and before is not None:
            note(before.by, "replaced", f"{site} could not use its encrypted message; it took the last global model")
        if metrics.pop(terms.REFUSED, None) is not None:
            note(site, "set aside", "by itself: its update is too large or not finite")
        closes = exchange.phase.closes
        if closes and self.secure:
            counts: Any = metrics
            summand = wire.read_npy(records[MODEL][terms.MASKED].data), to_arrays(records[terms.SEEDS])
            self._masked[site] = Summand(*summand, float(counts[wire.EXAMPLES]), float(counts.get(wire.STEPS, 1)))
            records[MODEL] = to_record(exchange.state.row(row))  # which the sum is about to replace
        if closes or not self.sealed:
            clear = {key: record for key, record in records.items() if key == MODEL or not self.sealed}
            write_row(exchange.stack, row, clear)
        to = self.routes.next_site(t, site) if self.sealed and (not closes or CARRIED in records) else None
        if to:
            model = None if closes else records[MODEL]
            self._came[row] = Envelope(site, t, to, model, records.get(CARRIED) if closes else None)
        return None

    def accept(self, rows: Sequence[int]) -> None:
        """Keep these envelopes; those that they answer are used up."""
        self._clear.accept(rows)
        for row in rows:
            self._envelopes.pop(row, None)
        self._envelopes |= {row: self._came[row] for row in rows if row in self._came}

    def publish(self, t: int, sent: Sequence[SentModel], rule: Arrays) -> None:
        """Extend the transcript by what the aggregation has made."""
        global_models = [digest_of(sent_model.read) for sent_model in sent] + ([digest_of(rule)] if rule else [])
        before = self.transcript.at[self.average.t if self.average else 0]
        self.transcript.at[t] = after(before, t, global_models)
        self.average = Average(t=t, before=before, global_models=tuple(global_models))

    def sum_up(self, t: int, group: int, sites: Sequence[str]) -> Summed | None:
        """The opened sum of these sites' summands. Raises DecryptorError where it stays closed."""
        if not self.secure:
            return None
        masked = {site: self._masked[site] for site in sorted(sites)}
        if 0 < len(masked) < (least := self.routes.least_in_sum(t, group)):
            raise DecryptorError(
                f"{len(masked)} sites have sent models for the average of round {t}, and a sum of fewer than {least} "
                "is opened by nobody. `fedsmall resume` asks again when more are there"
            )
        summed = self._settle_summands(t, group, masked) if masked else {}
        for site in sorted(set(masked) - set(summed)):
            self.note(t, site, "set aside", "the sum of this round was asked for without it before")
        examples, steps = (
            np.array([getattr(summand, of) for summand in summed.values()]) for of in ("examples", "steps")
        )
        total = self._open(t, group, summed) if summed else None
        return Summed(sites=tuple(summed), examples=examples, steps=steps, total=total)

    def _settle_summands(self, t: int, group: int | str, received: dict[str, Summand]) -> dict[str, Summand]:
        """The summands of a round and group (a name, for a tally): those written down before, else those ``received``.

        Raises PlanError where the file is damaged: other sites could be asked for than before.
        """
        file = self._summands_file
        if file is None:
            return received
        try:
            kept = load(file.read_bytes()) if file.exists() else {}
        except SafetensorError:
            raise PlanError(f"{FILE} in the run's folder is damaged; put a copy back, or start a new run") from None
        kept = {name: array for name, array in kept.items() if name.startswith(f"{t}.")}
        if before := parts(kept).get(f"{t}.{group}"):
            return _read(before)
        flat = {f"{site}|{name}": a for site, summand in received.items() for name, a in summand.arrays().items()}
        write(file, save(kept | join(**{f"{t}.{group}": flat})), flush=True)
        return received

    def _open(self, t: int, group: int, summands: Mapping[str, Summand], of: str = "") -> np.ndarray:
        """The sum of masked summands, (numbers,) uint64, by decryptors' shares; DecryptorError where too few answer."""
        decryptors = self.routes.decryptors(t, of)
        missing = sorted(set(self.routes.summed(t, group, of)) - set(summands))
        size, least = BYTES * len(summands) * (1 + len(missing)), threshold(len(decryptors))
        config = self.words(t, **({terms.OF: of} if of else {terms.GROUP: group}), **{ANSWER_BYTES: size})
        questions = {}
        for decryptor in decryptors:
            seeds = {site: summand.envelopes[decryptor] for site, summand in sorted(summands.items())}
            questions[decryptor] = RecordDict({CONFIG: config, terms.SEEDS: to_record(seeds)})
        replies = ask(self.roster, self.grid, f"{MessageType.QUERY}.{terms.HELP}", questions)
        parts, faults = dict[int, bytes](), dict[str, ReplyError]()
        for place, decryptor in enumerate(decryptors, 1):
            try:
                parts[place] = _shares(replies.get(decryptor), size)
            except ReplyError as error:
                faults[decryptor] = error
        if len(parts) < least:
            decryptor, why = next(iter(faults.items()))
            raise DecryptorError(
                f"the sum of round {t} stays closed, for {len(parts)} of {len(decryptors)} decryptors answer, and it "
                f"takes {least}; {decryptor} does not help: {why}. `fedsmall resume` goes on when it does"
            )
        for decryptor, why in faults.items():
            self.note(t, decryptor, "set aside", f"it does not help to open a sum: {why}")
        shares = {place: parts[place] for place in sorted(parts)[:least]}
        return unmasked({site: summand.masked for site, summand in summands.items()}, missing, shares, wide=bool(of))

    def open_sum(self, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]) -> Tally:
        """The sum ``of`` all sites' numbers at round ``t``, asked by messages of this ``kind`` with these ``contents``.

        Bad answers are noted and left out. DecryptorError where too few are left, or too few decryptors answer.
        """
        replies = ask(self.roster, self.grid, kind, contents)
        summands: dict[str, Summand] = {}
        for site in sorted(contents):
            try:
                summands[site] = _summand(replies.get(site), self.routes.decryptors(t, of))
            except ReplyError as error:
                self.note(t, site, "set aside", f"what it tells ({of}): {error}")
        lengths = [len(summand.masked) for summand in summands.values()]
        usual = max(sorted(set(lengths)), key=lengths.count, default=0)
        for site in [site for site, summand in summands.items() if len(summand.masked) != usual]:
            self.note(t, site, "set aside", f"what it tells ({of}) is of another length than that of the others")
            del summands[site]
        if len(summands) < (least := least_in_sum(len(self.routes.names))):
            raise DecryptorError(f"{len(summands)} sites tell, and a sum of fewer than {least} is opened by nobody")
        summed = self._settle_summands(t, of, summands)
        values = from_words(self._open(t, 0, summed, of))
        reported = {s: dict(r.content.metric_records.get(METRICS, {})) for s, r in replies.items() if s in summands}
        return Tally(values, tuple(summed), reported)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The envelopes, and the transcript."""
        envelopes = {
            str(row): arrays_of({key: r for key, r in ((MODEL, e.model), (CARRIED, e.beside)) if r is not None})
            for row, e in self._envelopes.items()
        }
        addresses = {str(row): [envelope.by, envelope.t, envelope.to] for row, envelope in self._envelopes.items()}
        average = self.average and self.average.model_dump()
        arrays = join(envelopes=join(**envelopes), clear=self._clear.state()[0])
        return arrays, {"envelopes": addresses, "thread": self.transcript.at, "average": average}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.transcript = Transcript({int(t): seen for t, seen in words["thread"].items()})
        self.average = Average(**words["average"]) if words["average"] else None
        self._clear.restore(split(arrays, "clear"), {})
        held = parts(split(arrays, "envelopes"))
        for row, (by, t, to) in words["envelopes"].items():
            records = records_from(held[row])
            self._envelopes[int(row)] = Envelope(by, t, to, records.get(MODEL), records.get(CARRIED))

    def size(self, row: int, content: RecordDict) -> int:
        """The bytes of a row's reply as it came."""
        return self._clear.size(row, content)

    def _order(self, by: From | None = None, beside: From | None = None) -> str:
        """What an order says beside its plan, as JSON: the last average, and whose envelopes it holds."""
        order = Order(average=self.average, nonces=self._drawn, by=by, beside=beside)
        return order.model_dump_json(exclude_defaults=True)

    def _check_masked(self, records: Records, exchange: Exchange) -> None:
        record = records[MODEL]
        if list(record) != [terms.MASKED] or read_array(terms.MASKED, record[terms.MASKED]).dtype != np.uint64:
            raise ReplyError("expected one masked summand")
        if record[terms.MASKED].shape != (length(self.plan, exchange.state.row(0)),):
            raise ReplyError("its summand is not of the length that the plan asks for")
        _check_seeds(records.get(terms.SEEDS, ArrayRecord()), self.routes.decryptors(exchange.phase.t))


def check_envelope(record: ArrayRecord, bytes_of_model: int) -> None:
    """Raise ReplyError unless this is one envelope, of a model's size."""
    most = MOST_OF_A_MODEL * bytes_of_model + BESIDE
    held = record.get(terms.ENVELOPE)
    if held is None or len(record) > 1 or held.dtype != "uint8" or len(held.data) > most:
        raise ReplyError("expected one encrypted message, of a model's size")
    read_array(terms.ENVELOPE, record[terms.ENVELOPE])


def _envelope(reply: Message | None) -> ArrayRecord:
    record = records_of(reply).get(MODEL)
    if record is None or list(record) != [terms.ENVELOPE]:
        raise ReplyError("no encrypted message came")
    read_array(terms.ENVELOPE, record[terms.ENVELOPE])
    return record


def _shares(reply: Message | None, size: int) -> bytes:
    record = records_of(reply).get(terms.SHARES)
    if record is None or list(record) != [terms.SHARES]:
        raise ReplyError("expected shares of seeds")
    shares = read_array(terms.SHARES, record[terms.SHARES])
    if shares.dtype != np.uint8 or shares.shape != (size,):
        raise ReplyError("what it told are not the shares of this sum")
    return shares.tobytes()


def _summand(reply: Message | None, decryptors: Sequence[str]) -> Summand:
    records = records_of(reply)
    record, seeds = records.get(terms.TALLY), records.get(terms.SEEDS)
    is_one = record is not None and list(record) == [terms.MASKED]
    if record is None or seeds is None or not is_one or set(records) != {terms.TALLY, terms.SEEDS}:
        raise ReplyError("expected one masked summand, and encrypted messages")
    masked = read_array(terms.MASKED, record[terms.MASKED])
    if masked.dtype != np.uint64 or masked.ndim != 1 or not len(masked) or len(masked) % WORDS:
        raise ReplyError("its summand is none")
    _check_seeds(seeds, decryptors)
    return Summand(masked, to_arrays(seeds), 0.0, 0.0)


def _check_seeds(seeds: ArrayRecord, decryptors: Sequence[str]) -> None:
    if sorted(seeds) != decryptors:
        raise ReplyError("its encrypted messages are not for the decryptors that the plan has drawn")
    for decryptor, envelope in seeds.items():
        if envelope.dtype != "uint8" or len(envelope.data) > BESIDE:
            raise ReplyError(f"its encrypted message for {decryptor} is none")
