"""Boosted trees as a user has them: every engine, real sites' programs, secure sums, packages, predictions."""

import re
import tomllib
from typing import Any

import numpy as np
import pytest

from fedsmall.extensions.boosting.trainer import OPEN
from fedsmall.package.export import export
from fedsmall.package.predictor import predictor_of
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.planning.validation import among
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build
from tests import ROOT
from tests.sim.engines.harness import assert_equal_bits, federation_of, plan_of
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_stopping import conduct

pytest.importorskip("xgboost")

METHODS = ("FedXGBBagging", "FedXGBCyclic", "FedHistogramXGB")
FEW = {"depth": 2, "least_weight": 0.25, "bins": 8}


def boosted(name: str, **changes: Any) -> Plan:
    parts = {"privacy": changes.pop("privacy")} if "privacy" in changes else {}
    defaults = {"samples_per_site": 20, "rounds": 7, "dtype": "float32", "model_options": {}, "evaluate_every": 3}
    settings = {"boosting": FEW, **parts}
    return plan_of(name, settings, **(defaults | changes))


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_engines_and_real_sites_grow_the_same_trees_to_the_bit(name, tmp_path, monkeypatch):
    plan = among(boosted(name), 5)
    federation = federation_of(plan)

    batched, in_process = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))
    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert (batched.model["feature"] >= 0).sum() > 3
    assert_equal_bits(batched.model, in_process.model)
    assert_equal_bits(batched.model, real.model)
    assert not real.events


def test_a_server_that_is_told_secure_sums_grows_the_same_trees():
    plan, secure = boosted("FedHistogramXGB"), boosted("FedHistogramXGB", privacy=Privacy(secure=True))
    federation = federation_of(plan)

    assert_equal_bits(run_plan(plan, federation, "cohort").model, run_plan(secure, federation, "cohort").model)


def test_bagging_joins_as_many_trees_as_rounds_and_sites_and_cyclic_as_rounds():
    plans = [boosted(name) for name in ("FedXGBBagging", "FedXGBCyclic")]
    federation = federation_of(plans[0])

    models = [run_plan(plan, federation, "cohort").model for plan in plans]

    assert [int((model["feature"][:, 0] >= 0).sum()) for model in models] == [7 * 5, 7]


def test_the_trees_of_one_site_that_goes_round_alone_are_those_of_pooled_data():
    alone = boosted("FedXGBCyclic", sites=1, samples_per_site=100)
    federation = federation_of(alone)

    travelled = run_plan(alone, federation, "cohort").model
    central = run_plan(boosted("CentralXGB", sites=1, samples_per_site=100), federation, "cohort").own["central"]

    assert_equal_bits(travelled, central)


def test_a_run_keeps_packages_that_predict_what_its_table_was_made_of(tmp_path):
    methods = [{"name": name, "boosting": FEW} for name in (*METHODS, "CentralXGB", "StandaloneXGB")]
    table = {"name": "trees", "task": "breast_cancer", "sites": 4, "samples_per_site": 30, "rounds": 7}

    run = execute(build({**table, "method": methods}), tmp_path / "run")

    from sklearn.datasets import load_breast_cancer

    features = load_breast_cancer(as_frame=True).data
    assert not run.failed
    for one in read(tmp_path / "run").done[:-1]:
        model = predictor_of(run.packages_of(one)[:1])
        said = model.predict_proba(features)
        kept = run.predictions_of(one)["probabilities"]
        assert np.isin(kept[:, 1].round(5), said[:, list(model.classes_).index("benign")].round(5)).all()
        assert one.row["common"]["auc"] > 0.9
    alone = run.done[-1].row
    assert alone["common"] is None
    assert alone["sites"]["auc_mean"] > 0.8


def test_leaves_of_a_tree_that_is_added_at_once_by_all_have_a_share_of_the_rate():
    federation = federation_of(boosted("FedXGBBagging", rounds=1))

    full = run_plan(boosted("StandaloneXGB", rounds=1), federation, "cohort", own_models=True)
    shared = run_plan(boosted("FedXGBBagging", rounds=1), federation, "cohort").model

    own = np.concatenate([full.own[site]["weight"] for site in sorted(full.own)])
    np.testing.assert_allclose(shared["weight"], own / 5, rtol=1e-6)


def test_a_run_notes_what_trees_show_of_patients_but_for_sums():
    methods = [{"name": name, "boosting": FEW} for name in METHODS]

    run = execute(build({"name": "trees", "task": "breast_cancer", "sites": 3, "rounds": 3, "method": methods}))

    assert [note.partition(":")[0] for note in run.about["notes"] if OPEN in note] == ["FedXGBBagging, FedXGBCyclic"]


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_a_forest_is_exported_as_one_file_that_says_the_same(form, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    table = {"name": "trees", "task": "breast_cancer", "sites": 3, "samples_per_site": 30, "rounds": 3}
    run = execute(build({**table, "method": [{"name": "FedHistogramXGB", "boosting": FEW}]}))

    export(run.packages_of(run.done[0])[0], tmp_path / "model", form)  # which holds the file against the package

    assert (tmp_path / "model").stat().st_size > 1000


def test_the_scenario_of_the_page_runs():
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "trees.md").read_text(encoding="utf-8"), re.DOTALL)

    run = execute(build(tomllib.loads(block) | {"samples_per_site": 10, "rounds": 4}))

    assert not run.failed
    assert len(run.done) == 4
