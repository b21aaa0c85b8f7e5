"""A consortium of four on the loopback, and runs on some of them: whoever is not in a run is nothing to it. Slow."""

import json
import shutil
from datetime import timedelta

import pytest
from safetensors.numpy import load_file

from examples.loopback import LoopbackConsortium
from fedsmall.audit_log import AuditLog
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import flower_cli, keys, members, sample_data, server, site
from fedsmall.sim.engines.run import run_plan
from tests.sim.consortium.test_real_sites import PATIENCE, plan_of, pytestmark, same

__all__ = ["pytestmark"]

FOUR = ("bonn", "essen", "graz", "ulm")
OPEN = "least_sites = 3\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    """Four sites and what a fifth would need."""
    folder = tmp_path_factory.mktemp("m")
    data = {name: folder / "data" / f"{name}.csv" for name in (*FOUR, "wien")}
    sample_data.write(list(data.values()))
    del data["wien"]
    with LoopbackConsortium(folder, data, OPEN) as running:
        yield running


def in_process(loopback, plan, sites, folder):
    """The model of the engine in this process over these sites alone."""
    folder.mkdir()
    for name in sites:
        shutil.copy(loopback.data[name], folder / f"{name}.csv")
    plan = plan.model_copy(update={"task": {**plan.task, "csv": str(folder)}})
    return run_plan(plan, build_federation(plan), "inprocess").model


def model(loopback, run):
    return load_file(loopback.home(run) / "model.safetensors")


def runs_in_log(loopback, name):
    return {entry.get("run") for entry in AuditLog(loopback.kit(name).home / "log.jsonl").entries()}


def test_two_runs_at_once_on_three_of_four_sites_each_give_the_bits_of_three_alone(loopback, tmp_path):
    sites = {"first": FOUR[:3], "second": FOUR[1:]}
    plans = {"first": plan_of(), "second": plan_of(seeds=[5])}

    numbers = {run: loopback.start(run, plans[run], sites[run], **PATIENCE) for run in sites}
    for run, number in numbers.items():
        loopback.finish(run, number)

    for run in sites:
        assert same(model(loopback, run), in_process(loopback, plans[run], sites[run], tmp_path / run))
        assert not any(e["kind"] for e in json.loads((loopback.home(run) / "outcome.json").read_text())["events"])
    assert "first" not in runs_in_log(loopback, "ulm")
    assert "second" not in runs_in_log(loopback, "bonn")


def admit(loopback, name):
    """Admit one more site and start it, as a coordinator and a hospital would."""
    members.add_site(loopback.folder, name, None, days=1)
    keys.new_site_key(loopback.kit(name).key)
    members.add_site(loopback.folder, name, loopback.kit(name).key.with_name("site.key.pub"), days=1)
    (loopback.kit(name).kit / "policy.toml").write_text(OPEN)
    server.register(loopback.folder, print)
    loopback.data[name] = loopback.data["bonn"].with_name(f"{name}.csv")
    loopback.site_up(name)


def expire(loopback, name):
    record = members.load(loopback.folder)
    gone = record.members[name].model_copy(update={"expires": members.today() - timedelta(days=1)})
    members.save(loopback.folder, record.model_copy(update={"members": record.members | {name: gone}}))
    server.register(loopback.folder, print)


def test_who_is_admitted_expires_or_is_revoked_during_a_run_changes_no_bit_of_it(loopback, tmp_path):
    plan, sites = plan_of(rounds=40, **{"method.0.aggregate_every": 20, "evaluate_every": 40}), FOUR[:3]
    home = loopback.folder / "runs" / "long"
    number = loopback.start("long", plan, sites, **PATIENCE)
    assert flower_cli.wait_until(lambda: (home / "journal" / "000002.json").exists(), 300)

    admit(loopback, "wien")
    expire(loopback, "ulm")
    assert not (home / "outcome.json").exists(), "the run was over before anything happened to it"
    assert flower_cli.wait_until(lambda: server.registered(loopback.folder)["wien"].status == "online", 120)
    members.revoke(loopback.folder, "wien")
    server.register(loopback.folder, print)
    loopback.finish("long", number)

    assert sorted(server.registered(loopback.folder)) == list(sites)
    assert same(model(loopback, "long"), in_process(loopback, plan, sites, tmp_path / "long"))
    assert "long" not in runs_in_log(loopback, "wien") | runs_in_log(loopback, "ulm")


def test_a_site_of_the_run_that_is_revoked_under_way_is_missed_for_one_deadline_and_the_others_go_on(loopback):
    plan = plan_of(rounds=30, **{"method.0.aggregate_every": 30, "evaluate_every": 30})
    home = loopback.folder / "runs" / "revoked"
    number = loopback.start("revoked", plan, FOUR[:3], round_deadline_s=15.0, start_deadline_s=300.0)
    assert flower_cli.wait_until(lambda: (home / "journal" / "000002.json").exists(), 300)

    members.revoke(loopback.folder, "graz")
    server.register(loopback.folder, print)
    outcome = loopback.finish("revoked", number)

    about = {(event["site"], event["kind"]) for event in outcome["events"]}
    assert about <= {("graz", "absent"), ("graz", "silent")}
    assert ("graz", "absent") in about
    site.down(loopback.kit("graz"))
    with pytest.raises(ValueError, match=r"^this site is revoked; the coordinator can admit the hospital under a new"):
        loopback.site_up("graz")
    assert outcome["comm_rounds"] == 30
