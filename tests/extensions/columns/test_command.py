"""A scenario over split columns as a user runs it: files, the table, the report, files of each party, predictions."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest

pytest.importorskip("gmpy2")

from fedsmall.extensions.columns.simulation import METHODS
from fedsmall.sim.consortium import members

SCENARIO = """
name = "outcome"
task = {columns = {hospital = "hospital.csv", laboratory = "laboratory.csv"}, id = "patient", label = "ill"}
test = 0.3
boosting = {rounds = 2, depth = 2, bins = 5, least_samples = 3}

[[method]]
name = "Standalone"

[[method]]
name = "SecureBoostPlus"

[[method]]
name = "Central"
"""


def tables(folder: Path, target: str = "ill") -> Path:
    """Forty patients at the hospital, forty at the laboratory, thirty-two of them at both; and the scenario."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 4)).round(3)
    ill = np.where(x[:, 2] + x[:, 0] > 0, "yes", "no")
    last = ill if target == "ill" else (x[:, 0] + 2 * x[:, 2]).round(3)
    write(
        folder / "hospital.csv",
        ["patient", "age", "bmi", target],
        zip(ids(0, 40), x[:40, 0], x[:40, 1], last, strict=False),
    )
    write(
        folder / "laboratory.csv",
        ["patient", "crp", "hb"],
        reversed(list(zip(ids(8, 48), x[8:, 2], x[8:, 3], strict=True))),
    )
    (folder / "outcome.toml").write_text(SCENARIO)
    return folder / "outcome.toml"


def ids(first: int, last: int) -> list[str]:
    return [f"patient-{k}" for k in range(first, last)]


def write(path: Path, header: list[str], rows) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.mark.parametrize("command", [("run",), ("columns", "run")])
def test_a_run_prints_its_table_and_what_each_party_learns(fedsmall, tmp_path, command):
    code, said, complained = fedsmall(*command, tables(tmp_path))

    assert (code, complained) == (0, "")
    assert "32 patients are at all parties: hospital (2 columns), laboratory (2 columns)" in said
    assert (
        "SecureBoostPlus made the trees of joined columns (Central), every split and every leaf: 1 of 1 seeds." in said
    )
    assert "which 32 patients all parties have; " in said
    page = (tmp_path / "runs" / "outcome" / "report.html").read_text()
    assert "What each party learns" in page
    assert "a label, a gradient, a leaf&#39;s weight" in page


def test_a_run_is_repeated_from_its_folder_to_the_same_numbers(fedsmall, tmp_path):
    fedsmall("run", tables(tmp_path), "--set", "boosting.goss={top=0.3,other=0.2}")
    fedsmall("run", tmp_path / "runs" / "outcome" / "scenario.toml", "--out", "again")

    first, again = (json.loads((tmp_path / one / "summary.json").read_text()) for one in ("runs/outcome", "again"))

    timed = ("seconds", "work", "bytes")
    assert [{k: v for k, v in row.items() if k not in timed} for row in first["rows"]] == [
        {k: v for k, v in row.items() if k not in timed} for row in again["rows"]
    ]


def test_each_party_keeps_its_own_part_and_no_other_partys(fedsmall, tmp_path):
    fedsmall("run", tables(tmp_path))

    parts = {p.parent.name: json.loads(p.read_text()) for p in (tmp_path / "runs/outcome/parties").rglob("*.json")}

    assert parts["hospital"]["columns"] == ["age", "bmi"]
    assert set(parts["laboratory"]) == {"columns", "records"}
    nodes = [node for _, tree in parts["hospital"]["trees"] for node in tree]
    theirs = [node for node in nodes if node[0] == "laboratory"]
    assert theirs
    assert all(len(node) == 5 and node[4] == [] for node in theirs)  # who, which record, two places: no cut
    assert "patient-" not in json.dumps(parts)


def test_parties_predict_together_for_new_patients(fedsmall, tmp_path):
    fedsmall("run", tables(tmp_path))
    write(tmp_path / "h.csv", ["bmi", "patient", "age"], [(0, "a", 3), (0, "b", -3), (0, "only here", 1)])
    write(tmp_path / "l.csv", ["patient", "hb", "crp"], [("b", 0, -3), ("a", 0, 3)])

    code, said, complained = fedsmall("columns", "predict", "runs/outcome", "hospital=h.csv", "laboratory=l.csv")

    assert (code, complained) == (0, "")
    rows = list(csv.DictReader(io.StringIO(said)))
    assert [(row["patient"], row["class"]) for row in rows] == [("a", "yes"), ("b", "no")]
    assert float(rows[0]["p(yes)"]) + float(rows[0]["p(no)"]) == pytest.approx(1, abs=1e-5)


def test_a_number_is_predicted_too(fedsmall, tmp_path):
    tables(tmp_path, "days")

    code, said, _ = fedsmall(
        "run",
        "outcome.toml",
        "--set",
        'task={columns={hospital="hospital.csv", laboratory="laboratory.csv"}, id="patient", target="days"}',
    )
    _, told, _ = fedsmall("columns", "predict", "runs/outcome", "hospital=hospital.csv", "laboratory=laboratory.csv")

    assert code == 0
    assert "mean error" in said
    assert next(csv.DictReader(io.StringIO(told))).keys() == {"patient", "days"}


REFUSED = {
    "no name of ours": (("boosting.round=3",), "Method 'Standalone': unknown key 'round'"),
    "a hash": (('task.match="salted_hash"',), "can hash every record number that there is"),
    "a short key": (("key_bits=1024",), "a key that protects labels has 2048 bits"),
    "no party": (('task.columns={hospital="hospital.csv"}',), "the table of each of two parties or more"),
    "a path for a party": (('task.columns={"../x"="hospital.csv", b="laboratory.csv"}',), "is no name for a party"),
    "no label": (('task.label="sex"',), "hospital.csv: there is no column 'sex'"),
    "two of what is predicted": (('task.target="age"',), "either a label (classes) or a target (a number)"),
    "an unknown method": (('method.0={name="FedAvg"}',), "'FedAvg' is no method over split columns"),
    "one name twice": (('method.0={name="Central"}',), "two methods are called 'Central'"),
    "layers for nobody": (('boosting.trees="layered"',), "passive_levels is 2, and the depth is 2"),
    "no patient in common": (('task.id="hb"',), "hospital.csv: there is no column 'hb'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_one_line_and_leaves_nothing(fedsmall, tmp_path, case):
    settings, reason = REFUSED[case]

    code, _, complained = fedsmall("run", tables(tmp_path), *(word for one in settings for word in ("--set", one)))

    assert code == 2
    assert reason in complained
    assert complained.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("patient-9,", "patient-10,"), "1 of 40 identifiers stand in several rows"),
        (lambda text: text.replace("patient-9,", ","), "1 of 40 rows have no identifier"),
        (lambda text: text.replace("patient-", "other-"), "0 patients are at all parties; at least 10 are needed"),
        (
            lambda text: re.sub("(patient-9,).*", r"\1low,2", text),
            "laboratory.csv, column 'crp': text where numbers are expected",
        ),
        (lambda text: re.sub("(?m)^(patient-.*),(.*),(.*)$", r"\1,low,high", text), "column 'crp', 'hb': text"),
        (lambda text: re.sub("(?m)^([^,]*),.*", r"\1", text), "party 'laboratory' has no column of numbers"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_count(fedsmall, tmp_path, change, reason):
    path = tables(tmp_path)
    (tmp_path / "laboratory.csv").write_text(change((tmp_path / "laboratory.csv").read_text()))

    code, _, complained = fedsmall("run", path)

    assert code == 2
    assert reason in complained
    assert "patient-9" not in complained


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("runs/outcome", "hospital=hospital.csv"),
            "'laboratory' has columns in this run, and no table was given for it",
        ),
        (("runs/outcome", "hospital.csv"), "a table is given as PARTY=FILE; got 'hospital.csv'"),
        (("runs/outcome", "hospital=hospital.csv", "laboratory=laboratory.csv", "x=y"), "'x' is no party of this run"),
        (("runs/outcome", "hospital=hospital.csv", "laboratory=laboratory.csv", "--seed", "9"), "no forest of"),
        (("runs", "hospital=hospital.csv"), "is no folder of a run over split columns"),
        (
            ("runs/outcome", "hospital=hospital.csv", "laboratory=laboratory.csv", "--out", "outcome.toml"),
            "not written over",
        ),
    ],
)
def test_a_prediction_that_cannot_be_made_is_one_line(fedsmall, ran, words, reason):
    code, _, complained = fedsmall("columns", "predict", *words)

    assert code == 2
    assert reason in complained


def test_a_site_sees_before_a_run_what_would_leave_and_what_its_policy_refuses(fedsmall, tmp_path):
    path = tables(tmp_path)
    members.create(tmp_path / "consortium", "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=20)
    members.add_site(tmp_path / "consortium", "laboratory", None, days=90)
    kit = tmp_path / "consortium" / "kits" / "laboratory"
    call = ("site", "check", "--data", "laboratory.csv", "--scenario", path)

    by_default = fedsmall(*call, "--kit", kit)
    (kit / "policy.toml").write_text("columns = true\nleast_side = 3\n")
    allowed = fedsmall(*call, "--kit", kit)
    nobody = fedsmall(*call)

    assert by_default[0] == 2
    assert "the policy here takes no part in runs over split columns (columns = false)" in by_default[2]
    assert allowed[::2] == (0, "")
    assert allowed[1].startswith("laboratory.csv: 40 rows; columns crp, hb\n")
    assert "leaves: sums over 3 patients or more on each side of our cuts" in allowed[1]
    assert nobody[0] == 2
    assert "'site' is none of the parties hospital, laboratory: say which is yours, --site" in nobody[2]


@pytest.mark.parametrize("command", ["describe", "tune", "choose"])
def test_a_command_for_models_that_travel_says_which_take_such_a_scenario(fedsmall, tmp_path, command):
    code, _, complained = fedsmall(command, tables(tmp_path))

    line = "fedsmall: outcome.toml is of `fedsmall columns`: run, start and site check take it, no other command.\n"
    assert (code, complained) == (2, line)


def test_who_trained_apart_keeps_no_forest_to_predict_with(fedsmall, tmp_path):
    path = tables(tmp_path)
    path.write_text(SCENARIO.replace('[[method]]\nname = "SecureBoostPlus"\n', ""))
    assert fedsmall("run", path)[0] == 0

    code, _, complained = fedsmall(
        "columns", "predict", "runs/outcome", "hospital=hospital.csv", "laboratory=laboratory.csv"
    )

    assert (code, complained.count("\n")) == (2, 1)
    assert "no forest of SecureBoost or SecureBoostPlus, others are not kept" in complained


@pytest.fixture
def ran(fedsmall, tmp_path) -> Path:
    fedsmall("run", tables(tmp_path), "--set", "boosting.rounds=1")
    return tmp_path


def test_options_of_models_that_travel_are_refused(fedsmall, tmp_path):
    code, _, complained = fedsmall("run", tables(tmp_path), "--engine", "ray")

    assert code == 2
    assert "--engine is of models that travel" in complained


def test_every_method_says_what_it_is():
    assert all(row.summary for row in METHODS.values())


@pytest.mark.thorough
def test_the_sample_is_two_tables_and_a_scenario_that_runs(fedsmall, tmp_path):
    assert fedsmall("columns", "sample")[0] == 0
    for name in ("hospital.csv", "laboratory.csv"):  # fewer patients are quicker
        table = pandas.read_csv(tmp_path / name)
        table[table["patient"] < "p0060"].to_csv(tmp_path / name, index=False)

    code, said, complained = fedsmall("run", "two_houses.toml", "--set", "boosting.rounds=1")

    assert (code, complained) == (0, "")
    assert (
        "SecureBoostPlus made the trees of joined columns (Central), every split and every leaf: 1 of 1 seeds." in said
    )


def test_the_sample_is_never_written_over_anything(fedsmall, tmp_path):
    (tmp_path / "laboratory.csv").write_text("mine")

    code, _, complained = fedsmall("columns", "sample", ".")

    assert code == 2
    assert "laboratory.csv is there already; it is not written over" in complained
    assert sorted(path.name for path in tmp_path.iterdir()) == ["laboratory.csv"]
