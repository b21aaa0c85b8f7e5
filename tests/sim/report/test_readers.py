"""Who could be read by whom, as a reader of a report sees it."""

import json

import pytest

from fedsmall.sim.cli.options import terminal
from fedsmall.sim.report.facts import reader_sentences, readers
from fedsmall.sim.report.html import page
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run, read
from fedsmall.sim.runs.scenario import build

TABLE = {
    "name": "who reads",
    "task": "breast_cancer",
    "model_options": {"hidden": [8]},
    "sites": 4,
    "samples_per_site": 3,
    "rounds": 4,
    "seeds": [3, 4],
    "method": [
        {"name": "Standalone"},
        {"name": "FedAvg", "aggregate_every": 1},
        {"name": "FedDC", "permute_every": 1, "aggregate_every": 4},
        {"name": "FedDC", "label": "FedDC, blur", "permute_every": 1, "aggregate_every": 4, "privacy": {"blur": 1.0}},
        {"name": "Central"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return execute(build(TABLE), tmp_path_factory.mktemp("r") / "run")


def test_every_federated_method_has_a_row_and_no_other(run: Run) -> None:
    rows = {row.label: row for row in readers(run)}

    assert list(rows) == ["FedAvg", "FedDC", "FedDC, blur"]
    assert rows["FedAvg"].anybody
    assert not rows["FedDC, blur"].anybody
    assert rows["FedAvg"].cells[1:3] == ("-", "-"), "nobody is handed a model"


def test_they_are_counted_on_the_first_seed_and_kept_in_the_result_files(run: Run) -> None:
    assert run.folder is not None
    kept = {(r["label"], r["seed"]): r.get("read") for r in json.loads((run.folder / "summary.json").read_text())}

    assert kept["FedDC", 3]["patients"] == 12
    assert kept["FedDC", 4] is None
    assert readers(read(run.folder)) == readers(run)


@pytest.mark.thorough
def test_a_model_that_shows_this_attack_nothing_is_not_called_safe() -> None:
    images = {**TABLE, "task": "digits", "model": "cnn", "model_options": {"norm": "group"}, "seeds": [0], "rounds": 1}
    run = execute(build({**images, "method": [{"name": "FedAvg", "aggregate_every": 1}]}))

    assert readers(run) == []
    assert "which says nothing of others" in " ".join(reader_sentences(run))
    assert "which says nothing of others" in page([run], "t")


@pytest.mark.thorough
def test_what_an_epsilon_does_not_cover_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    private = {"name": "FedAvg", "aggregate_every": 2, "privacy": {"clip": 1.0, "noise": 1.0}}
    exact = execute(build({**TABLE, "seeds": [0], "method": [private]}))
    stated = execute(
        build({**TABLE, "task": {"name": "breast_cancer", "ranges": [0.0, 5000.0]}, "seeds": [0], "method": [private]})
    )

    for run, said in ((exact, True), (stated, False)):
        print_run(terminal(), run)
        shown = " ".join(capsys.readouterr().out.split())
        assert "Outside the epsilon:" in shown
        assert "sent exactly" in page([run], "t")
        assert ("the sums by which features are scaled" in shown) is said
