"""Coordinators' rights: what each may command, a log that only they sign, hospitals that ask for a signature."""

import hashlib
import json
import os

import pytest

from fedsmall.audit_log import FIRST, AuditLog
from fedsmall.ends import STARTED, Command, fingerprint, signer
from fedsmall.errors import PlanError
from fedsmall.sim.consortium import keys, members, runs
from fedsmall.sim.consortium.coordinators import KEY, LOG, RIGHTS, appoint, read, sign
from tests.sim.consortium.desk import POLICY, Desk, plan_of

COMMANDS = [(right, command) for right, of in RIGHTS.items() for command in of]


@pytest.fixture
def folder(tmp_path):
    members.create(tmp_path / "consortium", "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=20)
    return tmp_path / "consortium"


@pytest.fixture
def acts_as(folder, monkeypatch):
    """Who commands from now on: a coordinator by name, who makes a key where there is none; gives its public half."""

    def act(name):
        key = folder.parent / "keys" / name
        if not key.exists():
            keys.new_site_key(key)
        monkeypatch.setenv(KEY, str(key))
        return key.with_name(f"{name}.pub")

    return act


@pytest.fixture
def office(folder, acts_as):
    """Anna, who appoints, and a coordinator for each other right."""
    appoint(folder, "anna", acts_as("anna"), ["appoint"])
    for right in ("start", "admit", "revoke"):
        public = acts_as(f"who-{right}")
        acts_as("anna")
        appoint(folder, f"who-{right}", public, [right])
    return folder


def test_without_coordinators_whoever_has_the_folder_may_do_all(folder, fedsmall):
    assert [sign(folder, command) for _, command in COMMANDS if command != "appoint"] == [None] * 6
    assert "whoever has the folder may do all" in " ".join(fedsmall("consortium", "commands", "-f", folder)[1].split())


@pytest.mark.parametrize(("right", "command"), COMMANDS)
def test_a_command_is_carried_out_for_whoever_has_its_right_and_for_nobody_else(office, acts_as, right, command):
    for name in ("anna", "who-start", "who-admit", "who-revoke"):
        acts_as(name)
        words = {"name": "x", "key": "k", "may": []} if command == "appoint" else {"run": "r"}
        if name == ("anna" if right == "appoint" else f"who-{right}"):
            assert sign(office, command, **words).by == name
        else:
            own = "appoint" if name == "anna" else name.removeprefix("who-")
            with pytest.raises(PlanError, match=rf"^{name} may {own}; nothing was done\.$"):
                sign(office, command, **words)
    assert len(read(office)[1]) == 5


def test_the_first_coordinator_is_appointed_by_the_own_key_and_the_right_to_appoint_is_never_lost(folder, acts_as):
    other = acts_as("ben")
    mine = acts_as("anna")
    with pytest.raises(PlanError, match="appointed by the own key, to appoint; nothing was done"):
        appoint(folder, "ben", other, ["appoint"])
    with pytest.raises(PlanError, match="own key, to appoint"):
        appoint(folder, "anna", mine, ["start"])
    assert read(folder) == ({}, [])

    appoint(folder, "anna", mine, ["appoint", "start"])
    with pytest.raises(PlanError, match="Then nobody could appoint any more"):
        appoint(folder, "anna", mine, ["start"])
    with pytest.raises(PlanError, match="anna uses this key already"):
        appoint(folder, "ben", mine, ["start"])
    with pytest.raises(PlanError, match="There is no right 'begin'"):
        appoint(folder, "ben", other, ["begin"])
    appoint(folder, "ben", other, ["appoint"])
    appoint(folder, "anna", mine, [])  # who leaves

    with pytest.raises(PlanError, match="anna may nothing; nothing was done"):
        sign(folder, "start", run="r")
    assert [coordinator.may for coordinator in read(folder)[0].values()] == [(), ("appoint",)]


def test_a_key_that_is_missing_strange_or_not_of_its_pair_is_one_line(office, acts_as, monkeypatch):
    stranger = acts_as("eve")
    with pytest.raises(PlanError, match="eve is no coordinator's here; there are anna, who-admit"):
        sign(office, "start", run="r")
    stranger.write_bytes((office.parent / "keys" / "who-start.pub").read_bytes())
    with pytest.raises(PlanError, match="not of one pair"):
        sign(office, "start", run="r")
    for missing in ("", "/nowhere"):
        monkeypatch.setenv(KEY, missing)
        with pytest.raises(PlanError, match="let FEDSMALL_COORDINATOR name the file of your key"):
            sign(office, "start", run="r")
    assert len(read(office)[1]) == 4


def rewritten(path, entries, command=None):
    """A log of these lines at their times, chained anew by somebody who has the folder; a ``command`` comes last."""
    lines, head = [], FIRST
    if command is not None:
        entries = [*entries, {**entries[-1], "command": command}]
    for n, entry in enumerate(entries, start=1):
        line = {**entry, "n": n, "before": head}
        rest = {name: value for name, value in line.items() if name != "digest"}
        head = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        lines.append(json.dumps({**rest, "digest": head}, separators=(",", ":")) + "\n")
    path.write_text("".join(lines))


def test_who_has_the_folder_and_no_key_changes_no_line_drops_none_and_adds_none(office, acts_as):
    acts_as("who-start")
    sign(office, "start", run="r")
    path, eve = office / LOG, office.parent / "keys" / "eve"
    entries = list(AuditLog(path).entries())
    rewritten(path, entries)
    assert len(read(office)[1]) == 5  # as it was

    keys.new_site_key(eve)
    public, first, start = eve.with_name("eve.pub").read_text().strip(), entries[0]["command"], entries[-1]["command"]
    forged = Command(command="start", by="who-start", key=public, words={"run": "s"}, head=entries[-1]["digest"])
    forged = forged.signed(signer(eve)).model_dump()
    taken = {**first, "words": {**first["words"], "key": public}, "key": public}
    attempts = [
        *(([*entries[:k], *entries[k + 1 :]], None) for k in range(4)),  # a line dropped in the middle
        *(([*entries[:k], entries[k + 1], entries[k], *entries[k + 2 :]], None) for k in range(4)),
        (entries[:-1], {**start, "words": {"run": "other"}}),
        (entries, start),  # sent again
        (entries, {**start, "head": entries[-1]["digest"]}),
        (entries, forged),
        (entries, {**forged, "key": start["key"]}),
        ([{**entries[0], "command": taken}, *entries[1:]], None),
        (entries, {"command": "start"}),
    ]
    for attempt in attempts:
        rewritten(path, *attempt)
        with pytest.raises(ValueError, match=r"^line \d of the log of commands is (no command|signed by nobody who)"):
            read(office)
    rewritten(path, entries)
    path.write_bytes(path.read_bytes().replace(b'"run":"r"', b'"run":"q"'))
    with pytest.raises(ValueError, match="cannot be trusted: line 5 was changed after it was written"):
        read(office)


def test_the_commands_themselves_are_signed_and_refused_with_exit_code_2(office, acts_as, fedsmall):
    acts_as("who-start")
    refused = fedsmall("consortium", "add-site", "bonn", "-f", office)
    assert (refused[0], " ".join(refused[2].split())) == (2, "fedsmall: who-start may start; nothing was done.")
    assert not members.load(office).members
    acts_as("who-admit")
    assert fedsmall("consortium", "add-site", "bonn", "-f", office)[0] == 0
    assert fedsmall("consortium", "revoke", "bonn", "-f", office)[0] == 2
    assert members.load(office).members["bonn"].revoked is None
    acts_as("who-revoke")
    assert fedsmall("consortium", "revoke", "bonn", "-f", office)[0] == 0
    assert fedsmall("consortium", "renew", "-f", office)[0] == 2

    code, said, _ = fedsmall("consortium", "commands", "-f", office)
    assert code == 0
    assert "commands that hold: 6" in said
    assert [line.split()[1:3] for line in said.splitlines()[4:6]] == [
        ["who-admit", "add-site"],
        ["who-revoke", "revoke"],
    ]


def test_a_coordinators_key_is_made_and_appointed_by_commands(folder, fedsmall, monkeypatch):
    assert "anna.key.pub has the fingerprint SHA256:" in fedsmall("consortium", "keygen", "anna.key")[1]
    assert fedsmall("consortium", "keygen", "anna.key")[0] == 2  # never over another
    monkeypatch.setenv(KEY, "anna.key")
    appointed = ("consortium", "appoint", "anna", "--key", "anna.key.pub", "--may", "appoint,start", "-f", folder)
    assert fedsmall(*appointed)[0] == 0
    assert os.stat("anna.key").st_mode & 0o077 == 0
    assert list(read(folder)[0]) == ["anna"]
    assert read(folder)[1][0]["before"] == FIRST


def signed_desk(tmp_path, monkeypatch, names=("anna",)):
    """A consortium of three hospitals that ask for a start by one of these coordinators; anna has appointed both."""
    desk, marks = Desk(tmp_path, monkeypatch), []
    for name in ("anna", "ben"):
        keys.new_site_key(tmp_path / name)
        monkeypatch.setenv(KEY, str(tmp_path / "anna"))
        appoint(desk.folder, name, tmp_path / f"{name}.pub", ["appoint", "start"])
        marks += [fingerprint((tmp_path / f"{name}.pub").read_bytes())] * (name in names)
    for site in desk.names:
        (desk.site(site).kit / "policy.toml").write_text(f"{POLICY}coordinators = {json.dumps(marks)}\n")
    return desk


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method.0.privacy": "{blur = 0, sealed = true}"},  # the sites draw the routes themselves
        {"recipe.class_weights": '"balanced"'},  # and agree on weights, in orders of a resumed run too
    ],
)
def test_a_signed_run_trains_resumes_and_stands_in_every_sites_log_with_who_started_it(tmp_path, monkeypatch, settings):
    desk = signed_desk(tmp_path, monkeypatch)
    if "sealed" in str(settings):
        for name in desk.names:
            keys.new_identity(desk.site(name).identity)
            keys.tell_identity(desk.site(name).key.with_name("site.key.pub"), desk.site(name).identity)
            members.add_site(desk.folder, name, desk.site(name).key.with_name("site.key.pub"), days=90)

    outcome = desk.run("r", plan_of(**settings))
    desk.restart()
    (desk.folder / "runs" / "r" / "outcome.json").unlink()
    again = desk.go_on("r")

    assert outcome.evaluations
    assert [event for event in outcome.events if event["kind"] != "ended"] == []
    assert again.evaluations[-1].common == outcome.evaluations[-1].common
    for name in desk.names:
        lines = [entry for entry in AuditLog(desk.log_of(name)).entries() if entry["event"] == "signed"]
        assert [(line["run"], line["reason"]) for line in lines] == [("r", "started by anna")]
    started = read(desk.folder)[1][-1]["command"]
    assert (started["by"], started["words"]["run"]) == ("anna", "r")


LIES = {
    "no signature": lambda config, other: config.pop(STARTED),
    "no command": lambda config, other: config.update({STARTED: "{"}),
    "words changed": lambda config, other: config.update({STARTED: config[STARTED].replace('"r"', '"q"')}),
    "another run's": lambda config, other: config.update({STARTED: other}),
    "another id": lambda config, other: config.update({"run-id": "0" * 16}),
    "more sites": lambda config, other: config.update(sites=[*config["sites"], "zug"]),
    "another plan": lambda config, other: config.update(plan=config["plan"].replace('"rounds":2', '"rounds":3')),
    "a plain key": lambda config, other: config.update(
        {STARTED: json.dumps({**json.loads(config[STARTED]), "key": "ssh-rsa"})}
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_without_a_coordinators_key_gets_no_answer_for_what_nobody_signed(tmp_path, monkeypatch, lie):
    desk = signed_desk(tmp_path, monkeypatch)
    other = runs.prepare(desk.folder, "s", plan_of(), desk.names)
    other = json.dumps(json.loads((other / "sheet.json").read_text())["started"])
    honest = desk.answer

    def answer(name, kind, config, arrays):
        before = json.dumps(config)
        LIES[lie](config, other)
        assert json.dumps(config) != before
        return honest(name, kind, config, arrays)

    monkeypatch.setattr(desk, "answer", answer)
    with pytest.raises(PlanError, match="bonn, essen, ulm: no coordinator whose key the policy here names has signed"):
        desk.run("r")
    assert all(AuditLog(desk.log_of(name)).last()[0] == 1 for name in desk.names)  # one line each, of the refusal
    assert not any(entry["event"] == "sent" for name in desk.names for entry in AuditLog(desk.log_of(name)).entries())


def test_a_coordinator_whom_the_hospital_does_not_name_starts_nothing_there(tmp_path, monkeypatch):
    desk = signed_desk(tmp_path, monkeypatch, names=("ben",))
    with pytest.raises(PlanError, match="no coordinator whose key the policy here names"):
        desk.run("r")
    monkeypatch.setenv(KEY, str(tmp_path / "ben"))
    assert desk.run("by-ben").evaluations


def test_a_run_that_nobody_may_start_leaves_no_folder(tmp_path, monkeypatch):
    desk = signed_desk(tmp_path, monkeypatch)
    monkeypatch.delenv(KEY)
    with pytest.raises(PlanError, match="Coordinators sign what they command"):
        desk.run("r")
    assert not (desk.folder / "runs" / "r").exists()
