import csv
import re

import pytest

from fedsmall.sim.cli.app import main
from fedsmall.sim.runs.scenario import load as load_scenario
from fedsmall.sim.tuning.search import FOLDS, choose, load

SCENARIO = """
name = "small"
task = "breast_cancer"
sites = 8
samples_per_site = 4
rounds = 2
[[method]]
name = "FedDC"
[[method]]
name = "FedAvg"
"""


def told(capsys, *arguments):
    """What a command prints, its errors, and its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return said.out, said.err, ended.value.code


def test_the_list_names_every_item_and_what_it_needs(capsys):
    out, _, code = told(capsys, "reproduce", "list")

    assert code == 0
    assert "fig4" in out
    assert "study" in out
    assert "heart_disease" in out


def test_the_list_names_the_file_as_printed_and_the_one_that_runs_here(capsys, tmp_path):
    out, _, _ = told(capsys, "reproduce", "list", "--data-root", str(tmp_path))

    place = (lines := out.splitlines()).index("fig2  FedDC, Fig. 2: Radon points on SUSY")
    assert lines[place + 1].split(maxsplit=2)[2] == "feddc_fig2_susy_small.toml (susy: not found)"
    assert lines[place + 2].split(maxsplit=2)[2] == "feddc_fig2_susy.toml (SUSY.csv or SUSY.csv.gz: not found)"


def test_an_unknown_item_is_one_line_with_the_nearest_name(capsys, tmp_path):
    _, err, code = told(capsys, "reproduce", "fig44", "--docs", str(tmp_path))

    assert code == 2
    assert err.strip().count("\n") == 0
    assert "'fig4'" in err
    assert not list(tmp_path.iterdir())


def test_an_unknown_profile_stops_before_anything_is_run(capsys, tmp_path):
    _, err, code = told(capsys, "reproduce", "fig4", "--profile", "fast", "--docs", str(tmp_path))

    assert code == 2
    assert "There is no profile 'fast'" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_search_is_written_down_whole_and_every_method_had_the_same_budget(capsys, tmp_path):
    (tmp_path / "small.toml").write_text(SCENARIO)
    search = tmp_path / "search.csv"

    out, _, code = told(
        capsys, "tune", str(tmp_path / "small.toml"), "--rates", "0.1,0.01", "--seeds", "2", "--out", str(search)
    )

    assert code == 0
    assert "a resampled choice loses" in out
    assert "ROC-AUC on left-out samples" in out  # by which the task is judged, for its classes are unequal
    rows = list(csv.DictReader(search.read_text().splitlines()))
    for label in ("FedDC", "FedAvg"):
        assert sum(row["label"] == label for row in rows) == 2 * 2 * FOLDS
    assert set(choose(load(search)[""])) == {"FedDC", "FedAvg"}
    assert (tmp_path / "lr-search.svg").is_file()


def test_a_search_by_routes_tells_losses_and_rounds(capsys, tmp_path):
    (tmp_path / "small.toml").write_text(SCENARIO)
    search = tmp_path / "search.csv"

    asked = ("--by", "routes", "--rates", "0.1,0.01", "--seeds", "2", "--out", str(search))
    out, _, code = told(capsys, "tune", str(tmp_path / "small.toml"), *asked)

    assert code == 0
    assert "loss on left-out samples" in out
    line = next(line for line in out.splitlines() if line.startswith("FedAvg"))
    assert re.search(r"0\.\d{4} \[-?\d+\.\d{4}, \d+\.\d{4}\]", line)
    assert all(float(row["score"]) < 0 < int(row["rounds"]) for row in csv.DictReader(search.read_text().splitlines()))
    _, err, code = told(capsys, "tune", str(tmp_path / "small.toml"), "--by", "luck")
    assert (code, err.strip().count("\n")) == (2, 0)


def test_a_search_can_be_written_as_a_scenario_with_the_chosen_rates(capsys, tmp_path):
    (tmp_path / "small.toml").write_text(SCENARIO)
    asked = ("tune", str(tmp_path / "small.toml"), "--rates", "0.1,0.01", "--seeds", "1")
    files = ("--out", str(tmp_path / "search.csv"), "--write", str(tmp_path / "tuned.toml"))

    _, _, code = told(capsys, *asked, *files)

    assert code == 0
    chosen = {label: choice.lr for label, choice in choose(load(tmp_path / "search.csv")[""]).items()}
    plans = load_scenario(tmp_path / "tuned.toml").plans()
    assert {plan.method.label: plan.recipe.lr for plan in plans} == chosen
    _, err, code = told(capsys, *asked, *files)
    assert (code, "exists already" in err) == (2, True)


def test_a_search_takes_periods_too_and_writes_them(capsys, tmp_path):
    text = SCENARIO.replace('name = "FedDC"', 'name = "FedDC"\npermute_every = 1\naggregate_every = 2')
    (tmp_path / "small.toml").write_text(text)
    asked = ("tune", str(tmp_path / "small.toml"), "--rates", "0.1", "--seeds", "1", "--try", "aggregate_every=2,1")
    files = ("--out", str(tmp_path / "search.csv"), "--write", str(tmp_path / "tuned.toml"))

    out, _, code = told(capsys, *asked, *files)

    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("FedDC: ")]
    plans = {plan.method.label: plan for plan in load_scenario(tmp_path / "tuned.toml").plans()}
    assert line == f"FedDC: aggregate_every = {plans['FedDC'].method.aggregate_every}, lr = 0.1"
    assert set(choose(load(tmp_path / "search.csv")[""])) == {
        "FedDC, aggregate_every = 2",
        "FedDC, aggregate_every = 1",
        "FedAvg",
    }
    _, err, code = told(capsys, "tune", "fig4", "--try", "aggregate_every=2,1")
    assert (code, "an item of `reproduce list` has the settings of its paper" in err) == (2, True)


@pytest.mark.parametrize(("rates", "message"), [("0.1,fast", "numbers separated by commas"), ("0,0.1", "positive")])
def test_rates_that_are_none_are_one_line(capsys, tmp_path, rates, message):
    (tmp_path / "small.toml").write_text(SCENARIO)

    _, err, code = told(capsys, "tune", str(tmp_path / "small.toml"), "--rates", rates)

    assert code == 2
    assert message in err
