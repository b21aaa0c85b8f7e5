"""What a monitoring program reads: JSON, and an exit code that says how things are."""

import json

import pytest

from fedsmall.clients.site_log import SiteLog
from fedsmall.sim.consortium import keys, members, server


@pytest.fixture
def consortium(tmp_path):
    folder = tmp_path / "consortium"
    members.create(folder, "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=365)
    members.add_site(folder, "essen", None, days=90)
    kit = folder / "kits" / "essen"
    keys.new_site_key(kit / "site.key")
    members.add_site(folder, "essen", kit / "site.key.pub", days=90)
    return folder


def status(fedsmall):
    code, said, complained = fedsmall("status", "--json")
    assert complained == ""
    return code, json.loads(said)


def reached(monkeypatch, **sites):
    monkeypatch.setattr(server, "is_up", lambda folder: True)
    nodes = {name: server.Node(number, state) for number, (name, state) in enumerate(sites.items())}
    monkeypatch.setattr(server, "registered", lambda folder: nodes)


def test_a_server_that_does_not_answer_ends_with_two(fedsmall, consortium):
    assert status(fedsmall) == (2, {"server": False, "sites": {"essen": "unknown"}, "runs": [], "warnings": []})


@pytest.mark.parametrize(("state", "code"), [("online", 0), ("offline", 1), ("registered", 1)])
def test_an_admitted_site_that_is_away_ends_with_one(fedsmall, consortium, monkeypatch, state, code):
    reached(monkeypatch, essen=state)

    found, said = status(fedsmall)

    assert (found, said["sites"]) == (code, {"essen": state})


def test_what_expires_soon_and_a_run_that_ended_early_end_with_one(fedsmall, consortium, monkeypatch):
    reached(monkeypatch, essen="online")
    assert status(fedsmall)[0] == 0
    monkeypatch.setattr(members, "warnings", lambda folder: ["the server's certificate has expired"])
    assert (status(fedsmall)[0], status(fedsmall)[1]["warnings"]) == (1, ["the server's certificate has expired"])
    monkeypatch.undo()

    monkeypatch.chdir(consortium.parent)
    reached(monkeypatch, essen="online")
    (consortium / "runs" / "r").mkdir()
    (consortium / "runs" / "r" / "sheet.json").write_text("{}")
    code, said = status(fedsmall)
    assert (code, said["runs"]) == (
        1,
        [{"run": "r", "state": "ended early; resume it", "line": ""}],
    )


def test_a_sites_log_as_json_has_every_line_as_it_was_written(fedsmall, consortium):
    kit = consortium / "kits" / "essen"
    (kit / "state").mkdir()
    log = SiteLog(kit / "state", "essen")
    for t in range(3):
        log.write("sent", run="r", t=t, bytes=10)

    code, said, _ = fedsmall("site", "log", "--json", "--last", "2", "--kit", kit)

    assert code == 0
    assert [json.loads(line) for line in said.splitlines()] == log.entries()[1:]


def test_kit_and_keygen_show_one_fingerprint_of_the_authority(fedsmall, consortium):
    kit = consortium / "kits" / "bonn"

    coordinator = fedsmall("consortium", "add-site", "bonn")[1]
    hospital = fedsmall("site", "keygen", "--kit", kit)[1]

    word = keys.authority_words(consortium / "ca" / "ca.crt")
    assert len(word.rpartition("SHA256:")[2]) == 32 * 3 - 1
    assert word in coordinator
    assert word in hospital
    members.create(kit.parent / "other", "evil", "fed", 8443, listen="127.0.0.1", inner_port=2, days=9)
    assert keys.authority_words(kit.parent / "other" / "ca" / "ca.crt") != word
