"""A first table from real sites' own programs: the numbers of a simulation, in a secure sum, and what is refused."""

import json
from typing import Any

import numpy as np
import pandas
import pytest

from fedsmall.clients.policy import load_policy
from fedsmall.errors import PlanError
from fedsmall.exact import from_words
from fedsmall.extensions.describe.command import (
    conduct,
    describe_federation,
    description_of,
    load,
    outcome_lines,
    prepare,
    write_run,
)
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import keys, members, runs
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.sim.report.hospital import own_run, page
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.heads import Heads
from tests.sim.consortium.desk import NAMES, Desk, Wire

SCENARIO = """
name = "who they are"
partition = {natural = "file"}
task = {csv = "data", label = "ill", classes = ["no", "yes"], categorical = {stage = ["a", "b", "c"]}}
"""
POLICY = "least_sites = 3\ncount_floor = 5\n"


def table(seed: int, n: int = 60) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60 + seed, 9, n).round(2)
    return pandas.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.2, np.nan, age),
            "smokes": (rng.random(n) < 0.4).astype(int),
            "height": rng.normal(170, 9, n).round() if seed else np.full(n, np.nan),  # the first never measured it
            "stage": rng.choice(["a", "b", "c"], n),
            "ill": np.where(age + rng.normal(0, 9, n) > 61, "yes", "no"),
        }
    )


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Desk:
    made = Desk(tmp_path, monkeypatch)
    for seed, name in enumerate(NAMES):
        site = made.site(name)
        public = site.key.with_name("site.key.pub")
        keys.new_identity(site.identity)
        keys.tell_identity(public, site.identity)
        members.add_site(made.folder, name, public, days=90)
        table(seed).to_csv(made.data[name], index=False)
        (site.kit / "policy.toml").write_text(POLICY)
    (tmp_path / "who.toml").write_text(SCENARIO)
    return made


def led(desk: Desk, run: str = "who", *settings: str) -> dict[str, Any]:
    """What a ServerApp does."""
    prepare(desk.folder, run, load(desk.folder.parent / "who.toml", list(settings)))
    return gone_on(desk, run)


def gone_on(desk: Desk, run: str) -> dict[str, Any]:
    act_as_server()
    home = runs.run_home(desk.folder, run)
    sheet = RunSheet.model_validate_json((home / "describe.json").read_text())
    grid = RetryingGrid(Wire(desk), sheet, runs.log_of(home), lambda: desk.now, Heads(desk.folder / "sites", sheet))  # type: ignore[arg-type]
    return conduct(sheet, home, grid)[0]


def test_real_sites_have_the_table_of_a_simulation_and_nobody_sees_one_site(desk, monkeypatch):
    sent = []
    monkeypatch.setattr(desk, "answer", lambda *order: sent.append(Desk.answer(desk, *order)) or sent[-1])

    outcome = led(desk)

    simulated = describe_federation(load(desk.folder.parent / "who.toml", []).plans()[0])
    described = description_of(outcome)
    assert described.table() == simulated.table()
    np.testing.assert_allclose(described.ends, simulated.ends, rtol=1e-12)
    assert not described.by_site
    told = [array for _, arrays in sent for array in arrays.values() if array.dtype == np.uint64 and len(array) > 9000]
    counts = set(np.concatenate([of["count"].ravel() for of in simulated.by_site.values()]).tolist()) - {0.0}
    assert len(told) == len(NAMES)
    assert not counts & set(np.concatenate([from_words(array) for array in told]).tolist())  # they are under masks


def test_the_run_has_a_folder_as_others_have(desk):
    outcome = led(desk)
    home = runs.run_home(desk.folder, "who")

    write_run(home, outcome)
    (home / "outcome.json").write_text(json.dumps(outcome))

    assert "who" in [name for name, _, _ in runs.states(desk.folder)]
    assert "age" in (home / "report.html").read_text()
    assert (home / "table.csv").read_text().startswith("site,column,all,no,yes,missing")
    first, heads, *lines = outcome_lines(home, outcome)
    assert (first, heads.split()[:2]) == ("3 sites have told", ["column", "all"])
    place = heads.index("all")  # one below the other
    assert {line[place - 2 : place] for line in lines[:-1]} == {"  "}
    site = desk.site("bonn")
    own = own_run(site.home, load_policy(site.kit / "policy.toml"), "bonn", "who")
    assert "counts in cells" in page(own)


def test_a_server_that_is_started_again_asks_again_and_has_the_same_table(desk):
    first = led(desk)
    desk.restart()

    assert gone_on(desk, "who") == first


def counts(outcome: dict[str, Any], name: str = "count") -> np.ndarray:
    return np.array(outcome["sums"][name])


def test_a_site_with_one_new_patient_tells_of_those_of_before(desk):
    first = led(desk)
    pandas.concat([table(0), table(99, 1)]).to_csv(desk.data["bonn"], index=False)
    desk.restart()

    again = led(desk, "again")

    for name in ("count", "missing", "cells", "total"):
        np.testing.assert_allclose(counts(again, name), counts(first, name), rtol=1e-12)


@pytest.mark.slow
def test_a_site_with_many_new_patients_tells_of_all(desk):
    first = led(desk)
    pandas.concat([table(0), table(99, 30)]).to_csv(desk.data["bonn"], index=False)
    desk.restart()

    assert counts(led(desk, "more")).sum() > counts(first).sum()


@pytest.mark.slow
def test_another_question_about_one_patient_more_is_answered_of_those_of_before(desk):
    first = led(desk)
    pandas.concat([table(0), table(99, 1)]).to_csv(desk.data["bonn"], index=False)
    desk.restart()

    other = led(desk, "other", 'task.drop=["smokes"]')

    for name in ("count", "missing", "total"):  # of the age, whatever else is asked
        np.testing.assert_allclose(counts(other, name)[:, 0], counts(first, name)[:, 0], rtol=1e-12)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("judge = false\n", "lets no sums over patients be told"),
        ("least_sites = 4\n", "the policy here asks for 4"),
    ],
)
def test_what_a_policy_forbids_is_not_told(desk, policy, reason):
    (desk.site("ulm").kit / "policy.toml").write_text(POLICY.replace("least_sites = 3\n", "") + policy)

    with pytest.raises((PlanError, RuntimeError), match=reason):
        led(desk)


@pytest.mark.parametrize(
    "key",
    [
        'recipe={optimizer="adam", class_weights="balanced", local_epochs=2}',
        "recipe={optimizer_state='stay'}",
        'model="mlp"',
        "model='cnn'",
        "folds=2",
        "evaluate_every=5",
        'metric="auc"',
        'threshold="youden"',
        "recalibrate=true",
        "stop={patience=2, hold_out=0.2}",
        'initial_models="independent"',
        'dtype="float64"',
        "seeds=[3, 4]",
        "rounds=1",
        "sites=2",
        "samples_per_site=5",
    ],
)
def test_how_models_would_be_trained_and_judged_does_not_matter(desk, key):
    prepare(desk.folder, "who", load(desk.folder.parent / "who.toml", [key]))


def test_without_identities_it_is_refused_before_anybody_is_asked(tmp_path, monkeypatch):
    made = Desk(tmp_path, monkeypatch)
    (tmp_path / "who.toml").write_text(SCENARIO)

    with pytest.raises(PlanError, match="has sent no identity"):
        prepare(made.folder, "who", load(tmp_path / "who.toml", []))
