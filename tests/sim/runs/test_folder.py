import json
import re

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.files import check_free, free_folder, json_list, write
from fedsmall.sim.runs.folder import model_name, read
from fedsmall.sim.runs.scenario import load
from fedsmall.training import kernel
from tests.sim.runs.scenarios import SMALL
from tests.sim.runs.scenarios import write as write_scenario

KEYS = {
    *("method", "label", "seed", "engine", "common", "sites", "rounds", "contacts"),
    *("bytes_sent", "seconds", "client_updates_per_second"),
}


def test_the_summary_holds_the_promised_keys_for_every_method_and_seed(small_run):
    rows = json.loads((small_run.folder / "summary.json").read_text())

    assert len(rows) == 10
    for row in rows:
        assert set(row) >= KEYS
        assert row["engine"] == "inprocess"
        assert row["rounds"] == 6
    by_label = {row["label"]: row for row in rows}
    assert by_label["Standalone"]["common"] is None
    assert 0 <= by_label["Standalone"]["sites"]["accuracy_mean"] <= 1
    assert by_label["Standalone"]["contacts"] == by_label["Standalone"]["bytes_sent"] == 0
    assert by_label["FedDC"]["common"]["accuracy"] > 0.5
    assert by_label["FedDC"]["sites"]["accuracy_sd"] >= 0
    assert by_label["FedDC"]["contacts"] == by_label["FedAvg, b = 1"]["contacts"] == 6
    assert by_label["FedDC"]["bytes_sent"] == by_label["FedAvg, b = 1"]["bytes_sent"] > 0
    assert by_label["FedAvg, b = 3"]["contacts"] == 2


def test_a_run_is_read_back_as_it_was(small_run):
    again = read(small_run.folder)

    assert again.scenario == small_run.scenario
    assert again.plans == small_run.plans
    assert [one.row for one in again.done] == [one.row for one in small_run.done]
    assert [one.evaluations for one in again.done] == [one.evaluations for one in small_run.done]
    for mine, theirs in zip(small_run.done, again.done, strict=True):
        model, saved = small_run.model_of(mine), again.model_of(theirs)
        assert (model is None) == (saved is None)
        assert model is not None or mine.plan.method.family != "federated"
        assert all(np.array_equal(model[name], saved[name]) for name in model or {})


def test_a_run_repeated_from_its_own_folder_gives_the_same_bits(small_run, tmp_path):
    again = execute(load(small_run.folder / "scenario.toml", ["seeds=[1]"]), tmp_path / "again", engine="inprocess")

    for one in again.done:
        before = next(old for old in small_run.done if (old.label, old.plan.seed) == (one.label, 1))
        assert one.evaluations == before.evaluations
        model, old = again.model_of(one), small_run.model_of(before)
        assert all(np.array_equal(model[name], old[name]) for name in model or {})


def test_every_evaluation_is_in_the_csv(small_run):
    lines = (small_run.folder / "rounds.csv").read_text().splitlines()

    assert lines[0].startswith("label,seed,fold,round")
    assert "global_accuracy" in lines[0]
    assert "sites_accuracy_mean" in lines[0]
    assert len(lines) == 1 + sum(len(one.evaluations) for one in small_run.done)


def test_the_folder_knows_versions_and_says_that_nothing_is_missing(small_run):
    about = json.loads((small_run.folder / "run.json").read_text())

    assert {"fedsmall", "python", "flwr", "torch", "numpy"} <= set(about["versions"])
    assert (about["planned"], about["finished"], about["not_run"]) == (10, 10, [])


def test_nothing_half_written_is_left_behind(small_run):
    names = {path.name for path in small_run.folder.rglob("*") if path.is_file()}

    assert not [name for name in names if name.startswith(".")]
    assert names >= {"scenario.toml", "run.json", "plans.json", "summary.json", "rounds.json", "report.html"}
    assert all(
        re.fullmatch(r"\d{3}-[A-Za-z0-9-]+\.safetensors", path.name) for path in small_run.folder.glob("models/*")
    )


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))

    with pytest.raises(OSError, match="no space left"):
        write(path, b"new")

    assert path.read_bytes() == b"old"


def test_a_folder_that_holds_anything_is_refused(small_run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(PlanError, match="holds another run; choose another with --out"):
        check_free(small_run.folder)
    with pytest.raises(PlanError, match="holds files already"):
        check_free(tmp_path)
    with pytest.raises(PlanError, match="is a file; a run needs a folder"):
        check_free(tmp_path / "notes.txt")
    check_free(tmp_path / "new")


def test_the_next_free_folder_is_numbered(tmp_path):
    assert free_folder("a b/c", tmp_path) == tmp_path / "a-b-c"
    (tmp_path / "a-b-c").mkdir()
    assert free_folder("a b/c", tmp_path) == tmp_path / "a-b-c-2"


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(PlanError, match="holds no run"):
        read(tmp_path)


def test_a_run_whose_summary_is_empty_is_one_line(small_run, tmp_path):
    for name in ("run.json", "plans.json", "rounds.json", "scenario.toml"):
        (tmp_path / name).write_bytes((small_run.folder / name).read_bytes())
    (tmp_path / "summary.json").write_text("[]")

    with pytest.raises(PlanError, match=r"is damaged: summary\.json has 0 plans and rounds\.json 10\. Take"):
        read(tmp_path)


def test_folds_have_models_of_their_own(tmp_path):
    path = write_scenario(
        tmp_path, SMALL.replace("seeds = [0, 1]", "seeds = [0]\nfolds = 2").replace("rounds = 6", "rounds = 2")
    )
    run = execute(load(path), tmp_path / "run", engine="inprocess")

    assert len(run.done) == 10
    assert len({model_name(one) for one in run.done}) == 10
    assert [row["fold"] for row in json.loads((tmp_path / "run" / "summary.json").read_text())] == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("engine", "need"), [("cohort", "to have been built here, in this version"), ("inprocess", "the engine cohort")]
)
def test_a_kernel_asked_for_that_does_not_train_is_noted_once(tmp_path, monkeypatch, engine, need):
    monkeypatch.setattr(kernel, "library", lambda: None)
    ridge = '[[method]]\nname = "Ridge"\n'  # which needs no kernel
    scenario = load(write_scenario(tmp_path, SMALL.replace("rounds = 6", "rounds = 1") + ridge))

    execute(scenario, tmp_path / "run", engine=engine, options={"device": "kernel"})

    about, kept = read(tmp_path / "run").about, load(tmp_path / "run" / "scenario.toml")
    assert kept == scenario.model_copy(update={"device": "kernel", "metric": kept.metric})  # for resume, and to repeat
    assert [note for note in about["notes"] if "kernel" in note] == [
        f'device = "kernel" needs {need}; torch trained instead'
    ]
    assert about["path"] == ("exact sums and mlp" if engine == "cohort" else "loop")


@pytest.mark.parametrize(
    "items", [[], [{"a": [1.5, "two\nlines"], "b": {}}], [{"a": None}, [], {"c": [{"d": 1}]}]], ids=str
)
def test_a_list_of_texts_is_the_file_of_the_list(items):
    text = json_list([json.dumps(item) for item in items])
    assert json.loads(text) == items
    assert len(text.splitlines()) == max(1, len(items) + 2 * bool(items))
