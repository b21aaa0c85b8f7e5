"""From an unknown table to a scenario that runs: what `fedsmall new` decides, and what it says is wrong."""

import json
import tomllib

import numpy as np
import pytest

from fedsmall.planning.look import candidates, look_at, read_tables, suspicions
from tests.sim.cli.spoiled import TABLES, spoil

WITHIN = {"Ridge": 0.01, "FedDC": 0.02}  # of the AUC of logistic regression on pooled rows


def write(path, header, rows):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))


def scenario_of(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list(TABLES))
def test_a_messy_table_becomes_a_report_as_good_as_pooled_logistic_regression(fedsmall, tmp_path, name):
    spoil(name, tmp_path / "patients.csv")

    ended = [fedsmall("new", "patients.csv", "--label", "outcome", "--out", "mine.toml")]
    ended += [fedsmall("run", "mine.toml", "--set", "seeds=[0, 1]", "--processes", 1)]
    ended += [fedsmall("predict", "runs/mine", "patients.csv")]

    assert [(code, said) for code, _, said in ended if code] == []
    assert (tmp_path / "runs/mine/report.html").is_file()
    rows = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    pooled = np.mean([row["pooled"]["common"]["auc"] for row in rows if "pooled" in row])
    for method, within in WITHIN.items():
        own = np.mean([row["common"]["auc"] for row in rows if row["method"] == method])
        assert own > pooled - within, (method, own, pooled)


def test_the_last_table_becomes_a_scenario_that_says_what_each_column_is(fedsmall, tmp_path):
    spoil("all at once", tmp_path / "patients.csv")

    code, said, complained = fedsmall("new", "patients.csv", "--label", "outcome")
    scenario = scenario_of(tmp_path / "mine.toml")

    assert (code, complained) == (0, "")
    assert scenario["task"]["decimal"] == ","
    assert scenario["task"]["classes"] == {"well": ["WELL"], "ill": ["ILL"]}
    assert set(scenario["task"]["drop"]) == {"admitted", "case_id", "country", "remark"}
    assert scenario["task"]["categorical"] == ["sex"]
    assert {"-999", "9999", "unknown"} == set(scenario["task"]["missing"])
    assert scenario["partition"] == {"natural": "hospital"}
    assert "positive is ill, the rarer" in said


def test_a_number_is_predicted_as_one_and_a_time_with_its_event(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{a:.2f}", f"{b:.2f}", f"{10 + 3 * a:.2f}", n % 2) for n, (a, b) in enumerate(rng.normal(size=(80, 2)))]
    write(tmp_path / "patients.csv", "a,b,months,died", [(*row[:2], abs(float(row[2])), row[3]) for row in rows])

    assert fedsmall("new", "patients.csv", "--label", "months", "--out", "number.toml")[0] == 0
    assert fedsmall("new", "patients.csv", "--time", "months", "--event", "died", "--out", "time.toml")[0] == 0

    assert scenario_of(tmp_path / "number.toml")["task"]["target"] == "months"
    assert scenario_of(tmp_path / "time.toml")["task"] == {"csv": "patients.csv", "time": "months", "event": "died"}


def test_the_positive_class_is_the_rarer_unless_asked(fedsmall, tmp_path):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, "well" if n % 3 else "ill") for n in range(90)])

    fedsmall("new", "patients.csv", "--label", "outcome")
    fedsmall("new", "patients.csv", "--label", "outcome", "--positive", "well", "--out", "other.toml")

    assert scenario_of(tmp_path / "mine.toml")["task"]["classes"] == ["well", "ill"]
    assert scenario_of(tmp_path / "other.toml")["task"]["classes"] == ["ill", "well"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["patients.csv"], "--label COLUMN. It may be outcome"),
        (["nothing.csv", "--label", "outcome"], "no file or folder 'nothing.csv'"),
        (["patients.csv", "--label", "outcom"], "no column 'outcom'. Known: age, outcome"),
        (["patients.csv", "--label", "outcome", "--positive", "dead"], "one of two classes"),
        (["patients.csv", "--time", "age"], "--time with --event"),
        (["patients.csv", "--label", "outcome", "--out", "no/where.toml"], "no folder 'no'"),
        (["patients.csv", "--label", "outcome", "--out", "patients.csv"], "not written over"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(fedsmall, tmp_path, words, complaint):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, n % 2) for n in range(60)])

    code, _, complained = fedsmall("new", *words)

    assert code == 2
    assert complaint in complained
    assert complained.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


def notes_of(path, label="outcome"):
    tables, decimal = read_tables(path)
    look = look_at(tables, decimal, [label], None, None)
    truth = {site: (frame[label] == "1").to_numpy() for site, frame in look.frames.items()}
    return "\n".join(suspicions(look, truth))


def test_what_looks_wrong_is_said(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for n in range(200):
        outcome, site = int(rng.random() < 0.4), "ulm" if n < 100 else "graz"
        glucose = rng.normal(5, 0.5) * (1000 if site == "ulm" else 1)
        sugar = 7 + 0.1 * rng.normal() if outcome else 5 + 0.1 * rng.normal()
        slip = 1700 if n == 7 else 170 + 5 * rng.normal()
        rows.append((f"{glucose:.3f}", f"{sugar:.3f}", f"{slip:.2f}", "" if n % 3 else n % 5, site, outcome))
    write(tmp_path / "patients.csv", "glucose,hba1c,height,seldom,hospital,outcome", rows + rows[:1])

    notes = notes_of(tmp_path / "patients.csv")

    assert "glucose is about 10^" in notes
    assert "hba1c alone predicts the outcome" in notes
    assert "height has 1 values far outside" in notes
    assert "seldom is missing in 1" in notes
    assert "1 rows are there more than once" in notes


def test_of_a_sound_table_nothing_is_said(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{a:.4f}", f"{b:.4f}", n % 2) for n, (a, b) in enumerate(rng.normal(size=(200, 2)))]
    write(tmp_path / "patients.csv", "age,marker,outcome", rows)

    assert notes_of(tmp_path / "patients.csv") == ""


def test_a_code_is_a_value_where_other_values_are_near_it(tmp_path):
    rows = [(change, weight, n % 2) for n, (change, weight) in enumerate([(-9, 70), (-8, -9), (3, 80), (-9, -9)] * 10)]
    write(tmp_path / "patients.csv", "change,weight,outcome", rows)
    tables, decimal = read_tables(tmp_path / "patients.csv")

    assert look_at(tables, decimal, ["outcome"], None, None).missing == ()  # it would empty the other column, too


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_table_of_a_few_rows_is_looked_at(tmp_path, rows):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n, n % 2) for n in range(rows)])
    tables, _ = read_tables(tmp_path / "patients.csv")

    assert candidates(tables[""]) == (["outcome", "age"] if rows > 1 else [])
