"""A station in a run over split columns: what its policy allows, what it answers twice, what it keeps and tells."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.clients.consent import decide, requests
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.extensions.columns.messages import Message, hold_talk
from fedsmall.extensions.columns.plan import COLUMNS, MESSAGE, Boosting, ColumnPlan, Reading
from fedsmall.planning.run_sheet import RUN, RUN_ID
from fedsmall.wire import BROKEN, ROUND, WAITS
from tests.extensions.columns.world import conduct

SETTINGS = Boosting(rounds=1, depth=2, bins=5, least_samples=5, packing=True)
PLAN = ColumnPlan(parties=("hospital", "laboratory"), reading=Reading(id="patient", label="ill"), settings=SETTINGS)
NAMES = ("hospital", "laboratory")
ALLOWED = "columns = true\nleast_side = 5\n"


@pytest.fixture
def stations(tmp_path) -> dict[str, DataProcess]:
    """Two hospitals' stations, whose tables have forty patients in common."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 2))
    header = {"hospital": ["patient", "age", "ill"], "laboratory": ["patient", "crp"]}
    rows = {
        "hospital": [(f"p{k}", x[k, 0], int(x[k].sum() > 0)) for k in range(44)],
        "laboratory": [(f"p{k}", x[k, 1]) for k in range(4, 48)],
    }
    made = {}
    for name in NAMES:
        home = tmp_path / name
        home.mkdir()
        with (home / "table.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header[name], *rows[name]])
        (home / "policy.toml").write_text(ALLOWED)
        made[name] = DataProcess(name, home / "table.csv", home / "state", home / "policy.toml")
    return made


class Carrier:
    """What a server does: each message as an order to its site, numbered."""

    def __init__(
        self, stations: dict[str, DataProcess], plan: ColumnPlan = PLAN, twice: bool = False, run: str = "columns"
    ) -> None:
        self.stations, self.plan, self.twice, self.run, self.step = stations, plan, twice, run, 0
        self.before: Callable[[Message], None] = lambda message: None

    def __call__(self, messages) -> list[Message]:
        return [self.one(message) for message in messages]

    def one(self, message: Message) -> Message:
        self.step += 1
        self.before(message)
        header, arrays = self.ask(message, self.step)
        if self.twice:
            again, same = self.ask(message, self.step)
            assert "error" not in again
            np.testing.assert_array_equal(same[f"{COLUMNS}/{MESSAGE}"], arrays[f"{COLUMNS}/{MESSAGE}"])
        if "error" in header:
            raise RuntimeError(header["error"])
        return Message.from_bytes(arrays[f"{COLUMNS}/{MESSAGE}"].tobytes())

    def ask(self, message: Message, step: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config = {RUN: self.run, RUN_ID: "1", ROUND: step, COLUMNS: self.plan.model_dump_json()}
        return self.stations[message.to].answer(COLUMNS, config, {f"{COLUMNS}/{MESSAGE}": message.as_array()})


def led(carrier: Carrier) -> dict[str, Any]:
    return hold_talk(conduct(NAMES, carrier.plan.settings, carrier.plan.test), carrier)


def kept(station: DataProcess, run: str = "columns") -> dict[str, Any]:
    return json.loads((run_folder(station.home / RUNS, run) / "columns.json").read_text())


def restarted(station: DataProcess) -> DataProcess:
    """The station as another process would find it: what it knew and had not written down is gone."""
    return DataProcess(station.name, station.data, station.home, station.policy_file)


def said(kind: str, words: dict[str, Any] | None = None, arrays: Any = None, turn: int = 99) -> Message:
    """What the hospital says to the laboratory, as it is carried."""
    inner = Message("hospital", "laboratory", kind, words or {}, arrays or {})
    return Message("coordinator", "laboratory", "carry", {"from": "hospital", "t": turn}, {"m0": inner.as_array()})


class StoppedError(Exception):
    """The server was killed."""


def until(carrier: Carrier, kind: str) -> Carrier:
    """Lead a run until the laboratory has answered what is of this kind."""

    def carry(messages: list[Message]) -> list[Message]:
        replies = carrier(messages)
        inner = [Message.from_bytes(one.arrays["m0"].tobytes()).kind for one in messages if one.kind == "carry"]
        if kind in inner:
            raise StoppedError
        return replies

    with pytest.raises(StoppedError):
        hold_talk(conduct(NAMES, carrier.plan.settings, carrier.plan.test), carry)
    return carrier


@pytest.mark.parametrize("twice", [False, True], ids=["once", "every order sent again"])
def test_two_stations_grow_a_forest_and_each_keeps_its_part(stations, twice):
    told = led(Carrier(stations, twice=twice))

    parts = {name: kept(station) for name, station in stations.items()}
    assert told["common"] == 40
    assert told["worth"]["held_out"] == 10
    assert set(parts["laboratory"]) == {"columns", "records"}
    assert told["splits"] == {name: len(part["records"]) for name, part in parts.items()}
    assert "trees" in parts["hospital"]


def test_what_left_stands_in_each_sites_log(stations):
    led(Carrier(stations))

    lines = stations["laboratory"].log.of_run("columns")

    assert {(line["event"], line["kind"]) for line in lines} == {("sent", COLUMNS)}
    assert all(line["bytes"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("", "takes no part in runs over split columns (columns = false)"),
        (
            ALLOWED.replace("5", "6"),
            "may hold as few patients; the policy here asks for 6 or more (least_side)",
        ),
        (ALLOWED + "sealed = true\n", "lets parties send each other encrypted messages only (sealed)"),
        (ALLOWED + "least_samples = 100\n", "fewer than 100 rows"),
    ],
)
def test_a_policy_has_the_last_word(stations, policy, reason):
    stations["laboratory"].policy_file.write_text(policy)

    with pytest.raises(RuntimeError, match="laboratory: ") as refused:
        led(Carrier(stations))

    assert reason in str(refused.value)


def test_too_many_rounds_are_refused(stations):
    stations["laboratory"].policy_file.write_text(ALLOWED + "most_rounds = 3\n")
    plan = PLAN.model_copy(update={"settings": SETTINGS.model_copy(update={"rounds": 4})})

    with pytest.raises(RuntimeError, match="the plan has 4 rounds; the policy here allows 3"):
        led(Carrier(stations, plan))


@pytest.mark.parametrize("policy", ["judge = false\n", "count_floor = 11\n"])
def test_what_the_forest_is_worth_on_few_patients_is_not_told(stations, policy):
    stations["hospital"].policy_file.write_text(ALLOWED + policy)

    assert led(Carrier(stations))["worth"] == {}


def test_a_paused_site_is_waited_for(stations):
    home = stations["laboratory"].home
    home.mkdir(exist_ok=True)
    (home / "paused").write_text("now")

    header, _ = Carrier(stations).ask(Message("coordinator", "laboratory", "blind"), 1)

    assert header["code"] == WAITS != BROKEN


def test_each_new_run_waits_for_the_hospitals_approval_where_it_asks_for_that(stations):
    station = stations["laboratory"]
    station.policy_file.write_text(ALLOWED + "approve = true\n")
    carrier, asked = Carrier(stations), Message("coordinator", "laboratory", "blind", {"parties": list(NAMES)})

    header, _ = carrier.ask(asked, 1)
    [request] = requests(station.home)
    again, _ = carrier.ask(asked, 1)
    decide(station.home, request, yes=True)
    told = led(Carrier(stations))

    assert header["code"] == again["code"] == WAITS
    assert "waits for the hospital's approval" in header["error"]
    assert any("hospital has the labels" in line for line in request.lines)
    assert any("the server can read all" in line for line in request.lines)
    assert told["common"] == 40
    assert "approved" in {line["event"] for line in station.log.of_run("columns")}


def test_a_run_that_the_hospital_has_refused_gets_no_word_of_its_columns(stations):
    station = stations["laboratory"]
    station.policy_file.write_text(ALLOWED + "approve = true\n")
    carrier = Carrier(stations)
    carrier.ask(Message("coordinator", "laboratory", "blind", {"parties": list(NAMES)}), 1)
    decide(station.home, requests(station.home)[0], yes=False)

    with pytest.raises(RuntimeError, match="the hospital has refused this run"):
        led(carrier)


@pytest.mark.thorough
@pytest.mark.parametrize("who", [("hospital",), ("laboratory",), NAMES], ids="+".join)
def test_stations_that_are_killed_before_every_message_grow_the_same_forest(stations, who):
    plain, killed = Carrier(stations), Carrier(stations, run="killed")
    told = led(plain)
    before = {name: kept(stations[name], "columns") for name in NAMES}

    def anew(message: Message) -> None:
        for name in who:
            stations[name] = restarted(stations[name])

    killed.before = anew
    again = led(killed)

    assert again == told
    assert {name: kept(stations[name], "killed") for name in NAMES} == before


def test_what_a_run_has_drawn_is_gone_when_it_is_over(stations):
    led(Carrier(stations))

    for station in stations.values():
        [folder] = Path(station.home).rglob("columns")
        names = {path.suffix or path.name for path in folder.iterdir()}
        assert names == {"over", "plan", ".answer"}


def test_a_run_that_is_over_is_not_taken_up_again(stations):
    carrier = Carrier(stations)
    led(carrier)

    with pytest.raises(RuntimeError, match="this run is over here"):
        carrier.one(Message("coordinator", "laboratory", "blind", {"parties": list(NAMES)}))


def test_the_table_of_a_run_is_that_of_its_first_message(stations):
    carrier = until(Carrier(stations), "begin")
    station = stations["laboratory"]
    station.data.write_text(station.data.read_text().replace("p40", "x40"))
    stations["laboratory"] = restarted(station)

    with pytest.raises(RuntimeError, match="the site's data have changed since this run began"):
        carrier.one(said("gradients"))


def test_the_plan_of_a_run_is_that_of_its_first_message(stations):
    carrier = until(Carrier(stations), "begin")
    carrier.plan = PLAN.model_copy(update={"test": 0.5})

    with pytest.raises(RuntimeError, match="the plan is another than that with which this run was begun"):
        carrier.one(said("gradients"))


def test_three_classes_are_named_in_the_plan_for_others_count_the_trees(stations):
    station = stations["hospital"]
    station.data.write_text(station.data.read_text().replace(",0\n", ",2\n", 3).replace(",0\r\n", ",2\r\n", 3))

    with pytest.raises(RuntimeError, match=r"more than two classes; name them in the scenario"):
        led(Carrier(stations))


# Who resumes again and again learns nothing twice ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("anew", [False, True], ids=["at work", "started anew"])
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (0, "has answered another question in this place of the run"),
        (-1, "has answered another question in this place of the run"),
        (1, "the sums of a node were asked for a second time"),
    ],
)
def test_sums_of_a_node_are_told_once(stations, step, reason, anew):
    """Asked for under a past number, or a new one; with other gradients or row numbers they would tell of order."""
    carrier = until(Carrier(stations), "sums")
    at = {"at": np.zeros(30, np.int64)}
    again = said("sums", {"tree": 0, "nodes": [[0, -1]]}, at, turn=99)
    if anew:
        stations["laboratory"] = restarted(stations["laboratory"])

    header, arrays = carrier.ask(again, carrier.step + step)

    assert reason in header["error"]
    assert not arrays


@pytest.mark.thorough
@pytest.mark.parametrize("anew", [False, True], ids=["at work", "started anew"])
@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("gradients", {"tree": 0, "numbers": 2, "width": 60}, "tree 0 was begun after tree 0 of at most 1"),
        ("gradients", {"tree": 1, "numbers": 2, "width": 60}, "tree 1 was begun after tree 0 of at most 1"),
        ("begin", {"settings": SETTINGS.model_dump(), "key": "ff"}, "a second forest was begun in one run"),
        ("begin", {"settings": SETTINGS.model_copy(update={"least_samples": 1}).model_dump(), "key": "ff"}, "settings"),
        ("sums", {"tree": 0, "nodes": [[k, 0] for k in range(1, 9)]}, "more nodes were asked for than a tree of 2"),
        ("values", {}, "does not answer 'values'"),
    ],
)
def test_what_an_honest_party_would_not_ask_is_refused(stations, kind, words, reason, anew):
    carrier = until(Carrier(stations), "sums")
    if anew:
        stations["laboratory"] = restarted(stations["laboratory"])
    arrays = {"rows": np.arange(20), "at": np.zeros(30, np.int64)}

    with pytest.raises(RuntimeError, match=reason):
        carrier.one(said(kind, words, arrays, turn=99))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("hospital", "laboratory", "sums", {"tree": 0, "nodes": []}), "does not answer 'sums'"),
        (Message("coordinator", "laboratory", "matched", {}, {"places": np.arange(9)}), "no matching is under way"),
        (Message("coordinator", "laboratory", "matched", {}, {"places": np.arange(900)}), "no numbers of 44 rows"),
        (Message("coordinator", "laboratory", "blind", {"parties": list(NAMES)}), "a second matching was begun"),
        (Message("coordinator", "hospital", "blind", {"parties": ["hospital", "x"]}), "a second matching was begun"),
        (Message("coordinator", "hospital", "grow", {"passives": ["laboratory"]}), "a second forest was begun"),
    ],
)
def test_what_is_no_question_to_a_party_of_a_run_is_refused_in_a_line(stations, message, reason):
    carrier = until(Carrier(stations), "sums")

    with pytest.raises(RuntimeError, match=reason):
        carrier.one(message)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"from": "hospital", "t": 1}, "was carried here again"),
        ({"from": "laboratory", "t": 99}, "'laboratory' is not the active party of this run"),
    ],
)
def test_what_is_carried_is_new_and_of_the_active_party(stations, words, reason):
    carrier = until(Carrier(stations), "sums")
    inner = Message("hospital", "laboratory", "sides", {"records": []})

    with pytest.raises(RuntimeError, match=reason):
        carrier.one(Message("coordinator", "laboratory", "carry", words, {"m0": inner.as_array()}))


def test_points_go_round_the_parties_of_the_plan_alone(stations):
    with pytest.raises(RuntimeError, match="points are to go round other parties"):
        Carrier(stations).one(Message("coordinator", "laboratory", "blind", {"parties": ["laboratory", "mallory"]}))


def test_a_site_without_a_table_takes_no_part(stations, tmp_path):
    stations["laboratory"].data = None

    with pytest.raises(RuntimeError, match="needs one table at every site"):
        led(Carrier(stations))


COUNTED = {
    "who has a value, as a missing label": ("hospital", {"label": "ill", "missing": ("1",)}),
    "who has a value, as a missing number": ("hospital", {"target": "ill", "missing": ("1",)}),
    "how many values a column has": ("laboratory", {"id": "crp", "label": "ill"}),
    "who has no value": ("laboratory", {"id": "born", "label": "ill"}),
    "a column by its name": ("laboratory", {"id": "patient", "label": "ill"}),
}


@pytest.mark.parametrize("asked", COUNTED)
def test_no_refusal_tells_the_coordinator_a_count_or_the_name_of_a_column(stations, asked):
    """A plan says what is an identifier, a label, and no value: with counts in what is refused it would ask of any."""
    site, reading = COUNTED[asked]
    table = stations["laboratory"].data
    lines = [line.split(",") for line in table.read_text().splitlines()]
    rows = [[patient, crp[:4], "" if k % 7 else f"19{k:02d}", "low"] for k, (patient, crp) in enumerate(lines[1:])]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["patient", "crp", "born", "genotype"], *rows])
    plan = PLAN.model_copy(update={"reading": Reading(**{"id": "patient", **reading})})
    message = Message("coordinator", site, "blind", {"parties": list(NAMES)})

    words = Carrier(stations, plan).ask(message, 1)[0]["error"]

    assert "some of the " in words or "text where numbers are expected" in words
    assert not re.search(r"\d|genotype", words)


def test_a_column_that_stands_twice_is_named_at_its_site_alone(stations):
    table = stations["laboratory"].data
    first, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{first},genotype,genotype", *(f"{row},1,2" for row in rows)]))
    message = Message("coordinator", "laboratory", "blind", {"parties": list(NAMES)})

    words = Carrier(stations).ask(message, 1)[0]["error"]

    assert "duplicate column names" in words
    assert "genotype" not in words
