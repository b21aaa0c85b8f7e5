"""Split columns between real processes on the loopback: TLS, node authentication and the gate on. A minute, so slow."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer

pytest.importorskip("gmpy2")

from examples.loopback import LoopbackConsortium
from fedsmall.errors import PlanError
from fedsmall.extensions.columns.server import outcome_lines, prepare, prepare_prediction
from fedsmall.extensions.columns.simulation import Columns, execute, load_columns, world_of
from fedsmall.sim.consortium import runs

NAMES = ("hospital", "laboratory")
SCENARIO = """
name = "outcome"
task = {columns = {hospital = "hospital.csv", laboratory = "laboratory.csv"}, id = "patient", label = "target"}
boosting = {rounds = 2, least_samples = 5}

[[method]]
name = "SecureBoostPlus"
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.needs("nginx"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The tables of two sites and the scenario; nine in ten patients at each."""
    made = tmp_path_factory.mktemp("c")
    frame = load_breast_cancer(as_frame=True).frame
    frame.insert(0, "patient", [f"p{row:04d}" for row in range(len(frame))])
    columns = list(frame.columns[1:-1])
    for seed, (name, own) in enumerate(zip(NAMES, ([*columns[:10], "target"], columns[10:]), strict=True)):
        frame[["patient", *own]].sample(frac=0.9, random_state=seed).to_csv(made / f"{name}.csv", index=False)
    (made / "outcome.toml").write_text(SCENARIO)
    return made


@pytest.fixture(scope="module")
def loopback(folder):
    data = {name: folder / f"{name}.csv" for name in NAMES}
    with LoopbackConsortium(folder, data, "columns = true\nleast_side = 5\n") as running:
        yield running


@pytest.fixture(scope="module")
def scenario(folder) -> Columns:
    return load_columns(folder / "outcome.toml")


@pytest.fixture(scope="module")
def outcome(loopback, scenario) -> dict:
    prepare(loopback.folder, "outcome", scenario)
    return loopback.finish("outcome", runs.launch(loopback.folder, "outcome", lambda _: None))


def test_real_sites_grow_the_forest_of_a_simulation(outcome, scenario):
    [done] = execute(world_of(scenario))

    ids = [set(pandas.read_csv(file)["patient"]) for file in scenario.task.columns.values()]
    assert outcome["common"] == len(ids[0] & ids[1])
    assert outcome["splits"] == done.splits
    for name, value in done.metrics.items():
        np.testing.assert_allclose(outcome["worth"][name], value, atol=1e-9)
    assert outcome["common"] > 400
    assert f"{outcome['common']} patients are at all sites" in outcome_lines(Path(), outcome)[0]


def test_each_site_keeps_its_own_part_and_the_server_has_none(outcome, loopback):
    parts = {name: json.loads(next(loopback.kit(name).home.rglob("columns.json")).read_text()) for name in NAMES}

    assert set(parts["laboratory"]) == {"columns", "records"}
    assert len(parts["laboratory"]["records"]) == outcome["splits"]["laboratory"] > 0
    told = "".join(path.read_text() for path in loopback.home("outcome").glob("*.json*"))
    assert "mean radius" not in told
    assert "p0001" not in told
    assert not any(str(cut) in told for _, cut in parts["laboratory"]["records"])


def test_a_finished_run_is_listed_and_its_name_is_taken(outcome, loopback, scenario):
    assert ("outcome", "finished", "round 2 of 2") in runs.states(loopback.folder)
    with pytest.raises(PlanError, match="There is a run 'outcome' already"):
        prepare(loopback.folder, "outcome", scenario)


def test_messages_were_in_envelopes_and_the_run_has_its_page(outcome, loopback):
    page = (loopback.home("outcome") / "report.html").read_text()

    assert outcome["columns"]["sealed"]
    assert "which the server carried and could not open" in page
    assert not (loopback.home("outcome") / "journal").exists()


def test_sites_predict_together_for_their_new_patients(outcome, loopback, folder):
    for name in NAMES:
        new = pandas.read_csv(folder / f"{name}.csv").head(60)
        new.drop(columns=["target"], errors="ignore").to_csv(loopback.kit(name).kit / "new.csv", index=False)
        (loopback.kit(name).kit / "policy.toml").write_text('columns = true\npredict_from = "new.csv"\n')
    home = prepare_prediction(loopback.home("outcome"), "new")

    told = loopback.finish("new", runs.launch(loopback.folder, "new", lambda _: None))

    [said] = [pandas.read_csv(path) for path in loopback.kit("hospital").home.rglob("predictions.csv")]
    assert len(said) == told["common"] > 3
    assert not list(loopback.kit("laboratory").home.rglob("predictions.csv"))
    assert (home / "report.html").exists()


def test_a_site_that_does_not_allow_it_ends_the_run_in_one_line(outcome, loopback, scenario):
    (loopback.kit("laboratory").kit / "policy.toml").write_text("columns = false\n")
    prepare(loopback.folder, "refused", scenario)

    with pytest.raises(RuntimeError, match="laboratory: the policy here takes no part in runs over split columns"):
        loopback.finish("refused", runs.launch(loopback.folder, "refused", lambda _: None))
