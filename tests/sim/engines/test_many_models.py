"""The models of very many sites are judged by lot, and a few at a time; no number of those changes."""

import numpy as np
import pytest

from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines import evaluation
from fedsmall.sim.engines.evaluation import by_lot, evaluated
from fedsmall.sim.engines.run import run_plan
from tests.sim.engines.test_no_server import plan_of


def test_of_more_sites_some_are_judged_and_in_every_round_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(plan={"evaluate_every": 4})
    federation = build_federation(plan)
    every = run_plan(plan, federation, "cohort").evaluations
    monkeypatch.setattr(evaluation, "MOST_SITES", 3)
    some = run_plan(plan, federation, "cohort").evaluations

    for all_judged, few in zip(every, some, strict=True):
        assert len(few.sites["names"]) == 3
        assert few.sites["names"] == some[0].sites["names"]
        assert few.common == all_judged.common
        where = [all_judged.sites["names"].index(name) for name in few.sites["names"]]
        for name, values in few.sites["per_site"].items():
            assert values == [all_judged.sites["per_site"][name][k] for k in where]


def test_up_to_so_many_all_are_judged() -> None:
    models = {"w": np.arange(3.0)}

    assert by_lot(0, ("a", "b", "c"), models) == (["a", "b", "c"], models)


def test_a_few_at_a_time_give_the_same_numbers_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = build_federation(plan_of())
    models = {"w": np.random.default_rng(0).normal(size=(150, 30, 2))}

    def predict(some: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        return np.einsum("nf,mfo->mno", x, some["w"])

    once = evaluated(predict, models, federation.test, federation.task)
    monkeypatch.setattr(evaluation, "AT_ONCE", 1)
    often = evaluated(predict, models, federation.test, federation.task)

    assert len(once["accuracy"]) == 150
    assert list(once) == list(often)
    for name, values in once.items():
        assert np.array_equal(values, often[name]), name
