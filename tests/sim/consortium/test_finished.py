"""A run over real sites ends in the folder of a simulation; its figures are the sites' own, and theirs alone."""

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.metrics import brier_score_loss, confusion_matrix, roc_auc_score

from fedsmall.audit_log import AuditLog
from fedsmall.clients.runs import run_folder
from fedsmall.clients.telling import own_evaluation
from fedsmall.errors import PlanError
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.app import main
from fedsmall.sim.cli.options import complete_folder
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.html import page
from fedsmall.sim.report.real_sites import real_runs
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import REAL_SITES, read
from fedsmall.sim.runs.merge import merge
from fedsmall.strategies.server import deployment
from tests.sim.consortium.real_run import NAMES, demo, files, plan_of, real_run

SHORT = ("rounds=4", "method.0.permute_every=1", "method.0.aggregate_every=2", "evaluate_every=2")
HELD_OUT = {"bonn": 48, "essen": 48, "ulm": 47}  # a quarter of 190, 190 and 189 rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def home(folder):
    with pytest.MonkeyPatch.context() as patch:
        return real_run(folder, plan_of(), patch)


@pytest.fixture(scope="module")
def played(folder, home):
    """The simulation of the same scenario."""
    data = next(iter(files(folder).values())).parent
    execute(
        demo(*SHORT, "method.0.privacy={blur = 0}", f"task.csv={data}"), folder / "runs" / "trial", engine="inprocess"
    )
    return read(folder / "runs" / "trial")


def fedsmall(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def own(folder, site, run="trial"):
    return own_evaluation(run_folder(folder / site / "runs", run))


@pytest.mark.thorough
def test_the_folder_is_read_as_that_of_a_simulation(home, played):
    real = read(home)

    (one,), (other,) = real.done, played.done
    assert real.about["engine"] == REAL_SITES
    assert real.scenario.about == "A trial."
    assert real.scenario.metric == played.scenario.metric
    assert (one.row["contacts"], one.row["bytes_sent"]) == (other.row["contacts"], other.row["bytes_sent"])
    assert one.row["trivial"]["common"] == pytest.approx(other.row["trivial"]["common"], abs=0.01)
    assert real.about["test_samples"] == played.about["test_samples"] == 143
    told = one.row["common"]
    assert all(told[name] == pytest.approx(other.row["common"][name], abs=1e-6) for name in told if name != "auc")
    assert told["auc"] == pytest.approx(
        other.row["common"]["auc"], abs=one.row["real"]["judged"]["together"]["auc_error"]
    )


@pytest.mark.parametrize("site", NAMES)
def test_the_figures_of_a_hospital_are_scikit_learns_on_its_own_predictions(folder, home, site):
    said, y = own(folder, site).predictions, own(folder, site).y

    judged = read(home).done[0].row["real"]["judged"]["sites"][site]

    called = said.argmax(axis=1)
    assert judged["count"] == len(y) == HELD_OUT[site]
    assert judged["called"] == confusion_matrix(y, called).tolist()
    assert judged["metrics"]["accuracy"] == pytest.approx((called == y).mean())
    assert judged["metrics"]["brier"] == pytest.approx(brier_score_loss(y, said[:, 1]))
    assert judged["metrics"]["auc"] == pytest.approx(roc_auc_score(y, said[:, 1]), abs=judged["auc_error"])


def test_the_page_shows_them_and_says_what_it_cannot_show(home):
    run = read(home)

    text = html.unescape(page([run], "t"))

    (shown,) = real_runs(run)
    for at in shown.homes:
        assert f"<tr><td>{at.site}</td><td>{at.trained}</td><td>{HELD_OUT[at.site]}</td><td>{at.area.value:.3f}" in text
        assert f"{at.errors.sensitivity.hits} of {at.errors.sensitivity.of}" in text
    assert "There is no central test set." in text
    assert "143 samples of 3 hospitals" in text
    assert "What this cannot show" in text
    assert f"fedsmall start {home}/scenario.toml --name ANOTHER" in text
    assert "holds no predictions of classes" not in text


def test_what_came_is_what_the_hospitals_say_that_they_sent(folder, home):
    sites = read(home).done[0].row["real"]["sites"]

    for site in NAMES:
        left = [e for e in AuditLog(folder / site / "log.jsonl").entries() if e["event"] == "sent"]
        assert (sites[site]["answers"], sites[site]["came"]) == (len(left), sum(e["bytes"] for e in left))


def test_the_model_predicts_what_the_simulations_does(folder, home, played, tmp_path, capsys):
    frame = pandas.read_csv(files(folder)["essen"]).drop(columns="diagnosis")
    frame.to_csv(tmp_path / "new.csv", index=False)

    said = []
    for where, name in ((home, "real.csv"), (played.folder, "played.csv")):
        code, _, _ = fedsmall(capsys, "predict", where, tmp_path / "new.csv", "--out", tmp_path / name)
        assert code == 0
        said.append(pandas.read_csv(tmp_path / name))

    real, simulated = said
    assert len(real) == len(frame)
    assert np.abs(real["p_benign"] - simulated["p_benign"]).max() < 1e-6


@pytest.mark.thorough
def test_compare_puts_it_beside_its_simulation(home, played, capsys, tmp_path):
    code, told, _ = fedsmall(capsys, "compare", home, played.folder, "--out", tmp_path / "both")

    (merged,) = merge([read(home), played])
    assert code == 0
    assert [one.label for one in merged.done] == ["FedDC (trial)", "FedDC (trial, real sites)"]
    assert "FedDC (trial, real sites): judged at home on 143 samples" in told
    assert "Over real hospitals: FedDC (trial, real sites)" in (tmp_path / "both" / "report.html").read_text()


def test_two_runs_of_one_name_stay_two(played):
    (merged,) = merge([played, played])

    assert [one.label for one in merged.done] == ["FedDC (trial)", "FedDC (trial 2)"]


def of_seed(home, seed):
    run = read(home)
    plan = run.plans[0].model_copy(update={"seed": seed, "route_seed": seed + 7})
    done = replace(run.done[0], plan=plan, row=run.done[0].row | {"seed": seed})
    return replace(run, plans=[plan], done=[done])


def test_runs_over_real_sites_that_differ_in_their_seeds_are_one_method(home):
    """`start` makes a run of each seed, and says to compare them: that was as many methods of one seed each."""
    (merged,) = merge([of_seed(home, seed) for seed in range(5)])

    assert [(one.label, one.plan.seed) for one in merged.done] == [("FedDC", seed) for seed in range(5)]
    text = html.unescape(page([merged], "t"))
    assert "Over real hospitals: FedDC, seed 3" in text
    assert "5 seeds" in text
    assert "seed is too few" not in text


def test_a_seed_that_ran_twice_over_real_sites_is_two_runs(home):
    (merged,) = merge([of_seed(home, 0), of_seed(home, 1), of_seed(home, 1)])

    assert len({one.label for one in merged.done}) == 3


def test_seeds_over_real_sites_are_told_from_those_of_their_simulation(home, played):
    (merged,) = merge([played, *(of_seed(home, seed) for seed in range(2))])

    assert [one.label for one in merged.done] == ["FedDC (trial)", *["FedDC (consortium demo, real sites)"] * 2]


def test_a_simulation_of_other_patients_is_another_table(folder, home, tmp_path):
    others = {name: path.read_text().splitlines() for name, path in files(tmp_path).items()}
    for name, lines in others.items():
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(lines[:60]) + "\n")
    execute(demo(*SHORT, "method.0.privacy={blur = 0}", f"task.csv={tmp_path / 'data'}"), tmp_path / "o")

    assert len(merge([read(home), read(tmp_path / "o")])) == 2


@pytest.mark.thorough
def test_a_hospital_whose_policy_lets_no_sums_be_told_is_named(tmp_path, monkeypatch):
    home = real_run(tmp_path, plan_of(), monkeypatch, policy="judge = false\n")

    run = read(home)
    (shown,) = real_runs(run)
    text = page([run], "t")
    assert (shown.homes, shown.silent) == ([], list(NAMES))
    assert "no hospital has told sums" in text
    assert run.done[0].row["common"]["accuracy"] > 0  # what a policy does not forbid is told
    assert own(tmp_path, "essen") is not None  # its own page needs nobody's leave


@pytest.mark.thorough
def test_where_nobody_holds_enough_out_there_is_a_page_without_figures(tmp_path, monkeypatch, capsys):
    # without sums no feature is scaled
    home = real_run(tmp_path, plan_of("recipe.lr=0.00001"), monkeypatch, policy="count_floor = 1000\n")

    code, _, _ = fedsmall(capsys, "report", home)

    assert code == 0
    assert "no hospital has told sums" in (home / "report.html").read_text()
    assert read(home).about["test_samples"] == 0
    assert len(own(tmp_path, "essen").y) == 48


def test_a_run_of_an_earlier_release_gets_its_files_when_it_is_opened(home, tmp_path, capsys):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("sheet.json", "log.jsonl", "model.safetensors", "scaling.json"):
        (old / name).write_bytes((home / name).read_bytes())
    told = json.loads((home / "outcome.json").read_text())
    known = ("plan", "evaluations", "comm_rounds", "bytes_sent", "events", "chosen")
    for evaluation in told["evaluations"]:
        del evaluation["told"]
    (old / "outcome.json").write_text(json.dumps({name: told[name] for name in known}))

    code, said, _ = fedsmall(capsys, "report", old)

    assert code == 0
    assert "FedDC" in said
    code, _, error = fedsmall(capsys, "predict", old, home / "scenario.toml")
    assert (code, "holds no model that can be used" in error) == (2, True)


def test_a_run_that_is_not_finished_is_one_line(home, tmp_path, capsys):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "sheet.json").write_bytes((home / "sheet.json").read_bytes())

    for words in (["report"], ["compare"], ["predict"]):
        code, _, error = fedsmall(
            capsys, *words, tmp_path / "half", *([home / "x.csv"] if words == ["predict"] else [])
        )
        assert (code, error.count("\n")) == (2, 1)
        assert "is a run over real sites that is not finished" in error
    with pytest.raises(PlanError, match="not finished"):
        complete_folder(tmp_path / "half")


def test_a_folder_that_cannot_be_written_costs_no_model(tmp_path, capsys):
    def broken(folder: Path, told: deployment.Told) -> None:
        raise RuntimeError("no room\nfor a page")

    log = AuditLog(tmp_path / "log.jsonl")

    deployment._finish_noting_faults(broken, log, tmp_path, {})

    assert [(e["event"], e["reason"]) for e in log.entries()] == [("unwritten", "no room for a page")]
    assert "RuntimeError" in capsys.readouterr().err


def test_rows_that_hospitals_read_otherwise_make_no_package():
    rows = {"form": {"kind": "table", "columns": ["a"], "separator": ","}, "shape": [1]}
    other = rows | {"form": {**rows["form"], "separator": ";"}}
    odd = rows | {"form": {**rows["form"], "columns": ["b"]}}

    def met(*each):
        answers = {f"s{k}": {"num-examples": 9, "rows": json.dumps(one)} for k, one in enumerate(each)}
        return deployment.reported_at_handshake(answers)["rows"]

    assert met(rows, other) == rows  # a file's separator is nobody else's business
    assert met(rows, odd) is None
    assert met(rows, None) is None
    assert deployment.reported_at_handshake({"a": {"rows": "no JSON"}, "b": {"rows": "[1]"}})["rows"] is None


def test_the_bits_are_those_of_the_simulation(folder, home):
    plan = plan_of(f"task.csv={folder / 'data'}")

    record = run_plan(plan, build_federation(plan), "inprocess")

    model = read(home).model_of(read(home).done[0])
    assert all(model[name].tobytes() == array.tobytes() for name, array in record.model.items())
