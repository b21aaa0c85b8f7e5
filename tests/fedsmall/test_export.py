"""An exported file says of raw rows what the package says, run by a program that knows nothing of fedsmall."""

import json

import numpy as np
import pandas
import pytest
import torch

import fedsmall.package.export as exporting
from fedsmall.data.federation import Task
from fedsmall.data.preparation import Agreed, Columns, Numbers, Pixels, Preparation, Ranges
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.package.predictor import predictor_of, read_rows
from fedsmall.package.record import TrainedOn, describe
from fedsmall.package.store import Stored
from fedsmall.plan import Plan
from tests.fedsmall.test_package import PREPARED, ROWS, made

# torch calls TorchScript, which many still read, an old format of its own
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
RANGED = Preparation(form=Columns(columns=("a", "b")), shape=(2,), ranges=Ranges(low=(0.0, -5.0), high=(9.0, 5.0)))
DIGITS = Preparation(
    form=Numbers(), shape=(1, 2, 2), scaled=True, agreed=Agreed(mean=(1.0, 2.0, 3.0, 4.0), scale=(1.0, 0.1, 2.0, 3.0))
)
SCANS = Preparation(form=Pixels(channels=1, size=(8, 8)), shape=(1, 8, 8))
TABLE = ROWS.assign(age=[30, None, 50, 600, 70, 45, 55, 65])
RANDOM = np.random.default_rng(0)
CASES = {
    "a table with categories": (lambda: made(), TABLE),
    "groups of models": (lambda: made(groups=2), TABLE),
    "log-odds, three members by their logits": (
        lambda: made(loss="logistic", groups=2, together="logit"),
        TABLE,
    ),
    "float64": (lambda: made(prepared=PREPARED.model_copy(update={"dtype": "float64"})), TABLE),
    "ranges": (lambda: made(prepared=RANGED), pandas.DataFrame({"a": [1, None, 99], "b": [-9, 0, 2]})),
    "images with batch normalisation": (
        lambda: made(prepared=SCANS, model="cnn"),
        RANDOM.integers(0, 256, (5, 8, 8), dtype=np.uint8),
    ),
    "scaled arrays of images": (lambda: made(prepared=DIGITS), RANDOM.normal(size=(5, 1, 2, 2))),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_onnx_file_says_what_the_package_says(tmp_path, case):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    stored, rows = CASES[case][0](), CASES[case][1]
    exporting.export(stored, tmp_path / "model.onnx", "onnx")

    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    raw = read_rows(stored.package.preparation, rows).x
    said = session.run(None, {"x": raw if raw.dtype == np.uint8 else raw.astype(np.float32)})[0]

    assert np.abs(said - predictor_of([stored]).answers(rows).together).max() < 1e-6
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == ["well", "ill"]
    assert (told["positive"], float(told["threshold"])) == ("ill", 0.5)


@pytest.mark.parametrize("case", CASES)
def test_a_torchscript_file_says_what_the_package_says(tmp_path, case):
    stored, rows = CASES[case][0](), CASES[case][1]
    exporting.export(stored, tmp_path / "model.pt", "torchscript")

    told = {"fedsmall": ""}
    model = torch.jit.load(str(tmp_path / "model.pt"), _extra_files=told)
    said = model(torch.from_numpy(read_rows(stored.package.preparation, rows).x)).numpy()

    assert np.abs(said - predictor_of([stored]).answers(rows).together).max() < 1e-6
    assert json.loads(told["fedsmall"])["positive"] == "ill"


def test_numbers_come_out_as_numbers(tmp_path):
    stored = made(("a", "b", "c"), Preparation(form=Numbers(), shape=(5,)), loss="l1")
    exporting.export(stored, tmp_path / "model.pt", "torchscript")

    x = RANDOM.normal(size=(4, 5))
    said = torch.jit.load(str(tmp_path / "model.pt"))(torch.from_numpy(x)).numpy()

    assert np.allclose(said, predictor_of([stored]).predict(x), atol=1e-6)


def test_a_file_that_says_something_else_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "probabilities", lambda outputs, loss: np.zeros_like(outputs))

    with pytest.raises(PlanError, match=r"off by 0\.\d+ from the package, so it was not written"):
        exporting.export(made(), tmp_path / "model.pt", "torchscript")

    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_and_a_word_that_is_no_format_are_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)

    with pytest.raises(PlanError, match=r"needs onnx, onnxscript, onnxruntime, not installed here: pip install 'fedsm"):
        exporting.export(made(), tmp_path / "model.onnx", "onnx")
    with pytest.raises(PlanError, match=r"There is no format 'onx'\. Did you mean 'onnx'"):
        exporting.export(made(), tmp_path / "model.onnx", "onx")


@pytest.mark.slow
def test_a_network_that_pytorch_cannot_write_is_told_in_one_line_and_nothing_is_written(tmp_path):
    pytest.importorskip("onnxscript")
    plan = Plan(name="t", task="t", model="g1", model_options={"widths": (4, 5)}, method=method("FedAvg"))
    prepared = Preparation(form=Numbers(), shape=(6,))
    task = Task("t", (6,), 10, "l1")
    about = describe(plan, task, prepared, TrainedOn(sites=2, samples=8), None)

    with pytest.raises(PlanError, match=r"^PyTorch cannot write this network as onnx \(.*nextafter.*\); try another"):
        exporting.export(Stored(about, initial_model(plan, task)), tmp_path / "model.onnx", "onnx")

    assert list(tmp_path.iterdir()) == []
