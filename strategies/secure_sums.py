"""Secure sums: masked by the sites, opened by helpers; the server sees no single summand.

The summands are on the disk before any helper is asked: a helper opens one sum of a round, of one set of sites, so a
restarted server must ask for the same set though other sites may answer then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.aggregation.sums import LEAST
from fedsmall.errors import PlanError, ReplyError
from fedsmall.exact import WORDS, from_words
from fedsmall.files import write
from fedsmall.sealing.masks import unmasked
from fedsmall.sealing.terms import GROUP, HELP, LETTER, MASKED, NUMBERS, OF, READDRESS, SEEDS, SUM, TALLY, WRITTEN
from fedsmall.sealing.waybills import Waybills
from fedsmall.strategies.checks import read_array
from fedsmall.strategies.records import size_in_bytes, to_arrays, to_record
from fedsmall.strategies.roster import Roster, ask, records_of
from fedsmall.wire import ANSWER_BYTES, CONFIG, METRICS, MODEL, Arrays, join, parts

FILE = "summands.safetensors"  # in a run's folder
OWN_NUMBERS, TOLD = "", "*"  # beside letters by helper, in the file


class Summand(NamedTuple):
    """A site's part of a sum: ``masked`` numbers, ``letters`` to the helpers by name, and its counts."""

    masked: np.ndarray
    letters: Arrays
    examples: float
    steps: float


class Pending:
    """The summands of one round, by group, in ``folder``; nowhere where that is None."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / FILE

    def settle_summands(self, t: int, group: int | str, received: dict[str, Summand]) -> dict[str, Summand]:
        """The summands of a round and group: those written down before, else those ``received``.

        ``group`` is a name for a sum of something else than models. Raises PlanError where the file is damaged: other
        sites could be asked for than before.
        """
        if self.path is None:
            return received
        try:
            kept = load(self.path.read_bytes()) if self.path.exists() else {}
        except SafetensorError:
            raise PlanError(f"{FILE} in the run's folder is damaged; put a copy back, or start a new run") from None
        kept = {name: array for name, array in kept.items() if name.startswith(f"{t}.")}
        if before := parts(kept).get(f"{t}.{group}"):
            return _read(before)
        kept |= join(**{f"{t}.{group}": _flat(received)})
        write(self.path, save(kept), flush=True)
        return received


def _flat(summands: dict[str, Summand]) -> Arrays:
    flat: Arrays = {}
    for site, summand in summands.items():
        arrays = {OWN_NUMBERS: summand.masked, TOLD: np.array([summand.examples, summand.steps]), **summand.letters}
        flat |= {f"{site}|{name}": array for name, array in arrays.items()}
    return flat


def _read(flat: Arrays) -> dict[str, Summand]:
    of_sites: dict[str, Arrays] = {}
    for key, array in sorted(flat.items()):
        site, _, name = key.partition("|")
        of_sites.setdefault(site, {})[name] = array
    summands = {}
    for site, of in of_sites.items():
        masked, (examples, steps) = of.pop(OWN_NUMBERS), of.pop(TOLD).tolist()
        summands[site] = Summand(masked, of, examples, steps)
    return summands


@dataclass(frozen=True, eq=False)
class Letter:
    """A letter of site ``by``, written after training for round ``t`` to the site ``to``.

    It holds a ``model`` with what goes along, or, after an aggregation, only that (``beside``).
    """

    by: str
    t: int
    to: str
    model: ArrayRecord | None = None
    beside: ArrayRecord | None = None


class Chain(Protocol):
    """What asking the sites of a sealed run needs."""

    roster: Roster
    ways: Waybills
    pending: Pending

    def words(self, t: int, **more: Any) -> ConfigRecord:
        """The config of a question at round ``t``."""

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Note an event of a site."""


class HelpError(RuntimeError):
    """A sum that cannot be opened, for a helper is silent; resume the run when it is back."""


def ask_helpers(
    chain: Chain, grid: Grid, t: int, group: int, summands: Mapping[str, Summand], of: str = ""
) -> list[np.ndarray]:
    """The stream of each helper of round ``t``, (numbers,) uint64, for the sum of these sites.

    ``of`` names a sum of something else than models. Raises HelpError where a helper is silent: without all, the sum
    stays closed.
    """
    numbers = len(next(iter(summands.values())).masked)
    which = {OF: of, NUMBERS: numbers} if of else {GROUP: group}
    questions = {
        helper: RecordDict(
            {
                CONFIG: chain.words(t, **which, **{ANSWER_BYTES: 8 * numbers}),
                SEEDS: to_record({site: summand.letters[helper] for site, summand in sorted(summands.items())}),
            }
        )
        for helper in chain.ways.helpers(t, of)
    }
    replies, streams = ask(chain.roster, grid, f"{MessageType.QUERY}.{HELP}", questions), []
    for helper in questions:
        reply = replies.get(helper)
        try:
            streams.append(_streams(reply, numbers))
        except ReplyError as error:
            raise HelpError(
                f"the sum of round {t} stays closed, for {helper} does not help: {error}. `fedsmall resume` goes on "
                "when it does"
            ) from None
    return streams


def fetch_readdressed(chain: Chain, grid: Grid, t: int, letters: Mapping[str, Letter]) -> dict[str, ArrayRecord]:
    """These ``letters``, by the site where each lies, sealed anew for it to train for round ``t``; those that came.

    All writers are asked at once; a writer of several letters is asked for one after the other.
    """
    fetched: dict[str, ArrayRecord] = {}
    waiting = sorted(letters.items())
    while waiting:
        now = {letter.by: (site, letter) for site, letter in reversed(waiting)}  # the first of each writer
        waiting = [(site, letter) for site, letter in waiting if now[letter.by][0] != site]
        questions = {by: _anew(chain, t, letter) for by, (_, letter) in now.items()}
        replies = ask(chain.roster, grid, f"{MessageType.QUERY}.{READDRESS}", questions)
        for by, (site, _) in sorted(now.items(), key=lambda item: item[1][0]):
            try:
                fetched[site] = _letter(replies.get(by))
            except ReplyError as error:
                chain.note(t, by, "set aside", f"it did not seal its traveller anew for {site}: {error}")
    return fetched


def _anew(chain: Chain, t: int, letter: Letter) -> RecordDict:
    assert letter.model is not None
    words = {WRITTEN: letter.t, ANSWER_BYTES: size_in_bytes({MODEL: letter.model})}
    return RecordDict({CONFIG: chain.words(t, **words)})


def _letter(reply: Message | None) -> ArrayRecord:
    records = records_of(reply)
    if list(records.get(MODEL, {})) != [LETTER]:
        raise ReplyError("no letter came")
    read_array(LETTER, records[MODEL][LETTER])
    return records[MODEL]


def _streams(reply: Message | None, count: int) -> np.ndarray:
    record = records_of(reply).get(SUM)
    if record is None or list(record) != [SUM]:
        raise ReplyError("expected the sum of streams")
    numbers = read_array(SUM, record[SUM])
    if numbers.dtype != np.uint64 or numbers.shape != (count,):
        raise ReplyError("what it told is not of the sum's length")
    return numbers


class Tally(NamedTuple):
    """The sum of the ``sites``, (numbers,) float64, and what each has said in the clear beside it."""

    values: np.ndarray
    sites: tuple[str, ...]
    said: dict[str, dict[str, Any]]


def open_sum_or_note(
    chain: Chain, grid: Grid, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]
) -> Tally | None:
    """As :func:`open_sum`; None, with an event that says why, where the sum stays closed."""
    try:
        return open_sum(chain, grid, t, of, kind, contents)
    except HelpError as error:
        chain.note(t, "all sites", "not told", f"what sites tell ({of}) stays closed: {error}")
        return None


def open_sum(chain: Chain, grid: Grid, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]) -> Tally:
    """The sum ``of`` all sites' numbers at round ``t``, asked by messages of this ``kind`` with these ``contents``.

    A silent site, or one that sends no summand, is noted and left out. Raises HelpError where fewer than three are
    left, or a helper does not help.
    """
    replies = ask(chain.roster, grid, kind, contents)
    summands: dict[str, Summand] = {}
    for site in sorted(contents):
        try:
            summands[site] = _summand(chain, t, of, replies.get(site))
        except ReplyError as error:
            chain.note(t, site, "set aside", f"what it tells ({of}): {error}")
    summands = _of_one_length(chain, t, of, summands)
    if len(summands) < LEAST:
        raise HelpError(f"{len(summands)} sites tell, and a sum of fewer than {LEAST} is opened by nobody")
    summed = chain.pending.settle_summands(t, of, summands)
    streams = ask_helpers(chain, grid, t, 0, summed, of)
    values = from_words(unmasked([summand.masked for summand in summed.values()], streams, wide=True))
    metrics = {
        site: dict(reply.content.metric_records.get(METRICS, {})) for site, reply in replies.items() if site in summands
    }
    return Tally(values, tuple(summed), metrics)


def _summand(chain: Chain, t: int, of: str, reply: Message | None) -> Summand:
    records = records_of(reply)
    record, seeds = records.get(TALLY), records.get(SEEDS)
    if record is None or list(record) != [MASKED] or seeds is None or set(records) != {TALLY, SEEDS}:
        raise ReplyError("expected one masked summand, and letters")
    masked = read_array(MASKED, record[MASKED])
    if masked.dtype != np.uint64 or masked.ndim != 1 or not len(masked) or len(masked) % WORDS:
        raise ReplyError("its summand is none")
    if sorted(seeds) != chain.ways.helpers(t, of):
        raise ReplyError("its letters are not for the helpers that the plan has drawn")
    for helper, letter in seeds.items():
        if letter.dtype != "uint8":
            raise ReplyError(f"its letter for {helper} is none")
    return Summand(masked, to_arrays(seeds), 0.0, 0.0)


def _of_one_length(chain: Chain, t: int, of: str, summands: dict[str, Summand]) -> dict[str, Summand]:
    """The summands of the usual length; others cannot be added."""
    lengths = [len(summand.masked) for summand in summands.values()]
    usual = max(sorted(set(lengths)), key=lengths.count, default=0)
    for site in [site for site, summand in summands.items() if len(summand.masked) != usual]:
        chain.note(t, site, "set aside", f"what it tells ({of}) is of another length than that of the others")
        del summands[site]
    return summands
