"""Sums of all sites of which the server sees no single one: asked of the sites, and opened by helpers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsmall.aggregation.sums import LEAST
from fedsmall.errors import ReplyError
from fedsmall.exact import WORDS, from_words
from fedsmall.sealing.masks import unmasked
from fedsmall.sealing.words import MASKED, SEEDS, TALLY
from fedsmall.strategies.checks import read_array
from fedsmall.strategies.questions import ask, records_of
from fedsmall.strategies.records import to_arrays
from fedsmall.strategies.sealing.asking import HelpError, ask_helpers
from fedsmall.strategies.sealing.form import SealedModels
from fedsmall.strategies.sealing.pending import Summand
from fedsmall.wire import METRICS


class Tally(NamedTuple):
    """What the ``sites`` tell together, (numbers,) float64, and what each has said in the clear beside it."""

    values: np.ndarray
    sites: tuple[str, ...]
    said: dict[str, dict[str, Any]]


def told_or_none(
    chain: SealedModels, grid: Grid, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]
) -> Tally | None:
    """What :func:`opened` gives; None, with an event that says why, where the sum stays closed."""
    try:
        return opened(chain, grid, t, of, kind, contents)
    except HelpError as error:
        chain.note(t, "all sites", "not told", f"what sites tell ({of}) stays closed: {error}")
        return None


def opened(chain: SealedModels, grid: Grid, t: int, of: str, kind: str, contents: Mapping[str, RecordDict]) -> Tally:
    """The sum ``of`` what all sites tell of round ``t``, asked by messages of this ``kind`` with these ``contents``.

    A site that is silent, or tells what is no summand, is noted and left out. Raises HelpError where fewer than three
    are left, or a helper does not help.
    """
    replies = ask(chain.roster, grid, kind, contents)
    came: dict[str, Summand] = {}
    for site in sorted(contents):
        try:
            came[site] = _summand(chain, t, of, replies.get(site))
        except ReplyError as error:
            chain.note(t, site, "set aside", f"what it tells ({of}): {error}")
    came = _of_one_length(chain, t, of, came)
    if len(came) < LEAST:
        raise HelpError(f"{len(came)} sites tell, and a sum of fewer than {LEAST} is opened by nobody")
    summed = chain.pending.settled(t, of, came)
    streams = ask_helpers(chain, grid, t, 0, summed, of)
    values = from_words(unmasked([each.masked for each in summed.values()], streams, wide=True))
    said = {
        site: dict(reply.content.metric_records.get(METRICS, {})) for site, reply in replies.items() if site in came
    }
    return Tally(values, tuple(summed), said)


def _beside(reply: Message) -> dict[str, Any]:
    return dict(reply.content.metric_records.get(METRICS, {}))


def _summand(chain: SealedModels, t: int, of: str, reply: Message | None) -> Summand:
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


def _of_one_length(chain: SealedModels, t: int, of: str, came: dict[str, Summand]) -> dict[str, Summand]:
    """Those whose summands are as long as most are: other lengths cannot be added."""
    lengths = [len(each.masked) for each in came.values()]
    usual = max(sorted(set(lengths)), key=lengths.count, default=0)
    for site in [site for site, each in came.items() if len(each.masked) != usual]:
        chain.note(t, site, "set aside", f"what it tells ({of}) is of another length than that of the others")
        del came[site]
    return came
