"""A consortium of real processes on the loopback: TLS, node authentication and the gate on. Minutes, so marked slow."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from datetime import datetime
from itertools import pairwise
from ssl import create_default_context

import numpy as np
import pandas
import psutil
import pytest
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, roc_auc_score

from examples import endurance
from examples.loopback import LoopbackConsortium, free_ports
from fedsmall.audit_log import AuditLog, verify
from fedsmall.clients import consent
from fedsmall.clients.runs import run_folder
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.telling import own_evaluation
from fedsmall.data.splits import hold_out
from fedsmall.errors import PlanError
from fedsmall.extensions.describe.command import describe_federation, description_of
from fedsmall.extensions.describe.command import load as load_described
from fedsmall.extensions.regression.model import theta_of
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.sim.cli.app import main
from fedsmall.sim.consortium import (
    admission,
    flower_cli,
    keys,
    log_check,
    members,
    runs,
    sample_data,
    server,
    site,
    supervisor,
)
from fedsmall.sim.consortium.gate import LIMITS
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.html import page
from fedsmall.sim.runs import scenario
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read as read_run
from tests import ROOT
from tests.sim.consortium.test_gate import at_once, invented

NAMES = ("bonn", "essen", "ulm")
PATIENCE = {"round_deadline_s": 300.0, "start_deadline_s": 300.0}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.needs("nginx"),
]


def plan_of(rounds=4, **settings):
    path = ROOT / "sim" / "scenarios" / "consortium_demo.toml"
    words = {
        "rounds": rounds,
        "method.0.permute_every": 1,
        "method.0.aggregate_every": 2,
        "evaluate_every": 4,
        "method.0.privacy": "{blur = 0}",  # so that a simulation gives the same bits
        **settings,
    }
    return scenario.load(path, [f"{key}={value}" for key, value in words.items()]).plans()[0]


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    data = {name: folder / "data" / f"{name}.csv" for name in NAMES}
    sample_data.write(list(data.values()))
    with LoopbackConsortium(
        folder, data, "least_sites = 3\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def finished(loopback):
    loopback.finish("first", loopback.start("first", plan_of(), **PATIENCE))
    return loopback.home("first")


def in_process(loopback, plan):
    return record_in_process(loopback, plan).model


def record_in_process(loopback, plan):
    folder = next(iter(loopback.data.values())).parent
    plan = plan.model_copy(update={"task": {**plan.task, "csv": str(folder)}})
    return run_plan(plan, build_federation(plan), "inprocess")


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_hospitals_write_down_how_much_of_any_record_has_been_told(loopback):
    before = {name: SiteLog(loopback.kit(name).home, name).exposure() for name in NAMES}

    loopback.finish("told", loopback.start("told", plan_of(**{"method.0.privacy": "{exposure = 1.0}"}), **PATIENCE))

    after = {name: SiteLog(loopback.kit(name).home, name).exposure() for name in NAMES}
    assert not any(
        event["kind"] for event in json.loads((loopback.home("told") / "outcome.json").read_text())["events"]
    )
    assert [after[name] - before[name] for name in NAMES] == pytest.approx([1.0] * len(NAMES), rel=1e-6)


def test_three_hospitals_programs_tell_a_first_table_in_a_secure_sum(loopback, tmp_path):
    task = 'task = {csv = "hospital.csv", label = "diagnosis", classes = ["malignant", "benign"]}'
    (tmp_path / "who.toml").write_text(f'name = "who"\npartition = {{natural = "file"}}\n{task}\n')

    with pytest.raises(SystemExit) as ended:
        main(["describe", str(tmp_path / "who.toml"), "--consortium", str(loopback.folder), "--name", "who"])

    folder = next(iter(loopback.data.values())).parent
    alone = load_described(tmp_path / "who.toml", [f'task.csv="{folder}"']).plans()[0]
    told = description_of(json.loads((loopback.home("who") / "outcome.json").read_text()))
    assert not ended.value.code
    for name in ("count", "missing", "total", "squares"):  # quartiles follow each hospital's own floor
        np.testing.assert_allclose(told.sums[name], describe_federation(alone).sums[name], rtol=1e-12)
    assert not told.by_site
    assert (loopback.home("who") / "report.html").is_file()


def test_real_sites_give_the_bits_of_the_engine_in_this_process(loopback, finished):
    model = load_file(finished / "model.safetensors")

    assert same(model, in_process(loopback, plan_of()))
    assert not any(event["kind"] for event in json.loads((finished / "outcome.json").read_text())["events"])


def test_sealed_envelopes_and_secure_sums_between_real_sites_give_the_bits_of_the_engine_in_this_process(loopback):
    plan = plan_of(**{"method.0.privacy.sealed": "true", "method.0.privacy.secure": "true"})
    loopback.finish("sealed", loopback.start("sealed", plan, **PATIENCE))
    home = loopback.home("sealed")
    told = json.loads((home / "outcome.json").read_text())

    drawn = Plan.model_validate(told["plan"])
    assert drawn.route_seed is not None
    assert told["events"] == []
    assert same(load_file(home / "model.safetensors"), in_process(loopback, drawn))


def trained_last(home, name):
    """The round of a site's last answer to an order, as the server has logged it; 0 before the first."""
    lines = AuditLog(home / "log.jsonl").entries() if (home / "log.jsonl").exists() else []
    return max(
        (e["t"] for e in lines if (e["event"], e.get("kind"), e.get("site")) == ("answer", "train", name)), default=0
    )


def stopped_before_the_last_average(home, name, process, last):
    """Whether a site was stopped when it had answered all orders but the last one."""
    while trained_last(home, name) < last:
        os.kill(process, signal.SIGSTOP)
        if trained_last(home, name) == last - 1:
            return True
        os.kill(process, signal.SIGCONT)
        time.sleep(0.02)
    return False


def test_a_decryptor_that_is_killed_in_the_middle_of_a_secure_sum_costs_no_bit(loopback):
    """Killed when its summand is there and another's is not: the two that are left open the sum of all three."""
    plan = plan_of(**{"method.0.privacy.sealed": "true", "method.0.privacy.secure": "true"})
    loopback.start("helper", plan, round_deadline_s=60.0, start_deadline_s=60.0)
    home, essen, ulm = loopback.home("helper"), loopback.kit("essen"), loopback.kit("ulm")
    station = supervisor.pids(ulm.process_folder)["station"]
    try:
        assert stopped_before_the_last_average(home, "ulm", station, 4)
        assert flower_cli.wait_until(lambda: trained_last(home, "essen") == 4, 60)
        for pid in (supervisor.running(essen.process_folder), *supervisor.pids(essen.process_folder).values()):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(station, signal.SIGCONT)
    assert flower_cli.wait_until((home / "outcome.json").exists, 600)
    site.down(essen)
    site.up(essen, loopback.data["essen"], print)

    told = json.loads((home / "outcome.json").read_text())
    assert [(e["site"], e["t"]) for e in told["events"] if "does not help to open a sum" in e["reason"]] == [
        ("essen", 4)
    ]
    assert same(load_file(home / "model.safetensors"), in_process(loopback, Plan.model_validate(told["plan"])))


def test_a_ridge_regression_between_real_sites_is_that_of_pooled_patients_from_secure_sums(loopback):
    ridge = method("Ridge", regression={"penalty": 1.0}, privacy={"secure": True})
    plan = plan_of(rounds=20).model_copy(update={"method": ridge, "evaluate_every": None})
    loopback.finish("ridge", loopback.start("ridge", plan, **PATIENCE))
    home = loopback.home("ridge")
    told, model = json.loads((home / "outcome.json").read_text()), load_file(home / "model.safetensors")

    played = record_in_process(loopback, Plan.model_validate(told["plan"]))
    folder = next(iter(loopback.data.values())).parent
    train = build_federation(plan.model_copy(update={"task": {**plan.task, "csv": str(folder)}})).pooled().train[0]
    pooled = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(train.x.astype(float), train.y)

    assert told["events"] == []
    shown = page([read_run(home)], "t")
    assert "95% interval" in shown.partition("Coefficients")[2]
    assert "no noise; the server is kept from what single sites send." in shown
    page_at_home = str(home / "at-essen.html")
    with pytest.raises(SystemExit) as ended:
        main(["site", "report", "ridge", "--kit", str(loopback.kit("essen").kit), "--out", page_at_home])
    assert ended.value.code == 0
    assert told["rounds"] == played.rounds < 15
    assert same(model, played.model)
    assert np.abs(theta_of(model)[0] - np.r_[pooled.coef_[0], pooled.intercept_]).max() < 1e-7


def test_a_hospital_uses_the_models_of_a_finished_run_without_the_coordinator(
    loopback, finished, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    plan = plan_of()
    folder = next(iter(loopback.data.values())).parent
    here = plan.model_copy(update={"task": {**plan.task, "csv": str(folder)}})
    record = run_plan(here, build_federation(here), "inprocess")
    frame = pandas.read_csv(loopback.data["essen"], dtype=str, keep_default_na=False)
    y = (frame["diagnosis"] == "malignant").to_numpy().astype(int)
    frame.iloc[hold_out(y, 0.25, rng_for(plan.seed, "held-out", "essen"))[1]].drop(columns="diagnosis").to_csv(
        "new.csv"
    )

    for words in (
        ["site", "package", "first", "--kit", str(loopback.kit("essen").kit)],
        ["site", "package", "first", "--own", "--kit", str(loopback.kit("essen").kit)],
        ["predict", "first-common", "new.csv", "--out", "out.csv"],
    ):
        command = [sys.executable, "-m", "fedsmall.sim.cli.app", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr

    said = pandas.read_csv("out.csv")[["p_benign", "p_malignant"]].to_numpy()
    told = record.predictions["probabilities"][record.predictions["sites"] == "essen"]
    assert np.abs(said - told).max() < 1e-6
    assert (tmp_path / "first-own" / "SHA256SUMS").is_file()


def fedsmall(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def test_report_compare_predict_and_the_hospitals_page_work_on_a_run_over_real_sites(
    loopback, finished, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = next(iter(loopback.data.values())).parent
    pandas.read_csv(loopback.data["essen"]).drop(columns="diagnosis").to_csv("new.csv", index=False)
    played = scenario.load(finished / "scenario.toml", [f"task.csv={folder}"])
    execute(played, tmp_path / "first", engine="inprocess")

    for words in (
        ["report", finished],
        ["compare", finished, "first", "--out", "both"],
        ["predict", finished, "new.csv", "--out", "real.csv"],
        ["predict", "first", "new.csv", "--out", "played.csv"],
        ["site", "report", "first", "--kit", loopback.kit("essen").kit],
    ):
        assert fedsmall(*words) == 0

    judged = read_run(finished).done[0].row["real"]["judged"]["sites"]
    for name in NAMES:
        own = own_evaluation(run_folder(loopback.kit(name).home / "runs", "first"))
        called = own.predictions.argmax(axis=1)
        assert judged[name]["called"] == confusion_matrix(own.y, called).tolist()
        assert judged[name]["metrics"]["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(own.y, called))
        assert judged[name]["metrics"]["auc"] == pytest.approx(
            roc_auc_score(own.y, own.predictions[:, 1]), abs=judged[name]["auc_error"]
        )
        assert f"<td>{name}</td>" in (finished / "report.html").read_text()
    assert "FedDC (first, real sites)" in (tmp_path / "both" / "report.html").read_text()
    said = [pandas.read_csv(tmp_path / name)["p_benign"] for name in ("real.csv", "played.csv")]
    assert np.abs(said[0] - said[1]).max() < 1e-6
    page = (tmp_path / "first-at-essen.html").read_text()
    left = [e for e in AuditLog(loopback.kit("essen").home / "log.jsonl").entries() if e.get("run") == "first"]
    assert all(e["sha256"][:16] in page for e in left if e["event"] == "sent" and e["bytes"])
    came = [e for e in AuditLog(finished / "log.jsonl").entries() if e["event"] == "answer" and e["site"] == "essen"]
    assert [e["bytes"] for e in came] == [e["bytes"] for e in left if e["event"] == "sent"]


def test_the_scenario_that_comes_along_runs_under_the_default_policy_with_noise_that_nobody_can_draw_again(loopback):
    policies = {
        loopback.kit(name).kit / "policy.toml": (loopback.kit(name).kit / "policy.toml").read_text() for name in NAMES
    }
    for policy in policies:
        policy.write_text("")
    try:
        blurred = plan_of(**{"method.0.privacy.blur": 1, "method.0.privacy.sealed": True})
        loopback.finish("blurred", loopback.start("blurred", blurred, **PATIENCE))
    finally:
        for policy, before in policies.items():
            policy.write_text(before)

    model = load_file(loopback.home("blurred") / "model.safetensors")
    assert all(np.isfinite(array).all() for array in model.values())
    assert not same(model, in_process(loopback, blurred))
    assert not any(
        event["kind"] for event in json.loads((loopback.home("blurred") / "outcome.json").read_text())["events"]
    )


def test_patients_are_promised_an_epsilon_by_each_site_and_charged_in_its_log(loopback):
    books = [loopback.kit(name).home / "log.jsonl" for name in NAMES]
    policies = {kit: (kit / "policy.toml").read_text() for kit in (loopback.kit(name).kit for name in NAMES)}
    for kit in policies:
        (kit / "policy.toml").write_text("most_epsilon = 8.0\nsealed = false\n")
    private = '{level = "patient", clip = 1.0, epsilon = 8.0, lot = 16}'
    plan = plan_of(**{"method.0.privacy": private, "task.ranges": [0, 1000]})
    try:
        loopback.finish("patients", loopback.start("patients", plan, **PATIENCE))
    finally:
        for kit, before in policies.items():
            (kit / "policy.toml").write_text(before)

    outcome = json.loads((loopback.home("patients") / "outcome.json").read_text())
    assert not any(event["kind"] for event in outcome["events"])
    assert all(
        np.isfinite(array).all() for array in load_file(loopback.home("patients") / "model.safetensors").values()
    )
    for book, name in zip(books, NAMES, strict=True):
        spent = SiteLog(book.parent, name).verify()
        charged = [e for e in AuditLog(book).entries() if e.get("run") == "patients" and "noise" in e]
        assert spent.fault is None
        assert sum(int(e["steps"]) for e in charged) == plan.rounds * plan.recipe.steps
        assert all(float(e["noise"]) > 0 for e in charged)


def test_what_left_the_sites_is_what_the_coordinator_got(loopback, finished):
    came = [e for e in AuditLog(finished / "log.jsonl").entries() if e["event"] == "answer" and e["kind"] == "train"]

    for name in NAMES:
        book = loopback.kit(name).home / "log.jsonl"
        of_run = [e for e in AuditLog(book).entries() if e.get("run") == finished.name]  # a site's log is of all runs
        left = [e for e in of_run if e["event"] == "sent" and e["kind"] == "train"]
        assert SiteLog(book.parent, name).verify().fault is None
        assert [e["sha256"] for e in left] == [e["sha256"] for e in came if e["site"] == name]
    assert verify(finished / "log.jsonl").fault is None


def test_a_run_waits_for_a_yes_and_a_site_log_that_is_cut_is_found_and_stops_the_site(loopback):
    essen, policy = loopback.kit("essen"), loopback.kit("essen").kit / "policy.toml"
    book, before = essen.home / "log.jsonl", policy.read_text()
    policy.write_text(before + "approve = true\n")
    try:
        number = loopback.start("asked", plan_of(), **PATIENCE)
        home = loopback.home("asked")
        assert flower_cli.wait_until(lambda: "essen: waits for the hospital's approval" in runs.waits(home), 120)
        assert not [entry for entry in sent_by(book) if entry["run"] == "asked"]
        consent.decide(essen.home, consent.request_of(essen.home, "asked"), yes=True)
        loopback.finish("asked", number)
    finally:
        policy.write_text(before)
    whole, key = book.read_bytes(), essen.key.with_name("site.key.pub").read_bytes()

    def disagreements():
        return log_check.between("essen", sent_by(book, every=True), sent_by(home / "log.jsonl", every=True), key)

    assert log_check.check_run(loopback.folder, "asked") == disagreements() == []
    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan_of()))
    book.write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    assert "essen's log was cut off, or is an older one: it signed line" in disagreements()[0]
    with pytest.raises(RuntimeError, match="essen: this site's log was cut off or replaced: it had"):
        loopback.finish("cut", loopback.start("cut", plan_of(), **PATIENCE))
    assert log_check.check_run(loopback.folder, "cut")[0].startswith("essen: this site's log was cut off")
    book.write_bytes(whole)


def sent_by(book, every=False):
    return [entry for entry in AuditLog(book).entries() if every or entry["event"] == "sent"]


def test_no_path_and_no_column_is_in_what_the_coordinator_holds(loopback, finished):
    for path in finished.rglob("*.json*"):
        text = path.read_text()
        assert str(loopback.data["essen"].parent) not in text
        assert "essen.csv" not in text


def as_a_site_would(loopback, *words):
    """A ``flwr`` command by somebody who holds a site's kit and key, and can reach the public port."""
    home = loopback.folder.parent / "intruder"
    record = members.load(loopback.folder)
    flower_cli.write_connection(home, record.address, loopback.kit("essen").kit / "ca.crt")
    with pytest.raises(RuntimeError) as told:
        flower_cli.call(home, *words)
    return str(told.value)


def test_a_kit_cannot_command_the_server(loopback, tmp_path):
    keys.new_site_key(tmp_path / "own")
    commands = [
        ("supernode", "register", str(tmp_path / "own.pub"), flower_cli.CONNECTION),
        ("supernode", "list", flower_cli.CONNECTION),
        ("ls", flower_cli.CONNECTION),
        ("run", str(flower_cli.BUNDLE), flower_cli.CONNECTION),
        ("stop", "1", flower_cli.CONNECTION),
    ]

    for words in commands:
        assert "403" in as_a_site_would(loopback, *words)


PATHS = ["/", "/health", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/register-node"]
TRICKS = [
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol%2flist-runs",
    "//v1/control/list-runs",
    "/v1/fleet/get-run/../../control/list-runs",
    "/v1/fleet/get-run;/../../control/list-runs",
    "/V1/CONTROL/list-runs",
]


@pytest.mark.parametrize("path", PATHS + TRICKS)
def test_the_gate_passes_no_other_path(loopback, path):
    record = members.load(loopback.folder)
    context = create_default_context(cafile=str(loopback.folder / "ca" / "ca.crt"))
    with (
        socket.create_connection((record.host, record.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=record.host) as line,
    ):
        line.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        first = line.recv(64).split(b"\r\n")[0]

    assert first.split()[1] in (b"403", b"400"), first


def test_a_flood_at_the_gate_changes_no_bit_of_a_run(loopback):
    plan, log = plan_of(rounds=12), loopback.folder / "log" / "gate-access.log"
    number = loopback.start("flooded", plan, **PATIENCE)
    assert flower_cli.wait_until((loopback.home("flooded") / "journal" / "000001.json").exists, 300)

    began = time.monotonic()
    answers = sum((at_once(loopback.folder, invented(24), "127.0.0.2") for _ in range(40)), Counter())
    (rate, _), seconds = LIMITS["strangers"], time.monotonic() - began
    loopback.finish("flooded", number)

    assert answers.total() - answers[503] <= rate * (seconds + 3)  # a burst is of two seconds' calls
    assert answers[503] > 100
    assert same(load_file(loopback.home("flooded") / "model.safetensors"), in_process(loopback, plan))
    assert not any(line.split()[1:5:3] == ["127.0.0.1", "503"] for line in log.read_text().splitlines())


def test_plain_text_is_not_answered(loopback):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"http://{members.load(loopback.folder).address}/v1/fleet/get-run", data=b"", timeout=30)


def copy_of(loopback, name, folder):
    kit = folder / name
    shutil.copytree(loopback.kit("essen").kit, kit, ignore=shutil.ignore_patterns("state"))
    return site.Site(kit, kit / "state")


def test_a_wrong_authority_another_name_or_no_server_is_said_in_words(loopback, tmp_path):
    members.create(tmp_path / "o", "other", "127.0.0.1", 1, listen="127.0.0.1", inner_port=2, days=1)
    stranger = copy_of(loopback, "stranger", tmp_path)
    shutil.copy(tmp_path / "o" / "ca" / "ca.crt", stranger.kit / "ca.crt")
    authority, address = loopback.folder / "ca" / "ca.crt", members.load(loopback.folder).address

    with pytest.raises(ValueError, match="does not trust"):
        site.up(stranger, None, print)
    with pytest.raises(ValueError, match=r"does not trust: .*mismatch"):
        admission.check_server(address.replace("127.0.0.1", "127.1"), authority)  # the same place by another name
    with pytest.raises(ValueError, match="cannot be reached"):
        admission.check_server(f"127.0.0.1:{free_ports(1)[0]}", authority)


def test_a_site_that_is_let_in_is_told_so_and_of_what_expires(loopback, tmp_path):
    lines = []
    essen = loopback.kit("essen")
    site.down(essen)

    site.up(essen, loopback.data["essen"], lines.append)

    mark = members.load(loopback.folder).members["essen"].fingerprint
    assert any(line.startswith(f"the server lets this site in: key {mark}, admitted until") for line in lines)
    assert sum("expires in" in line for line in lines) == 3  # all of this consortium is good for one day
    with pytest.raises(ValueError, match="up already"):
        site.up(essen, loopback.data["essen"], print)


def test_a_site_that_was_killed_is_let_in_again_within_the_minute_that_flower_counts_it_as_connected(loopback):
    essen = loopback.kit("essen")
    assert flower_cli.wait_until(lambda: server.registered(loopback.folder)["essen"].status == "online", 120)
    resident = supervisor.pids(essen.process_folder)["resident"]
    os.kill(supervisor.running(essen.process_folder), signal.SIGKILL)
    os.kill(resident, signal.SIGKILL)
    site.down(essen)

    lines = []
    site.up(essen, loopback.data["essen"], lines.append)

    assert any("lets this site in" in line for line in lines)


def test_a_data_process_alone_has_neither_certificate_nor_key_in_its_kit_and_comes_up(loopback, tmp_path, fedsmall):
    kit = tmp_path / "station"
    kit.mkdir()
    for name in ("site.json", "policy.toml", "site.key.pub"):  # as docker/provision.sh and the unit have it
        shutil.copy(loopback.kit("essen").kit / name, kit)
    place = ("--kit", kit, "--home", tmp_path / "own")

    code, said, _ = fedsmall("site", "up", "--only", "station", *place, "--data", loopback.data["essen"], "--detach")

    assert (code, "essen is up" in said) == (0, True)
    assert flower_cli.wait_until((tmp_path / "own" / "door" / "station").exists, 60)
    assert fedsmall("site", "down", *place)[0] == 0


def test_a_copy_of_a_folder_whose_site_is_connected_is_told_that_and_no_other_reason(loopback, tmp_path):
    assert flower_cli.wait_until(lambda: server.registered(loopback.folder)["essen"].status == "online", 120)
    mark = members.load(loopback.folder).members["essen"].fingerprint
    with pytest.raises(ValueError, match=rf"^a program with the key {re.escape(mark)} is connected already, or was"):
        site.up(copy_of(loopback, "copy", tmp_path), None, print)


def test_a_site_with_an_unknown_key_is_kept_out(loopback, tmp_path):
    stranger = copy_of(loopback, "s", tmp_path)
    stranger.key.unlink()
    stranger.key.with_name("site.key.pub").unlink()
    mark = keys.new_site_key(stranger.key)
    with pytest.raises(ValueError, match=r"does not let this site in .*does not know the key " + re.escape(mark)):
        site.up(stranger, None, print)
    card = json.loads((stranger.kit / "site.json").read_text())
    (stranger.kit / "site.json").write_text(json.dumps(card | {"expires": "2020-01-01"}))
    with pytest.raises(ValueError, match="expired on 2020-01-01"):
        site.up(stranger, None, print)
    command = [
        *(flower_cli.tool("flower-supernode"), "--superlink", members.load(loopback.folder).address),
        *("--root-certificates", str(stranger.kit / "ca.crt"), "--auth-supernode-private-key", str(stranger.key)),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", str(free_ports(1)[0])),
    ]
    environment = {**os.environ, **flower_cli.environment(tmp_path / "home")}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    assert "Failed to activate SuperNode" in done.stdout + done.stderr


def test_a_policy_that_refuses_ends_the_run_with_the_sites_name_and_reason(loopback):
    policy = loopback.kit("essen").kit / "policy.toml"
    before = policy.read_text()
    policy.write_text("least_sites = 3\nmost_rounds = 2\nleast_blur = 0\nsealed = false\n")
    try:
        with pytest.raises(RuntimeError, match=r"essen: the plan has 4 rounds; the policy here allows 2"):
            loopback.finish("refused", loopback.start("refused", plan_of(), **PATIENCE))
    finally:
        policy.write_text(before)
    assert any(e["event"] == "refused" for e in AuditLog(loopback.kit("essen").home / "log.jsonl").entries())


def test_a_bundle_that_nobody_approved_is_not_loaded(loopback, tmp_path, monkeypatch):
    foreign = tmp_path / "foreign"
    shutil.copytree(flower_cli.BUNDLE, foreign)
    mark = tmp_path / "was-loaded"
    own = (flower_cli.BUNDLE / "bundle_client.py").read_text()
    (foreign / "bundle_client.py").write_text(f"{own}\nopen({str(mark)!r}, 'w')\n")
    monkeypatch.setattr(flower_cli, "BUNDLE", foreign)

    with pytest.raises(RuntimeError, match=r"fedsmall/fedsmall-site .* not among those approved here; no code of"):
        loopback.finish("foreign", loopback.start("foreign", plan_of(), **PATIENCE))

    assert not mark.exists()


def test_a_killed_run_is_resumed_to_the_same_bits(loopback, finished):
    plan = plan_of(rounds=40)
    number = loopback.start("killed", plan, **PATIENCE)
    home = loopback.home("killed")
    assert flower_cli.wait_until(lambda: (home / "journal" / "000002.json").exists(), 600)
    kinds = [kind for kind, _ in endurance.victims(loopback)]
    assert all(kinds.count(f"site {name}") == 3 for name in ("station", "resident"))
    os.kill(dict(endurance.victims(loopback))["ServerApp"], signal.SIGKILL)
    assert flower_cli.wait_until(lambda: not runs.is_running(home), 30)
    assert not (home / "outcome.json").exists()

    loopback.finish("killed", runs.resume(loopback.folder, "killed", print))

    assert number
    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan))
    with pytest.raises(PlanError, match="is finished"):
        runs.resume(loopback.folder, "killed", print)


def test_a_killed_run_of_one_model_is_resumed_to_the_same_bits(loopback):
    way = {"method.0.permute_every": 1, "method.0.models": 1, "method.0.route": "cyclic"}
    plan = plan_of(rounds=40, **way)
    number = loopback.start("one", plan, **PATIENCE)
    home = loopback.home("one")
    assert flower_cli.wait_until(lambda: (home / "journal" / "000004.json").exists(), 600)
    os.kill(dict(endurance.victims(loopback))["ServerApp"], signal.SIGKILL)
    assert flower_cli.wait_until(lambda: not runs.is_running(home), 30)

    loopback.finish("one", runs.resume(loopback.folder, "one", print))

    assert number
    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan))


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        ("groups", {"method.0.groups": 2}),
        ("routes-of-sites", {"method.0.validate.routes": 3}),
        ("routes-of-samples", {"method.0.validate.routes": 4, "method.0.aggregate_every": 1}),
    ],
)
def test_groups_and_routes_over_real_sites_end_in_the_bits_and_the_figures_of_this_process(loopback, run, settings):
    plan = plan_of(**settings)

    loopback.finish(run, loopback.start(run, plan, **PATIENCE))

    here, home = record_in_process(loopback, plan), loopback.home(run)
    told = json.loads((home / "outcome.json").read_text())
    assert same(load_file(home / "model.safetensors"), here.model)
    assert len(next(iter(here.model.values()))) == plan.method.group_count(3)
    assert not any(event["kind"] for event in told["events"])
    judged = told["evaluations"][-1]["validation"]
    assert judged == json.loads(json.dumps(here.evaluations[-1].validation))
    assert judged.get("sites") == (None if run == "groups" else 3)
    assert (judged.get("folds") == "patients") == (run == "routes-of-samples")


def test_a_superlink_that_was_killed_with_all_its_memory_costs_a_resume_by_itself_and_no_bit(loopback):
    plan = plan_of(rounds=40, **{"method.0.aggregate_every": 20, "evaluate_every": 40})
    number = loopback.start("forgotten", plan, **PATIENCE)
    home = loopback.home("forgotten")
    assert flower_cli.wait_until(lambda: (home / "journal" / "000003.json").exists(), 600)

    os.kill(supervisor.pids(server.process_folder(loopback.folder))["superlink"], signal.SIGKILL)
    loopback.finish("forgotten", number)

    assert len(runs.numbers(home)) == 2
    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan))


def test_a_run_goes_on_by_itself_when_its_server_was_stopped_and_started_again_and_to_the_same_bits(loopback, capsys):
    plan = plan_of(rounds=40, **{"method.0.aggregate_every": 20, "evaluate_every": 40})
    number = loopback.start("reboot", plan, **PATIENCE)
    home = loopback.home("reboot")
    assert flower_cli.wait_until(lambda: (home / "journal" / "000003.json").exists(), 600)

    assert fedsmall("server", "down", "--folder", loopback.folder) == 0
    assert not (home / "failure.json").exists()
    assert fedsmall("server", "up", "--detach", "--folder", loopback.folder) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "goes on by itself" in line]
    loopback.finish("reboot", number)

    assert told == ["The run 'reboot' was under way and goes on by itself; `fedsmall stop reboot` ends it."]
    assert len(runs.numbers(home)) == 2
    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan))


def test_a_resident_killed_with_an_order_in_hand_gives_it_back_within_seconds(loopback):
    plan = plan_of(rounds=30, **{"method.0.aggregate_every": 30, "evaluate_every": 30})
    number = loopback.start("hand", plan, **PATIENCE)
    home, essen = loopback.home("hand"), loopback.kit("essen")
    assert flower_cli.wait_until(lambda: (home / "journal" / "000002.json").exists(), 600)

    assert flower_cli.wait_until((essen.home / "taken").exists, 60)
    os.kill(supervisor.pids(essen.process_folder)["resident"], signal.SIGKILL)
    loopback.finish("hand", number)

    assert same(load_file(home / "model.safetensors"), in_process(loopback, plan))
    times = [datetime.fromisoformat(e["time"]) for e in AuditLog(home / "log.jsonl").entries()]
    assert max(after - before for before, after in pairwise(times)).total_seconds() < 45  # not Flower's minute


def test_no_program_of_a_site_listens_on_a_port_or_shows_a_secret(loopback):
    for name in NAMES:
        kit = loopback.kit(name)
        secrets = [kit.key.read_text().splitlines()[1], (kit.home / "noise.key").read_bytes().hex()]
        for pid in supervisor.pids(kit.process_folder).values():
            process = psutil.Process(pid)
            shown = " ".join(process.cmdline()) + json.dumps(process.environ())
            assert not [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            assert "token" not in " ".join(process.cmdline())
            assert not any(secret in shown for secret in secrets)
            assert not process.children(recursive=True)


def test_a_revoked_site_is_gone_at_once_and_nothing_is_left_behind(loopback):
    members.revoke(loopback.folder, "ulm")

    server.register(loopback.folder, print)

    assert sorted(server.registered(loopback.folder)) == ["bonn", "essen"]
    with pytest.raises(PlanError, match="asks for 3 sites; 2 are admitted"):
        runs.site_names(loopback.folder, (), plan_of(sites=3))


def test_killed_at_random_it_ends_in_the_same_model(capsys):
    assert endurance.main(kills=4, rounds=4) == 0

    report = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(["{", ""]))
    assert report["same_model"]
    assert report["kills"] >= 1
    assert np.isfinite(report["wild_seconds"])
