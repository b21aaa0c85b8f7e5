"""One hospital under two names is found where a run begins: by their tables, and without a word about a patient."""

import json
import random

import pytest

from fedsmall.errors import PlanError
from fedsmall.sim.consortium import keys, members
from tests.sim.consortium.desk import NAMES, POLICY, Desk, plan_of

SEALED = {"method.0.privacy.sealed": True}
CLEAR = {"method.0.privacy.sealed": False}
ALIKE = "bonn and essen hold the same patients: their tables share more than about half of their rows. One hospital"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    for name in NAMES:  # identities, for sealed runs
        site, public = desk.site(name), desk.site(name).key.with_name("site.key.pub")
        keys.new_identity(site.identity)
        keys.tell_identity(public, site.identity)
        members.add_site(desk.folder, name, public, days=90)
        (site.kit / "policy.toml").write_text(POLICY)
    return desk


def shuffled(rows):
    return random.Random(0).sample(rows, len(rows))


def one_more(rows):
    return [*rows, ",".join(f"{float(value) + 1:.5f}" for value in rows[0].split(",")[:-1]) + ",benign"]


COPIES = {
    "the same file": lambda rows: rows,
    "in another order": shuffled,
    "with one row more": one_more,
    "half of it": lambda rows: shuffled(rows)[: len(rows) // 2],
}


@pytest.mark.parametrize("privacy", [SEALED, CLEAR], ids=["sealed", "clear"])
@pytest.mark.parametrize("copy", COPIES)
def test_two_names_over_one_table_are_refused_before_anything_trains(desk, copy, privacy):
    head, *rows = desk.data["essen"].read_text().splitlines()
    desk.data["bonn"].write_text("\n".join([head, *COPIES[copy](rows)]) + "\n")

    with pytest.raises(PlanError, match=ALIKE):
        desk.run("first", plan_of(**privacy))

    log = desk.folder / "runs" / "first" / "log.jsonl"
    assert not [line for line in map(json.loads, log.read_text().splitlines()) if line.get("kind") == "train"]


@pytest.mark.parametrize("privacy", [SEALED, CLEAR], ids=["sealed", "clear"])
def test_different_hospitals_take_part_and_the_server_sees_random_bits(desk, privacy):
    outcome = desk.run("first", plan_of(**privacy))

    assert outcome.comm_rounds > 0
    told = [json.loads(line) for line in desk.log_of("essen").read_text().splitlines()]
    (second,) = [line for line in told if line.get("kind") == "scaling"]
    assert "tables" in second["said"]


def test_a_run_without_scaling_compares_tables_too(desk):
    desk.data["bonn"].write_text(desk.data["essen"].read_text())

    with pytest.raises(PlanError, match=ALIKE):
        desk.run("first", plan_of(**CLEAR, **{"task.ranges": [0, 5000]}))


def test_a_run_that_is_resumed_asks_again_and_goes_on(desk):
    desk.run("first", plan_of(**CLEAR))
    desk.restart()

    desk.go_on("first")
