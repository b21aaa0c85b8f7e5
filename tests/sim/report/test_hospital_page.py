"""A hospital's own page: what left it, what the model is worth on its own patients, its budget; from its disk alone."""

import html
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

from fedsmall.clients import relay
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import read_agreed
from fedsmall.clients.telling import OwnEvaluation, keep_evaluation, own_evaluation
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PolicyError
from fedsmall.extensions.audit.own_site import hold_against
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.app import main
from fedsmall.sim.engines.at_home import AtHome
from fedsmall.sim.report import at_home
from fedsmall.sim.report.hospital import _leaves, own_run, page
from fedsmall.sim.report.html import page as run_page
from fedsmall.sim.runs.folder import read
from tests.sim.consortium.real_run import NAMES, demo, plan_of, real_run

PRIVATE = (
    'method.0.privacy={level = "patient", clip = 1.0, epsilon = 8.0, lot = 16}',
    'task.ranges=[0, 5000]',
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("h")
    with pytest.MonkeyPatch.context() as patch:
        real_run(made, plan_of(), patch)
    kit = {"consortium": "c", "site": "essen", "address": "x:1", "expires": "2030-01-01"}
    (made / "kit").mkdir()
    (made / "kit" / "site.json").write_text(json.dumps(kit))
    return made


def shown(own):
    return html.unescape(page(own))


def report(capsys, folder, *words):
    with pytest.raises(SystemExit) as ended:
        main(["site", "report", *map(str, words), "--kit", str(folder / "kit"), "--home", str(folder / "essen")])
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


@pytest.mark.thorough
def test_what_left_is_what_the_log_says(folder):
    own = own_run(folder / "essen", Policy(), "essen", "trial")

    log = [entry for entry in SiteLog(folder / "essen", "essen").entries() if entry["event"] == "sent"]
    text = shown(own)
    assert own.size == sum(entry["bytes"] for entry in log)
    assert sum(each.messages for each in own.kinds) == len(log) == 8
    assert {each.kind for each in own.kinds} == {"roll", "scaling", "train", "evaluate"}
    assert f"{len(log)} messages left this hospital" in text
    assert all(entry["sha256"][:16] in text for entry in log if entry["bytes"])


@pytest.mark.thorough
def test_what_the_model_is_worth_here_is_scikit_learns(folder):
    evaluation = own_evaluation(run_folder(folder / "essen" / "runs", "trial"))

    text = shown(own_run(folder / "essen", Policy(), "essen", "trial"))

    (tn, fp), (fn, tp) = confusion_matrix(evaluation.y, evaluation.predictions.argmax(axis=1))
    assert f"<tr><td>benign</td><td>{tn}</td><td>{fp}</td><td>{tn + fp}</td></tr>" in text
    assert f"<tr><td>malignant</td><td>{fn}</td><td>{tp}</td><td>{fn + tp}</td></tr>" in text
    assert f"<td>{roc_auc_score(evaluation.y, evaluation.predictions[:, 1]):.3f}<br>" in text
    assert "calibration" in text


def test_whose_the_held_out_samples_are_is_kept_beside_the_answers(tmp_path):
    whose = {"a": np.array([5, 5, 7, 8]), "b": np.arange(4), "c": None}
    for name, patients in whose.items():
        samples = Samples(np.zeros((4, 1)), np.array([0, 0, 1, 1]), patients)
        home = SiteData("essen", Task("t", (1,), 2), samples, samples)
        keep_evaluation(tmp_path / name, 3, np.zeros((4, 2)), SimpleNamespace(held_out=samples), home)

    kept = {name: own_evaluation(tmp_path / name) for name in whose}
    assert kept["a"].beside["patients"].tolist() == [5, 5, 7, 8]
    assert kept["b"].beside == kept["c"].beside == {}
    assert kept["a"].y.tolist() == kept["b"].y.tolist() == [0, 0, 1, 1]


def test_it_says_what_was_agreed_and_the_logs_head(folder):
    own = own_run(folder / "essen", Policy(), "essen", "trial")

    text = shown(own)

    found = read_agreed(run_folder(folder / "essen" / "runs", "trial"))
    assert found.plan == plan_of()
    assert found.sites == NAMES
    assert "FedDC over 4 rounds, seed 0, with 3 hospitals: bonn, essen, ulm" in text
    assert f"<pre>{own.check.head}</pre>" in text
    assert "Nothing was changed, cut off or replaced" in text
    assert "No run here was under a ledger" in text


def test_nothing_leaves_for_it_and_no_other_hospital_is_on_it(folder):
    before = (folder / "essen" / "log.jsonl").read_bytes()

    text = shown(own_run(folder / "essen", Policy(), "essen", "trial"))

    assert (folder / "essen" / "log.jsonl").read_bytes() == before
    assert "trial" in text
    assert str(folder) not in text


@pytest.mark.thorough
def test_the_command_writes_one_page_and_never_over_another(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code, told, _ = report(capsys, folder, "trial")

    assert code == 0
    assert told.startswith("trial-at-essen.html: 8 messages left essen in trial")
    assert (tmp_path / "trial-at-essen.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "trial-at-essen.html").stat().st_mode & 0o777 == 0o600  # it has a point for every patient
    code, _, error = report(capsys, folder, "trial")
    assert (code, "is there already" in error) == (2, True)


def test_a_run_that_the_site_was_not_in_is_one_line(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code, _, error = report(capsys, folder, "tria")

    assert (code, error) == (2, "fedsmall: this site was in no run 'tria'. Did you mean 'trial'?\n")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_over_has_no_figures(folder, tmp_path, monkeypatch):
    log = SiteLog(tmp_path, "essen")
    log.write("refused", run="half", kind="roll", reason="too many rounds")

    text = shown(own_run(tmp_path, Policy(), "essen", "half"))

    assert "0 messages left this hospital" in text
    assert "too many rounds" in text
    assert "No model of this run was judged here" in text
    assert "The plan is not on this disk" in text


def test_a_log_that_was_changed_is_said_first(folder, tmp_path):
    (tmp_path / "log.jsonl").write_text((folder / "essen" / "log.jsonl").read_text().replace('"t":1,', '"t":3,'))
    (tmp_path / "log.state.json").write_bytes((folder / "essen" / "log.state.json").read_bytes())

    text = shown(own_run(tmp_path, Policy(), "essen", "trial"))

    assert "Its log does not hold: line" in text
    assert "Nothing was changed" not in text


@pytest.mark.thorough
def test_the_budget_of_patients_is_told_at_home_and_counted_in_steps_elsewhere(tmp_path, monkeypatch):
    home = real_run(tmp_path, plan_of(*PRIVATE), monkeypatch, policy="most_epsilon = 9.0\n")

    own = own_run(tmp_path / "essen", Policy(most_epsilon=9.0), "essen", "trial")
    run = read(home)
    text = html.unescape(run_page([run], "t"))

    charged = run.done[0].row["real"]["sites"]["essen"]["charged"]
    assert charged == {"steps": 4.0, "most": 9.0}  # no epsilon: it would tell how many patients there are
    assert "4 local steps; its limit is 9" in text
    assert "promises epsilon = 8 at" in text
    assert any(line.startswith("trial: epsilon ") for line in own.budget)
    assert "The policy here allows epsilon 9 to a patient, over all runs." in shown(own)


@pytest.mark.thorough
def test_the_budget_of_a_site_is_told_with_its_epsilon(tmp_path, monkeypatch):
    plan = plan_of("method.0.privacy={clip = 1.0, noise = 2.0}", "task.ranges=[0, 5000]")
    home = real_run(tmp_path, plan, monkeypatch)

    charged = read(home).done[0].row["real"]["sites"]["ulm"]["charged"]

    assert (charged["releases"], charged["delta"]) == (4.0, 1e-5)
    own = own_run(tmp_path / "ulm", Policy(), "ulm", "trial")
    assert f"epsilon {charged['epsilon']:.3g} at delta 1e-05" in shown(own)
    assert f"epsilon {charged['epsilon']:.3g} at delta 1e-05, 4 releases" in html.unescape(run_page([read(home)], "t"))


@pytest.mark.thorough
def test_what_is_sealed_is_opened_by_the_policys_key_and_by_no_other(tmp_path, monkeypatch):
    key = str(tmp_path / "rest.key")
    real_run(tmp_path, plan_of(), monkeypatch, policy=f'rest_key = "{key}"\n')

    own = own_run(tmp_path / "essen", Policy(rest_key=key), "essen", "trial")

    assert "on 48 of our own samples" in shown(own)
    with pytest.raises(PolicyError, match="its policy names no rest_key to open it"):
        own_run(tmp_path / "essen", Policy(), "essen", "trial")


def test_a_regression_has_its_coefficients_for_the_coordinator_and_its_page_at_a_hospital(tmp_path, monkeypatch):
    ridge = 'method=[{name = "Ridge", regression = {penalty = 1.0}}]'
    home = real_run(tmp_path, demo(ridge, "rounds=12").plans()[0], monkeypatch)

    own = own_run(tmp_path / "essen", Policy(), "essen", "trial")

    assert "95% interval" in run_page([read(home)], "trial").partition("Coefficients")[2]
    assert 'name = "Ridge"' in own.settings
    held = hold_against(run_folder(tmp_path / "essen" / RUNS, "trial"), "essen", tmp_path / "data" / "essen.csv")
    assert (held.held_out, 0.2 < held.auc.low < held.auc.high < 0.8) == (len(own.evaluation.y), True)


def test_every_kind_of_message_is_explained():
    assert {kind for kind in relay.KINDS.values() if not _leaves(kind)} == set()


def test_a_hospital_sees_what_it_has_of_joining_by_its_own_data(folder, tmp_path, capsys):
    own, data = own_run(folder / "essen", Policy(), "essen", "trial"), folder / "data" / "essen.csv"
    said, y = own.evaluation.predictions, own.evaluation.y
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "essen.csv").write_bytes(data.read_bytes())
    task = {**own.agreed.plan.task, "csv": str(tmp_path / "data")}
    federation = build_federation(own.agreed.plan.model_copy(update={"task": task, "sites": None}))
    alone = AtHome(federation).alone["essen"]["alone"]
    together = -np.log(said[np.arange(len(y)), y]).mean()

    text = html.unescape(page(own, data))
    ended = report(capsys, folder, "trial", "--data", data, "--out", tmp_path / "page.html")
    wrong = report(capsys, folder, "trial", "--data", folder / "data" / "ulm.csv", "--out", tmp_path / "no.html")

    assert "On the 48 samples that this hospital holds out, a ridge regression" in text
    assert (
        f"has a log loss of {alone:.4g}, and FedDC, trained by all, one of {together:.4g}: {together - alone:+.4g}"
        in text
    )
    assert "Alone or together" not in html.unescape(page(own))
    assert ended[0] == 0
    assert "Nothing was sent for this." in (tmp_path / "page.html").read_text()
    assert wrong[0] == 2
    assert "ulm.csv does not hold the samples that essen held out in this run" in wrong[2]
    assert not (tmp_path / "no.html").exists()


def test_of_two_models_that_are_as_good_joining_seldom_gains_or_costs(monkeypatch):
    rng, told, samples, truth = np.random.default_rng(0), [], 30, np.random.default_rng(1)
    for _ in range(400):
        y = truth.integers(0, 2, samples)
        odds = [rng.normal(2.0 * y - 1, 1.5) for _ in range(2)]  # each sees the truth as well as the other
        shares = [np.stack([1 / (1 + np.exp(of)), 1 / (1 + np.exp(-of))], axis=1) for of in odds]
        task = Task("t", (2,), 2, "cross_entropy")
        held = Samples(np.zeros((samples, 2)), y)
        federation = SimpleNamespace(task=task, held_out=(held,), train=(held,))
        monkeypatch.setattr(at_home, "federation_at", lambda *_, made=federation: made)
        monkeypatch.setattr(at_home, "fit_alone", lambda *_, made=shares[0]: np.log(made))
        evaluation = OwnEvaluation(1, shares[1], y, {})
        told.append(at_home.sentence_at_site(plan_of(), "essen", evaluation, Path("x")))

    verdicts = sum("cannot be told apart" not in sentence for sentence in told)
    assert 0.01 < verdicts / len(told) < 0.09
