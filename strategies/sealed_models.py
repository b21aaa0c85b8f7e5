"""Models that the server cannot read: letters from site to site, and masked summands of secure sums, which as many
helpers open as it takes.

The server can check no more than a letter's size, so the sites keep the gate; a letter to a silent site is sealed anew
by its writer; an aggregation counts only models that were trained at its communication round. Summands are on the disk
before any helper is asked: a helper opens one sum of a round, of one set of sites, and so must a restarted server.
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
from fedsmall.codec import Parcel
from fedsmall.errors import PlanError, ReplyError
from fedsmall.exact import WORDS, from_words
from fedsmall.files import write
from fedsmall.plan import Plan
from fedsmall.sealing import terms
from fedsmall.sealing.letters import Transcript, after
from fedsmall.sealing.masks import BYTES, least_in_sum, threshold, unmasked
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import Average, From, Order
from fedsmall.strategies.checks import Limits, Note, check_metrics, read_array
from fedsmall.strategies.forms import Exchange, Form, OpenModels, Records, Sent, arrays_of, records_from, write_row
from fedsmall.strategies.records import array_records, size_in_bytes, to_arrays, to_record
from fedsmall.strategies.roster import Roster, ask, records_of
from fedsmall.training.trainer import Fault, Summed
from fedsmall.wire import ANSWER_BYTES, CARRIED, CONFIG, METRICS, MODEL, Arrays, join, parts, split

MOST_OF_A_MODEL = 4  # a letter holds a model, and at most three times as much beside it
BESIDE = 1 << 20
FILE = "summands.safetensors"  # in a run's folder
OWN_NUMBERS, TOLD = "", "*"  # beside letters by helper, in the file


class Summand(NamedTuple):
    """A site's part of a sum: ``masked`` numbers, ``letters`` to the helpers by name, and its counts."""

    masked: np.ndarray
    letters: Arrays
    examples: float
    steps: float

    def arrays(self) -> Arrays:
        """All of it by name, for the file."""
        return {OWN_NUMBERS: self.masked, TOLD: np.array([self.examples, self.steps]), **self.letters}


def _read(flat: Arrays) -> dict[str, Summand]:
    of_sites: dict[str, Arrays] = {}
    for key, array in sorted(flat.items()):
        site, _, name = key.partition("|")
        of_sites.setdefault(site, {})[name] = array
    return {site: Summand(of.pop(OWN_NUMBERS), of, *of.pop(TOLD).tolist()) for site, of in of_sites.items()}


@dataclass(frozen=True, eq=False)
class Letter:
    """A letter of site ``by`` from round ``t`` ``to`` another: a ``model``, or what goes ``beside`` an average."""

    by: str
    t: int
    to: str
    model: ArrayRecord | None = None
    beside: ArrayRecord | None = None


class HelpError(RuntimeError):
    """A sum that cannot be opened, for too few helpers answer; resume the run when they are back."""


class Tally(NamedTuple):
    """The sum of the ``sites``, (numbers,) float64, and what each has said in the clear beside it."""

    values: np.ndarray
    sites: tuple[str, ...]
    said: dict[str, dict[str, Any]]


@final
class SealedModels(Form):
    """Letters, secure sums, or both, as the orders' ``plan`` says.

    ``begun`` is the transcript before the first communication round, ``nonces`` are by site. ``folder`` outlives the
    server.
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
        self._said = plan.model_dump_json(exclude_defaults=True)
        self.routes = RoutingTable(plan, tuple(sorted(sites)))
        self._summands_file = None if folder is None else folder / FILE
        self.average: Average | None = None
        self._letters: dict[int, Letter] = {}  # by row
        self._came: dict[int, Letter] = {}  # in this exchange, until it is known what is used
        self._clear = OpenModels(plan)  # where models do not go in letters
        self._masked: dict[str, Summand] = {}
        self.sealed, self.secure = plan.privacy.sealed, plan.privacy.secure  # letters; averages as opened sums

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Note an event of a site at round ``t``."""
        self.roster.note(t, site, kind, reason)

    def words(self, t: int, **more: Any) -> ConfigRecord:
        """The config of a question to sites at round ``t``."""
        return ConfigRecord({wire.PLAN: self._said, wire.ROUND: t, terms.SEALED: self._order(), **more})

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Have letters sealed anew that lie at another site than they were written to."""
        self._came, self._masked, t = {}, {}, exchange.leg.t
        self._clear.prepare(exchange, grid, roster)
        if not self.sealed:
            return
        for row in [row for row, letter in self._letters.items() if letter.model is None and not exchange.carries[row]]:
            del self._letters[row]  # its group begins anew
        held = {site: self._letters[row] for site, row in exchange.row_of.items() if row in self._letters}
        wrong = {site: letter for site, letter in held.items() if letter.to != site}
        readdressed = self._fetch_readdressed(t, {s: letter for s, letter in wrong.items() if letter.model is not None})
        for site, letter in wrong.items():
            row = exchange.row_of[site]
            if site in readdressed:
                self._letters[row] = replace(letter, model=readdressed[site], to=site)
                continue
            del self._letters[row]
            if letter.model is not None:
                why = f"the site it was sealed to was silent, and {letter.by} did not seal it again"
                self.note(t, site, "replaced", f"{why}; the last global model takes its place")
        for row in exchange.row_of.values():
            own = self._letters.get(row)
            if not exchange.inputs.fresh[row] and (own is None or own.model is None):
                exchange.is_global[row] = True

    def _fetch_readdressed(self, t: int, letters: Mapping[str, Letter]) -> dict[str, ArrayRecord]:
        """These ``letters``, by the site where each lies, sealed anew for it; a writer is asked for one at a time."""
        fetched: dict[str, ArrayRecord] = {}
        waiting = sorted(letters.items())
        while waiting:
            now = {letter.by: (site, letter) for site, letter in reversed(waiting)}  # the first of each writer
            waiting = [(site, letter) for site, letter in waiting if now[letter.by][0] != site]
            questions = {}
            for by, (_, letter) in now.items():
                size = size_in_bytes({MODEL: letter.model} if letter.model else {})
                questions[by] = RecordDict({CONFIG: self.words(t, **{terms.WRITTEN: letter.t, ANSWER_BYTES: size})})
            replies = ask(self.roster, self.grid, f"{MessageType.QUERY}.{terms.READDRESS}", questions)
            for by, (site, _) in sorted(now.items(), key=lambda item: item[1][0]):
                try:
                    fetched[site] = _letter(replies.get(by))
                except ReplyError as error:
                    self.note(t, by, "set aside", f"it did not seal its circulating model again for {site}: {error}")
        return fetched

    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """A letter, or the global model and perhaps a letter with what goes beside it."""
        if not self.sealed:
            sent = self._clear.send(exchange, site, row)
            return sent._replace(words={**sent.words, terms.SEALED: self._order()})
        letter, parcel = self._letters.get(row), exchange.parcel(row)
        sealed = letter is not None and letter.model is not None and not exchange.is_global[row]
        beside = letter.beside if letter is not None and exchange.is_global[row] else None

        def records() -> Records:
            if sealed and letter is not None and letter.model is not None:
                return {MODEL: letter.model}
            model = parcel.sent or parcel.read if exchange.is_global[row] else exchange.state.row(row)
            return {MODEL: to_record(model), **({CARRIED: beside} if beside is not None else {})}

        by = From(site=letter.by, t=letter.t) if letter is not None else None
        words = {terms.SEALED: self._order(by if sealed else None, by if beside is not None else None)}
        is_shared = bool(exchange.is_global[row]) and beside is None
        return Sent(id(parcel) if is_shared else -1 - row, words, records)

    def check(self, exchange: Exchange, site: str, reply: Message, limits: Limits) -> None:
        """Raise ReplyError unless this is a letter, a masked summand of the right size, or a model."""
        if reply.has_error():
            raise ReplyError((reply.error.reason or "no reason given")[:300])
        closes, records = exchange.leg.closes, array_records(reply.content)
        metrics = reply.content.metric_records.get(METRICS)
        if metrics is None or MODEL not in records:
            raise ReplyError("expected a model's record and one with metrics")
        limits = limits._replace(metrics=frozenset(limits.metrics or ()) | {terms.REFUSED, terms.NOT_TAKEN})
        check_metrics(metrics, limits)
        beside = reply.content.pop(CARRIED, None) if self.sealed else None
        if CARRIED in records and self.sealed:
            check_letter(records[CARRIED], exchange.bytes_of_model)
        if closes and self.secure:
            self._check_masked(records, exchange)
        elif not closes and self.sealed:
            check_letter(records[MODEL], exchange.bytes_of_model)
        else:
            self._clear.check(exchange, site, reply, limits)
        if beside is not None:
            reply.content[CARRIED] = beside

    def write(self, exchange: Exchange, site: str, row: int, content: RecordDict, note: Note) -> Fault | None:
        """Take a letter for the next site, a summand, or a model."""
        records, metrics, t = array_records(content), content.metric_records[METRICS], exchange.leg.t
        before = self._letters.get(row)
        if metrics.pop(terms.NOT_TAKEN, None) is not None and before is not None:
            note(before.by, "replaced", f"{site} could not use its encrypted message; it took the last global model")
        if metrics.pop(terms.REFUSED, None) is not None:
            note(site, "set aside", "by itself: its update is too large or not finite")
        closes = exchange.leg.closes
        if closes and self.secure:
            counts: Any = metrics
            summand = records[MODEL][terms.MASKED].numpy(), to_arrays(records[terms.SEEDS])
            self._masked[site] = Summand(*summand, float(counts[wire.EXAMPLES]), float(counts.get(wire.STEPS, 1)))
            records[MODEL] = to_record(exchange.state.row(row))  # which the sum is about to replace
        if closes or not self.sealed:
            clear = {key: record for key, record in records.items() if key == MODEL or not self.sealed}
            write_row(exchange.stack, row, clear)
        to = self.routes.next_site(t, site) if self.sealed and (not closes or CARRIED in records) else None
        if to:
            model = None if closes else records[MODEL]
            self._came[row] = Letter(site, t, to, model, records.get(CARRIED) if closes else None)
        return None

    def accept(self, rows: Sequence[int]) -> None:
        """Keep these letters; those that they answer are used up."""
        self._clear.accept(rows)
        for row in rows:
            self._letters.pop(row, None)
        self._letters |= {row: self._came[row] for row in rows if row in self._came}

    def publish(self, t: int, sent: Sequence[Parcel], rule: Arrays) -> None:
        """Extend the transcript by what the aggregation has made."""
        global_models = [digest_of(parcel.read) for parcel in sent] + ([digest_of(rule)] if rule else [])
        before = self.transcript.at[self.average.t if self.average else 0]
        self.transcript.at[t] = after(before, t, global_models)
        self.average = Average(t=t, before=before, global_models=tuple(global_models))

    def sum_up(self, t: int, group: int, sites: Sequence[str]) -> Summed | None:
        """The opened sum of these sites' summands. Raises HelpError where it stays closed."""
        if not self.secure:
            return None
        masked = {site: self._masked[site] for site in sorted(sites)}
        if 0 < len(masked) < (least := self.routes.least_in_sum(t, group)):
            raise HelpError(
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
        """The sum of masked summands, (numbers,) uint64, by the helpers' shares. HelpError where too few answer."""
        missing, helpers = sorted(set(self.routes.summed(t, group, of)) - set(summands)), self.routes.helpers(t, of)
        size, least = BYTES * len(summands) * (1 + len(missing)), threshold(len(helpers))
        config = self.words(t, **({terms.OF: of} if of else {terms.GROUP: group}), **{ANSWER_BYTES: size})
        questions = {}
        for helper in helpers:
            seeds = {site: summand.letters[helper] for site, summand in sorted(summands.items())}
            questions[helper] = RecordDict({CONFIG: config, terms.SEEDS: to_record(seeds)})
        replies = ask(self.roster, self.grid, f"{MessageType.QUERY}.{terms.HELP}", questions)
        told, faults = dict[int, bytes](), dict[str, ReplyError]()
        for place, helper in enumerate(helpers, 1):
            try:
                told[place] = _shares(replies.get(helper), size)
            except ReplyError as error:
                faults[helper] = error
        if len(told) < least:
            helper, why = next(iter(faults.items()))
            raise HelpError(
                f"the sum of round {t} stays closed, for {len(told)} of {len(helpers)} helpers answer, and it takes "
                f"{least}; {helper} does not help: {why}. `fedsmall resume` goes on when it does"
            )
        for helper, why in faults.items():
            self.note(t, helper, "set aside", f"it does not help to open a sum: {why}")
        shares = {place: told[place] for place in sorted(told)[:least]}
        return unmasked({site: summand.masked for site, summand in summands.items()}, missing, shares, wide=bool(of))

    def open_sum(self, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]) -> Tally:
        """The sum ``of`` all sites' numbers at round ``t``, asked by messages of this ``kind`` with these ``contents``.

        Bad answers are noted and left out. HelpError where too few are left, or too few helpers answer.
        """
        replies = ask(self.roster, self.grid, kind, contents)
        summands: dict[str, Summand] = {}
        for site in sorted(contents):
            try:
                summands[site] = _summand(replies.get(site), self.routes.helpers(t, of))
            except ReplyError as error:
                self.note(t, site, "set aside", f"what it tells ({of}): {error}")
        lengths = [len(summand.masked) for summand in summands.values()]
        usual = max(sorted(set(lengths)), key=lengths.count, default=0)
        for site in [site for site, summand in summands.items() if len(summand.masked) != usual]:
            self.note(t, site, "set aside", f"what it tells ({of}) is of another length than that of the others")
            del summands[site]
        if len(summands) < (least := least_in_sum(len(self.routes.names))):
            raise HelpError(f"{len(summands)} sites tell, and a sum of fewer than {least} is opened by nobody")
        summed = self._settle_summands(t, of, summands)
        values = from_words(self._open(t, 0, summed, of))
        said = {site: reply.content.metric_records for site, reply in replies.items() if site in summands}
        metrics = {site: dict(records.get(METRICS, {})) for site, records in said.items()}
        return Tally(values, tuple(summed), metrics)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The letters, and the transcript."""
        letters = {str(row): arrays_of(_records(letter)) for row, letter in self._letters.items()}
        addresses = {str(row): [letter.by, letter.t, letter.to] for row, letter in self._letters.items()}
        average = self.average and self.average.model_dump()
        arrays = join(letters=join(**letters), clear=self._clear.state()[0])
        return arrays, {"letters": addresses, "thread": self.transcript.at, "average": average}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.transcript = Transcript({int(t): seen for t, seen in words["thread"].items()})
        self.average = Average(**words["average"]) if words["average"] else None
        self._clear.restore(split(arrays, "clear"), {})
        held = parts(split(arrays, "letters"))
        for row, (by, t, to) in words["letters"].items():
            records = records_from(held[row])
            self._letters[int(row)] = Letter(by, t, to, records.get(MODEL), records.get(CARRIED))

    def size(self, row: int, content: RecordDict) -> int:
        """The bytes of a row's reply as it came."""
        return self._clear.size(row, content)

    def _order(self, by: From | None = None, beside: From | None = None) -> str:
        """What an order says beside its plan, as JSON: the last average, and whose letters it holds."""
        order = Order(average=self.average, nonces=self._drawn, by=by, beside=beside)
        return order.model_dump_json(exclude_defaults=True)

    def _check_masked(self, records: Records, exchange: Exchange) -> None:
        record = records[MODEL]
        if list(record) != [terms.MASKED] or read_array(terms.MASKED, record[terms.MASKED]).dtype != np.uint64:
            raise ReplyError("expected one masked summand")
        if record[terms.MASKED].shape != (length(self.plan, exchange.state.row(0)),):
            raise ReplyError("its summand is not of the length that the plan asks for")
        _check_seeds(records.get(terms.SEEDS, ArrayRecord()), self.routes.helpers(exchange.leg.t))


def check_letter(record: ArrayRecord, bytes_of_model: int) -> None:
    """Raise ReplyError unless this is one letter, of a model's size."""
    most = MOST_OF_A_MODEL * bytes_of_model + BESIDE
    if list(record) != [terms.LETTER] or record[terms.LETTER].dtype != "uint8" or len(record[terms.LETTER].data) > most:
        raise ReplyError("expected one encrypted message, of a model's size")
    read_array(terms.LETTER, record[terms.LETTER])


def _records(letter: Letter) -> Records:
    both = {MODEL: letter.model, CARRIED: letter.beside}
    return {key: record for key, record in both.items() if record is not None}


def _letter(reply: Message | None) -> ArrayRecord:
    record = records_of(reply).get(MODEL)
    if record is None or list(record) != [terms.LETTER]:
        raise ReplyError("no encrypted message came")
    read_array(terms.LETTER, record[terms.LETTER])
    return record


def _shares(reply: Message | None, size: int) -> bytes:
    record = records_of(reply).get(terms.SHARES)
    if record is None or list(record) != [terms.SHARES]:
        raise ReplyError("expected shares of seeds")
    shares = read_array(terms.SHARES, record[terms.SHARES])
    if shares.dtype != np.uint8 or shares.shape != (size,):
        raise ReplyError("what it told are not the shares of this sum")
    return shares.tobytes()


def _summand(reply: Message | None, helpers: Sequence[str]) -> Summand:
    records = records_of(reply)
    record, seeds = records.get(terms.TALLY), records.get(terms.SEEDS)
    is_one = record is not None and list(record) == [terms.MASKED]
    if record is None or seeds is None or not is_one or set(records) != {terms.TALLY, terms.SEEDS}:
        raise ReplyError("expected one masked summand, and encrypted messages")
    masked = read_array(terms.MASKED, record[terms.MASKED])
    if masked.dtype != np.uint64 or masked.ndim != 1 or not len(masked) or len(masked) % WORDS:
        raise ReplyError("its summand is none")
    _check_seeds(seeds, helpers)
    return Summand(masked, to_arrays(seeds), 0.0, 0.0)


def _check_seeds(seeds: ArrayRecord, helpers: Sequence[str]) -> None:
    if sorted(seeds) != helpers:
        raise ReplyError("its encrypted messages are not for the helpers that the plan has drawn")
    for helper, letter in seeds.items():
        if letter.dtype != "uint8" or len(letter.data) > BESIDE:
            raise ReplyError(f"its encrypted message for {helper} is none")
