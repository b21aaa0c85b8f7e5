"""Routes as cross-validation, on every engine: nothing of a fold is in the models that judge it, and all agree."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.data.federation import Federation
from fedsmall.models.registry import initial_model
from fedsmall.parts import EarlyStop, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, SITES
from fedsmall.sim.engines.evaluation import CentralEvaluator
from fedsmall.sim.engines.inprocess import InProcessGrid, LocalGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import agree_on_task
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.judging import Judging
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.strategies.server.site_judges import SiteJudges, evaluator_for
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import folds_of
from fedsmall.wire import PLAN
from tests.sim.engines.harness import ByMessages, OftenSilent, assert_alike, assert_equal_bits, federation_of
from tests.sim.engines.plans import BY_ROUTES as CASES
from tests.sim.engines.plans import NOW_AND_THEN, ROUTES, routes_of
from tests.sim.engines.stations import Stations


def evaluated(plan: Plan, engine: str, federation: Federation | None = None) -> Any:
    return run_plan(plan, federation or federation_of(plan), engine)


def assert_equal_bits_but_rounding(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=0, atol=1e-10)


def flat(tree: Any, key: str = "") -> dict[str, float]:
    if isinstance(tree, dict):
        return {name: value for k, each in tree.items() for name, value in flat(each, f"{key}/{k}").items()}
    return {} if tree is None else {key: float(tree)}


# Nothing of a fold's labels is in the models of its route: change them, and not a bit of those models changes.


def with_labels_turned(federation: Federation, sites: np.ndarray) -> Federation:
    turned = [replace(own, y=1 - own.y) if number in sites else own for number, own in enumerate(federation.train)]
    return replace(federation, train=tuple(turned))


def models_of_routes(plan: Plan, federation: Federation, loop: Callable[..., ByMessages] | None = None) -> list[Any]:
    """What is judged of each route at the end."""
    last: list[Any] = []

    def keep(result: Any) -> None:
        last[:] = result.of_routes() or last

    if loop is not None:
        loop(plan, federation, keep)
    else:
        from fedsmall.strategies.server.run_loop import run_rounds

        trainer = cohort_for(plan, federation.task, federation.names, federation.train)
        run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site), evaluator=keep)
    return last


def in_process(plan: Plan, federation: Federation, see: Any) -> Outcome:
    return loop_on(plan, federation, InProcessGrid(app, len(federation.names)), see).run()


def often_silent(plan: Plan, federation: Federation, see: Any) -> Outcome:
    return loop_on(plan, federation, OftenSilent(app, len(federation.names)), see).run()


def killed_at_every_comm_round(plan: Plan, federation: Federation, see: Any, folder: Path) -> None:
    for _ in range(20):
        grid = InProcessGrid(app, len(federation.names))
        if not loop_on(plan, federation, grid, see, journal=FileJournal(folder), stop=lambda: True).run().stopped:
            return


def loop_on(plan: Plan, federation: Federation, grid: LocalGrid, evaluator: Any, **more: Any) -> ByMessages:
    give_federation(plan, federation)
    initial = lambda site: initial_model(plan, federation.task, site)  # noqa: E731
    return ByMessages(plan, grid, initial, evaluator, **more)


def leaks(plan: Plan, loop: Any = None) -> set[tuple[int, int]]:
    """(route, fold): the route's models depend on the labels of the fold's sites."""
    federation = federation_of(plan)
    folds = folds_of(plan, [len(samples) for samples in federation.train])
    whole, found = models_of_routes(plan, federation, loop), set()
    for fold in range(len(whole)):
        turned = models_of_routes(plan, with_labels_turned(federation, np.flatnonzero(folds == fold)), loop)
        for route, (one, other) in enumerate(zip(whole, turned, strict=True)):
            if any(array.tobytes() != other[name].tobytes() for name, array in one.items()):
                found.add((route, fold))
    return found


def all_but_own(routes: int) -> set[tuple[int, int]]:
    return {(route, fold) for route in range(routes) for fold in range(routes) if route != fold}


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("patience", "few models")])
def test_a_route_knows_all_folds_but_its_own(case: str) -> None:
    plan = CASES[case].model_copy(update={"rounds": 12, "evaluate_every": None})

    assert leaks(plan) == all_but_own(plan.method.validation.routes)


@pytest.mark.thorough
@pytest.mark.parametrize("loop", [in_process, often_silent])
def test_nor_does_it_where_sites_are_silent(loop: Any) -> None:
    for case in ("averages now and then", "some of the sites"):
        assert leaks(CASES[case].model_copy(update={"rounds": 12}), loop) == all_but_own(3)


@pytest.mark.thorough
def test_nor_where_a_run_is_killed_and_goes_on_from_its_journal(tmp_path) -> None:
    plan, runs = CASES["averages now and then"], iter(range(99))

    def loop(*given: Any) -> None:
        killed_at_every_comm_round(*given, tmp_path / str(next(runs)))

    assert leaks(plan, loop) == all_but_own(3)


def test_a_route_that_trained_at_its_fold_would_be_found(monkeypatch) -> None:
    monkeypatch.setattr("fedsmall.travel.journey.folds_of", lambda plan, sizes: None)  # all models go everywhere

    assert {(route, route) for route in range(3)} <= leaks(CASES["averages at every communication round"])


# What comes of it.


def test_what_is_expected_is_scikit_learns_on_the_pooled_out_of_fold_predictions() -> None:
    plan = routes_of("TravellingGroups", {"groups": 6, **ROUTES}, samples_per_site=12)
    federation = federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    folds = folds_of(plan, trainer.samples)
    shares, y = [], []
    for route, members in enumerate(models_of_routes(plan, federation)):
        for site in np.flatnonzero(folds == route):
            samples = federation.train[site]
            each = [
                trainer.predict_at(site, {name: array[k] for name, array in members.items()}, samples.x, {})
                for k in range(2)
            ]
            shares.append(softmax(np.stack(each), axis=2).mean(axis=0))
            y.append(samples.y)
    p, y = np.concatenate(shares), np.concatenate(y)

    found = evaluated(plan, "cohort").evaluations[-1].validation

    values = {name: metric["value"] for name, metric in found["metrics"].items()}
    assert values["loss"] == pytest.approx(log_loss(y, p), rel=1e-9)
    assert values["brier"] == pytest.approx(brier_score_loss(y, p[:, 1]), rel=1e-9)
    assert values["accuracy"] == accuracy_score(y, p.argmax(axis=1))
    assert abs(values["auc"] - roc_auc_score(y, p[:, 1])) <= found["auc_error"]
    assert set(found["hospitals"]) == set(federation.names)


def test_federated_averaging_with_routes_is_groups_of_as_many() -> None:
    one = evaluated(routes_of(), "cohort")
    other = evaluated(routes_of("TravellingGroups", {"groups": 3, **ROUTES}), "cohort")

    assert_equal_bits(one.model, other.model)
    assert len(next(iter(one.model.values()))) == 3


def test_sites_of_too_few_samples_tell_nothing_of_them() -> None:
    plan = routes_of(settings={"aggregate_every": 1, "validate": {"routes": 3, "floor": 9}})

    assert [evaluated(plan, engine).evaluations[-1].validation for engine in ("cohort", "inprocess")] == [{}, {}]


@pytest.mark.thorough
def test_a_run_that_is_resumed_expects_the_same(tmp_path) -> None:
    plan = routes_of(
        "FedDC", NOW_AND_THEN, rounds=30, evaluate_every=3, recipe=Recipe(lr=2.0), stop=EarlyStop(patience=2),
    )  # fmt: skip
    federation = federation_of(plan)

    def loop(**more: Any) -> ByMessages:
        grid = InProcessGrid(app, len(federation.names))
        made = loop_on(plan, federation, grid, None, **more)
        trainer = cohort_for(plan, federation.task, federation.names, federation.train)
        judges = SiteJudges(made.roster, grid, plan, federation.task)
        on_test = CentralEvaluator(plan, federation, trainer)
        made.evaluator = Judging(plan, federation.task, judges, made.roster.counts, on_test)
        return made

    whole = loop().run()
    for _ in range(20):
        part = loop(journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_alike(whole, part, atol=0)
    assert_equal_bits(whole.model, part.model)
    assert whole.chosen == part.chosen
    assert [e.validation for e in whole.evaluations] == [e.validation for e in part.evaluations]
    again = loop(journal=FileJournal(tmp_path)).run()  # it has run dry, so it does not go on
    assert (again.rounds, again.chosen) == (part.rounds, part.chosen)
    assert_equal_bits(again.model, part.model)


def test_patience_ends_a_run_that_gets_worse_and_keeps_the_best_model() -> None:
    recipe, stop = Recipe(lr=0.5), EarlyStop(patience=3)
    plan = routes_of(rounds=400, evaluate_every=5, samples_per_site=4, recipe=recipe, stop=stop)
    noisy = federation_of(plan)
    rng = np.random.default_rng(0)
    train = tuple(replace(own, y=np.where(rng.random(len(own)) < 0.25, 1 - own.y, own.y)) for own in noisy.train)
    noisy = replace(noisy, train=train)

    record = run_plan(plan, noisy, "cohort")

    losses = {each.t: each.validation["metrics"]["loss"]["value"] for each in record.evaluations}
    assert record.rounds == record.chosen + 15 < 400
    assert losses[record.chosen] == min(losses.values())
    assert not record.stopped
    fixed = plan.model_copy(update={"rounds": record.chosen, "stop": None})
    assert_equal_bits(record.model, run_plan(fixed, noisy, "cohort").model)


# Real sites.


def conduct(plan: Plan, grid: Stations) -> Outcome:
    roster = Roster()
    task = agree_on_task(roster, grid, plan)
    grid.agree_on_scaling(plan)
    evaluator = evaluator_for(roster, grid, plan, task)
    return ByMessages(
        plan, grid, lambda site: initial_model(plan, task, site), evaluator, in_pieces=False, roster=roster
    ).run()


def real(**changes: Any) -> Plan:
    settings = {**NOW_AND_THEN, "permute_every": 1}
    more = {"task": "digits", "sites": 7, "samples_per_site": 12, "evaluate_every": 3}
    return routes_of("FedDC", settings, **(more | changes))


@pytest.mark.thorough
def test_real_sites_expect_the_bits_of_a_simulation(tmp_path, monkeypatch) -> None:
    plan = real()
    federation = federation_of(plan)
    simulated = run_plan(plan, federation, "inprocess")

    outcome = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert not outcome.events
    assert_equal_bits(outcome.model, simulated.model)
    assert [e.validation for e in outcome.evaluations] == [e.validation for e in simulated.evaluations]
    batched = run_plan(plan, federation, "cohort").evaluations[-1].validation
    assert flat(batched) == pytest.approx(flat(outcome.evaluations[-1].validation), abs=1e-10)
    log = (tmp_path / federation.names[0] / "log.jsonl").read_text().splitlines()
    told = [entry for entry in map(json.loads, log) if entry.get("kind") == "validate"]
    assert [entry["event"] for entry in told] == ["sent"] * 3
    assert "out-of-fold/scores" in told[0]["arrays"]


def test_a_site_whose_policy_forbids_it_says_so_at_the_roll_call(tmp_path, monkeypatch) -> None:
    plan = real()

    grid = Stations(tmp_path, federation_of(plan).names, monkeypatch, "judge = false\n")

    config = {PLAN: plan.model_dump_json(), RUN: "r", SITES: list(grid.names)}
    words, arrays = grid.station("site-001").answer("roll", config, {})

    said = "site-001: the policy here lets no sums over its patients be told (judge); leave validate out"
    assert (words, arrays) == ({"error": said}, {})


@pytest.mark.thorough
def test_real_sites_below_the_floor_of_their_policy_tell_nothing(tmp_path, monkeypatch) -> None:
    plan = real(rounds=3)
    grid = Stations(tmp_path, federation_of(plan).names, monkeypatch)
    (tmp_path / "policy.toml").write_text(
        "least_samples = 1\ncount_floor = 13\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"
    )

    assert [each.validation for each in conduct(plan, grid).evaluations if each.validation] == []
