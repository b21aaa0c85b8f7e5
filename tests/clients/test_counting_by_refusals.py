"""A coordinator counts who has a value by plans that are refused, or by the difference of two that are not.

The attacker writes any plan, asks as often as it likes, and sees all that leaves. It wants to know how many patients of
a column have a value of its choice; on the refusals of before it read each of these counts exactly.
"""

import re

import numpy as np
import pytest
from PIL import Image

from fedsmall.parts import EarlyStop, Recipe
from fedsmall.planning.tasks import load_site
from fedsmall.wire import EXAMPLES, STEPS
from tests.clients.test_data_process import AS_IT_IS, DataProcess, config, order, plan, scaled

BORN = [f"19{40 + k % 50}-03-{1 + k % 28:02d}" for k in range(60)]


@pytest.fixture
def site(tmp_path):
    lines = ["born,marker,score,ill"]
    lines += [f"{BORN[k]},{k % 7},{7 if k < 3 else 10 + k % 5},{'no' if k % 2 else 'yes'}" for k in range(60)]
    (tmp_path / "essen.csv").write_text("\n".join(lines))
    (tmp_path / "policy.toml").write_text(AS_IT_IS)
    return DataProcess("essen", tmp_path / "essen.csv", tmp_path / "home", tmp_path / "policy.toml")


def told(site, **task):
    asked = plan(name="FedAvg").model_copy(update={"task": {"csv": "x.csv", **task}})
    return site.answer("roll", config(asked), {})[0]


COUNTED = {
    "who was born on a day": {"label": "born", "classes": [BORN[5], "nobody"]},
    "who has a code, as a missing label": {"label": "score", "classes": ["10", "11"], "missing": ["7"]},
    "who has a code, as a missing number": {"target": "score", "missing": ["7"], "drop": ["born"]},
    "whose label is none of two": {"label": "score", "classes": ["7", "10"], "drop": ["born", "ill"]},
    "who is above a border": {"time": "score", "event": "marker", "drop": ["born"]},
    "who has a word among numbers": {"target": "ill", "drop": ["born"]},
    "who has none of two labels": {"targets": ["ill", "marker"], "drop": ["born"]},
}


@pytest.mark.parametrize("asked", COUNTED)
def test_no_refusal_tells_a_count(site, asked):
    words = told(site, **COUNTED[asked])["error"]

    assert "some of the " in words
    assert not re.search(r"\d+ of ", words)


@pytest.mark.parametrize("mark", [{"separator": "7"}, {"separator": "Z"}, {"decimal": "-"}, {"decimal": "7"}])
def test_no_letter_or_digit_stands_between_cells(site, mark):
    """Which line is the first with a letter, and how many more, would be known for every letter."""
    assert "is one of" in told(site, label="ill", classes=["no", "yes"], **mark)["error"]


def test_no_refusal_tells_which_line_has_a_mark_that_may_stand_between_cells(site):
    site.data.write_text(site.data.read_text().replace(BORN[5], f"{BORN[5]} 12:30"))

    words = [told(site, label="ill", classes=["no", "yes"], separator=mark)["error"] for mark in " :"]

    assert all("its rows differ in length" in line and not re.search(r"\d", line) for line in words)


def test_a_hospital_sees_the_counts_itself(site, fedsmall):
    task = '{csv = "", label = "score", classes = ["10", "11"], missing = ["7"], drop = ["born", "ill"]}'

    said = fedsmall("site", "check", "--task", task, "--data", site.data)[1]

    assert "38 of 60 labels are none of the classes 10, 11" in said


CLASSES = {"label": "score", "classes": ["7", "10", "11", "12", "13", "14"], "drop": ["born", "ill"]}


def without(site, rows):
    lines = site.data.read_text().splitlines()
    cut = [f"{','.join(line.split(',')[:2])},,{line.split(',')[3]}" for line in lines[1 : 1 + rows]]
    site.data.write_text("\n".join([lines[0], *cut, *lines[1 + rows :]]))


@pytest.mark.parametrize(("rows", "least", "is_let"), [(3, 4, False), (4, 4, True), (59, 60, False), (0, 8, True)])
def test_rows_without_an_outcome_are_left_out_where_they_are_as_many_as_may_be_counted(site, rows, least, is_let):
    site.policy_file.write_text(AS_IT_IS + f"count_floor = {least}\nleast_samples = 1\n")
    without(site, rows)

    said = told(site, **CLASSES, drop_unlabelled=True)

    if is_let:
        assert int(said["config"][EXAMPLES]) <= 60 - rows
    else:
        assert "too few rows here have no outcome to leave them out (count_floor)" in said["error"]


@pytest.mark.parametrize("more", [{}, {"own": False}])
def test_no_plan_chooses_the_values_that_count_as_none(site, more):
    """By the difference of two such plans, of 15 and of 12 rows, it would know of the three."""
    for missing in (["10"], ["7", "10"]):
        said = told(site, **CLASSES, missing=missing, drop_unlabelled=True, **more)

        assert "is one of the classes, and by missing no value" in said["error"]


@pytest.mark.parametrize(
    "asked",
    [
        {"label": "born", "classes": ["a", "b"]},
        {"label": "score", "classes": ["10", "11"], "drop": ["born", "ill"]},
        {"time": "marker", "event": "born", "drop": ["ill"]},
        {"targets": ["ill", "born"]},
    ],
)
def test_no_refusal_tells_whether_a_word_that_counts_as_none_is_there(site, asked):
    """Whoever was born on a day would be known to be a patient by one plan."""
    said = [told(site, **asked, missing=[word])["error"] for word in (BORN[5], "7", "1899-01-01", "never")]

    assert len(set(said)) == 1


def test_no_refusal_tells_names_of_files_letter_by_letter(tmp_path):
    for k in range(40):
        (folder := tmp_path / "scans" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), k, np.uint8)).save(folder / f"p{k:02d}_scan.png")

    def held(pattern):
        task = {"images": "x", "classes": ("a", "b"), "patient": pattern}
        asked = plan().model_copy(update={"task": task, "model": "cnn", "test": 0.25})
        raw = load_site(asked, "essen", tmp_path / "scans")
        return len(raw.train), len(raw.held_out)

    assert {held(pattern) for pattern in ("(.*)_", "^(?!p07)(.*)_", "^(?!p99)(.*)_", "nobody")} == {(30, 10)}


VALUES = {"positive": ["positive"], "not": ["negative", "unknown"]}
PLANS = {
    "a column as patients": {"patient": "status"},
    "another seed": {"patient": "status", "seed": 5},
    "a quarter, unsaid": {"label": "status", "classes": VALUES},
    "a quarter": {"label": "status", "classes": VALUES, "test": 0.25},
    "a smaller share": {"label": "status", "classes": VALUES, "test": 0.1},
    "half": {"label": "status", "classes": VALUES, "test": 0.5},
    "folds": {"label": "status", "classes": VALUES, "folds": 5},
    "folds of a column as patients": {"patient": "status", "folds": 3},
    "more folds than a class has": {"label": "status", "classes": VALUES, "folds": 12},
    "samples that are kept back": {"patient": "status", "kept": 0.5},
    "equal samples": {"features": ["lab"]},
    "folds of equal samples": {"features": ["lab"], "folds": 4},
    "routes over samples": {"patient": "status", "validate": {"routes": 5, "by_samples": True}},
    "replicas by class": {"label": "status", "classes": VALUES, "tree": {"depth": 3, "drop": 0.3}},
}


def counted(folder, plan_of, positive):
    """What a hospital with so many positive patients says of its samples at the handshake, and after a round."""
    words = np.array(["negative", "unknown"] * 30)
    words[:positive] = "positive"
    labs = np.where(words == "positive", -1, np.arange(60))
    rows = [f"{k % 13},{k * 7 % 31 + k / 100},{labs[k]},{words[k]},{'yes' if k % 2 else 'no'}" for k in range(60)]
    (folder := folder / str(positive)).mkdir()
    (folder / "essen.csv").write_text("\n".join(["a,b,lab,status,ill", *rows]))
    (folder / "policy.toml").write_text(AS_IT_IS)
    site = DataProcess("essen", folder / "essen.csv", folder / "home", folder / "policy.toml")
    task = {key: plan_of[key] for key in ("label", "classes", "patient", "features") if key in plan_of}
    settings = {key: plan_of[key] for key in ("validate", "tree") if key in plan_of}
    if "tree" in plan_of:
        settings["tree"] = {"fanout": 1, "perturbation": "stratified", **plan_of["tree"]}
    asked = plan(name="RepTreeFL" if "tree" in plan_of else "FedAvg", weighted=True, **settings)
    asked = asked.model_copy(
        update={
            "task": {"csv": "x.csv", "label": "ill", "classes": ("no", "yes"), "features": ["a", "b"], **task},
            "recipe": Recipe(lr=0.05, batch=1, local_epochs=1),
            "seed": plan_of.get("seed", 0),
            "test": plan_of.get("test"),
            "folds": plan_of.get("folds"),
        }
    )
    if "kept" in plan_of:
        stop = EarlyStop(patience=2, hold_out=plan_of["kept"])
        asked = asked.model_copy(update={"method": asked.method.model_copy(update={"stop": stop})})
    said = site.answer("roll", config(asked), {})[0]
    assert "error" not in said, said
    model = scaled(site, asked)
    trained = site.answer("train", order(1, the_plan=asked), model)[0]
    assert "error" not in trained, trained
    return said["config"][EXAMPLES], trained["metrics"][EXAMPLES], trained["metrics"][STEPS]


@pytest.mark.parametrize("how", PLANS)
def test_how_many_a_hospital_trains_on_does_not_tell_how_many_have_a_value(how, tmp_path):
    """The attacker knows all but how many are positive; by the splits of before most plans told it, some exactly."""
    assert len({counted(tmp_path, PLANS[how], positive) for positive in (1, 2, 4, 5, 11)}) == 1
