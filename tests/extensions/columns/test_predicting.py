"""A forest over split columns at real sites is asked about new patients, by the parties together and nobody else."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.errors import DataError, PlanError, ReplyError
from fedsmall.extensions.columns.active import ActiveParty
from fedsmall.extensions.columns.messages import Message as Said
from fedsmall.extensions.columns.party import PassiveParty, Table
from fedsmall.extensions.columns.server import outcome_lines, prepare_prediction, write_run
from fedsmall.extensions.columns.simulation import Columns, part_file, predict
from fedsmall.sim.cli.app import main
from tests.extensions.columns.test_server import (
    NAMES,
    DyingWire,
    KilledError,
    desk,
    gone_on,
    led,
    open_desk,
    parts,
    scenario,
)
from tests.sim.consortium.desk import Desk

__all__ = ["desk", "open_desk", "scenario"]


@pytest.fixture
def grown(desk, scenario) -> Desk:
    """The forest is there, and both sites have new patients: nine and eight, six at both."""
    told = led(desk, scenario)
    (desk.folder / "runs" / "outcome" / "outcome.json").write_text(json.dumps(told))
    x = np.random.default_rng(9).normal(size=(11, 3))
    rows = {
        "hospital": [("bmi", "patient", "age"), *((x[k, 1], f"new{k}", x[k, 0]) for k in range(9))],
        "laboratory": [("patient", "crp"), *((f"new{k}", x[k, 2]) for k in (10, 9, 8, 7, 6, 5, 4, 3))],
    }
    for name in NAMES:
        kit = desk.site(name).kit
        with (kit / "new.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows[name])
        (kit / "policy.toml").write_text('columns = true\npredict_from = "new.csv"\n')
    return desk


def simulated(desk: Desk, scenario: Columns, folder: Path) -> list[dict[str, Any]]:
    """What a simulation says of the new patients, from the parts that the sites have kept."""
    for name, part in parts(desk, "outcome").items():
        path = part_file(folder, name, "SecureBoostPlus", 0)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(part))
    files = {name: desk.site(name).kit / "new.csv" for name in NAMES}
    return [
        {key: str(value) for key, value in row.items()}
        for row in predict(folder, scenario, "SecureBoostPlus", 0, files)
    ]


def predictions(desk: Desk, run: str, name: str = "laboratory") -> Path:
    return run_folder(desk.site(name).home / RUNS, run) / "predictions.csv"


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_sites_predict_together_what_a_simulation_predicts(grown, scenario, tmp_path):
    home = prepare_prediction(grown.folder / "runs" / "outcome")

    told = gone_on(grown, home.name)
    write_run(home, told)

    rows = read(predictions(grown, "outcome-predictions-1"))
    assert rows == simulated(grown, scenario, tmp_path / "simulated")
    assert sorted(row["patient"] for row in rows) == [f"new{k}" for k in range(3, 9)]
    assert len({row["p(1)"] for row in rows}) > 1
    assert told["common"] == 6
    assert "laboratory has what the forest of outcome says of them" in outcome_lines(Path(), told)[0]
    assert not predictions(grown, home.name, "hospital").exists()
    everything = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert not any(row["patient"].encode() in everything or row["p(1)"].encode() in everything for row in rows)
    assert "which 6 new patients all parties have" in (home / "report.html").read_text()


@pytest.mark.thorough
def test_a_prediction_goes_on_where_it_was_interrupted(grown):
    plain, dying = (prepare_prediction(grown.folder / "runs" / "outcome", name) for name in ("plain", "dying"))
    gone_on(grown, plain.name)

    told = None
    while told is None:
        try:
            told = gone_on(grown, dying.name, DyingWire(grown, "after"))
        except KilledError:
            grown.restart()

    assert read(predictions(grown, "dying")) == read(predictions(grown, "plain"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("columns = true\n", r"names no patients about whom a forest may be asked \(predict_from\)"),
        ('columns = false\npredict_from = "new.csv"\n', "takes no part in runs over split columns"),
        ('columns = true\npredict_from = "none.csv"\n', "the table of new patients is not there"),
    ],
)
def test_each_site_has_a_say_in_predictions(grown, policy, reason):
    (grown.site("hospital").kit / "policy.toml").write_text(policy)
    home = prepare_prediction(grown.folder / "runs" / "outcome")

    with pytest.raises(PlanError, match=f"hospital: .*{reason}"):
        gone_on(grown, home.name)


@pytest.mark.thorough
def test_a_forest_that_a_site_has_no_part_of_is_not_asked(grown):
    home = prepare_prediction(grown.folder / "runs" / "outcome")
    sheet = json.loads((home / "columns.json").read_text())
    sheet["columns"]["of"]["id"] = "another"
    (home / "columns.json").write_text(json.dumps(sheet))

    with pytest.raises(PlanError, match="this site has no part of a forest of the run 'outcome'"):
        gone_on(grown, home.name)


@pytest.mark.thorough
def test_where_no_new_patient_is_at_all_sites_it_says_so(grown):
    (grown.site("hospital").kit / "new.csv").write_text("patient,age,bmi\nnobody,1,2\n")
    home = prepare_prediction(grown.folder / "runs" / "outcome")

    with pytest.raises(DataError, match="no patient is at all parties"):
        gone_on(grown, home.name)


def test_a_party_that_is_asked_for_predictions_grows_no_forest():
    """Else new patients would be trained on by whoever may ask about them."""
    part = {"columns": ["age"], "records": [[0, 0.5]]}
    passive = PassiveParty.from_part("hospital", Table(("a",), ("age",), np.zeros((1, 1))), part)
    whole = {**part, "trees": [], "classes": ["no", "yes"], "prior": [0.0], "centre": 0.0, "spread": 1.0}
    active = ActiveParty.from_part("laboratory", Table(("a",), ("age",), np.zeros((1, 1))), whole)

    for party, kind in ((passive, "begin"), (passive, "gradients"), (active, "grow")):
        with pytest.raises(ReplyError, match=f"does not answer '{kind}'"):
            party.answer(Said("anybody", party.name, kind))


@pytest.mark.thorough
def test_what_is_no_forest_is_not_asked_and_a_name_is_kept_once(grown):
    home = prepare_prediction(grown.folder / "runs" / "outcome", "asked")

    with pytest.raises(PlanError, match="'asked' has grown no forest, or is not finished"):
        prepare_prediction(home)
    with pytest.raises(PlanError, match="There is a run 'asked' already"):
        prepare_prediction(grown.folder / "runs" / "outcome", "asked")


@pytest.mark.thorough
def test_the_command_has_the_sites_asked_and_the_hospital_gets_a_table(grown, monkeypatch, capsys, tmp_path):
    home = grown.folder / "runs" / "outcome"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as odd:
        main(["columns", "predict", str(home), "hospital=new.csv"])
    with pytest.raises(SystemExit) as down:
        main(["columns", "predict", str(home)])
    assert (odd.value.code, down.value.code) == (2, 2)
    complained = capsys.readouterr().err
    assert "give the folder alone" in complained
    assert "The server does not run" in complained

    assert [path.name for path in home.parent.iterdir()] == ["outcome"]  # nothing is left behind

    gone_on(grown, prepare_prediction(home).name)
    words = ["site", "predictions", "outcome-predictions-1", "--kit", str(grown.site("laboratory").kit)]
    ends = []
    for line in ([*words, "--out", "said.csv"], [*words, "--out", "said.csv"], [*words[:2], "outcome", *words[3:]]):
        with pytest.raises(SystemExit) as ended:
            main(line)
        ends.append((ended.value.code, capsys.readouterr()))

    assert (tmp_path / "said.csv").stat().st_mode & 0o777 == 0o600  # it has a line for every patient
    assert read(tmp_path / "said.csv") == read(predictions(grown, "outcome-predictions-1"))
    assert [code for code, _ in ends] == [0, 2, 2]
    assert "said.csv: 6 patients" in ends[0][1].out
    assert "said.csv is there already" in ends[1][1].err
    assert "of 'outcome' there are no predictions here" in ends[2][1].err
