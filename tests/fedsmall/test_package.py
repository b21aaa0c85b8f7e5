"""A package as an estimator of scikit-learn, as a .zip, and its card."""

import hashlib
import subprocess

import numpy as np
import pandas
import pytest
import yaml
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import RocCurveDisplay, accuracy_score, roc_auc_score
from sklearn.model_selection import cross_val_score

import fedsmall
from fedsmall.data.federation import Task
from fedsmall.data.preparation import Agreed, Columns, Numbers, Pixels, Preparation, Ranges
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.package.predictor import predictor_of, read_rows
from fedsmall.package.record import TrainedOn, describe
from fedsmall.package.store import Stored, read, save, save_zip
from fedsmall.plan import Plan

FORM = Columns(columns=("age", "sex"), categories={"sex": ("f", "m")}, unlisted="refuse")
PREPARED = Preparation(form=FORM, shape=(3,), scaled=True, agreed=Agreed(mean=(50.0, 0.5, 0.5), scale=(10.0, 0.5, 0.5)))
ROWS = pandas.DataFrame({"sex": list("fmfmfmfm"), "age": [30, 40, 50, 60, 70, 45, 55, 65], "other": "x"})


def made(classes=("well", "ill"), prepared=PREPARED, model="mlp", seed=0, loss="cross_entropy", **settings):
    plan = Plan(name="t", task="t", model=model, seed=seed, method=method("FedDC", **settings))
    task = Task("t", prepared.shape, len(classes), loss, class_names=classes)
    members = 2 if plan.method.is_ensemble else None
    weights = [initial_model(plan.model_copy(update={"seed": seed + place}), task) for place in range(members or 1)]
    arrays = {name: np.stack([one[name] for one in weights]) if members else weights[0][name] for name in weights[0]}
    return Stored(describe(plan, task, prepared, TrainedOn(sites=2, samples=8), members, limits=("few",)), arrays)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "package", *made())
    return tmp_path / "package"


def test_scikit_learns_own_tools_take_a_loaded_model(folder):
    model, y = fedsmall.load(folder), np.array(["well", "ill"] * 4)
    frozen = FrozenEstimator(model)

    p = model.predict_proba(ROWS)

    assert is_classifier(model)
    assert model.package.class_names == ("well", "ill")
    assert model.classes_.tolist() == ["ill", "well"]  # scikit-learn takes it for granted that they are in order
    assert np.array_equal(p[:, 0], model.answers(ROWS).together[:, 1])
    assert np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(model.predict(ROWS), model.classes_[p.argmax(axis=1)])
    assert model.score(ROWS, y) == accuracy_score(y, model.predict(ROWS))
    assert np.array_equal(clone(model).predict_proba(ROWS), p)
    assert np.isfinite(cross_val_score(frozen, ROWS, y, cv=2, scoring="roc_auc")).all()
    shown = RocCurveDisplay.from_estimator(frozen, ROWS, y, pos_label="ill")
    assert shown.roc_auc == pytest.approx(roc_auc_score(y == "ill", p[:, 0]))
    assert CalibrationDisplay.from_estimator(frozen, ROWS, y, pos_label="ill", n_bins=2).prob_pred.size
    calibrated = CalibratedClassifierCV(frozen, cv=2).fit(ROWS, y)
    assert calibrated.predict_proba(ROWS).shape == (8, 2)
    with pytest.raises(PlanError, match="FrozenEstimator"):
        model.fit(ROWS, y)


def test_classes_that_are_whole_numbers_are_numbers(tmp_path):
    assert predictor_of([made(("0", "1"))]).classes_.tolist() == [0, 1]
    assert predictor_of([made(("0", "1.5"))]).classes_.tolist() == ["0", "1.5"]


@pytest.mark.parametrize("settings", [{}, {"groups": 2}])
def test_a_zip_is_the_same_model_and_the_same_bytes_every_time(tmp_path, settings):
    stored = made(**settings)
    save(tmp_path / "folder", *stored)

    save_zip(tmp_path / "a.zip", read(tmp_path / "folder"))
    save_zip(tmp_path / "b.zip", read(tmp_path / "a.zip"))

    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    p = [fedsmall.load(tmp_path / name).predict_proba(ROWS) for name in ("folder", "b.zip")]
    assert np.array_equal(p[0], p[1])


def test_the_digests_are_those_of_the_files_and_coreutils_checks_them(folder):
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest

    assert (
        subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False).returncode == 0
    )


def test_the_card_has_the_header_that_the_hub_reads():
    from fedsmall.package.store import card

    stored = made()
    told = {"test samples": {"auc": 0.75}}
    package = stored.package.model_copy(update={"performance": told, "name": 'a "name": with\\ odd'})

    header = yaml.safe_load(card(package, stored.weights).split("---\n")[1])

    assert header["library_name"] == "fedsmall"
    assert header["pipeline_tag"] == "tabular-classification"
    (result,) = header["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "auc", "value": 0.75}]
    assert header["model-index"][0]["name"] == 'a "name": with\\ odd FedDC'


def test_a_threshold_in_the_package_decides_the_class():
    low, high = (
        predictor_of([stored._replace(package=stored.package.model_copy(update={"threshold": t}))])
        for stored in [made()]
        for t in (0.01, 0.99)
    )

    assert set(low.predict(ROWS)) == {"ill"}
    assert set(high.predict(ROWS)) == {"well"}


def test_members_of_one_package_are_apart_and_answer_together():
    answers = predictor_of([made(groups=2)]).answers(ROWS)

    assert answers.each.shape == (2, 8, 2)
    assert np.allclose(answers.together, answers.each.mean(axis=0), atol=1e-7)
    assert (answers.spread > 0).all()


def test_models_of_different_tasks_do_not_answer_together():
    with pytest.raises(PlanError, match="different tasks"):
        predictor_of([made(), made(("a", "b"))])


def test_numbers_are_predicted_as_numbers():
    prepared = Preparation(form=Numbers(), shape=(5,))
    stored = made(("a", "b", "c"), prepared, loss="l1")

    model = predictor_of([stored])

    assert model.predict(np.ones((2, 5))).shape == (2, 3)
    assert not hasattr(model, "predict_proba")


def test_rows_from_python_and_from_a_file_are_the_same_numbers(tmp_path):
    odd = pandas.DataFrame({"age": [0.1 + 0.2, None, 1 / 3], "sex": ["f", None, "m"]})
    odd.to_csv(tmp_path / "odd.csv", index=False)

    here, there = read_rows(PREPARED, odd), read_rows(PREPARED, tmp_path / "odd.csv")

    assert np.array_equal(here.x, there.x, equal_nan=True)
    assert np.isnan(here.x[1]).all()


def test_a_category_that_the_scenario_did_not_list_is_none_of_them_and_noted():
    loose = PREPARED.model_copy(update={"form": FORM.model_copy(update={"unlisted": "none"})})
    frame = ROWS.assign(sex=["x", *"mfmfmfm"])

    rows = read_rows(loose, frame)

    assert rows.x[0].tolist() == [30, 0, 0]
    assert rows.notes[0] == ["sex is a category that the model does not know"]
    with pytest.raises(
        DataError, match="column 'sex' holds a value that the model was not trained with, in 1 of 8 rows"
    ):
        read_rows(PREPARED, frame)


def test_a_range_notes_what_is_beyond_it_and_cuts_it():
    prepared = Preparation(form=Columns(columns=("age",)), shape=(1,), ranges=Ranges(low=(0.0,), high=(100.0,)))

    rows = read_rows(prepared, pandas.DataFrame({"age": [50, 100, 101]}))

    assert [len(notes) for notes in rows.notes] == [0, 0, 1]
    assert prepared.inputs(rows.x)[1] == prepared.inputs(rows.x)[2]


def test_images_in_python_have_their_colours_last_as_in_an_npz():
    prepared = Preparation(form=Pixels(channels=3, size=(4, 6)), shape=(3, 4, 6))

    assert read_rows(prepared, np.zeros((2, 4, 6, 3), np.uint8)).x.shape == (2, 3, 4, 6)
    with pytest.raises(DataError, match=r"samples have shape \(3, 4, 5\), and the model takes \(3, 4, 6\)"):
        read_rows(prepared, np.zeros((2, 4, 5, 3), np.uint8))


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "package.json").unlink(), "holds no package"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    ],
)
def test_half_a_package_is_told_in_one_line(folder, break_it, words):
    break_it(folder)

    with pytest.raises(PlanError, match=words):
        fedsmall.load(folder)


def test_a_package_of_a_later_release_and_odd_zips_are_refused(tmp_path):
    stored = made()
    save(tmp_path / "later", stored.package.model_copy(update={"format": 99}), stored.weights)
    (tmp_path / "odd.zip").write_bytes(b"no zip")

    for path, words in (
        ("later", "of a later fedsmall"),
        ("odd.zip", "no .zip that can be read"),
        ("no.zip", "no package"),
    ):
        with pytest.raises(PlanError, match=words):
            fedsmall.load(tmp_path / path)


def test_weights_of_another_network_are_refused(tmp_path):
    save(tmp_path / "odd", made().package, made(model="linear").weights)

    with pytest.raises(PlanError, match="the weights are not those of the model 'mlp'"):
        fedsmall.load(tmp_path / "odd").predict(ROWS)
