"""A forgotten run is gone from the site's disk, but for the log's lines and what guards patients over all runs."""

import json
import os
import time

import pytest

from fedsmall.clients import socket_frames
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.runs import DAY_S, forget_old, forget_run, run_folder
from fedsmall.clients.site_log import SiteLog
from fedsmall.sim.cli.app import main
from fedsmall.sim.consortium import members
from tests.clients.test_data_process import AS_IT_IS, config, files, order, plan, scaled, station

__all__ = ["files", "station"]
GUARDS = {"log.jsonl", "log.state.json", "told_sums.json", "noise.key"}


def trained(station, run="r"):
    station.answer("train", order(1, run=run), scaled(station, run=run))


def age(folder, days):
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_what_a_site_keeps_of_a_run_goes_and_the_log_and_the_guards_stay(station):
    for run in ("first", "second"):
        trained(station, run)
    sums = (station.home / "told_sums.json").read_bytes()
    lines = len(station.log.entries())

    gone = forget_run(station.home, station.log, "first")

    files, size = gone
    assert files > 3
    assert size > 100
    assert not run_folder(station.home / "runs", "first").exists()
    assert run_folder(station.home / "runs", "second").exists()
    assert {path.name for path in station.home.iterdir() if path.is_file()} == GUARDS
    assert (station.home / "told_sums.json").read_bytes() == sums
    *_, last = station.log.entries()
    assert (last["n"], last["event"], last["run"]) == (lines + 1, "forgot", "first")
    assert last["reason"] == f"{files} files, {size} bytes: asked for at the site"
    assert station.log.verify().fault is None


def test_a_run_begun_anew_under_its_name_goes_with_the_one_before(station):
    for ident in ("one", "two"):
        station.answer("roll", config(plan(), **{"run-id": ident}), {})
    assert len(list((station.home / "runs").iterdir())) == 2

    forget_run(station.home, station.log, "r")

    assert not list((station.home / "runs").iterdir())


def test_nothing_is_forgotten_of_a_run_that_is_not_known(station):
    assert forget_run(station.home, station.log, "unknown") is None
    assert not station.log.entries()


@pytest.mark.parametrize(("days", "age_days", "stays"), [(30, 29, True), (30, 31, False), (None, 1000, True)])
def test_old_runs_go_by_policy(station, days, age_days, stays):
    trained(station, "old")
    age(run_folder(station.home / "runs", "old"), age_days)

    names = forget_old(station.home, station.log, days)

    assert run_folder(station.home / "runs", "old").exists() is stays
    assert names == ([] if stays else ["old"])


def test_a_station_forgets_at_the_next_roll_call_what_is_old_and_nothing_else(station):
    for run in ("old", "young"):
        trained(station, run)
    age(run_folder(station.home / "runs", "old"), 8)
    station.policy_file.write_text(AS_IT_IS + "forget_after_days = 7\n")

    station.answer("roll", config(plan(), "new"), {})

    kept = {json.loads((path / "agreed.json").read_text())["run"] for path in (station.home / "runs").iterdir()}
    assert kept == {"young", "new"}
    assert [entry["run"] for entry in station.log.entries() if entry["event"] == "forgot"] == ["old"]


def test_a_folder_of_an_earlier_release_goes_too(station):
    trained(station, "old")
    folder = run_folder(station.home / "runs", "old")
    (folder / "agreed.json").unlink()
    age(folder, 8)

    assert forget_old(station.home, station.log, 7) == [folder.name]


@pytest.fixture
def kit(tmp_path, files):
    members.create(tmp_path / "c", "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=9)
    members.add_site(tmp_path / "c", "essen", None, days=9)
    kit = tmp_path / "c" / "kits" / "essen"
    (kit / "policy.toml").write_text(AS_IT_IS)
    trained(DataProcess("essen", files["essen"], kit / "state", kit / "policy.toml"), "trial")
    return kit


def test_the_command_deletes_and_says_so(kit, capsys):
    with pytest.raises(SystemExit) as left:
        main(["site", "forget", "trial", "--kit", str(kit)])

    assert left.value.code == 0
    assert " files of trial are deleted, " in capsys.readouterr().out
    assert SiteLog(kit / "state", "essen").verify().fault is None
    with pytest.raises(SystemExit) as left:
        main(["site", "forget", "trial", "--kit", str(kit)])
    assert left.value.code == 2
    assert capsys.readouterr().err == "fedsmall: this site keeps nothing of a run 'trial'\n"


def test_while_the_station_is_up_nothing_is_deleted(kit, capsys, tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("h")  # the path of a socket may not be long
    (kit / "state").rename(home / "s")
    with socket_frames.listen(home / "s" / "door" / "station"), pytest.raises(SystemExit) as left:
        main(["site", "forget", "trial", "--kit", str(kit), "--home", str(home / "s")])

    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("fedsmall: this site is up, and its program writes the log; ")
    assert run_folder(home / "s" / "runs", "trial").exists()
