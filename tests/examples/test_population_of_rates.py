"""Groups at rates of their own: beside the engine, and who goes on as whom."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from examples import population_of_rates
from examples.population import Population, effects_of_rates, explored, halved
from examples.population_of_rates import (
    GROUPS,
    RATES,
    SETS,
    WAYS,
    Rung,
    dealt,
    gains,
    holds,
    kept,
    main,
    plan_of,
    tables,
)
from examples.travelling_groups import answers
from examples.travelling_groups_sets import MLP
from fedsmall.evaluation.outputs import answer
from fedsmall.evaluation.site_sums import add_sums, metric_sums, metrics_of_sums
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.files import read_json

SMALL = {"task": "breast_cancer", "model": "mlp", "model_options": {"hidden": [4]}, "sites": 20, "samples_per_site": 8}


@pytest.fixture
def small(monkeypatch):
    """One set that takes seconds."""
    monkeypatch.setattr(population_of_rates, "DESIGN", replace(MLP, sets={"small": SMALL}))
    monkeypatch.setattr(population_of_rates, "SETS", ("small",))


def population(comm_rounds: int, routes: int | None, rates: np.ndarray | None = None) -> Population:
    plan = plan_of("small", comm_rounds, 0, routes)
    return Population(plan, build_federation(plan), np.full(GROUPS, 0.3) if rates is None else rates)


@pytest.mark.parametrize("routes", [None, 2, 5])
def test_with_one_rate_for_all_the_groups_are_the_engines(small, routes):
    mine = population(4, routes)

    mine.walk(1)
    mine.walk(3)

    test, task = mine.federation.test, mine.federation.task
    logs = log_softmax(answer(mine.outputs(test.x, np.arange(GROUPS)), task.loss), axis=-1)
    assert np.array_equal(logs, answers(mine.plan, mine.federation))


@pytest.mark.parametrize("routes", [2, 5])
def test_a_group_trains_at_its_own_rate_whatever_the_others_do(small, routes):
    mixed, alone = population(3, routes, dealt(routes)), population(3, routes, np.full(GROUPS, 1.0))

    mixed.walk(3)
    alone.walk(3)

    same = [all((mixed.models[name][k] == alone.models[name][k]).all() for name in mixed.models) for k in range(GROUPS)]
    assert same == (dealt(routes) == 1.0).tolist()


def test_what_a_group_loses_is_told_by_the_sites_of_its_fold(small):
    mine = population(3, 5)
    mine.walk(3)

    losses = mine.losses()

    task, train = mine.federation.task, mine.federation.train
    at_fold = [site for site in range(20) if mine._folds[site] == mine.routes[7]]
    told = [metric_sums(mine.outputs(train[k].x, np.array([7]))[0], train[k].y, task) for k in at_fold]
    assert losses[7] == pytest.approx(metrics_of_sums(add_sums(told), task)["loss"])
    assert mine.sent == 3 * 2 + GROUPS / 5


def test_no_model_goes_to_another_route(small):
    with pytest.raises(ValueError, match="has trained at the sites that are to judge it"):
        population(3, 5).go_on(np.roll(np.arange(GROUPS), 1), np.full(GROUPS, 0.3))


def test_a_model_that_is_not_finite_starts_again(small):
    mine = population(3, 2)
    first = {name: tensor.clone() for name, tensor in mine.models.items()}
    mine.walk(1)
    mine.models["0.weight"][3] = float("nan")

    mine.go_on(np.arange(GROUPS), mine.rates)

    assert (mine.models["0.weight"][3] == first["0.weight"][3]).all()
    assert (mine.models["2.weight"][3] == first["2.weight"][3]).all()
    assert (mine.models["0.weight"][4] != first["0.weight"][4]).any()


@pytest.mark.parametrize("routes", [2, 5])
def test_rates_are_dealt_evenly_and_no_two_alike_on_a_route(routes):
    rates, of = dealt(routes), np.arange(GROUPS) % routes

    assert all((rates == rate).sum() == 2 for rate in RATES)
    assert all(len(set(rates[of == route])) == GROUPS // routes for route in range(routes))


def test_rates_are_told_from_folds_where_their_plain_means_mislead():
    rates, routes = dealt(5), np.arange(GROUPS) % 5
    of_rate = dict(zip(RATES, (0.30, 0.20, 0.10, 0.15, 0.40), strict=True))
    of_fold = np.array([0.0, 0.5, 0.0, 0.0, 0.0])[routes]
    losses = np.array([of_rate[rate] for rate in rates]) + of_fold

    effects = effects_of_rates(losses, rates, routes)

    assert sorted(effects, key=effects.__getitem__) == sorted(of_rate, key=of_rate.__getitem__)
    plain = {rate: losses[rates == rate].mean() for rate in RATES}
    assert sorted(plain, key=plain.__getitem__) != sorted(of_rate, key=of_rate.__getitem__)


@pytest.mark.parametrize("routes_in_all", [2, 5])
def test_losers_take_over_what_their_route_has_least_of(routes_in_all):
    rates, routes = dealt(routes_in_all), np.arange(GROUPS) % routes_in_all
    losses = np.abs(np.log(rates / 0.3)) + 0.01 * np.arange(GROUPS)  # .3 is best, then 0.1 and 1

    sources, now = halved(losses, rates, routes, 3)
    _, last = halved(losses, now, routes, 1)

    assert set(now) == {0.1, 0.3, 1.0}
    assert (routes[sources] == routes).all()
    stays = np.isin(rates, (0.1, 0.3, 1.0))
    assert (sources[stays] == np.flatnonzero(stays)).all()
    assert np.isin(rates[sources[~stays]], now[~stays]).all() == (routes_in_all == 2)
    assert set(last) == {0.3}


def test_a_loser_becomes_the_best_of_its_route_that_has_had_the_rate():
    rates, routes = np.array([1.0, 0.1, 1.0, 1.0, 0.1, 1.0]), np.array([0, 1] * 3)
    losses = np.array([0.3, 0.4, 0.2, 0.1, 0.9, 0.3])

    sources, now = halved(losses, rates, routes, 1)

    assert sources.tolist() == [0, 3, 2, 3, 2, 5]
    assert (now == 1.0).all()


def test_the_worst_of_a_route_explore_from_the_best():
    rates, routes = dealt(2), np.arange(GROUPS) % 2
    losses = np.arange(GROUPS, dtype=float)[::-1]  # on both routes the last two are best

    sources, now = explored(losses, rates, routes, np.random.default_rng(0))

    assert sources.tolist() == [8, 9, 6, 7, 4, 5, 6, 7, 8, 9]
    assert all(ratio in (3.0, pytest.approx(1 / 3)) for ratio in now[:4] / rates[sources[:4]])
    assert (now[4:] == rates[4:]).all()


@pytest.mark.thorough
def test_every_way_and_rival_is_run_and_shown(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(population_of_rates, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(population_of_rates, "DOCS", tmp_path)
    quick = {
        label: way._replace(rungs=tuple(Rung(k + 1, r.kept) for k, r in enumerate(way.rungs)))
        for label, way in WAYS.items()
    }
    for name, value in {"WAYS": quick, "COMM_ROUNDS": 5, "SEEDS": 2, "SHORT": 2, "MIDDLE_COMM_ROUNDS": 5}.items():
        monkeypatch.setattr(population_of_rates, name, value)

    main([])
    first = read_json(tmp_path / "kept.json")
    main(["--show"])

    sent = {cell["label"]: cell["runs"][0]["sent"] for cell in first}
    assert sent == {
        "Halving, 2 routes": 10 + 4 * 5,
        "Halving, 5 routes": 10 + 4 * 2,
        "Population, 2 routes": 10 + 5 * 5,
        "Grid": 5 * (10 + 2),
        "Grid, equal traffic": 5 * (4 + 2),
        "Middle rate": 10,
    }
    assert "| small | Halving, 2 routes | 30 |" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_page_holds_the_tables_of_what_is_kept_and_says_what_they_say():
    cells, page = kept(), (DOCS / "findings.md").read_text()
    found = {key: (one.difference.mean, p <= 0.05) for key, (one, p) in gains(cells).items()}
    halving, exploring = ("Halving, 2 routes", "Halving, 5 routes"), "Population, 2 routes"

    assert all(text in page for text in tables(cells).values())
    assert all(len(cell.runs) == 20 for cell in cells)
    assert not any(holds(cells).values())
    equal = [found[way, "Grid, equal traffic", data] for way in halving for data in SETS]
    assert all(sure and 0.02 <= round(gain, 2) <= 0.10 for gain, sure in equal)
    assert [found["Halving, 2 routes", "Grid", data][1] for data in SETS] == [True, False, False]
    middle = {(way, data): found[way, "Middle rate", data] for way in halving for data in SETS}
    assert [one for one, (gain, sure) in middle.items() if sure and gain > 0] == [(way, "digits") for way in halving]
    assert [one for one, (gain, sure) in middle.items() if sure and gain < 0] == [("Halving, 5 routes", "dermatology")]
    behind = {(r, d) for (w, r, d), (gain, sure) in found.items() if w == exploring and sure and gain < 0}
    assert behind == {(rival, data) for rival in ("Grid", "Middle rate") for data in ("digits", "dermatology")}
    too_high = {
        (cell.label, cell.data): np.mean([run.own["loss"] - run.metrics["nll"] for run in cell.runs])
        for cell in cells
        if cell.label in halving
    }
    assert all(0.03 <= round(too_high["Halving, 2 routes", data], 2) <= 0.05 for data in SETS)
    assert [round(too_high["Halving, 5 routes", data], 1) for data in SETS] == [0.6, 0.0, 0.6]
