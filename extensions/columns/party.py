"""The parties of split columns: their tables, what both do, and the passive one, without labels."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsmall.data.table_files import as_numbers, check_header, is_missing, number_block, plain, read_table
from fedsmall.errors import DataError, PolicyError, ReplyError
from fedsmall.extensions.columns.boosting import Split, bin_columns, candidate_bins, goes_left
from fedsmall.extensions.columns.encrypted import Adder, Histogram, Layout, PublicKey, check_modulus
from fedsmall.extensions.columns.intersection import BYTES, Blinding, check_distinct, new_number
from fedsmall.extensions.columns.messages import Arrays, Message
from fedsmall.extensions.columns.plan import LEAST_BITS, Boosting, ColumnPlan, Reading
from fedsmall.randomness import rng_for
from fedsmall.sealing.envelopes import Mailbox

if TYPE_CHECKING:
    from gmpy2 import mpz

Handler = Callable[[Message], Message]
Draw = Callable[[str, Callable[[], str]], str]  # what is drawn by chance, by its name, and how
POINTS, SAID = "points", "columns"  # kinds of envelopes: of a matching, and of all that follows


@dataclass(frozen=True)
class Envelopes:
    """How a party writes to others so that nobody else can read it; ``t`` numbers what is said.

    ``thread`` is the digest of the run, the roll and the keys of all parties.
    """

    mailbox: Mailbox
    thread: str

    def write(self, kind: str, t: int, to: str, content: bytes) -> bytes:
        """An envelope."""
        return self.mailbox.write(kind, t, to, self.thread, content)

    def open(self, kind: str, t: int, sender: str, envelope: bytes) -> bytes:
        """What an envelope holds; EnvelopeError where it is not the one that it should be."""
        return self.mailbox.open(kind, t, sender, self.thread, envelope)


@dataclass(frozen=True)
class Table:
    """A party's own rows: ``values`` (rows, columns) with NaN where one is missing, and whose each row is."""

    identifiers: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray


class Target(NamedTuple):
    """What is to be predicted of each row of the active party's table; ``classes`` are empty for a number."""

    values: np.ndarray
    classes: tuple[str, ...]


def read_party_table(path: Path, reading: Reading, columns: Sequence[str] | None = None) -> Table:
    """A party's table: ``columns``, or all not left out; DataError for text, whose columns are named here alone."""
    frame = read_table(path)
    check_header(frame)
    _check_columns(path, list(frame.columns), [reading.id, *(columns or ())])
    left_out = {reading.id, reading.label, reading.target, *reading.drop}
    names = list(columns) if columns is not None else [str(name) for name in frame.columns if name not in left_out]
    values, text = number_block(frame[names], reading.missing)
    if wrong := [name for name, count in zip(names, text.sum(axis=0), strict=True) if count]:
        raise DataError(
            "text where numbers are expected; make it numbers, or name the column in drop, or the word in missing",
            file=f"{path.name}, column {', '.join(map(repr, wrong[:8]))}",
        )
    if gaps := int(is_missing(frame[reading.id]).sum()):
        raise DataError(f"{gaps} of {len(frame)} rows have no identifier", file=path.name)
    identifiers = tuple(plain(cell) for cell in frame[reading.id])
    check_distinct(identifiers, path.name)
    return Table(identifiers, tuple(names), values)


def read_target(path: Path, reading: Reading) -> Target:
    """The labels, or the numbers, of the active party's rows; DataError where a row has none."""
    frame, column = read_table(path), str(reading.label if reading.target is None else reading.target)
    _check_columns(path, list(frame.columns), [column])
    if reading.target is not None:
        numbers = as_numbers(frame[column], reading.missing)
        if gaps := int(np.isnan(numbers).sum()):
            raise DataError(f"{gaps} of {len(frame)} rows have no number in {column!r}", file=path.name)
        return Target(numbers, ())
    if gaps := int(is_missing(frame[column], reading.missing).sum()):
        raise DataError(f"{gaps} of {len(frame)} rows have no label in {column!r}", file=path.name)
    words = [plain(cell) for cell in frame[column]]
    classes = reading.classes or tuple(sorted(set(words)))
    if len(classes) < 2 or set(words) - set(classes):
        raise DataError(f"{column!r} has classes that are not listed, or one class alone", file=path.name)
    return Target(np.array([classes.index(word) for word in words], float), classes)


def read_own(path: Path, plan: ColumnPlan, least: int, site: str) -> tuple[Table, Target | None]:
    """A site's table, of ``least`` rows or more, and the active party's labels; DataError or PolicyError for others."""
    table = read_party_table(path, plan.reading)
    if len(table.identifiers) < least or not table.columns:
        raise PolicyError(f"this site has no column, or fewer than {least} rows (least_samples)")
    if plan.active != site:
        return table, None
    target = read_target(path, plan.reading)
    if len(target.classes) > len(plan.reading.classes or ("", "")):
        raise DataError(
            "there are more than two classes; name them in the scenario (classes = [...]), for other parties hold "
            "a run to the number of its trees"
        )
    return table, target


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in present]:
        raise DataError(f"there is no column {missing[0]!r}", file=path.name)


class Clock:
    """Processor seconds by what they were spent on; the parties' own, told to nobody."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def at(self, work: str) -> Iterator[None]:
        """Count what is done within."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[work] = self.seconds.get(work, 0.0) + time.process_time() - start


@dataclass
class Party:
    """A party with a table: matches identifiers, and says which of the common rows go left at its own splits.

    ``records`` are its splits, which never leave. Where others carry messages, ``parties`` are all names, the active
    one first, from whom alone it takes words, in ``envelopes`` where there are any.
    """

    name: str
    table: Table
    records: list[Split] = field(default_factory=list)
    parties: tuple[str, ...] = ()
    envelopes: Envelopes | None = None
    draw: Draw = lambda _, make: make()  # and keep nothing, as parties that are never killed

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.matched: np.ndarray | None = None  # rows of the party's table, in the order that all share
        self.turn = 0  # the number of what was said last between parties
        self._blinding: Blinding | None = None

    @property
    def matched_rows(self) -> np.ndarray:
        """The rows of the party's table that all have; ReplyError before a matching."""
        if self.matched is None:
            raise ReplyError("identifiers have not been matched yet")
        return self.matched

    @property
    def values(self) -> np.ndarray:
        """The matched rows' values, (rows, columns)."""
        return np.asarray(self.table.values[self.matched_rows])

    def handlers(self) -> Mapping[str, Handler]:
        """What this party answers to whoever leads the run, by kind."""
        return {"blind": self._blind, "blind again": self._blind_again, "matched": self._match, "keep": self._keep}

    def between(self) -> Mapping[str, Handler]:
        """What this party answers to another one, by kind."""
        return {}

    def answer(self, message: Message) -> Message:
        """The reply to a message; ReplyError for what this party does not answer."""
        return self._handle(message, {**self.handlers(), **({} if self.parties else self.between())})

    def _handle(self, message: Message, handlers: Mapping[str, Handler]) -> Message:
        if message.kind not in handlers:
            raise ReplyError(f"a party of this kind does not answer {message.kind!r}")
        try:
            return handlers[message.kind](message)
        except KeyError as error:
            raise ReplyError(f"the message {message.kind!r} lacks {error}") from None

    def _blind(self, message: Message) -> Message:
        if self.matched is not None and self.parties:
            raise ReplyError("a second matching was begun in one run")
        self._blinding = Blinding(self.table.identifiers, self.draw("blinding", new_number))
        points = self._address_points(message, 1, self._blinding.points())
        return message.answer({"rows": len(self.table.identifiers)}, points)

    def _blind_again(self, message: Message) -> Message:
        hop, ring = int(message.words["hop"]), self._ring(message)
        if not 0 < hop < len(ring):
            hops = f"points of {len(ring)} parties go round in {len(ring) - 1} hops"
            raise ReplyError(f"{hops}, and this was to be another")
        blinding = self._current_blinding()
        again = blinding.blind_again(self._received_points(message, hop))
        # what all have multiplied says nothing: whoever leads the run is to compare it
        is_last = hop == len(ring) - 1
        return message.answer(arrays={"points": again} if is_last else self._address_points(message, hop + 1, again))

    def _address_points(self, message: Message, hop: int, points: np.ndarray) -> Arrays:
        ring = self._ring(message)
        after = ring[(ring.index(self.name) + 1) % len(ring)]
        if self.envelopes is None:
            return {"points": points}
        return {"letter": np.frombuffer(self.envelopes.write(POINTS, hop, after, points.tobytes()), np.uint8)}

    def _received_points(self, message: Message, hop: int) -> np.ndarray:
        if self.envelopes is None:
            return message.arrays["points"]
        ring = self._ring(message)
        content = self.envelopes.open(POINTS, hop, ring[ring.index(self.name) - 1], message.arrays["letter"].tobytes())
        if len(content) % BYTES:
            raise ReplyError("an encrypted message with points holds part of one")
        return np.frombuffer(content, np.uint8).reshape(-1, BYTES)

    def _ring(self, message: Message) -> tuple[str, ...]:
        ring = tuple(str(name) for name in message.words["parties"])
        if self.name not in ring or (self.parties and ring != self.parties):
            raise ReplyError("points are to go round other parties than those of this run")
        return ring

    def _match(self, message: Message) -> Message:
        places = check_rows(message.arrays["places"], len(self.table.identifiers))
        self.matched = self._current_blinding().rows(places)
        self._blinding = None  # its number is of this matching alone
        return message.answer()

    def _keep(self, message: Message) -> Message:
        return message.answer({"splits": len(self.records)})

    def _current_blinding(self) -> Blinding:
        if self._blinding is None:
            raise ReplyError("no matching is under way")
        return self._blinding

    def close(self, to: str, message: Message) -> np.ndarray:
        """What is said to another party in the present turn, as it may be carried."""
        content = message.to_bytes()
        sealed = content if self.envelopes is None else self.envelopes.write(SAID, self.turn, to, content)
        return np.frombuffer(sealed, np.uint8)

    def open(self, sender: str, carried: np.ndarray) -> Message:
        """What another party has said in the present turn; ReplyError where it is not from that party to this one."""
        content = carried.tobytes()
        if self.envelopes is not None:
            content = self.envelopes.open(SAID, self.turn, sender, content)
        message = Message.from_bytes(content)
        if (message.sender, message.to) != (sender, self.name):
            raise ReplyError(f"what was carried as {sender}'s is from another party, or for another")
        return message

    def state(self) -> Message | None:
        """All that this party needs to go on, for its own disk, once it is asked again what it was since; or None."""
        if self.matched is None:
            return None
        words = {"records": [list(record) for record in self.records], "turn": self.turn}
        return Message(self.name, self.name, "state", words, {"matched": self.matched})

    def restore(self, state: Message) -> None:
        """Take up a state."""
        self.matched, self.turn = state.arrays["matched"], int(state.words["turn"])
        self.records[:] = records_of(state.words)

    def part(self) -> dict[str, Any]:
        """What this party keeps of a forest, as JSON takes it; no other party has any of it."""
        return {"columns": list(self.table.columns), "records": [list(record) for record in self.records]}

    def sides(self, records: Sequence[int], rows: np.ndarray) -> np.ndarray:
        """Which of ``rows`` (of those matched) go left at which of the party's records, bool (records, rows)."""
        if any(not 0 <= number < len(self.records) for number in records):
            raise ReplyError(f"{self.name} has {len(self.records)} splits, and was asked for another")
        return goes_left(self.records, records, self.values[rows])


def records_of(part: Mapping[str, Any]) -> list[Split]:
    """The splits in what :meth:`Party.part` gave."""
    return [Split(int(column), float(cut)) for column, cut in part["records"]]


def check_rows(numbers: np.ndarray, rows: int) -> np.ndarray:
    """Row numbers that came in a message; ReplyError where they are none, or of rows that are not there."""
    whole = np.issubdtype(numbers.dtype, np.integer) and numbers.ndim == 1
    if not whole or (len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < rows):
        raise ReplyError(f"these are no numbers of {rows} rows")
    return numbers.astype(np.int64)


@dataclass
class _OpenTree:
    """The tree that is grown."""

    number: int
    adder: Adder
    drawn: np.ndarray  # bool (rows,)
    nodes: np.ndarray  # the node of each row, -1 at a leaf
    begun: Message  # by which it was
    asked: set[int] = field(default_factory=set)  # nodes whose sums were told
    listed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by node, what each place of a reply was


@dataclass
class PassiveParty(Party):
    """A party without labels: it adds gradients that it cannot read, and keeps where its splits lie.

    It learns ciphertexts of gradients; which rows are together at which node; which of its candidates were chosen. It
    tells sums under encryption, in a new order for each node, and which rows go left at a chosen split. A tree is begun
    once, and a node asked about once, or the order in its columns would leak. Source: Cheng et al. 2021.

    ``secret`` decides the order of its candidates. With ``agreed`` one forest is grown, with these settings, of at most
    ``most_trees``. Where it ``grows`` none, it has an earlier forest's splits.
    """

    secret: int = field(default_factory=lambda: secrets.randbits(128))
    agreed: Boosting | None = None
    least_bits: int = LEAST_BITS
    most_trees: int = 0
    grows: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = Boosting()
        self._begun: Message | None = None
        self._tree: _OpenTree | None = None

    @staticmethod
    def from_part(name: str, table: Table, part: Mapping[str, Any], **more: Any) -> "PassiveParty":
        """The party with what it kept of a forest, and a table of other patients; ``more`` as in :class:`Party`."""
        return PassiveParty(name, table, records_of(part), grows=False, **more)

    def handlers(self) -> Mapping[str, Handler]:
        """What this party answers to whoever leads the run, by kind."""
        return {**super().handlers(), "carry": self._carry}

    def between(self) -> Mapping[str, Handler]:
        """What this party answers to the active one, by kind."""
        growing = {"begin": self._begin, "gradients": self._gradients, "sums": self._sums, "split": self._split}
        return {**(growing if self.grows else {}), "sides": self._sides}

    def _carry(self, message: Message) -> Message:
        """Take what the active party says, and answer it; who carries it reads neither, where it is in envelopes."""
        turn, sender = int(message.words["t"]), str(message.words["from"])
        if self.parties and sender != self.parties[0]:
            raise ReplyError(f"{sender!r} is not the active party of this run")
        if turn <= self.turn:
            raise ReplyError("what was said before in this run was carried here again")
        before, self.turn = self.turn, turn
        try:
            reply = self._handle(self.open(sender, message.arrays["m0"]), self.between())
        except Exception:
            self.turn = before
            raise
        return message.answer(arrays={"m0": self.close(sender, reply)})

    def state(self) -> Message | None:
        """All that this party needs to go on: at the beginning of a tree, or before the first."""
        state = super().state()
        if state is None or (self._tree is not None and self._tree.asked):
            return None
        messages = {"begin": self._begun, "gradients": self._tree.begun if self._tree is not None else None}
        arrays = {name: message.as_array() for name, message in messages.items() if message is not None}
        return replace(state, arrays={**state.arrays, **arrays})

    def restore(self, state: Message) -> None:
        """Take up a state."""
        super().restore(state)
        for name in ("begin", "gradients"):
            if name in state.arrays:
                self._handle(Message.from_bytes(state.arrays[name].tobytes()), self.between())
        self.records[:] = records_of(state.words)

    def order(self, tree: int, node: int, count: int) -> np.ndarray:
        """In which order this party says its candidates at a node: places say nothing of columns and cuts."""
        return rng_for(self.secret, "candidates", tree, node).permutation(count)

    def _begin(self, message: Message) -> Message:
        asked = Boosting.model_validate(message.words["settings"])
        if self.agreed is not None and asked != self.agreed.model_copy(update={"seed": asked.seed}):
            raise ReplyError("a forest was begun with other settings than those of the plan")
        if self.agreed is not None and self._begun is not None:
            raise ReplyError("a second forest was begun in one run")
        self._settings = asked
        check_modulus(int(message.words["key"], 16), self.least_bits)
        self._key = PublicKey(int(message.words["key"], 16))
        self._rows = check_rows(message.arrays["rows"], len(self.values))
        self._cuts, self._bins = bin_columns(self.values[self._rows], self._settings.bins)
        self.records.clear()
        self._begun, self._tree = message, None
        return message.answer()

    def _gradients(self, message: Message) -> Message:
        words, rows = message.words, check_rows(message.arrays["rows"], len(self._rows))
        last = -1 if self._tree is None else self._tree.number
        if self.agreed is not None and not last < int(words["tree"]) < self.most_trees:
            raise ReplyError(f"tree {words['tree']} was begun after tree {last} of at most {self.most_trees}")
        self._layout = Layout.of(int(words["numbers"]), int(words["width"]), self._key.bits, self._settings.packing)
        chunks = [self._key.from_bytes(message.arrays[f"chunk{k}"]) for k in range(self._layout.chunks)]
        if any(len(chunk) != len(rows) for chunk in chunks):
            raise ReplyError("there are not as many ciphertexts as rows")
        ciphertexts = dict(zip(rows.tolist(), map(list, zip(*chunks, strict=True)), strict=True))
        drawn = np.zeros(len(self._rows), bool)
        drawn[rows] = True
        adder = Adder(self._key, ciphertexts, self._bins)
        self._tree = _OpenTree(int(words["tree"]), adder, drawn, np.zeros(len(self._rows), np.int64), message)
        return message.answer()

    def _sums(self, message: Message) -> Message:
        tree, nodes = self._open_tree(message), message.words["nodes"]
        self._check_asked(tree, [int(node) for node, _ in nodes])
        tree.nodes = message.arrays["at"].astype(np.int64)
        counts, sums = [], []
        for node, _ in nodes:
            rows = np.flatnonzero((tree.nodes == node) & tree.drawn)
            with self.clock.at("adding"):
                histogram = tree.adder.histogram(rows)
            tree.listed[node], below = self._candidates(tree, node, rows, histogram)
            counts.append(len(below))
            sums += below
        return message.answer({"counts": counts}, self._write_sums(sums))

    def _check_asked(self, tree: _OpenTree, nodes: Sequence[int]) -> None:
        """Raise ReplyError for a node that was asked about before, and for more than a tree of this depth has."""
        if len(set(nodes)) < len(nodes) or tree.asked & set(nodes):
            raise ReplyError("the sums of a node were asked for a second time")
        if len(tree.asked) + len(nodes) >= 2**self._settings.depth:
            raise ReplyError(f"sums of more nodes were asked for than a tree of {self._settings.depth} levels has")
        tree.asked |= set(nodes)

    def _candidates(
        self, tree: _OpenTree, node: int, rows: np.ndarray, histogram: Histogram
    ) -> tuple[list[tuple[int, int]], list[list["mpz"]]]:
        listed, below = [], []
        for column, bins in enumerate(histogram):
            counts = np.bincount(self._bins[rows, column], minlength=self._settings.bins)
            possible = set(candidate_bins(counts, self._settings.least_samples).tolist())
            running = [self._key.gmpy.mpz(1)] * self._layout.chunks
            for number, sums in bins.items():
                running = self._key.add(running, sums)
                if number in possible:
                    listed.append((column, number))
                    below.append(running)
        order = self.order(tree.number, node, len(listed))
        return [listed[k] for k in order], [below[k] for k in order]

    def _write_sums(self, sums: list[list["mpz"]]) -> Arrays:
        """Sums rerandomised, so that nobody can tell them from others; several in one where that is asked for."""
        written, splits = {}, self._layout.splits
        for k in range(self._layout.chunks):
            with self.clock.at("packing"):
                chunk = [ciphertexts[k] for ciphertexts in sums]
                width = self._layout.width * self._layout.together
                joined = [self._key.join(chunk[j : j + splits], width) for j in range(0, len(chunk), splits)]
            with self.clock.at("hiding"):
                written[f"chunk{k}"] = self._key.to_bytes(map(self._key.rerandomise, joined))
        return written

    def _split(self, message: Message) -> Message:
        tree, numbers, sides = self._open_tree(message), [], []
        for node, place in message.words["splits"]:
            listed = tree.listed.get(node, [])
            if not 0 <= place < len(listed):
                raise ReplyError("a candidate was chosen that this party did not offer")
            column, after = listed[place]
            numbers.append(len(self.records))
            self.records.append(Split(column, float(self._cuts[column][after])))
            sides.append((tree.nodes == node) & (self._bins[:, column] <= after))
            del tree.listed[node]  # one split a node, or each further answer would tell the order of other columns
        return message.answer({"records": numbers}, {"left": np.array(sides)})

    def _sides(self, message: Message) -> Message:
        records = message.words["records"]
        rows = [check_rows(message.arrays[f"rows{k}"], len(self.values)) for k in range(len(records))]
        left = [self.sides([record], record_rows)[0] for record, record_rows in zip(records, rows, strict=True)]
        return message.answer(arrays={f"left{k}": side for k, side in enumerate(left)})

    def _open_tree(self, message: Message) -> _OpenTree:
        if self._tree is None or self._tree.number != message.words["tree"]:
            raise ReplyError("this is about a tree that is not being grown here")
        return self._tree
