"""What the commands of a consortium print: others' words as they came and harmless, a fingerprint whole, no riddles."""

import json
import re
import shutil
import socket
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.clients.kept import OWN_MODEL, Place, keep
from fedsmall.clients.runs import run_folder
from fedsmall.clients.site_log import SiteLog
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.package.record import GLOBAL
from fedsmall.package.store import read
from fedsmall.plan import Plan
from fedsmall.planning import check
from fedsmall.planning.tasks import load_site
from fedsmall.privacy.patient_level import Charge, epsilon_of
from fedsmall.sim.cli import deploy
from fedsmall.sim.cli.app import main
from fedsmall.sim.consortium import keys, members, runs, sample_data, server
from fedsmall.sim.consortium.site import Site, programs
from fedsmall.strategies.server.journal import FileJournal
from tests.sim.consortium.desk import Desk

HOSTILE = {
    "[red]it says[/red] no": "[red]it says[/red] no",
    "a reason with [/] in it": "a reason with [/] in it",
    ":skull: \x1b[2J\x1b]0;owned\x07": ":skull: \ufffd[2J\ufffd]0;owned\ufffd",
    "essen\u202e: tsurt": "essen\ufffd: tsurt",
    "one\nsite bonn: finished": "one\ufffdsite bonn: finished",
    "\x9b1A\u200b\u2067": "\ufffd1A\ufffd\ufffd",
}


@pytest.fixture
def folder(tmp_path):
    members.create(tmp_path / "consortium", "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=20)
    return tmp_path / "consortium"


@pytest.fixture
def essen(folder):
    members.add_site(folder, "essen", None, days=90)
    return Site(folder / "kits" / "essen", folder / "kits" / "essen" / "state")


def test_a_check_with_a_kit_says_what_the_policy_refuses_before_anybody_starts_a_run(fedsmall, essen, tmp_path):
    sample_data.write([tmp_path / "essen.csv"])
    call = ("site", "check", "--data", "essen.csv", "--scenario", "consortium_demo", "--kit", essen.kit)

    allowed = fedsmall(*call)
    (essen.kit / "policy.toml").write_text("most_rounds = 2\n")
    refused = fedsmall(*call)

    assert allowed[0] == 0, allowed
    assert allowed[1].endswith("The policy here has nothing against it, with 3 sites.\n")
    assert refused[0] == 2
    assert "rounds; the policy here allows 2 (most_rounds)" in refused[2]
    assert "What leaves this site:" in refused[1]


def test_a_check_says_in_what_a_policy_is_not_fedsmalls_own(fedsmall, essen, tmp_path):
    sample_data.write([tmp_path / "essen.csv"])
    call = ("site", "check", "--data", "essen.csv", "--scenario", "consortium_demo", "--kit", essen.kit)

    shipped = fedsmall(*call)[1]
    (essen.kit / "policy.toml").write_text('least_sites = 3\nmost_read = 9\nfunctions = ["nets:narrow"]\n')
    lax = fedsmall(*call)[1]

    assert "The policy here is fedsmall's own.\n" in shipped
    assert "The policy here is fedsmall's own, but for most_read = 9, functions = ('nets:narrow',).\n" in lax


AWAY = '{"consortium": "rhine", "site": "../../essen", "address": "fed:8443", "expires": "2030-01-01"}'


@pytest.mark.parametrize("held", ["", "{", "{}", "[]", '{"site": 3}', "\xff", AWAY])
def test_a_damaged_file_of_a_kit_or_consortium_is_one_line(fedsmall, folder, essen, held):
    (essen.kit / "site.json").write_text(held, encoding="latin-1")
    of_kit = [fedsmall("site", word, "--kit", essen.kit) for word in ("status", "keygen", "pause", "down")]
    (folder / "consortium.json").write_text(held, encoding="latin-1")
    of_server = [fedsmall(*words, "--folder", folder) for words in (("status",), ("consortium", "list"))]

    for code, _, complained in (*of_kit[1:3], *of_server):
        assert code == 2
        assert re.fullmatch("fedsmall: (site|consortium).json is damaged, or was made by another .*\n", complained)
    assert "Traceback" not in of_kit[0][2] + of_kit[3][2]


@pytest.mark.parametrize("shipped", ["identity.key", "state/noise.key"])
def test_what_a_coordinator_has_put_into_a_kit_becomes_no_sites_secret(fedsmall, essen, shipped):
    (essen.kit / "state").mkdir()
    (essen.kit / shipped).write_bytes(b"k" * 32)

    refused = fedsmall("site", "keygen", "--kit", essen.kit)
    (essen.kit / shipped).unlink()
    (essen.kit / "state").rmdir()
    made = fedsmall("site", "keygen", "--kit", essen.kit)

    assert (refused[0], made[0]) == (2, 0)
    assert "holds an identity or a state that were not made here" in refused[2]
    assert essen.identity.read_bytes() != b"k" * 32


def test_a_key_that_came_with_a_kit_is_said_to_be_its_makers(fedsmall, essen):
    keys.new_site_key(essen.key)

    code, said, _ = fedsmall("site", "keygen", "--kit", essen.kit)

    assert code == 0
    assert "If it was not made here, delete" in said


def test_a_check_looks_at_every_method_of_a_scenario_that_sites_would_run(fedsmall, essen, tmp_path, monkeypatch):
    sample_data.write([tmp_path / "essen.csv"])
    read, load_site = [], check.load_site
    monkeypatch.setattr(check, "load_site", lambda *at: read.append(at) or load_site(*at))
    (essen.kit / "policy.toml").write_text('methods = ["FedDC", "Ridge"]\n')
    methods = "".join(
        f'[[method]]\nname = "{name}"\n' for name in ("Standalone", "FedAvg", "Ridge", "FedDC", "Central")
    )
    task = """task = {csv = "", label = "diagnosis", classes = ["benign", "malignant"]}\n"""
    (tmp_path / "three.toml").write_text(f"name = 'three'\nmodel = 'linear'\nrounds = 2\nsites = 3\n{task}{methods}")

    code, said, complained = fedsmall(
        "site", "check", "--data", "essen.csv", "--scenario", "three.toml", "--kit", essen.kit
    )

    assert code == 2
    assert "FedAvg, FedDC: At every communication round: the trained model" in said
    assert "Ridge: At every communication round: what is computed of its samples" in said
    assert "FedDC: Daisy-chaining: the model that was trained here goes on to another site" in said
    assert "Standalone" not in said + complained
    assert len(read) == 1  # a query is asked once, whatever the methods
    assert "FedAvg: method 'FedAvg' is not among those allowed here" in complained
    assert "Ridge: the sums of a regression, or for trees, can be solved for single patients" in complained
    assert "FedDC: the plan hands over models" in complained


def test_a_check_asks_of_a_scenario_what_a_start_would_run(fedsmall, essen, tmp_path):
    sample_data.write([tmp_path / "essen.csv"])
    fedsmall("site", "keygen", "--kit", essen.kit)
    task = """task = {csv = "", label = "diagnosis", classes = ["benign", "malignant"]}"""
    of_run = f"name = 'two'\nmodel = 'linear'\nrounds = 2\nsites = 2\n{task}\n"
    methods = 'method = [{name = "Ridge", privacy = {secure = true}}, {name = "FedDC", privacy = {blur = 1%s}}]\n'
    (tmp_path / "left.toml").write_text(of_run + methods % "")
    (tmp_path / "open.toml").write_text(of_run + methods % ", sealed = false")
    call = ("site", "check", "--data", "essen.csv", "--kit", essen.kit, "--scenario")

    code, said, complained = fedsmall(*call, "left.toml")
    as_it_is = fedsmall(*call, "open.toml")

    assert (code, complained) == (0, "")
    assert re.search(r"what is computed of its samples, [\d,]+ numbers in \d arrays: coefficients", said)
    assert "goes on to another site, sealed: it alone can open it" in said  # as hand-overs are where sites can
    assert said.endswith("nothing against it, with 3 sites.\n")  # a scenario's two are those of a simulation
    assert as_it_is[0] == 2
    assert "FedDC: the policy here lets models be handed over encrypted only (sealed)" in as_it_is[2]


def test_a_check_with_a_kit_takes_the_classes_that_the_site_has(fedsmall, essen, tmp_path):
    sample_data.write([tmp_path / "essen.csv"])
    (essen.kit / "policy.toml").write_text("most_rounds = 2\n")
    task = '{csv = "", label = "diagnosis"}'

    code, said, complained = fedsmall("site", "check", "--data", "essen.csv", "--task", task, "--kit", essen.kit)

    assert "The scenario does not name the classes" in said
    assert code == 2
    assert "rounds; the policy here allows 2 (most_rounds)" in complained


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_reason_that_a_site_gave_is_shown_as_it_came_and_does_nothing(fedsmall, folder, reason):
    home = folder / "runs" / "r"
    home.mkdir()
    (home / "sheet.json").write_text("{}")
    (home / "failure.json").write_text(json.dumps({"reason": reason}))
    AuditLog(home / "log.jsonl").write("failed", site="essen", reason=reason)

    shown = [fedsmall("logs", "r"), fedsmall("status")]

    for code, said, complained in shown:
        assert (code, complained) == (0, "")
        assert HOSTILE[reason] in said
        assert all(line.isprintable() for line in said.splitlines())
        assert not any(line.startswith("site bonn") for line in said.splitlines())


def test_a_site_whose_device_is_not_here_or_not_allowed_starts_nothing_and_says_so(fedsmall, essen):
    policy = essen.kit / "policy.toml"
    absent = fedsmall("site", "up", "--kit", essen.kit, "--device", "cuda:9")
    policy.write_text(policy.read_text().replace("devices = []", 'devices = ["cpu"]'))
    forbidden = fedsmall("site", "up", "--kit", essen.kit, "--device", "cuda:9")

    for (code, _, complained), line in ((absent, "not here; this machine has cpu"), (forbidden, "allowed here (cpu)")):
        assert (code, complained.count("\n")) == (2, 1)
        assert line in complained
    assert not essen.home.exists()


def test_only_the_station_is_told_the_device(essen):
    every = programs(essen, None, device="cuda:1")

    assert [program.name for program in every if "cuda:1" in program.command] == ["station"]


@pytest.mark.parametrize("run", HOSTILE)
def test_a_runs_name_that_the_coordinator_gave_is_shown_as_it_came(fedsmall, essen, run):
    SiteLog(essen.home, "essen").write("refused", run=run, kind="train", reason="no")

    code, said, complained = fedsmall("site", "log", "--kit", essen.kit)

    assert (code, complained) == (0, "")
    assert HOSTILE[run] in said


def test_the_whole_fingerprint_is_listed_in_a_narrow_window(fedsmall, folder, essen, monkeypatch):
    mark = keys.new_site_key(essen.key)
    members.add_site(folder, "essen", essen.key.with_name("site.key.pub"), days=90)
    monkeypatch.setenv("COLUMNS", "40")

    code, said, _ = fedsmall("consortium", "list")

    assert code == 0
    assert len(mark) == 50
    assert mark in said


def test_what_expires_within_a_month_is_said_where_the_coordinator_looks(fedsmall, folder, essen):
    keys.new_site_key(essen.key)
    members.add_site(folder, "essen", essen.key.with_name("site.key.pub"), days=10)

    for words in (("consortium", "list"), ("status",)):
        _, said, _ = fedsmall(*words)

        assert "the server's certificate expires in 19 days; `fedsmall consortium renew`" in said
        assert "essen is admitted for 10 more days; `fedsmall consortium add-site essen`" in said


def test_what_has_expired_is_said_too_at_start_and_at_the_site(fedsmall, folder, essen, monkeypatch):
    keys.new_site_key(essen.key)
    members.add_site(folder, "essen", essen.key.with_name("site.key.pub"), days=10)
    later = members.today() + timedelta(days=25)
    monkeypatch.setattr(members, "today", lambda: later)
    monkeypatch.setattr(keys, "days_left", lambda certificate: -1)

    for words in (("status",), ("start", "consortium_demo")):
        _, said, _ = fedsmall(*words)

        assert "the server's certificate has expired; `fedsmall consortium renew`" in said
        assert "the authority's certificate has expired; make a new consortium" in said
        assert "essen's admission expired on" in said
    _, said, _ = fedsmall("site", "status", "--kit", essen.kit)
    assert "this site's admission expires in 10 days; tell the coordinator" in said
    assert "the consortium's own certificate (ca.crt) has expired; tell the coordinator" in said


def test_a_site_sees_what_its_own_patients_have_spent(fedsmall, essen):
    log = SiteLog(essen.home, "essen")
    for run in ("first", "second"):
        log.charge(Charge(0.1, 2.0, 100), run=run, t=1)

    code, said, _ = fedsmall("site", "log", "--kit", essen.kit)

    one, both = (epsilon_of([Charge(0.1, 2.0, steps)], 1e-5) for steps in (100, 200))
    assert code == 0
    assert "100 steps at sampling rate 0.1, noise 2" in said
    assert f"what it has cost a patient here, second: epsilon {one:.3g} at delta 1e-05" in said
    assert f"what it has cost a patient here, all runs: epsilon {both:.3g}" in said


def test_a_log_whose_end_was_cut_off_is_told_and_ends_with_one(fedsmall, essen):
    log = SiteLog(essen.home, "essen")
    for t in range(3):
        log.write("sent", run="r", t=t)
    assert fedsmall("site", "log", "--verify", "--kit", essen.kit)[:2][0] == 0
    log.path.write_bytes(log.path.read_bytes().splitlines(keepends=True)[0])

    code, said, _ = fedsmall("site", "log", "--verify", "--kit", essen.kit)

    assert code == 1
    assert "its end was cut off: it had 3 lines and has 1" in said


def test_a_full_disk_is_one_line_and_no_traceback(fedsmall, folder, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)

    code, _, complained = fedsmall("consortium", "add-site", "bonn")

    assert (code, complained) == (2, "fedsmall: the disk is full: there is no room to write consortium.json\n")
    assert "bonn" not in members.load(folder).members


def a_run(folder, privacy=None):
    """A run that was stopped after four communication rounds."""
    home = runs.prepare(
        folder,
        "r",
        Plan(name="r", task="breast_cancer", method=method("FedDC", privacy=privacy or {"blur": 1.0})),
        ("bonn", "essen", "ulm"),
    )
    for comm_round in range(1, 5):
        FileJournal(home / "journal").save(comm_round, {"w": np.zeros(1)}, {}, lasting=comm_round == 1)
    return home


def test_a_run_is_taken_back_to_a_state_that_the_journal_holds_and_to_no_other(fedsmall, folder):
    home = a_run(folder)

    code, said, complained = fedsmall("resume", "r", "--from", "9")

    assert (code, said) == (2, "")
    assert "No whole state of communication round 9 is in the run's journal. There are: 1, 2, 3, 4." in " ".join(
        complained.split()
    )
    assert FileJournal(home / "journal").latest()[0] == 4

    code, _, complained = fedsmall("resume", "r", "--from", "1")

    assert code == 2
    assert "The server does not run" in complained
    assert FileJournal(home / "journal").latest()[0] == 1
    assert list(AuditLog(home / "log.jsonl").entries())[-1]["t"] == 1


def test_a_run_under_a_privacy_ledger_is_not_taken_back(fedsmall, folder):
    home = a_run(folder, {"clip": 1.0, "noise": 1.0})

    code, _, complained = fedsmall("resume", "r", "--from", "1")

    assert code == 2
    assert "privacy ledger, which cannot be taken back" in " ".join(complained.split())
    assert FileJournal(home / "journal").latest()[0] == 4


def test_a_plan_that_sites_would_refuse_is_refused_at_the_start_in_a_line_that_says_what_to_write(folder):
    bare = Plan(name="r", task="breast_cancer", method=method("FedDC"))

    with pytest.raises(
        PlanError, match=r"FedDC hands over models.*write privacy = \{exposure = 1\.0\} under the method"
    ) as told:
        runs.prepare(folder, "bare", bare, ("bonn", "essen", "ulm"))

    assert "\n" not in str(told.value)
    assert not (folder / "runs" / "bare").exists()


def test_a_site_gets_its_package_by_the_runs_name_and_is_told_why_where_there_is_none(fedsmall, essen, tmp_path):
    none = fedsmall("site", "package", "trial", "--kit", essen.kit)
    SiteLog(essen.home, "essen").write("sent", run="trial", kind="train")
    early = fedsmall("site", "package", "trial", "--kit", essen.kit)
    misspelt = fedsmall("site", "package", "trail", "--kit", essen.kit)
    sample_data.write([tmp_path / "essen.csv"])
    task = {"csv": "hospital.csv", "label": "diagnosis", "classes": ["malignant", "benign"]}
    asked = Plan(name="p", task=task, model="linear", method=method("FedDC"))
    raw = load_site(asked, "essen", tmp_path / "essen.csv")
    model = initial_model(asked, raw.task)
    folder = run_folder(essen.home / "runs", "trial")
    for what in (GLOBAL, OWN_MODEL):
        keep(Place(folder, "trial", raw, None, 3, asked.rounds), asked, what, model, {"accuracy": 0.75})
    there = fedsmall("site", "package", "trial", "--kit", essen.kit)
    again = fedsmall("site", "package", "trial", "--kit", essen.kit)

    assert "this site was in no run 'trial'. It was in none yet." in none[2]
    assert "keeps no such model: the run is not over, or the site was away" in early[2]
    assert "Did you mean 'trial'" in misspelt[2]
    assert "the folder trial-common holds files already" in again[2]
    assert [call[0] for call in (none, early, misspelt, there, again)] == [2, 2, 2, 0, 2]
    assert fedsmall("site", "package", "trial", "--own", "--kit", essen.kit)[0] == 0
    package = read(tmp_path / "trial-own").package
    assert (package.whose, package.performance) == ("essen", {"held out at essen": {"accuracy": 0.75}})
    assert "fedsmall predict trial-common" in there[1]
    assert (tmp_path / "trial-common" / "package.json").is_file()


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A consortium of three sites with a finished run, in the folder in which commands are called."""
    desk = Desk(tmp_path, monkeypatch)
    desk.run("r")
    return desk


def test_both_ends_hold_their_logs_against_each_other(fedsmall, desk):
    kit, book, other = desk.site("essen").kit, desk.log_of("essen"), desk.folder / "runs" / "r" / "log.jsonl"
    shutil.copy(book, "essen.jsonl")
    whole = [
        ("logs", "r", "--verify"),
        ("logs", "r", "--against", "essen.jsonl"),
        ("site", "log", "--kit", kit, "--against", other),
    ]
    for words in whole:
        code, said, complained = fedsmall(*words)
        assert (code, complained) == (0, "")
        assert "lines hold" in said
    lines = book.read_bytes().splitlines(keepends=True)
    Path("essen.jsonl").write_bytes(b"".join(lines[:2]))

    code, said, _ = fedsmall("logs", "r", "--verify", "--against", "essen.jsonl")

    assert code == 1
    assert "essen's log was cut off, or is an older one: it signed line 3 and has 2" in said
    short = tmp_copy(other, 12)
    code, said, _ = fedsmall("site", "log", "--kit", kit, "--against", short)
    assert code == 1
    assert "the coordinator's log was cut off: essen was shown its line" in said
    assert "and it has 12" in said
    shutil.copy(short, other)
    code, said, _ = fedsmall("logs", "r", "--verify")
    assert code == 1
    assert "the coordinator's log was cut off: " in said


def tmp_copy(path, count):
    copy = Path("short.jsonl")
    copy.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))
    return copy


def test_a_file_that_is_no_log_of_the_other_end_is_one_line(fedsmall, desk):
    kit, book, other = desk.site("essen").kit, desk.log_of("essen"), desk.folder / "runs" / "r" / "log.jsonl"
    stranger = SiteLog(Path("stranger"), "stranger")
    stranger.write("sent", run="r")
    Path("torn.jsonl").write_bytes(book.read_bytes()[:-5])
    cases = [
        (("logs", "r", "--against", other), "this is no site's log"),
        (("logs", "r", "--against", stranger.path), "of which this consortium holds no key"),
        (("logs", "r", "--against", "torn.jsonl"), "is half-written"),
        (("logs", "r", "--against", "nowhere.jsonl"), "there is no log"),
        (("site", "log", "--kit", kit, "--against", book), "is it the coordinator's log of a run?"),
        (("site", "log", "--kit", kit, "--against", "nowhere.jsonl"), "there is no log"),
    ]
    for words, line in cases:
        code, _, complained = fedsmall(*words)

        assert code == 2
        assert complained.count("\n") == 1
        assert line in complained


def test_a_hospital_pauses_looks_at_what_asks_and_says_yes_or_no(fedsmall, desk, monkeypatch):
    kit = desk.site("essen").kit
    here = ("--kit", kit)
    with (kit / "policy.toml").open("a") as policy:
        policy.write("approve = true\n")
    sheet = json.loads((desk.folder / "runs" / "r" / "sheet.json").read_text())
    config = {"plan": json.dumps(sheet["plan"]), "sites": list(desk.names)}
    for run in ("lungs", "hearts"):
        assert "approval" in desk.station("essen").answer("roll", {**config, "run": run}, {})[0]["error"]

    assert "essen is paused: it answers no order to train" in fedsmall("site", "pause", *here)[1]
    assert "paused already" in fedsmall("site", "pause", *here)[1]
    said = fedsmall("site", "status", *here)[1]
    assert "paused by the hospital" in said
    assert "lungs waits for a yes: `fedsmall site approve lungs`" in said
    assert "answers again" in fedsmall("site", "unpause", *here)[1]
    assert "is not paused" in fedsmall("site", "unpause", *here)[1]

    monkeypatch.setattr("typer.confirm", lambda question: "May lungs train at essen" not in question)
    code, said, _ = fedsmall("site", "approve", "lungs", *here)
    assert code == 0
    assert "method FedDC" in said
    assert "At every communication round: the trained model" in said
    assert said.endswith("lungs is refused, and that is remembered.\n")
    assert fedsmall("site", "approve", "hearts", "--yes", *here)[1].endswith("the coordinator asks again by itself.\n")
    listed = fedsmall("site", "approve", *here)[1]
    assert "lungs: refused;" in listed
    assert "hearts: approved;" in listed
    for words, line in (
        (("approve", "lung"), "no run 'lung' has asked here."),
        (("approve", "lungs", "--yes", "--no"), "either --yes or --no"),
    ):
        code, _, complained = fedsmall("site", *words, *here)
        assert (code, complained.count("\n")) == (2, 1)
        assert line in complained


def test_a_start_that_is_to_wait_for_a_stranger_or_without_a_server_starts_nothing(fedsmall, desk):
    before = sorted((desk.folder / "runs").iterdir())
    cases = [("kiel", "There is no admitted site 'kiel'"), ("essen, bonn", "The server does not run")]
    for names, line in cases:
        code, _, complained = fedsmall("start", "consortium_demo", "--wait-for", names, "--within", "1")

        assert code == 2
        assert line in complained
    assert sorted((desk.folder / "runs").iterdir()) == before


def test_what_cannot_start_is_told_before_anybody_waits(fedsmall, desk, monkeypatch):
    monkeypatch.setattr(runs, "wait_for", lambda *_: pytest.fail("it waits"))
    monkeypatch.setattr(server, "is_up", lambda _: True)
    taken = sorted(path.name for path in (desk.folder / "runs").iterdir())[0]
    cases = [
        (("--name", taken), f"There is a run {taken!r} already."),
        (("--sites", "kiel"), "There is no admitted site 'kiel'"),
        (("--set", "sites=9"), "The scenario asks for 9 sites"),
        (("--set", 'method=[{name = "Standalone"}, {name = "Central"}]'), "Standalone, Central: sites alone, or all"),
    ]

    for words, line in cases:
        code, _, complained = fedsmall("start", "consortium_demo", "--wait-for", "essen", *words)

        assert (code, complained.count("\n")) == (2, 1)
        assert line in complained


@pytest.mark.parametrize("stopped", [False, True])
def test_a_method_that_sites_refuse_ends_no_other_and_one_that_was_stopped_does(fedsmall, desk, monkeypatch, stopped):
    begun = []

    def launch(folder, run, _):
        begun.append(run)
        if len(begun) == 1 and not stopped:
            (folder / "runs" / run / "failure.json").write_text('{"reason": "Not every site takes part."}')

    def watch(folder, run, *_):
        if len(begun) == 1:
            raise RuntimeError("Not every site takes part.")
        return {}

    monkeypatch.setattr(runs, "launch", launch)
    monkeypatch.setattr(runs, "watch", watch)
    monkeypatch.setattr(deploy, "_report", lambda home, _: print(f"{home.name} is finished"))

    code, said, _ = fedsmall("start", "consortium_demo", "--name", "two", "--set", "seeds=[0, 1]")

    assert (code, begun) == (1, ["two-FedDC-seed0"] if stopped else ["two-FedDC-seed0", "two-FedDC-seed1"])
    assert "two-FedDC-seed0 ended early: Not every site takes part." in said
    assert ("two-FedDC-seed1 is finished" in said) != stopped


def test_the_page_wants_a_consortium_and_a_port_that_is_free(folder, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, line in (
            (["--folder", str(tmp_path)], "fedsmall: no consortium in this folder"),
            (["--folder", str(folder), "--port", str(port)], f"fedsmall: port {port} is taken by another program"),
        ):
            with pytest.raises(SystemExit) as left:
                main(["dashboard", *words])

            assert left.value.code == 2
            assert capsys.readouterr().err.startswith(line)
    assert not (folder / "server" / "dashboard.token").exists()
