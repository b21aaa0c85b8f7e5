"""What a server asks of sites because it can open nothing: to help with a sum, and to seal a traveller anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.sealing.waybills import Waybills
from fedsmall.sealing.words import GROUP, HELP, LETTER, NUMBERS, OF, READDRESS, SEEDS, SUM, WRITTEN
from fedsmall.strategies.checks import read_array
from fedsmall.strategies.questions import ask, records_of
from fedsmall.strategies.records import size_in_bytes, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.sealing.pending import Summand
from fedsmall.wire import ANSWER_BYTES, CONFIG, MODEL


@dataclass(frozen=True, eq=False)
class Letter:
    """What site ``by`` wrote when it had trained for round ``t``, to the site ``to``: a ``model`` with what goes along,
    or, after an aggregation, what goes along alone (``beside``).
    """

    by: str
    t: int
    to: str
    model: ArrayRecord | None = None
    beside: ArrayRecord | None = None


class Chain(Protocol):
    """What is to be known of a sealed chain in order to ask in its name."""

    roster: Roster
    ways: Waybills

    def words(self, t: int, **more: Any) -> ConfigRecord:
        """The config of a question in the course of round ``t``."""

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Write down what became of a site."""


class HelpError(RuntimeError):
    """A sum that cannot be opened, for a helper is silent; the run can be resumed when it is back."""


def ask_helpers(
    chain: Chain, grid: Grid, t: int, group: int, summands: Mapping[str, Summand], of: str = ""
) -> list[np.ndarray]:
    """What each helper of round ``t`` tells, (numbers,) uint64 each, for the sum of these sites of a group.

    The sum is ``of`` something else than models where that is not empty. Raises HelpError where one of them does not
    tell: without all, the sum stays closed.
    """
    numbers = len(next(iter(summands.values())).masked)
    which = {OF: of, NUMBERS: numbers} if of else {GROUP: group}
    questions = {
        helper: RecordDict(
            {
                CONFIG: chain.words(t, **which, **{ANSWER_BYTES: 8 * numbers}),
                SEEDS: to_record({site: each.letters[helper] for site, each in sorted(summands.items())}),
            }
        )
        for helper in chain.ways.helpers(t, of)
    }
    replies, told = ask(chain.roster, grid, f"{MessageType.QUERY}.{HELP}", questions), []
    for helper in questions:
        reply = replies.get(helper)
        try:
            told.append(_streams(reply, numbers))
        except ReplyError as error:
            raise HelpError(
                f"the sum of round {t} stays closed, for {helper} does not help: {error}. `fedsmall resume` goes on "
                "when it does"
            ) from None
    return told


def readdressed(chain: Chain, grid: Grid, t: int, letters: Mapping[str, Letter]) -> dict[str, ArrayRecord]:
    """These ``letters``, by the site where each lies, written anew to it to train for round ``t``; those that came.

    All who wrote them are asked at once; who wrote several, one after the other.
    """
    came: dict[str, ArrayRecord] = {}
    waiting = sorted(letters.items())
    while waiting:
        now = {letter.by: (site, letter) for site, letter in reversed(waiting)}  # the first of each writer
        waiting = [(site, letter) for site, letter in waiting if now[letter.by][0] != site]
        questions = {by: _anew(chain, t, letter) for by, (_, letter) in now.items()}
        replies = ask(chain.roster, grid, f"{MessageType.QUERY}.{READDRESS}", questions)
        for by, (site, _) in sorted(now.items(), key=lambda each: each[1][0]):
            try:
                came[site] = _letter(replies.get(by))
            except ReplyError as error:
                chain.note(t, by, "set aside", f"it did not seal its traveller anew for {site}: {error}")
    return came


def _anew(chain: Chain, t: int, letter: Letter) -> RecordDict:
    """The question for a letter to be written anew."""
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
