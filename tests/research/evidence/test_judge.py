import numpy as np
import pytest

from fedsmall.evaluation.statistics import Interval, holm, paired
from fedsmall.research.evidence.items import Item
from fedsmall.research.evidence.judge import cannot_decide, judge_rows, nothing_learnt
from fedsmall.research.evidence.page import page
from fedsmall.research.evidence.result import EvidenceRow, ItemResult
from fedsmall.research.evidence.verdicts import runs_to_decide

BASE, OTHER = "FedAvg, equal communication", "FedDC"  # published at 80 and 89 in Fig. 4
ITEM = Item(name="item", scenario="feddc_fig4_synthetic.toml", title="t", baseline=BASE, experiment="feddc-fig4")
APART = ITEM.model_copy(update={"apart": "other data"})


def row(label, values, variant="", trivial=False):
    seeds = [str(seed) for seed in range(len(values))]
    return EvidenceRow(variant, label, "common", seeds, list(values), Interval(0, 0, 0, 1), trivial=trivial)


def table(seeds, gain=0.09, noise=0.001, methods=1):
    """A baseline near .80 and methods that gain as much on every seed, but for a little."""
    wobble = noise * np.linspace(-1, 1, seeds) if seeds > 1 else np.zeros(1)
    others = [row(OTHER if k == 0 else f"other {k}", 0.8 + gain + 2 * wobble) for k in range(methods)]
    return [row("the majority class", [0.5] * seeds, trivial=True), row(BASE, 0.8 + wobble), *others]


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_so_few_seeds_cannot_decide_and_the_table_says_so(seeds):
    rows = judge_rows(ITEM, table(seeds))

    assert rows[2].p_value == pytest.approx(2 / 2**seeds)
    assert cannot_decide(rows) == (
        f"{seeds} run{'s' * (seeds > 1)} cannot decide: corrected for the 1 difference of this table, "
        f"no p can be smaller than {2 / 2**seeds:.2g}. 6 runs could reach .05."
    )
    assert cannot_decide(rows) in page([ITEM], {"item": ItemResult("item", "quick", "c", rows=rows, about={})})


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_on_other_data_so_few_seeds_give_no_sign(seeds):
    assert judge_rows(APART, table(seeds))[2].claim == "undecided"


def test_one_seed_has_no_verdict_and_no_claim():
    rows = judge_rows(ITEM, table(1))

    assert [found.verdict for found in rows[1:]] == ["undecided", "undecided"]
    assert rows[2].claim == "undecided"
    assert rows[2].seeds_needed is None


@pytest.mark.parametrize(("seeds", "methods"), [(6, 1), (7, 3), (9, 8)])
def test_enough_seeds_decide_and_nothing_is_said(seeds, methods):
    rows = judge_rows(ITEM, table(seeds, methods=methods))

    assert cannot_decide(rows) == ""
    assert max(found.p_value for found in rows[2:]) <= 0.05
    assert runs_to_decide(methods) == seeds
    assert cannot_decide(judge_rows(ITEM, table(seeds - 1, methods=methods))) != ""


def test_a_table_without_differences_says_nothing():
    assert cannot_decide(judge_rows(ITEM, table(3)[:2])) == ""


def test_p_values_are_corrected_over_all_variants_of_the_table():
    small, large = (
        [row(BASE, [0.7, 0.71, 0.72], variant), row(OTHER, values, variant)]
        for variant, values in (("2", [0.8, 0.82, 0.85]), ("8", [0.71, 0.7, 0.73]))
    )

    rows = judge_rows(ITEM, small + large)

    raw = [paired(method.values, base.values).p_value for base, method in (small, large)]
    assert [rows[1].p_value, rows[3].p_value] == pytest.approx(holm(raw).tolist())
    assert [rows[1].published, rows[3].published] == [None, None]  # a paper's table has no variants


def test_a_claim_rests_on_an_interval_corrected_for_the_differences_of_the_table():
    alone, one_of_many = (judge_rows(ITEM, table(6, noise=0.035, methods=count))[2] for count in (1, 12))

    assert one_of_many.against == alone.against  # what is printed is the row's own interval
    assert alone.against.width < 0.09 < one_of_many.against.corrected(12).width
    assert [alone.claim, one_of_many.claim] == ["agrees", "undecided"]
    assert one_of_many.seeds_needed > 6


def test_a_verdict_rests_on_an_interval_corrected_for_the_verdicts_of_the_table():
    rows = judge_rows(ITEM, table(6, noise=0.023))

    base = rows[1]
    assert abs(base.mean.low - 0.8) < 0.02 < abs(base.mean.corrected(2).low - 0.8)
    assert base.verdict == "undecided"
    assert judge_rows(ITEM, table(6, noise=0.023)[:2])[1].verdict == "agrees"  # the only one of its table


def test_what_was_said_before_is_made_anew():
    rows = table(6)
    rows[2].claim, rows[2].p_value, rows[2].verdict, rows[2].claimed = "differs", 0.9, "agrees", 5.0
    rows[0].p_value = 0.01

    judge_rows(ITEM.model_copy(update={"experiment": ""}), rows)

    assert (rows[2].claim, rows[2].verdict, rows[2].claimed, rows[2].published) == ("", "", None, None)
    assert rows[2].p_value == pytest.approx(2 / 2**6)
    assert rows[0].p_value is None
    assert rows[0].against is not None


def test_rows_of_other_seeds_are_not_compared():
    rows = table(6)
    rows[2].seeds[0] = "another"

    assert judge_rows(ITEM, rows)[2].against is None


@pytest.mark.parametrize(("metric", "values", "learnt"), [("mae", 0.2, False), ("mae", 0.1, True), ("auc", 0.1, False)])
def test_a_table_in_which_nothing_beats_a_guess_says_so(metric, values, learnt):
    item = ITEM.model_copy(update={"metric": metric, "experiment": ""})
    rows = judge_rows(item, [row("always the median", [0.15] * 3, trivial=True), row(BASE, [values] * 3)])

    said = nothing_learnt(item, rows)

    assert (said == "") is learnt
    assert learnt or said.startswith("No method does better here than always the median:")
    assert said in page([item], {"item": ItemResult("item", "quick", "c", rows=rows, about={})})


def test_each_variant_is_held_against_its_own_guess():
    worse, better = (
        [row("guess", [guess], variant, trivial=True), row(BASE, [0.6], variant)]
        for guess, variant in ((0.7, "2"), (0.5, "8"))
    )

    assert nothing_learnt(ITEM, judge_rows(ITEM, worse)) != ""
    assert nothing_learnt(ITEM, judge_rows(ITEM, worse + better)) == ""
    assert nothing_learnt(ITEM, judge_rows(ITEM, [row(BASE, [0.6])])) == ""  # nobody guessed


def test_a_sign_on_other_data_rests_on_an_interval_corrected_for_the_differences_of_the_table():
    alone, one_of_many = (judge_rows(APART, table(6, gain=0.02, noise=0.018, methods=count))[2] for count in (1, 12))

    assert one_of_many.against.low > 0 > one_of_many.against.corrected(12).low
    assert [alone.claim, one_of_many.claim] == ["same sign", "undecided"]
