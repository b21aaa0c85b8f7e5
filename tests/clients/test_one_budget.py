"""One table has one budget, under whatever names a user's stations hold it; two tables have two."""

import json

import numpy as np
import pytest

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.patients import spent_here
from fedsmall.clients.site_log import SiteLog
from fedsmall.privacy.patient_level import Charge, epsilon_of
from tests import only_quick
from tests.clients.test_patients import MODEL, NAMES, PATIENTS, config, order, plan_of, table, trained

POLICY = "check_models = false\nmost_epsilon = 3.5\n"  # one run of epsilon 3, and not two
COPIES = {
    "the same file": lambda lines: lines,
    "in another order": lambda lines: lines[::-1],
    "with one row more": lambda lines: [*lines, "1.2345,0.5432,yes"],
    "half of it": lambda lines: lines[: len(lines) // 2],
}


def station_at(folder, name, shared):
    folder.mkdir()
    (folder / "policy.toml").write_text(POLICY)
    data = table(folder / "data.csv", 200)
    return DataProcess(name, data, folder / "home", folder / "policy.toml", tables=shared)


@pytest.fixture
def pair(tmp_path):
    """Two stations of one user, bonn and essen, over one table."""
    return [station_at(tmp_path / name, name, tmp_path / "tables") for name in ("bonn", "essen")]


def spend_all(station, run="r"):
    plan = plan_of()
    station.answer("roll", config(plan, run), {})
    for t in range(1, plan.rounds + 1):
        trained(station, plan, t=t, run=run)


@pytest.mark.parametrize("copy", only_quick(["half of it"], COPIES))
def test_what_one_name_has_spent_of_a_table_the_other_has_not(pair, copy):
    bonn, essen = pair
    head, *lines = essen.data.read_text().splitlines()
    essen.data.write_text("\n".join([head, *COPIES[copy](lines)]) + "\n")
    spend_all(bonn)

    words, _ = essen.answer("roll", config(plan_of(), "other"), {})

    assert "most_epsilon" in words["error"], words
    said = [essen.answer("train", order(plan_of(), t=t, run="other"), dict(MODEL))[0] for t in range(1, 5)]
    assert "error" in said[-1]  # at the latest; what is left of the budget may be had
    both = [charge for station in pair for _, charge in SiteLog(station.home, station.name).charges()]
    assert 3.0 * 0.99 < epsilon_of(both, 1e-5) <= 3.5


def test_without_the_folder_the_budget_is_spent_twice(pair):
    """What the folder is for: the strength of the attack that it ends."""
    bonn, essen = pair
    bonn.tables = essen.tables = None

    spend_all(bonn)
    spend_all(essen, "other")

    both = [charge for station in pair for _, charge in SiteLog(station.home, station.name).charges()]
    assert epsilon_of(both, 1e-5) > 3.5


def test_in_one_run_two_names_have_one_budget_too(pair):
    bonn, essen = pair
    plan = plan_of()
    spend_all(bonn)

    assert "error" in essen.answer("roll", config(plan), {})[0]


@pytest.mark.thorough
def test_another_table_has_a_budget_of_its_own(pair):
    bonn, essen = pair
    rng = np.random.default_rng(7)
    rows = [f"{a:.4f},{b:.4f},{'yes' if a > 0 else 'no'}" for a, b in rng.normal(size=(200, 2))]
    essen.data.write_text("\n".join(["a,b,outcome", *rows]) + "\n")

    spend_all(bonn)
    spend_all(essen, "other")

    assert [run for run, _ in SiteLog(essen.home, "essen").charges()] == ["other"]


def test_releases_of_both_names_count_at_the_least_noise_of_either(pair):
    bonn, essen = pair
    private = plan_of(privacy={"clip": 1.0, "noise": 2.0})
    for station in pair:
        station.policy_file.write_text("budget = 9.0\nleast_blur = 0\ncheck_models = false\nleast_batch = 1\n")
    assert "error" not in bonn.answer("roll", config(private), {})[0]
    trained(bonn, private)

    essen.answer("roll", config(private, "other"), {})

    assert essen.log.spent() == (1, 2.0)
    trained(essen, private, run="other")
    assert essen.log.spent() == (2, 2.0)
    assert SiteLog(essen.home, "essen").spent() == (1, 2.0)  # its own ledger has its own releases alone
    assert SiteLog(essen.home, "essen").verify().fault is None


def test_a_name_in_two_consortia_has_one_budget(tmp_path):
    first, second = (station_at(tmp_path / kit, "essen", tmp_path / "tables") for kit in ("one", "two"))
    spend_all(first)

    assert "error" in second.answer("roll", config(plan_of(), "other"), {})[0]


def test_what_is_noted_tells_no_value(pair):
    spend_all(pair[0])
    noted = (pair[0].tables / "tables.jsonl").read_text()

    (line,) = map(json.loads, noted.splitlines())
    assert set(line) == {"n", "time", "event", "before", "digest", "home", "table"}
    assert (pair[0].tables / "tables.key").stat().st_mode & 0o777 == 0o600


def test_a_state_that_is_damaged_lets_nothing_leave(pair):
    bonn, essen = pair
    spend_all(bonn)
    (bonn.home / "log.state.json").write_text("{}")

    words, _ = essen.answer("roll", config(plan_of(), "other"), {})

    assert "another site of this user holds the same table, and the state beside its log is damaged" in words["error"]


def test_where_the_folder_cannot_be_written_a_site_goes_on_by_itself(pair, capsys):
    bonn, _ = pair
    bonn.tables.write_text("a file in its place")

    spend_all(bonn)

    assert "a budget is this name's alone" in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["state", "exposure"])
def test_exposure_is_not_given_back_by_the_state_alone(tmp_path, lost):
    log = SiteLog(tmp_path, "essen")
    for exposure in (0.1, 0.2, 0.7):
        log.expose(exposure, run="r", t=1)
    log.charge(Charge(0.1, 2.0, 5), run="r", t=1)
    assert log.verify().fault is None
    state = tmp_path / "log.state.json"

    if lost == "state":
        state.unlink()
    else:
        state.write_text(json.dumps(json.loads(state.read_text()) | {"exposure": 0.0}))
        assert "the ledger in the state beside it is not the one" in SiteLog(tmp_path, "essen").verify().fault

    assert SiteLog(tmp_path, "essen").exposure() == log.exposure() == pytest.approx(1.0)


def test_a_page_names_what_other_names_have_cost(pair):
    bonn, essen = pair
    spend_all(bonn)
    essen.answer("roll", config(plan_of(), "other"), {})

    assert [run for run, _ in spent_here(essen.log, 1e-5)] == ["r of bonn", "all runs"]


def test_the_plans_of_these_tests_have_a_budget():
    assert PATIENTS["epsilon"] == 3.0
    assert {"bonn", "essen"} < set(NAMES)
