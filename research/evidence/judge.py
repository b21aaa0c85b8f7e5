"""Intervals, paired differences, corrected tests, verdicts and claims, from the runs' values alone.

One table is one family: the p-values of its differences are corrected together (Holm), and so are the intervals on
which verdicts and claims rest (Bonferroni). The printed intervals are those of one row, at 95%.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.evaluation.statistics import holm, interval, paired
from fedsmall.research.evidence.items import Item, published
from fedsmall.research.evidence.result import EvidenceRow
from fedsmall.research.evidence.verdicts import (
    runs_to_decide,
    seeds_for_width,
    smallest_p,
    verdict,
    verdict_on_difference,
)

MARGIN = 0.02  # two points: what is called agreement with a published accuracy


def judge_rows(item: Item, rows: Sequence[EvidenceRow]) -> list[EvidenceRow]:
    """The rows, with everything that follows from their values made anew in place."""
    bases = {row.variant: row for row in rows if row.label == item.baseline and not row.trivial}
    for row in rows:
        _compare(row, bases.get(row.variant))
        _beside_published(item, row)
    compared = tested(rows)
    for row, corrected in zip(compared, holm([row.p_value or 0.0 for row in compared]), strict=True):
        row.p_value = float(corrected)
    held = [row for row in rows if row.published is not None]
    for row in held:
        _judge(item, row, len(held))
    for row in compared:
        _judge_claim(item, row, bases[row.variant], len(compared))
    return list(rows)


def tested(rows: Iterable[EvidenceRow]) -> list[EvidenceRow]:
    """The rows whose difference from the baseline is tested."""
    return [row for row in rows if row.p_value is not None]


def cannot_decide(rows: Sequence[EvidenceRow]) -> str:
    """One sentence where no p of the table can reach .05, whatever the runs had said; empty where one can."""
    compared = tested(rows)
    runs = max((row.mean.n for row in compared), default=0)
    if not compared or (least := smallest_p(runs, len(compared))) <= 0.05:
        return ""
    of_table = "1 difference" if len(compared) == 1 else f"{len(compared)} differences"
    return (
        f"{runs} run{'s' * (runs != 1)} cannot decide: corrected for the {of_table} of this table, no p can be smaller "
        f"than {least:.2g}. {runs_to_decide(len(compared))} runs could reach .05."
    )


def nothing_learnt(item: Item, rows: Sequence[EvidenceRow]) -> str:
    """One sentence where no method is better on average than a prediction that looks at no sample; else empty."""
    sign = -1 if item.metric in LOWER_IS_BETTER else 1
    guesses = {row.variant: row for row in rows if row.trivial}
    beaten = [sign * (row.mean.mean - guesses[row.variant].mean.mean) > 0 for row in rows if row.variant in guesses]
    if not guesses or any(beaten):
        return ""
    guess = next(iter(guesses.values())).label
    return f"No method does better here than {guess}: none has learnt anything by which methods could be compared."


def alike(row: EvidenceRow, base: EvidenceRow) -> bool:
    """Whether two rows are of the same seeds, so that they can be paired."""
    return row.seeds == base.seeds


def _compare(row: EvidenceRow, base: EvidenceRow | None) -> None:
    row.mean, row.against, row.p_value = interval(row.values), None, None
    if base is None or row is base or not alike(row, base):
        return
    comparison = paired(row.values, base.values)
    row.against = comparison.difference
    row.p_value = None if row.trivial else comparison.p_value


def _beside_published(item: Item, row: EvidenceRow) -> None:
    row.published, row.spread, row.source, row.verdict, row.why = None, None, "", "", ""
    row.claimed, row.claim, row.seeds_needed = None, "", None
    paper = published(item.experiment).get((row.label, item.metric)) if item.experiment and not row.variant else None
    if paper is not None and not row.trivial:
        row.published, row.spread, row.source = paper.value, paper.spread, paper.source


def _judge(item: Item, row: EvidenceRow, verdicts: int) -> None:
    if item.apart:
        row.verdict, row.why = "not comparable", item.apart
        return
    paper = published(item.experiment)[row.label, item.metric]
    word = verdict(row.mean, paper.value, paper.spread, MARGIN, paper.runs, verdicts)
    row.verdict, row.why = word.word, word.why


def _judge_claim(item: Item, row: EvidenceRow, base: EvidenceRow, comparisons: int) -> None:
    """The published difference of two methods, where both are published, beside the measured one."""
    if row.published is None or base.published is None or row.against is None:
        return
    row.claimed = row.published - base.published
    comparison = paired(row.values, base.values)
    if item.apart:  # on other data only the sign of a difference can be asked for
        same = np.sign(row.against.mean) == np.sign(row.claimed)
        row.claim = ("same sign" if same else "opposite sign") if comparison.decides(comparisons) else "undecided"
        return
    row.claim = verdict_on_difference(row.against.corrected(comparisons), row.claimed).word
    spread = float(np.std(np.subtract(row.values, base.values), ddof=1)) if len(row.values) > 1 else 0.0
    if row.claim == "undecided" and spread and row.claimed:
        row.seeds_needed = seeds_for_width(spread, abs(row.claimed), 1 - 0.05 / comparisons)
