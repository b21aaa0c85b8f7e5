"""What a report may praise: nothing that a prediction which looks at no sample does as well."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.sampling import constant_beside
from fedsmall.sim import run
from fedsmall.sim.report.html import page
from fedsmall.sim.report.sentences import _signed, p_of, sentences
from fedsmall.sim.report.tables import table
from tests.sim.report.test_tables import GOOD, beside_trivial, made

PLAN = {"methods": ["FedAvg", "FedDC", "Central"], "model": "linear", "rounds": 10, "progress": False}


def patients(seed: int, signal: float, sites: int = 4, each: int = 40) -> dict:
    """Sites with 30% of class 1; the first feature is ``signal`` higher in them."""
    rng = np.random.default_rng(seed)
    made = {}
    for number in range(sites):
        y = np.arange(each) % 10 < 3
        x = rng.normal(size=(each, 5))
        x[:, 0] += signal * y
        made[f"hospital-{number}"] = (x, y.astype(int))
    return made


@pytest.mark.thorough
def test_without_signal_nothing_is_praised_in_19_of_20_data_sets():
    praised = 0
    for seed in range(20):
        result = run(sites=patients(seed, 0.0), seeds=list(range(5)), **PLAN)
        first = sentences(result.run)[0]
        assert result.run.scenario.metric == "auc"
        praised += not first.startswith("No method here is shown to be better than predicting the majority")

    assert praised <= 1


@pytest.mark.thorough
def test_with_signal_the_methods_are_praised():
    result = run(sites=patients(0, 2.5), seeds=list(range(5)), **PLAN)

    first = sentences(result.run)[0]

    assert "No method" not in first
    assert "FedDC is better than that" in first
    assert all(table(result.run).beats_trivial(row) for row in table(result.run).of_methods)


@pytest.mark.thorough
@pytest.mark.parametrize(("each", "says"), [(40, "is better than that"), (12, "cannot be told apart from that")])
def test_models_that_are_perfect_with_every_seed_are_better_than_a_constant_where_patients_are_enough(each, says):
    alike = {name: (y[:, None].astype(float), y) for name, (_, y) in patients(0, 0.0, each=each).items()}
    shown = run(sites=alike, seeds=list(range(5)), metric="auc", **PLAN).run

    lead = next(row.ahead for row in table(shown).of_methods if row.label == "FedDC")
    assert lead.difference.mean == 0.5
    assert f"FedDC {says} (+0.500" in sentences(shown)[0]


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.97])
def test_so_many_patients_are_seldom_all_right_by_chance(share):
    """A constant is right of a ``share`` of patients: all of n are by chance, too, in share**n of runs."""
    run_, decided = beside_trivial(made({**GOOD, "FedDC": [1.0] * 6}), [share] * 6), []
    for n in (1, 2, 3, 4, 6, 8, 12, 17, 24, 34, 48, 68, 96, 136, 192, 272, 384):
        run_.about["test_samples"] = n
        lead = next(row.ahead for row in table(run_).of_methods if row.label == "FedDC")
        decided += [(n, comparisons) for comparisons in (1, 2, 5, 20) if lead.decides(comparisons)]
        assert all(lead.decides(several) == (lead.corrected_p(several) < 0.05) for several in (1, 2, 5, 20))

    assert {comparisons for _, comparisons in decided} == {1, 2, 5, 20}
    assert all(comparisons * share**n < 0.05 for n, comparisons in decided)


def test_a_lucky_test_set_that_all_seeds_share_is_not_praised():
    run_ = beside_trivial(made({**GOOD, "FedDC": [0.80, 0.81, 0.79] * 2}), [0.70] * 6)
    told = np.array([[0.9, 0.1]] * 7 + [[0.1, 0.9]] * 3)  # ten patients, eight of them right
    y = np.array([0] * 6 + [1] + [1, 1, 0])
    label = "FedDC"

    assert table(run_).beats_trivial(next(row for row in table(run_).rows if row.label == label))
    for seed in range(6):
        run_.predictions |= {f"{label}/{seed}/probabilities": told, f"{label}/{seed}/labels": y}
    assert not table(run_).beats_trivial(next(row for row in table(run_).rows if row.label == label))


def of_noise(seed: int, metric: str, redrawn: bool, signal: float = 0.0):
    """A run with six seeds whose models say noise, and ``signal``, of 40 patients: the same ones, or some of 160."""
    rng = np.random.default_rng(seed)
    everybody = (rng.random(160) < 0.4).astype(int)
    shared, told = rng.normal(size=160) + signal * everybody, []
    for _ in range(6):
        who = rng.permutation(160)[:40] if redrawn else np.arange(40)
        p = expit(shared[who] + 0.7 * rng.normal(size=40) - signal / 2)
        told.append({"probabilities": np.stack([1 - p, p], axis=1), "labels": everybody[who]})
    always = [constant_beside(arrays) for arrays in told]
    worth, least = ([float(_worth([metric], arrays)[metric]) for arrays in kept] for kept in (told, always))
    run_ = beside_trivial(made({**GOOD, "FedDC": worth}, metric), least, metric)
    run_.predictions |= {f"FedDC/{k}/{name}": array for k, arrays in enumerate(told) for name, array in arrays.items()}
    return next(row for row in table(run_, metric).rows if row.label == "FedDC"), table(run_, metric)


def _worth(metrics, arrays):
    outputs = np.log(np.maximum(arrays["probabilities"], 1e-12))
    return evaluate(outputs, arrays["labels"], Task("", (), 2, "cross_entropy", tuple(metrics)))


@pytest.mark.thorough
@pytest.mark.parametrize("redrawn", [False, True])
@pytest.mark.parametrize("metric", ["auc", "balanced_accuracy", "average_precision", "loss"])
def test_models_of_noise_are_better_than_a_constant_in_five_of_a_hundred_runs_and_its_interval_says_so(metric, redrawn):
    found = []
    for seed in range(120):
        row, shown = of_noise(seed, metric, redrawn)
        found.append(row.ahead.decides() and shown.is_better(row.ahead))
        assert row.ahead.decides() == (not row.ahead.difference.contains(0.0))

    assert np.mean(found) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)


def test_a_model_that_tells_patients_apart_is_better_than_a_constant():
    for metric in ("auc", "accuracy", "loss"):
        row, shown = of_noise(0, metric, redrawn=True, signal=2.5)

        assert row.ahead.decides(shown.comparisons)
        assert shown.is_better(row.ahead)


@pytest.mark.thorough
def test_equal_classes_are_judged_by_accuracy_and_a_scenario_may_say_otherwise():
    even = {name: (x, np.arange(len(x)) % 2) for name, (x, _) in patients(0, 0.0).items()}

    assert run(sites=even, **PLAN).run.scenario.metric == "accuracy"
    asked = run(sites=even, metric="average_precision", **PLAN)
    assert table(asked.run).metric == "average_precision"
    assert table(asked.run).rows[0].common.mean == pytest.approx(0.5)
    assert "average precision" in page([asked.run], "asked")
    assert run(sites=even, metric="nll", **PLAN).run.scenario.metric == "loss"


def test_a_metric_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(PlanError, match=r"no 'acuracy' for this task.*accuracy"):
        run(sites=patients(0, 0.0), metric="acuracy", **PLAN)
    with pytest.raises(PlanError, match="not judged by 'recall'"):
        run(sites=patients(0, 0.0), **PLAN).table("recall")


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_few_seeds_give_no_verdict_and_say_so_first(seeds):
    values = {label: [value - 0.1 * (label == "rare") for value in each[:seeds]] for label, each in GOOD.items()}
    run_ = beside_trivial(made(values), [0.3] * seeds)

    first = " ".join(sentences(run_))

    assert "too few to say whether any method is better than predicting the majority class" in first
    assert "is better than FedAvg" not in first
    assert all(p_of(table(run_), row.lead) == "" for row in table(run_).rows if row.lead)


def test_words_table_and_p_go_by_one_rule():
    rng = np.random.default_rng(0)
    for _ in range(40):
        often = (np.array(GOOD["FedDC"]) - 0.02 * rng.normal(1, 1, 6)).tolist()
        run_ = made({**GOOD, "often": often})
        shown, lead = table(run_), next(row.lead for row in table(run_).rows if row.label == "often")
        words = sentences(run_)[1]

        significant = float(p_of(shown, lead)) < 0.05
        corrected = lead.difference.corrected(shown.comparisons)

        assert significant == (not corrected.contains(0.0))
        assert significant == ("cannot be told apart from FedAvg with the same traffic" not in words)


def test_traffic_is_the_same_by_bytes_not_by_comm_rounds():
    run_ = made(GOOD)
    for one in run_.done:
        if one.label == "often":
            one.row["bytes_sent"] *= 6

    _, travelling = sentences(run_)

    assert "same traffic" not in travelling


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (-0.5, "-50.0%"),
        (0.25, "+25.0%"),
        (1.5, "x 2.5"),
        (998, "x 999"),
        (999, "x 1,000 or more"),
        (1e12, "x 1,000 or more"),
    ],
)
def test_a_ratio_is_a_percentage_a_multiple_or_too_large_to_be_told(change, said):
    assert _signed(None, SimpleNamespace(scale="change"), change) == said
