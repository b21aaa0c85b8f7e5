"""The commands by which several servers are started: which program they start, and what they refuse in one line."""

import json

import pytest

from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import keys, members, runs
from fedsmall.sim.consortium.runs import waits
from fedsmall.sim.consortium.site import Site, programs
from fedsmall.travel.schedule import comm_rounds_of
from tests.sim.regions.two_levels import plan_of

REGIONS = {"north": ("bonn", "essen", "ulm"), "south": ("aachen", "trier")}
SCENARIO = """
name = "tides"
task = { csv = "hospital.csv", label = "diagnosis", classes = ["malignant", "benign"] }
partition = { natural = "file" }

[[method]]
name = "FedDC"
privacy = { blur = 1.0 }
"""
APART = 'regions = { sites = { north = ["bonn", "essen", "ulm"], south = ["aachen", "trier"] }, across = %s }\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tides.toml").write_text(SCENARIO + APART % 0)
    members.create(tmp_path / "consortium", "north", "fed", 8443, listen="127.0.0.1", inner_port=1, days=90)
    return tmp_path / "consortium"


def admit(folder, *names):
    for name in names:
        members.add_site(folder, name, None, days=90)
        key = folder / "kits" / name / "site.key"
        keys.new_site_key(key)
        members.add_site(folder, name, key.with_name("site.key.pub"), days=90)


def test_a_scenario_of_several_servers_is_not_started_as_one(fedsmall, folder):
    admit(folder, *REGIONS["north"], *REGIONS["south"])

    code, _, said = fedsmall("start", "tides.toml")

    said = " ".join(said.split())
    assert code == 2
    assert "start each region by itself, with `fedsmall start --region` and, above them, `--above`" in said
    assert not list((folder / "runs").iterdir())


REFUSED = {
    "a region that there is not": (["--region", "west"], 0, "has no region 'west'; it has north, south"),
    "sites said twice": (["--region", "north", "--sites", "bonn"], 0, "leave --sites out"),
    "a region and what is above": (["--region", "north", "--above"], 0, "one of the two"),
    "a site that is not admitted": (["--region", "north"], 0, "There is no admitted site 'bonn'"),
    "a region that is not admitted": (["--above"], 0, "There is no admitted site 'north'"),
    "models that cross over": (["--region", "north"], 0.1, "Write across = 0 into regions."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_started_is_refused_in_one_line_and_nothing_is_written(case, fedsmall, folder, tmp_path):
    words, across, line = REFUSED[case]
    (tmp_path / "tides.toml").write_text(SCENARIO + APART % across)

    code, _, said = fedsmall("start", "tides.toml", *words)

    said = " ".join(said.split())
    assert code == 2
    assert line in said
    assert not list((folder / "runs").iterdir())


def test_a_region_s_sheet_names_all_hospitals_in_its_orders_and_that_above_the_regions(tmp_path):
    plan, kinds = plan_of(REGIONS), {"north": REGIONS["north"], "": tuple(REGIONS)}
    for region, sites in kinds.items():
        runs.prepare(tmp_path / (region or "above"), "tides", plan, sites, apart=True, region=region)
    sheets = [
        RunSheet.model_validate_json((tmp_path / where / "runs" / "tides" / "sheet.json").read_text())
        for where in ("north", "above")
    ]

    assert [sheet.is_above for sheet in sheets] == [False, True]
    assert sheets[0].sites == REGIONS["north"]
    assert sheets[0].everyone == sheets[0].hospitals == ("aachen", "bonn", "essen", "trier", "ulm")
    assert sheets[1].everyone == ("north", "south")
    assert sheets[0].led == plan
    assert [comm_round.t for comm_round in comm_rounds_of(sheets[1].led)] == [4, 6]


def test_what_speaks_for_a_region_is_started_with_no_data(folder, tmp_path):
    members.add_site(folder, "north", None, days=90)
    site = Site(folder / "kits" / "north", tmp_path / "state")

    desk, resident = programs(site, None, region=folder)

    assert desk.command[1:5] == ["-P", "-m", "fedsmall.clients.region_client", "north"]
    assert desk.command[-1] == str(folder / "runs")
    assert resident.command == programs(site, None)[1].command


UP = {
    "data": (["--data", "tides.toml"], "leave --data out"),
    "no consortium": (["--region", "."], "is no consortium's folder"),
}


@pytest.mark.parametrize("case", UP)
def test_a_region_is_not_spoken_for_by_a_site_with_data(case, fedsmall, folder):
    words, line = UP[case]
    members.add_site(folder, "north", None, days=90)

    code, _, said = fedsmall("site", "up", "--kit", folder / "kits" / "north", "--region", folder, *words)

    said = " ".join(said.split())
    assert code == 2
    assert line in said


def test_whoever_waits_for_other_regions_says_so(tmp_path):
    (tmp_path / "waits.json").write_text(json.dumps({"the other regions": "their models of round 4 are not there yet"}))

    assert waits(tmp_path) == "the other regions: their models of round 4 are not there yet"
