"""A saved model says of raw rows, in another process, what the run's own said of its test samples."""

import csv
import hashlib
import html
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import fedsmall
from fedsmall.data.splits import hold_out
from fedsmall.errors import PlanError
from fedsmall.package.store import read as read_package
from fedsmall.randomness import rng_for
from fedsmall.sim.api import Result
from fedsmall.sim.report.html import page
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read, stem
from fedsmall.sim.runs.scenario import load
from tests import ROOT
from tests.sim.runs.scenarios import write

TABLE = """
name = "clinic"
task = {csv = "hospitals", label = "outcome", drop = ["id"], categorical = ["sex", "ward"]}
model = "mlp"
rounds = 12
seeds = [0, 1]
[recipe]
lr = 0.2
[[method]]
name = "Standalone"
[[method]]
name = "FedDC"
aggregate_every = 4
[[method]]
name = "Central"
[[method]]
name = "TravellingGroups"
groups = 2
"""
PREFIX = "p_"


def patients(rng, count):
    """A table with words, missing cells and categories; the order of columns is not that of training."""
    wards = rng.choice(["north", "south, old", "1"], count)
    marker = rng.normal(3, 2, count)
    frame = pandas.DataFrame(
        {
            "id": [f"p{number}" for number in range(count)],
            "marker": [f"{value:.3f}" if value < 5 else "?" for value in marker],
            "sex": rng.choice(["f", "m", "", "NA"], count),
            "age": rng.integers(20, 90, count).astype(str),
            "ward": wards,
        }
    )
    ill = marker + (frame["sex"] == "m") + (wards == "1") + rng.normal(0, 0.5, count) > 4
    return frame.assign(outcome=np.where(ill, "ill", "well"))


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A run over two hospitals with tables of their own."""
    folder, rng = tmp_path_factory.mktemp("clinic"), np.random.default_rng(3)
    (folder / "hospitals").mkdir()
    for name in ("bonn", "essen"):
        patients(rng, 40).to_csv(folder / "hospitals" / f"{name}.csv", index=False)
    return execute(load(write(folder, TABLE)), folder / "run")


def held_out(run, seed, name):
    """The raw rows that a hospital held out, worked out anew."""
    frame = pandas.read_csv(run.folder.parent / "hospitals" / f"{name}.csv", dtype=str, keep_default_na=False)
    y = (frame["outcome"] == "well").to_numpy().astype(int)
    of_classes, of_all = (hold_out(y, test, rng_for(seed, "held-out", name))[1] for test in (0.25, round(len(y) / 4)))
    return frame.iloc[of_classes if len(of_classes) == round(len(y) / 4) else of_all]


@pytest.fixture
def here(fedsmall):
    """Call the command line in this process: a start of Python costs seconds, and one test has it."""

    def call(*arguments):
        code, shown, complained = fedsmall("predict", *arguments)
        assert code == 0, complained
        return list(csv.DictReader(shown.splitlines()))

    return call


def elsewhere(folder, *arguments):
    """The command line in a process of its own, in another folder; what it wrote, as rows."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fedsmall.sim.cli.app", "predict", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


def said(rows):
    return np.array([[float(value) for name, value in row.items() if name.startswith(PREFIX)] for row in rows])


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["FedDC", "Central", "TravellingGroups"])
def test_raw_rows_get_what_the_run_said_of_its_test_samples(clinic, here, tmp_path, method):
    one = next(one for one in clinic.done if one.label == method and one.plan.seed == 1)
    told = clinic.predictions_of(one)
    raw = pandas.concat([held_out(clinic, 1, name) for name in ("bonn", "essen")])
    shuffled = raw[["ward", "age", "id", "marker", "sex"]]  # no label, and the columns in another order
    shuffled.to_csv(tmp_path / "new.csv", index=False)

    call = (clinic.folder.resolve(), "new.csv", "--method", method, "--seed", "1", "--id", "id")
    rows = elsewhere(tmp_path, *call) if method == "TravellingGroups" else here(*call)

    assert np.abs(said(rows) - told["probabilities"]).max() < 1e-6
    assert [row["id"] for row in rows] == list(raw["id"])
    assert [row["class"] for row in rows] == [("ill", "well")[place] for place in told["probabilities"].argmax(axis=1)]
    assert list(raw["outcome"]) == [("ill", "well")[place] for place in told["labels"]]
    assert ("spread" in rows[0]) == (method == "TravellingGroups")


def test_several_seeds_answer_with_their_mean_and_say_how_far_apart_they_are(clinic, fedsmall, tmp_path):
    raw = held_out(clinic, 0, "bonn")
    raw.to_csv(tmp_path / "new.csv", index=False)
    alone = [
        said(list(csv.DictReader(fedsmall("predict", clinic.folder, "new.csv", "--seed", seed)[1].splitlines())))
        for seed in "01"
    ]

    _, shown, _ = fedsmall("predict", clinic.folder, "new.csv")

    rows = list(csv.DictReader(shown.splitlines()))
    assert np.allclose(said(rows), np.mean(alone, axis=0))
    named = np.argmax(said(rows), axis=1)
    apart = np.std(alone, axis=0, ddof=1)[np.arange(len(named)), named]
    assert np.allclose([float(row["spread"]) for row in rows], apart)


IMAGES = """
name = "shapes"
task = {images = "scans", size = 16}
partition = {natural = "folder"}
model = "cnn"
rounds = 3
[recipe]
lr = 0.05
[[method]]
name = "FedAvg"
"""


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A run over two hospitals with folders of images of several sizes."""
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for site in ("bonn", "essen"):
        for label, bright in (("disc", 0), ("ring", 1)):
            (folder / "scans" / site / label).mkdir(parents=True)
            for number in range(12):
                pixels = rng.integers(0, 120, (20 + number, 30)) + 100 * bright
                Image.fromarray(pixels.astype(np.uint8)).save(folder / "scans" / site / label / f"{number:02d}.png")
    return execute(load(write(folder, IMAGES)), folder / "run")


def test_raw_images_get_what_the_run_said_of_them(scans, here, tmp_path):
    told = scans.predictions_of(scans.done[0])
    essen = told["sites"] == "essen"
    files = [
        path for label in ("disc", "ring") for path in sorted((scans.folder.parent / "scans/essen" / label).glob("*"))
    ]
    picked = hold_out(np.repeat([0, 1], 12), 0.25, rng_for(0, "held-out", "essen"))[1]
    (tmp_path / "new").mkdir()
    for place, number in enumerate(picked):
        (tmp_path / "new" / f"{place:02d}.png").write_bytes(files[number].read_bytes())

    rows = here(scans.folder, "new")

    assert [row["image"] for row in rows] == [f"{place:02d}.png" for place in range(len(picked))]
    assert np.abs(said(rows) - told["probabilities"][essen]).max() < 1e-6
    assert (said(rows)[:, 1] > 0.5).any()
    shown = html.unescape(page([scans], "t"))
    assert re.search(
        rf"predict {scans.folder} NEW-IMAGES</code> says what the models of \S+ make of new images\.", shown
    )
    assert re.search(r"^fedsmall predict \S+ new-images$", shown, re.M)  # in the model card


def test_a_run_over_images_that_was_kept_without_a_norm_predicts_with_batches_as_it_was_trained(scans, here, tmp_path):
    run = execute(load(scans.folder / "scenario.toml", ["model_options.norm='batch'"]), tmp_path / "run")
    package = run.folder / "packages" / stem(run.done[0])
    rows = here(run.folder, scans.folder.parent / "scans/essen/ring")
    for kept in (run.folder / "plans.json", package / "package.json"):
        kept.write_text(re.sub(r'"norm": ?"batch"', "", kept.read_text()))
    listed = (package / "SHA256SUMS").read_text()
    digest = hashlib.sha256((package / "package.json").read_bytes()).hexdigest()
    (package / "SHA256SUMS").write_text(re.sub(r"\w+(?=  package.json)", digest, listed))

    again = here(run.folder, scans.folder.parent / "scans/essen/ring")

    assert again == rows
    assert read(run.folder).plans == run.plans
    assert scans.plans[0].model_options == {"norm": "group"}


def test_arrays_from_python_are_predicted_as_they_were_judged(tmp_path):
    from fedsmall.sim import run

    rng = np.random.default_rng(0)
    sites = {name: (rng.normal(5, 3, (20, 4)), np.arange(20) % 2) for name in ("essen", "bonn")}
    x, y = rng.normal(5, 3, (30, 4)), np.arange(30) % 2

    result = run(sites=sites, test=(x, y), methods=["FedAvg"], rounds=4, progress=False)

    told = result.run.predictions_of(result.run.done[0])["probabilities"]
    assert np.abs(result.predict(x)[["p_0", "p_1"]].to_numpy() - told).max() < 1e-6
    frame = pandas.DataFrame(x, columns=["x0", "x1", "x2", "x3"])[["x3", "x1", "x0", "x2"]]
    assert np.abs(result.predict(frame)[["p_0", "p_1"]].to_numpy() - told).max() < 1e-6


@pytest.mark.parametrize(("asked", "how"), [("'youden'", "Youden"), ("{sensitivity = 0.8}", "0.8"), ("0.3", "given")])
def test_a_model_is_kept_with_the_threshold_that_its_scenario_asks_for(clinic, asked, how):
    scenario = load(write(clinic.folder.parent, TABLE), [f"threshold={asked}", "seeds=[0]"])

    run = execute(scenario)

    for one in run.done[1:]:  # Standalone makes no global model
        package, found = run.packages_of(one)[0].package, one.row.get("thresholds", {})
        assert how in package.threshold_from
        assert package.threshold in (0.3, *found.values())
        assert package.threshold != 0.5


def test_each_site_s_own_model_is_kept_where_it_is_asked_for(clinic, fedsmall, tmp_path):
    scenario = load(clinic.folder / "scenario.toml", ["keep=sites", "seeds=[0]"])
    run = execute(scenario, tmp_path / "own")

    alone = next(one for one in run.done if one.label == "Standalone")
    packages = run.packages_of(alone)
    assert [stored.package.whose for stored in packages] == ["bonn", "essen"]
    assert [stored.package.trained_on.samples for stored in packages] == [30, 30]
    raw = held_out(clinic, 0, "bonn")
    raw.to_csv(tmp_path / "new.csv", index=False)
    rows = [
        fedsmall("predict", tmp_path / "own", "new.csv", "--method", "Standalone", "--site", site)[1]
        for site in ("bonn", "essen")
    ]
    assert rows[0] != rows[1]
    code, _, complained = fedsmall("predict", clinic.folder, "new.csv", "--method", "Standalone")
    assert (code, complained.count("\n")) == (2, 1)
    assert 'ends with no global model; keep = "sites" in the scenario' in complained


@pytest.fixture(scope="module")
def beside(clinic):
    """A run over the same hospitals that keeps more than global models."""
    asked = write(clinic.folder.parent, TABLE.replace("[0, 1]", "[0]").replace("rounds =", 'keep = "sites"\nrounds ='))
    return execute(load(asked), clinic.folder.parent / "beside")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--method", "FedDC", "--site", "bon"], "there is no model of the site 'bon'. Did you mean 'bonn'"),
        (["--method", "FedAD"], "this run has no method 'FedAD'"),
    ],
)
def test_models_that_are_not_there_are_one_line(beside, fedsmall, tmp_path, asked, words):
    held_out(beside, 0, "bonn").to_csv(tmp_path / "new.csv", index=False)

    code, _, complained = fedsmall("predict", beside.folder, "new.csv", *asked)

    assert (code, complained.count("\n")) == (2, 1)
    assert words in complained


def changed(frame, **columns):
    return frame.assign(**columns)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns="age").rename(columns={"marker": "markers"}), "there is no column 'marker'"),
        (lambda frame: changed(frame, age="old"), "every row is refused; the first: age is no number"),
        (lambda frame: changed(frame, ward="east"), "ward is a category that the model was not trained with; known: "),
        (lambda frame: frame.iloc[:0], "no row; there is nothing to predict"),
    ],
)
def test_what_the_model_was_not_trained_for_is_refused_in_one_line(clinic, fedsmall, tmp_path, change, words):
    change(held_out(clinic, 0, "bonn")).to_csv(tmp_path / "new.csv", index=False)

    code, said_, complained = fedsmall("predict", clinic.folder, "new.csv", "--out", "out.csv")

    assert (code, said_, complained.count("\n")) == (2, "", 1)
    assert words in complained
    assert not Path("out.csv").exists()


def test_a_value_far_outside_those_of_training_is_used_and_noted(clinic, fedsmall, tmp_path):
    frame = held_out(clinic, 0, "bonn").reset_index(drop=True)
    frame.loc[2, "age"] = "900"
    frame.to_csv(tmp_path / "new.csv", index=False)

    code, shown, told = fedsmall("predict", clinic.folder, "new.csv")

    notes = [row["notes"] for row in csv.DictReader(shown.splitlines())]
    assert code == 0
    assert notes == ["age is far outside the training data" if place == 2 else "" for place in range(len(notes))]
    assert "age is far outside the training data in 1 of 10 rows" in told


def test_new_rows_in_a_sheet_of_a_workbook_are_predicted_as_those_of_a_csv(clinic, fedsmall, tmp_path):
    pytest.importorskip("openpyxl")
    rows = held_out(clinic, 0, "bonn")
    rows.to_csv(tmp_path / "new.csv", index=False)
    with pandas.ExcelWriter(tmp_path / "new.xlsx") as book:
        rows.iloc[:3].to_excel(book, sheet_name="2023", index=False)
        rows.to_excel(book, sheet_name="2024", index=False)

    plain, sheet = (
        fedsmall("predict", clinic.folder, "new.csv"),
        fedsmall("predict", clinic.folder, "new.xlsx", "--sheet", "2024"),
    )

    assert (sheet[0], sheet[1]) == (0, plain[1])
    assert Result(clinic).predict(tmp_path / "new.xlsx", sheet="2023").shape[0] == 3
    calls = {
        ("new.xlsx",): "2 sheets hold something; say which is meant: sheet = ... in a task, or --sheet",
        ("new.xlsx", "--sheet", "2025"): "there is no visible sheet '2025' with anything in it",
        ("new.csv", "--sheet", "2024"): "--sheet names a sheet of an Excel workbook (.xlsx, .xlsm), and these rows are",
    }
    for call, words in calls.items():
        code, said_, complained = fedsmall("predict", clinic.folder, *call, "--out", "out.csv")
        assert (code, said_, complained.count("\n")) == (2, "", 1), call
        assert words in complained
        assert not Path("out.csv").exists()


def test_words_that_choose_no_model_are_told_in_one_line(clinic, fedsmall, tmp_path):
    held_out(clinic, 0, "bonn").to_csv(tmp_path / "new.csv", index=False)
    package = next((clinic.folder / "packages").glob("*FedDC-seed0"))
    old = tmp_path / "old"
    old.mkdir()
    for name in ("scenario.toml", "run.json", "plans.json", "summary.json", "rounds.json"):
        (old / name).write_bytes((clinic.folder / name).read_bytes())
    (tmp_path / "out.csv").write_text("mine")
    calls = {
        ("predict", clinic.folder, "new.csv", "--method", "FedDD"): "no method 'FedDD'. Did you mean 'FedDC'?",
        ("predict", clinic.folder, "new.csv", "--seed", "7"): "run with the seeds 0, 1, not 7",
        ("predict", clinic.folder, "new.csv", "--site", "bonn"): "local models of FedDC were not kept",
        ("predict", package, "new.csv", "--seed", "0"): "a package is one model",
        ("predict", old, "new.csv"): "holds no model that can be used: it is of an older release",
        ("predict", tmp_path, "new.csv"): "holds no run",
        ("predict", package, "absent.csv"): "there is no file or folder absent.csv",
        ("predict", package, "new.csv", "--out", "out.csv"): "out.csv is there already",
        ("predict", package, "new.csv", "--id", "ids"): "there is no column 'ids' (--id). Did you mean 'id'?",
        ("predict", package, package): "the model takes a table with the columns",
    }

    for call, words in calls.items():
        code, _, complained = fedsmall(*call)
        assert (code, complained.count("\n")) == (2, 1), call
        assert words in complained
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_images_of_another_size_and_no_images_are_refused(fedsmall, scans, tmp_path):
    from PIL import Image

    (tmp_path / "new").mkdir()
    empty = fedsmall("predict", scans.folder, "new")
    Image.new("L", (5, 5)).save(tmp_path / "new" / "a.png")
    resized = fedsmall("predict", scans.folder, "new")
    package = read_package(scans.folder / "packages" / stem(scans.done[0])).package
    fixed = package.preparation.form.model_copy(update={"resize": False})

    assert "holds no image" in empty[2]
    assert resized[0] == 0  # the scenario named a size, to which all are brought
    with pytest.raises(ValueError, match="the image is 5 x 5, and the model takes 16 x 16"):
        fixed.numbers([tmp_path / "new" / "a.png"])


def test_a_package_that_was_changed_is_refused(clinic, tmp_path):
    import shutil

    package = tmp_path / "package"
    shutil.copytree(next((clinic.folder / "packages").glob("*FedDC-seed0")), package)
    assert fedsmall.load(package).classes_.tolist() == ["ill", "well"]

    for name in ("package.json", "model.safetensors", "README.md"):
        before = (package / name).read_bytes()
        (package / name).write_bytes(before.replace(b"0", b"1", 1))
        with pytest.raises(PlanError, match=f"{name} is not what SHA256SUMS says"):
            fedsmall.load(package)
        (package / name).write_bytes(before)
    with pytest.raises(PlanError, match="is a run, of several models; choose a package in"):
        fedsmall.load(clinic.folder)
    (package / "SHA256SUMS").unlink()
    with pytest.raises(PlanError, match="no whole package: it has no SHA256SUMS"):
        fedsmall.load(package)


@pytest.mark.thorough
def test_a_report_and_a_comparison_of_packaged_runs_are_made_from_their_folders(clinic, fedsmall):
    again = read(clinic.folder)

    assert all(again.model_of(one) is not None for one in again.done if one.plan.method.family == "federated")
    for command in (("report", clinic.folder), ("compare", clinic.folder)):
        code, shown, complained = fedsmall(*command)
        assert (code, complained) == (0, "")
        assert "FedDC" in shown
    page = (clinic.folder / "report.html").read_text()
    assert f"fedsmall predict {clinic.folder} NEW.csv" in page
    assert "is the positive class" in page


@pytest.mark.thorough
def test_an_exported_file_says_of_raw_rows_what_the_run_said_of_its_test_samples(clinic, fedsmall, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    one = next(one for one in clinic.done if one.label == "FedDC" and one.plan.seed == 1)
    package = clinic.folder / "packages" / stem(one)

    code, said_, complained = fedsmall("export", package, "--out", tmp_path / "m.onnx")

    assert (code, complained) == (0, "")
    assert '["marker", "sex=f", "sex=m", "age", "ward=1", "ward=north", "ward=south, old"]' in said_
    raw = pandas.concat([held_out(clinic, 1, name) for name in ("bonn", "essen")])
    x = read_package(package).package.preparation.form.numbers(raw)  # categories are made numbers outside the file
    answers = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x.astype(np.float32)})[0]
    assert np.abs(answers - clinic.predictions_of(one)["probabilities"]).max() < 1e-6
    several, again = (fedsmall("export", clinic.folder, *more) for more in ((), ("--seed", "1", "--out", "m.onnx")))
    assert "this run has several of FedDC: --seed takes one of 0, 1" in several[2]
    assert f"of folds give a folder in {clinic.folder / 'packages'}" in several[2]
    assert "m.onnx is there already" in again[2]
