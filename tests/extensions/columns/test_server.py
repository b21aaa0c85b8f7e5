"""A run over split columns through the coordinator's desk, the grid, the logs and the sites' own programs."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.audit_log import verify
from fedsmall.clients.policy import load_policy
from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.ends import fingerprint
from fedsmall.errors import PlanError
from fedsmall.extensions.columns.plan import COLUMN_SHEET, ColumnSheet
from fedsmall.extensions.columns.server import conduct, outcome_lines, prepare, read_sheet, write_run
from fedsmall.extensions.columns.simulation import Columns, execute, load_columns, world_of
from fedsmall.sim.cli.app import main
from fedsmall.sim.consortium import coordinators, keys, members, runs
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.sim.report.hospital import own_run, page
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.heads import Heads
from tests.sim.consortium.desk import Desk, Wire

NAMES = ("hospital", "laboratory")
SCENARIO = """
name = "outcome"
task = {columns = {laboratory = "data/laboratory.csv", hospital = "data/hospital.csv"}, id = "patient", label = "ill"}
boosting = {rounds = 2, depth = 2, bins = 6, least_samples = 5}

[[method]]
name = "SecureBoostPlus"
"""


@pytest.fixture
def open_desk(tmp_path, monkeypatch) -> Desk:
    """Two sites; the laboratory has the labels, though it is not the first by name."""
    made = Desk(tmp_path, monkeypatch, NAMES)
    x = np.random.default_rng(0).normal(size=(60, 3))
    rows = {
        "hospital": [("patient", "age", "bmi"), *((f"p{k}", *x[k, :2]) for k in range(55))],
        "laboratory": [("patient", "crp", "ill"), *((f"p{k}", x[k, 2], int(x[k].sum() > 0)) for k in range(5, 60))],
    }
    for name in NAMES:
        with made.data[name].open("w", newline="") as file:
            csv.writer(file).writerows(rows[name])
        (made.site(name).kit / "policy.toml").write_text("columns = true\n")
    (tmp_path / "outcome.toml").write_text(SCENARIO)
    return made


@pytest.fixture
def desk(open_desk) -> Desk:
    """The same, where all sites have an identity, so that parties write to each other in envelopes."""
    for name in NAMES:
        site = open_desk.site(name)
        public = site.key.with_name("site.key.pub")
        keys.new_identity(site.identity)
        keys.tell_identity(public, site.identity)
        members.add_site(open_desk.folder, name, public, days=90)
    return open_desk


@pytest.fixture
def scenario(desk) -> Columns:
    return load_columns(desk.folder.parent / "outcome.toml")


def led(desk: Desk, scenario: Columns, run: str = "outcome", wire: Any = None) -> dict[str, Any]:
    prepare(desk.folder, run, scenario)
    return gone_on(desk, run, wire)


def gone_on(desk: Desk, run: str, wire: Any = None) -> dict[str, Any]:
    """What a ServerApp does, from the run's journal on."""
    act_as_server()
    home = runs.run_home(desk.folder, run)
    sheet = ColumnSheet.model_validate_json((home / COLUMN_SHEET).read_text())
    heads = Heads(desk.folder / "sites", sheet)
    grid = RetryingGrid(wire or Wire(desk), sheet, runs.log_of(home), lambda: desk.now, heads)  # type: ignore[arg-type]
    return conduct(sheet, home, grid)[0]


@pytest.mark.thorough
def test_what_the_sites_grow_is_what_a_simulation_grows(desk, scenario):
    told = led(desk, scenario)

    [done] = execute(world_of(scenario))
    assert told["common"] == 50
    assert told["columns"]["parties"] == ["laboratory", "hospital"]
    assert told["columns"]["sealed"]
    assert told["splits"] == done.splits
    assert "hospital: which 50 patients all parties have" in "\n".join(outcome_lines(Path(), told))
    for name, value in done.metrics.items():
        assert told["worth"][name] == pytest.approx(value, abs=1e-9)


def test_sites_that_ask_for_it_take_part_only_where_a_coordinator_has_signed_the_start(desk, scenario, monkeypatch):
    keys.new_site_key(key := desk.folder.parent / "anna")
    monkeypatch.setenv(coordinators.KEY, str(key))
    mark = fingerprint(key.with_name("anna.pub").read_bytes())
    for name in NAMES:
        (desk.site(name).kit / "policy.toml").write_text(f'columns = true\ncoordinators = ["{mark}"]\n')
    with pytest.raises(PlanError, match="no coordinator whose key the policy here names has signed"):
        led(desk, scenario, "unsigned")

    coordinators.appoint(desk.folder, "anna", key.with_name("anna.pub"), ["appoint", "start"])

    assert led(desk, scenario, "signed")["common"] == 50


@pytest.mark.thorough
def test_without_identities_or_where_the_scenario_says_so_the_forest_is_the_same_in_the_open(desk, scenario):
    sealed = led(desk, scenario, "sealed")
    told = led(desk, scenario.model_copy(update={"sealed": False}), "open")

    assert not told["columns"]["sealed"]
    assert parts(desk, "open") == parts(desk, "sealed")
    assert told["exchanges"] == sealed["exchanges"] - 2  # whose keys are whose


def test_envelopes_are_asked_for_in_vain_where_a_site_has_no_identity(open_desk):
    scenario = load_columns(open_desk.folder.parent / "outcome.toml")
    prepare(open_desk.folder, "outcome", scenario)
    sheet = ColumnSheet.model_validate_json((open_desk.folder / "runs/outcome" / COLUMN_SHEET).read_text())

    assert not sheet.columns.sealed
    with pytest.raises(PlanError, match="hospital, laboratory has sent no identity for encrypted messages"):
        prepare(open_desk.folder, "letters", scenario.model_copy(update={"sealed": True}))


@pytest.mark.thorough
def test_the_coordinators_log_holds_every_order_and_what_sites_signed(desk, scenario):
    told = led(desk, scenario)

    path = desk.folder / "runs" / "outcome" / "log.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    orders, answers = ([one for one in entries if one["event"] == event] for event in ("order", "answer"))
    assert len(orders) == len(answers) == sum(told["messages"].values())
    assert all("signed" in one for one in answers)
    assert verify(path).fault is None


def test_a_site_that_refuses_ends_the_run_with_its_reason(desk, scenario):
    (desk.site("hospital").kit / "policy.toml").write_text("columns = false\n")

    with pytest.raises(PlanError, match=r"Not every site takes part. hospital: the policy here takes no part"):
        led(desk, scenario)


class KilledError(Exception):
    """The server's process is gone."""


class DyingWire(Wire):
    """The server dies in its second exchange, before its orders have left or when they were answered."""

    def __init__(self, desk: Desk, when: str) -> None:
        super().__init__(desk)
        self.when, self.exchanges = when, 0

    def push_messages(self, messages: Any) -> list[str]:
        self.exchanges += 1
        if self.exchanges == 2 and self.when == "before":
            raise KilledError
        came = super().push_messages(messages)
        if self.exchanges == 2:
            raise KilledError
        return came


def parts(desk: Desk, run: str) -> dict[str, Any]:
    """What each site keeps of the forest."""
    return {
        name: json.loads((run_folder(desk.site(name).home / RUNS, run) / "columns.json").read_text()) for name in NAMES
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "with_it"), [("before", "alone"), ("after", "and the data processes")])
def test_a_server_that_dies_at_every_exchange_leads_to_the_same_forest(desk, scenario, when, with_it):
    plain = led(desk, scenario, "plain")
    prepare(desk.folder, "dying", scenario)

    deaths, told = 0, None
    while told is None:
        try:
            told = gone_on(desk, "dying", DyingWire(desk, when))
        except KilledError:
            deaths += 1
            if with_it != "alone":
                desk.restart()

    assert deaths == plain["exchanges"] - 1
    assert parts(desk, "dying") == parts(desk, "plain")
    assert {key: told[key] for key in ("common", "worth", "splits")} == {
        key: plain[key] for key in ("common", "worth", "splits")
    }


def test_a_run_over_split_columns_is_not_taken_back(desk, scenario):
    prepare(desk.folder, "outcome", scenario)

    with pytest.raises(PlanError, match=r"where nothing is sent twice\. Resume it without --from"):
        runs.resume(desk.folder, "outcome", lambda _: None, 1)


def test_an_answer_that_is_to_another_question_is_refused(desk, scenario, monkeypatch):
    honest = desk.answer

    def swapped(name: str, kind: str, config: dict[str, Any], arrays: Any) -> Any:
        header, answer = honest(name, kind, config, arrays)
        if name == "hospital" and config["round"] == 2:
            answer = {key: arrays[key] for key in answer}  # its own question back
        return header, answer

    monkeypatch.setattr(desk, "answer", swapped)

    with pytest.raises(PlanError, match="hospital: its answer is to another question"):
        led(desk, scenario)


def test_an_answer_that_is_no_message_is_refused(desk, scenario, monkeypatch):
    honest = desk.answer

    def broken(name: str, kind: str, config: dict[str, Any], arrays: Any) -> Any:
        header, answer = honest(name, kind, config, arrays)
        return header, {key: np.zeros(5, np.uint8) for key in answer}

    monkeypatch.setattr(desk, "answer", broken)

    with pytest.raises(PlanError, match="its answer cannot be read"):
        led(desk, scenario)


def test_a_party_that_is_no_site_is_refused(desk, scenario):
    task = scenario.task.model_copy(update={"columns": {**scenario.task.columns, "clinic": "x.csv"}})

    with pytest.raises(PlanError, match="There is no admitted site 'clinic'"):
        prepare(desk.folder, "outcome", scenario.model_copy(update={"task": task}))


@pytest.mark.parametrize("methods", [({"name": "Central"},), ({"name": "SecureBoost"}, {"name": "SecureBoostPlus"})])
def test_one_method_that_sends_messages_is_asked_for(desk, scenario, methods):
    with pytest.raises(PlanError, match="takes one seed and one method, SecureBoost or SecureBoostPlus"):
        prepare(desk.folder, "outcome", scenario.model_copy(update={"method": methods}))


def test_what_sends_nothing_is_left_out_of_a_run_at_real_sites(desk, scenario):
    methods = ({"name": "Standalone"}, {"name": "SecureBoostPlus"}, {"name": "Central"})

    home = prepare(desk.folder, "outcome", scenario.model_copy(update={"method": methods}))

    assert read_sheet(home).columns.settings.packing


def test_the_command_wants_a_server_and_keeps_a_name_once(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk.folder.parent)
    words = ["start", "outcome.toml", "--folder", str(desk.folder)]

    for reason in ("The server does not run", "There is a run 'outcome' already"):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err


@pytest.mark.thorough
def test_a_finished_run_leaves_the_report_of_a_simulation_and_the_scenario_that_repeats_it(desk, scenario):
    told = led(desk, scenario)
    home = desk.folder / "runs" / "outcome"

    write_run(home, told)

    page = (home / "report.html").read_text()
    summary = json.loads((home / "summary.json").read_text())
    again = load_columns(home / "scenario.toml").plans()[0]
    assert summary["rows"][0]["accuracy"] == told["worth"]["accuracy"]
    assert (again.name, again.settings) == ("SecureBoostPlus", scenario.plans()[0].settings)
    for words in (
        "50 patients are at all of them",
        "which the server carried and could not open",
        "What each party learns",
    ):
        assert words in page
    assert f"<td>{told['messages']['hospital']}</td>" in page
    assert "crp" not in page + json.dumps(summary)


@pytest.mark.thorough
def test_the_page_of_a_run_in_the_open_says_so(desk, scenario):
    told = led(desk, scenario.model_copy(update={"sealed": False}))

    write_run(desk.folder / "runs" / "outcome", {**told, "worth": {}})

    page = (desk.folder / "runs" / "outcome" / "report.html").read_text()
    assert "Messages were not sealed" in page
    assert "laboratory does not tell" in page


@pytest.mark.thorough
def test_each_hospital_has_its_own_page(desk, scenario):
    led(desk, scenario)

    pages = {}
    for name in NAMES:
        site = desk.site(name)
        pages[name] = page(own_run(site.home, load_policy(site.kit / "policy.toml"), name, "outcome"))

    assert "<td>age</td>" in pages["hospital"]
    assert "crp" not in pages["hospital"]
    assert "What the forest is worth is known where the labels are" in pages["hospital"]
    assert "<td>crp</td>" in pages["laboratory"]
    assert "who were held out" in pages["laboratory"]
    assert "laboratory has the labels" in pages["hospital"]
