"""Models that the server cannot read: letters from site to site, and masked summands of secure sums.

The server can check no more than a letter's size, so the sites keep the gate; a letter to a silent site is sealed anew
by its writer; and an aggregation counts only models that were trained at its contact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsmall.aggregation.sums import LEAST, length
from fedsmall.audit_log import digest_of
from fedsmall.codec.parcels import Parcel
from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.sealing.letters import Thread, after
from fedsmall.sealing.masks import unmasked
from fedsmall.sealing.waybills import Waybills
from fedsmall.sealing.words import (
    LETTER,
    MASKED,
    NOT_TAKEN,
    REFUSED,
    SEALED,
    SEEDS,
    Average,
    From,
    Order,
)
from fedsmall.strategies.checks import Limits, Note, check_metrics, read_array
from fedsmall.strategies.forms import Exchange, Form, OpenModels, Records, Sent, arrays_of, records_from, write_row
from fedsmall.strategies.records import array_records, to_arrays, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.secure_sums import HelpError, Letter, Pending, Summand, ask_helpers, fetch_readdressed
from fedsmall.training.trainer import Fault, Summed
from fedsmall.wire import CARRIED, EXAMPLES, METRICS, MODEL, PLAN, ROUND, STEPS, Arrays, join, parts, split

MOST_OF_A_MODEL = 4  # a letter holds a model, and at most three times as much beside it
BESIDE = 1 << 20


@final
class SealedModels(Form):
    """Letters, secure sums, or both, as the orders' ``plan`` says.

    ``begun`` is the transcript before the first contact, ``nonces`` are the sites' by name. ``folder`` keeps what must
    outlive the server.
    """

    def __init__(
        self,
        plan: Plan,
        roster: Roster,
        grid: Grid,
        begun: Thread,
        nonces: Mapping[str, str],
        sites: Sequence[str],
        folder: Path | None = None,
    ) -> None:
        super().__init__(plan)
        self.roster, self.grid, self.thread, self._drawn = roster, grid, begun, dict(nonces)
        self._said = plan.model_dump_json(exclude_defaults=True)
        self.ways, self.pending = Waybills(plan, tuple(sorted(sites))), Pending(folder)
        self.average: Average | None = None
        self._letters: dict[int, Letter] = {}  # by row
        self._came: dict[int, Letter] = {}  # in this exchange, until it is known what is used
        self._clear = OpenModels(plan)  # where models do not go in letters
        self._masked: dict[str, Summand] = {}

    @property
    def sealed(self) -> bool:
        """Whether models go in letters."""
        return self.plan.privacy.sealed

    @property
    def secure(self) -> bool:
        """Whether averages are opened sums."""
        return self.plan.privacy.secure

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Note an event of a site at round ``t``."""
        self.roster.note(t, site, kind, reason)

    def words(self, t: int, **more: Any) -> ConfigRecord:
        """The config of a question to sites at round ``t``."""
        return ConfigRecord({PLAN: self._said, ROUND: t, SEALED: self._order(), **more})

    def prepare(self, exchange: Exchange, grid: Grid, roster: Roster) -> None:
        """Have letters sealed anew that lie at another site than they were written to."""
        self._came, self._masked = {}, {}
        self._clear.prepare(exchange, grid, roster)
        if not self.sealed:
            return
        for row in [row for row, letter in self._letters.items() if letter.model is None and not exchange.carries[row]]:
            del self._letters[row]  # its group begins anew
        wrong = {
            s: self._letters[r] for s, r in exchange.row_of.items() if r in self._letters and self._letters[r].to != s
        }
        readdressed = fetch_readdressed(
            self, grid, exchange.leg.t, {s: letter for s, letter in wrong.items() if letter.model is not None}
        )
        for site, letter in wrong.items():
            row = exchange.row_of[site]
            if site in readdressed:
                self._letters[row] = replace(letter, model=readdressed[site], to=site)
                continue
            del self._letters[row]
            if letter.model is not None:
                why = f"the site it was sealed to was silent, and {letter.by} did not seal it anew"
                self.note(exchange.leg.t, site, "replaced", f"{why}; the last common model takes its place")
        for row in exchange.row_of.values():
            if self._is_lost(exchange, row):
                exchange.is_global[row] = True

    def send(self, exchange: Exchange, site: str, row: int) -> Sent:
        """A letter, or the global model and perhaps a letter with what goes beside it."""
        if not self.sealed:
            sent = self._clear.send(exchange, site, row)
            return sent._replace(words={**sent.words, SEALED: self._order()})
        letter, parcel = self._letters.get(row), exchange.parcel(row)
        sealed = letter is not None and letter.model is not None and not exchange.is_global[row]
        beside = letter.beside if letter is not None and exchange.is_global[row] else None

        def records() -> Records:
            if sealed and letter is not None and letter.model is not None:
                return {MODEL: letter.model}
            model = parcel.sent or parcel.read if exchange.is_global[row] else exchange.state.row(row)
            return {MODEL: to_record(model), **({CARRIED: beside} if beside is not None else {})}

        by = From(site=letter.by, t=letter.t) if letter is not None else None
        words = {SEALED: self._order(by if sealed else None, by if beside is not None else None)}
        is_shared = bool(exchange.is_global[row]) and beside is None
        return Sent(id(parcel) if is_shared else -1 - row, words, records)

    def check(self, exchange: Exchange, site: str, reply: Message, limits: Limits) -> None:
        """Raise ReplyError unless this is a letter, a masked summand of the right size, or a model."""
        if reply.has_error():
            raise ReplyError((reply.error.reason or "no reason given")[:300])
        closes = exchange.leg.closes
        records, metrics = array_records(reply.content), reply.content.metric_records.get(METRICS)
        if metrics is None or MODEL not in records:
            raise ReplyError("expected a model's record and one with metrics")
        limits = limits._replace(metrics=frozenset(limits.metrics or ()) | {REFUSED, NOT_TAKEN})
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
        if metrics.pop(NOT_TAKEN, None) is not None and before is not None:
            note(before.by, "replaced", f"{site} could not use its letter; it took the last common model")
        if metrics.pop(REFUSED, None) is not None:
            note(site, "set aside", "by itself: its update is too large or not finite")
        closes = exchange.leg.closes
        if closes and self.secure:
            counts: Any = metrics
            summand = records[MODEL][MASKED].numpy(), to_arrays(records[SEEDS])
            self._masked[site] = Summand(*summand, float(counts[EXAMPLES]), float(counts.get(STEPS, 1)))
            records[MODEL] = to_record(exchange.state.row(row))  # which the sum is about to replace
        if closes or not self.sealed:
            clear = {key: record for key, record in records.items() if key == MODEL or not self.sealed}
            write_row(exchange.stack, row, clear)
        to = self.ways.next_site(t, site) if self.sealed and (not closes or CARRIED in records) else None
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
        commons = [digest_of(parcel.read) for parcel in sent] + ([digest_of(rule)] if rule else [])
        before = self.thread.at[self.average.t if self.average else 0]
        self.thread.at[t] = after(before, t, commons)
        self.average = Average(t=t, before=before, commons=tuple(commons))

    def sum_up(self, t: int, group: int, sites: Sequence[str]) -> Summed | None:
        """The opened sum of these sites' summands. Raises HelpError where it stays closed."""
        if not self.secure:
            return None
        masked = {site: self._masked[site] for site in sorted(sites)}
        if 0 < len(masked) < LEAST:
            raise HelpError(
                f"{len(masked)} sites have sent models for the average of round {t}, and a sum of fewer than {LEAST} "
                "is opened by nobody. `fedsmall resume` asks again when more are there"
            )
        summed = self.pending.settle_summands(t, group, masked) if masked else {}
        for site in sorted(set(masked) - set(summed)):
            self.note(t, site, "set aside", "the sum of this round was asked for without it before")
        streams = ask_helpers(self, self.grid, t, group, summed) if summed else []
        return Summed(
            sites=tuple(summed),
            examples=np.array([summand.examples for summand in summed.values()]),
            steps=np.array([summand.steps for summand in summed.values()]),
            total=unmasked([summand.masked for summand in summed.values()], streams) if summed else None,
        )

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The letters, and the transcript."""
        letters = {str(row): arrays_of(_records(letter)) for row, letter in self._letters.items()}
        addresses = {str(row): [letter.by, letter.t, letter.to] for row, letter in self._letters.items()}
        average = self.average and self.average.model_dump()
        arrays = join(letters=join(**letters), clear=self._clear.state()[0])
        return arrays, {"letters": addresses, "thread": self.thread.at, "average": average}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.thread = Thread({int(t): seen for t, seen in words["thread"].items()})
        self.average = Average(**words["average"]) if words["average"] else None
        self._clear.restore(split(arrays, "clear"), {})
        held = parts(split(arrays, "letters"))
        for row, (by, t, to) in words["letters"].items():
            records = records_from(held[row])
            self._letters[int(row)] = Letter(by, t, to, records.get(MODEL), records.get(CARRIED))

    def size(self, row: int, content: RecordDict) -> int:
        """The bytes of a row's reply as it came."""
        return self._clear.size(row, content)

    def _is_lost(self, exchange: Exchange, row: int) -> bool:
        held, is_trained = self._letters.get(row), not exchange.signals.fresh[row]
        return is_trained and not exchange.is_global[row] and (held is None or held.model is None)

    def _order(self, by: From | None = None, beside: From | None = None) -> str:
        """What an order says beside its plan, as JSON: the last average, and whose letters it holds."""
        order = Order(average=self.average, nonces=self._drawn, by=by, beside=beside)
        return order.model_dump_json(exclude_defaults=True)

    def _check_masked(self, records: Records, exchange: Exchange) -> None:
        record, seeds = records[MODEL], records.get(SEEDS, ArrayRecord())
        if list(record) != [MASKED] or read_array(MASKED, record[MASKED]).dtype != np.uint64:
            raise ReplyError("expected one masked summand")
        if record[MASKED].shape != (length(self.plan, exchange.state.row(0)),):
            raise ReplyError("its summand is not of the length that the plan asks for")
        if sorted(seeds) != self.ways.helpers(exchange.leg.t):
            raise ReplyError("its letters are not for the helpers that the plan has drawn")
        for helper, letter in seeds.items():
            if letter.dtype != "uint8" or len(letter.data) > BESIDE:
                raise ReplyError(f"its letter for {helper} is none")


def check_letter(record: ArrayRecord, bytes_of_model: int) -> None:
    """Raise ReplyError unless this is one letter, of a model's size."""
    most = MOST_OF_A_MODEL * bytes_of_model + BESIDE
    if list(record) != [LETTER] or record[LETTER].dtype != "uint8" or len(record[LETTER].data) > most:
        raise ReplyError("expected one letter, of a model's size")
    read_array(LETTER, record[LETTER])


def _records(letter: Letter) -> Records:
    both = {MODEL: letter.model, CARRIED: letter.beside}
    return {key: record for key, record in both.items() if record is not None}
