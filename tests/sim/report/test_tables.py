import re
from dataclasses import replace

import numpy as np
import pytest

from fedsmall.methods import method
from fedsmall.sim.report import figures
from fedsmall.sim.report.facts import leaves_a_site
from fedsmall.sim.report.sentences import amount, sentences
from fedsmall.sim.report.style import LOOKS, SPARE, in_order, looks
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.folder import PlanRun, Run, reference_of
from fedsmall.sim.runs.scenario import build

METHODS = [
    {"name": "Standalone"},
    {"name": "FedAvg", "label": "rare", "aggregate_every": 10},
    {"name": "FedAvg", "label": "often"},
    {"name": "FedDC", "aggregate_every": 10},
    {"name": "Central"},
]


def made(values: dict[str, list[float]], metric: str = "accuracy", methods: list | None = None) -> Run:
    """A run with given results: a value for each seed, of the global model (or of the sites', for Standalone)."""
    seeds = list(range(len(next(iter(values.values())))))
    scenario = build({"name": "made", "task": "digits", "rounds": 20, "seeds": seeds, "method": methods or METHODS})
    plans = scenario.plans()
    comm_rounds = {"rare": 2, "often": 20, "often, 4x epochs": 20, "FedDC": 20}
    done = []
    for index, plan in enumerate(plans):
        label = plan.method.label
        alone = plan.method.family == "standalone"
        value = values[label][plan.seed]
        sites = {f"{metric}_mean": value, f"{metric}_sd": 0.1} if alone else {}
        row = {"common": None if alone else {metric: value}, "sites": sites, "stopped": False, "extra": {}}
        row |= {"contacts": comm_rounds.get(label, 0), "bytes_sent": 1000 * comm_rounds.get(label, 0)}
        evaluation = {"t": 20, "common": row["common"], "sites": sites, "extra": {}}
        done.append(PlanRun(index, plan, row, [evaluation], []))
    return Run(scenario, plans, None, done, {"sites": 4})


GOOD = {
    "Standalone": [0.2, 0.22, 0.21] * 2,
    "rare": [0.6, 0.61, 0.59] * 2,
    "often": [0.90, 0.91, 0.89] * 2,
    "FedDC": [0.905, 0.908, 0.896] * 2,
    "Central": [0.9, 0.9, 0.9] * 2,
}


def test_means_and_intervals_are_over_seeds():
    shown = table(made(GOOD))
    line = next(line for line in shown.rows if line.label == "rare")

    assert line.common.mean == pytest.approx(0.6)
    reach = 2.570582 * np.sqrt(4e-4 / 5) / np.sqrt(6) / (0.6 * 0.4)  # on the scale of the logit
    assert line.common.low == pytest.approx(1 / (1 + np.exp(reach) * 0.4 / 0.6), abs=1e-6)
    assert line.sites is None


def test_common_and_site_models_never_share_a_column():
    shown = table(made(GOOD))
    alone = next(line for line in shown.rows if line.method.family == "standalone")

    assert alone.common is None
    assert alone.lead is None
    assert alone.sites.mean == pytest.approx(0.21)
    assert alone.spread == pytest.approx(0.1)


def test_differences_are_paired_by_seed_not_between_means():
    run = made({**GOOD, "FedDC": [0.5, 0.7, 0.9] * 2, "often": [0.49, 0.69, 0.89] * 2})

    lead = next(line.lead for line in table(run).rows if line.label == "often")

    assert lead.difference.mean == pytest.approx(0.01)
    assert lead.difference.flat


def test_a_run_cut_short_counts_nowhere():
    run = made(GOOD)
    run.done[1] = replace(run.done[1], row={**run.done[1].row, "stopped": True})

    line = next(line for line in table(run).rows if line.label == "rare")

    assert line.runs == 5
    assert line.lead.difference.n == 5
    assert [plan.method.label for plan in run.not_run] == ["rare"]


def test_equal_numbers_are_called_equal():
    _, travelling = sentences(made({**GOOD, "often": GOOD["FedDC"]}))

    assert "it equals FedAvg with the same traffic (b = 1) (identical in all 6 runs)" in travelling


def test_one_seed_claims_nothing():
    _, travelling = sentences(made({label: values[:1] for label, values in GOOD.items()}))

    assert "one run only, no inference possible" in travelling
    assert not re.search(r"better|worse|interval", travelling)


def test_fewer_than_five_seeds_have_no_verdict():
    _, travelling = sentences(made({label: values[:4] for label, values in GOOD.items()}))

    assert "cannot be told apart from FedAvg with the same time between averages (b = 10) (+30" in travelling
    assert "4 seeds are too few for a verdict" in travelling


def test_a_difference_without_spread_is_said_to_have_no_interval():
    often = [value - 0.01 for value in GOOD["FedDC"]]

    _, travelling = sentences(made({**GOOD, "often": often}))

    assert "cannot be told apart from FedAvg with the same traffic (b = 1)" in travelling
    assert "+1.0 points with each of 6 seeds, so there is no interval and no verdict" in travelling


def test_an_interval_that_misses_zero_by_chance_among_many_decides_nothing():
    often = [value - gap for value, gap in zip(GOOD["FedDC"], (0.02, 0.03, 0.01, 0.02, 0.03, 0.012), strict=True)]
    run = made({**GOOD, "often": often})
    lead = next(row.lead for row in table(run).rows if row.label == "often")

    _, travelling = sentences(run)

    assert lead.decides()
    assert not lead.decides(table(run).comparisons)
    assert "cannot be told apart from FedAvg with the same traffic (b = 1)" in travelling
    assert "95% interval for 4 comparisons" in travelling


def beside_trivial(run: Run, values: list[float], metric: str = "accuracy", label: str = "the majority class") -> Run:
    """The run with what the trivial predictor gets with each seed."""
    for place, one in enumerate(run.done):
        trivial = {"label": label, "common": {metric: values[one.plan.seed]}, "sites": {}, "extra": {}}
        run.done[place] = replace(one, row={**one.row, "trivial": trivial})
    return run


@pytest.mark.parametrize("commonest", [0.95, 0.9])
def test_no_method_is_called_good_that_does_not_beat_the_commonest_class(commonest):
    run = beside_trivial(made(GOOD), [commonest + 0.02 * (-1) ** seed for seed in range(6)])

    text = " ".join(sentences(run))

    assert "is better than" not in text
    assert "FedDC is not shown to beat a constant, but is ahead of FedAvg with the same time between averages" in text


def test_a_regression_is_held_against_the_median_where_small_is_good():
    values = {"rare": [0.60, 0.61, 0.63] * 2, "often": [0.3, 0.3, 0.3] * 2, "FedDC": [0.5, 0.51, 0.52] * 2}
    run = beside_trivial(made(values, "mae", METHODS[1:4]), [0.13, 0.15, 0.16] * 2, "mae", "always the median")

    federation, travelling = sentences(run)

    assert "Predicting always the median gives 0.1467; FedDC is worse than that" in federation
    assert "is better than" not in travelling


def test_a_folder_without_a_trivial_predictor_has_no_row_of_it():
    shown = table(made(GOOD))

    assert shown.trivial is None
    assert [row.label for row in shown.rows] == [row.label for row in shown.of_methods] == list(GOOD)


def test_two_in_one_role_go_by_their_names():
    longer = {**METHODS[2], "label": "often, 4x epochs"}
    values = {**GOOD, "often, 4x epochs": [0.95, 0.95, 0.95] * 2}

    _, travelling = sentences(made(values, methods=(*METHODS, longer)))

    assert "same traffic" not in travelling
    assert "cannot be told apart from often (" in travelling
    assert "is worse than often, 4x epochs (" in travelling


def test_the_reference_is_what_the_scenario_says_or_the_chaining_method():
    plain = [method("FedAvg"), method("FedProx"), method("FedDC")]

    assert reference_of(plain) == "FedDC"
    assert reference_of(plain[:2]) == "FedProx"
    assert reference_of([method("Standalone"), method("FedAvg")]) == "FedAvg"
    assert reference_of([method("Standalone")]) is None
    run = made(GOOD)
    run.scenario = run.scenario.model_copy(update={"reference": "rare"})
    assert table(run).reference == "rare"


def test_methods_stand_in_one_order_and_look_the_same_whoever_is_beside_them():
    everyone = [method(name) for name in ("Central", "FedDC", "RepTreeFL", "DaisyChain", "FedAvg", "Standalone")]
    rare = method("FedAvg", aggregate_every=50, label="rare")

    order = [each.label for each in in_order([*everyone, rare])]

    assert order == ["Standalone", "rare", "FedAvg", "DaisyChain", "FedDC", "RepTreeFL", "Central"]
    assert looks(everyone)["FedDC"] == looks([everyone[1]])["FedDC"] == LOOKS["FedDC"]
    assert looks([rare])["rare"] == LOOKS["FedAvg, equal period"]


def test_no_two_methods_of_a_run_look_alike_in_grey():
    everyone = [method(name) for name in ("FedAvg", "FedDC", "SCAFFOLD", "FedNova", "FedDyn", "Krum")]
    twice = [*everyone, method("FedDC", label="other period", aggregate_every=99)]

    drawn = looks(twice)

    assert len({(look.marker, look.dashes) for look in drawn.values()}) == len(twice)
    assert len({(look.marker, look.dashes) for look in [*LOOKS.values()]}) == len(LOOKS)
    assert len(set(SPARE)) == len(SPARE)


@pytest.mark.parametrize(("size", "words"), [(0, "0 B"), (999, "999 B"), (24_448, "24.4 kB"), (3.2e9, "3.2 GB")])
def test_bytes_are_told_as_a_reader_wants_them(size, words):
    assert amount(size) == words


def test_of_pooled_training_alone_the_report_tells_what_it_reaches():
    run = made({"Central": [0.9]}, methods=[{"name": "Central"}])

    assert sentences(run)[0].startswith("Central reaches accuracy 90.0%.")


def test_where_no_model_could_be_judged_the_report_says_so():
    run = made({"Central": [float("nan")]}, methods=[{"name": "Central"}])

    assert sentences(run)[0].startswith("No model could be judged.")


@pytest.mark.thorough
def test_what_leaves_a_site_says_of_what_the_largest_changes_leave_alone(small_run):
    plan = next(plan for plan in small_run.plans if plan.method.family == "federated")
    few = plan.model_copy(update={"method": plan.method.model_copy(update={"label": "few", "wire": "top0.5%"})})

    words = leaves_a_site(replace(small_run, plans=[*small_run.plans, few, few]))

    assert (
        "Under few the 0.5% of a model that have changed most leave a site, with what was left over before, "
        "which hides nobody." in words
    )


def with_sites_alone(run: Run) -> Run:
    """The same results as of sites that have models of their own: nobody has a global one."""
    for place, one in enumerate(run.done):
        sites = one.row["sites"] or {f"{name}_mean": value for name, value in one.row["common"].items()}
        run.done[place] = replace(one, row={**one.row, "common": None, "sites": sites})
    return run


def test_sites_with_models_of_their_own_are_compared_by_these():
    values = {
        "Standalone": [0.6, 0.62, 0.61],
        "rare": [0.5, 0.51, 0.53],
        "often": [0.4, 0.4, 0.4],
        "FedDC": [0.3, 0.31, 0.32],
    }
    run = with_sites_alone(made({label: each * 2 for label, each in values.items()}, "mae", METHODS[:4]))

    shown = table(run)
    federation, travelling = sentences(run)

    assert (shown.whose, shown.models) == ("sites", "local models")
    assert {line.label: round(line.lead.difference.mean, 2) for line in shown.rows if line.lead} == {
        "Standalone": -0.49,
        "rare": -0.4,
        "often": -0.23,
    }
    assert federation.startswith(
        "Models trained at a single site reach mean absolute error 0.61 on average, the local models of FedDC 0.31 "
        "(-49.2%, 95%"
    )
    assert "FedDC is better than FedAvg with the same time between averages" in travelling


def test_the_best_of_errors_is_the_smallest():
    values = {"first": [0.2, 0.2], "second": [0.1, 0.1]}
    run = made(values, "mae", [{"name": "Standalone", "label": label} for label in values])

    assert sentences(run)[0].startswith("The local models of second reach mean absolute error 0.1")


@pytest.mark.parametrize(("metric", "is_percent"), [("accuracy", True), ("auc", False), ("c_index", False)])
def test_a_figure_has_the_unit_of_its_table(metric, is_percent):
    run = made(GOOD, metric)

    axis = figures.overview(run).axes[0].xaxis

    assert axis.get_major_formatter()(0.85, 0).endswith("%") is is_percent
    assert table(run).percent is is_percent
