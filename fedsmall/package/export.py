"""A package as one file for programs that know nothing of fedsmall: ONNX or TorchScript, with the scaling inside.

Its input "x" is (rows, *shape): for a table float32 (TorchScript: any float), NaN where a value is missing, categories
as 0 and 1; for images 8-bit pixels, channels first. Its output is "probabilities", (rows, classes or labels) in
float64, "numbers" in their unit, or "survival", (rows, intervals). The file holds the names of both.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall import files
from fedsmall.data.image_files import EIGHT_BITS
from fedsmall.data.outcomes import ORDINAL, Amount, kind_of
from fedsmall.data.preparation import Pixels, Preparation
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import probabilities
from fedsmall.files import one_line
from fedsmall.methods import check_known
from fedsmall.models.networks import log_shares
from fedsmall.package.predictor import network, outputs_of
from fedsmall.package.record import Package
from fedsmall.package.store import Stored, save_zip
from fedsmall.randomness import rng_for

CLOSE = 1e-6  # how far an exported file may be from the package on the rows that it is checked with
CHECKED = 64  # rows
NEEDED = ("onnx", "onnxscript", "onnxruntime")
META = "fedsmall"  # under what the file says what its numbers mean


class WithPreparation(nn.Module):
    """A package's network with what rows go through before it, and what its outputs go through after it."""

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        prepared, self.loss = stored.package.preparation, stored.package.loss
        self.kind, outcome = kind_of(self.loss), prepared.outcome
        self.unit = outcome.mean_and_scale if isinstance(outcome, Amount) else (0.0, 1.0)
        self.network = network(*stored)
        self.deep = _deep_range(prepared)
        self.pixels, self.dtype = prepared.form.kind == "images", getattr(torch, prepared.dtype)
        self.ranges = [*map(torch.from_numpy, prepared.ranges.ends(prepared.shape))] if prepared.ranges else []
        self.scaling = [*map(torch.from_numpy, astuple(prepared.scaling))] if prepared.scaling else []

    def forward(self, x: Tensor) -> Tensor:
        """(rows, classes) or (rows, numbers) in float64."""
        outputs: Tensor = self.network(self._inputs(x)).to(torch.float64)
        if self.kind == "times":
            return torch.exp(torch.cumsum(torch.nn.functional.logsigmoid(-outputs), dim=-1))
        if self.kind == "labels":
            return torch.sigmoid(outputs)
        if self.kind == "numbers":
            return outputs * self.unit[1] + self.unit[0]
        if self.loss == ORDINAL:
            return torch.exp(log_shares(outputs))
        if outputs.shape[-1] > 1:
            return torch.softmax(outputs, dim=-1)
        return torch.cat([torch.sigmoid(-outputs), torch.sigmoid(outputs)], dim=-1)

    def _inputs(self, x: Tensor) -> Tensor:
        if self.deep is not None:
            black, white = self.deep
            return ((x.clamp(black, white) - black) / (white - black) * 2 - 1).to(self.dtype)
        if self.pixels:
            return ((x.to(torch.float32) / 255 - 0.5) / 0.5).to(self.dtype)
        ready = x.to(torch.float64)
        if self.ranges:
            low, high = self.ranges
            ready = torch.minimum(torch.maximum(ready, low), high)
        if self.scaling:
            mean, scale = self.scaling
            ready = (ready - mean) / scale
        return torch.where(torch.isnan(x), torch.zeros_like(ready), ready).to(self.dtype)


def _deep_range(prepared: Preparation) -> tuple[float, float] | None:
    form = prepared.form
    return form.range if isinstance(form, Pixels) and form.range not in (None, EIGHT_BITS) else None


def export(stored: Stored, path: Path, form: str) -> None:
    """Write a package as one file; what it says has been held against the package before."""
    check_known(form, ENDINGS, f"There is no format {form!r}")
    if form == "zip":
        return save_zip(path, stored)
    rows = _make_rows(stored.package.preparation)
    with TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own; torch calls TorchScript old
        try:
            content, run = WRITERS[form](stored, torch.from_numpy(rows), Path(folder) / "model")
        except RuntimeError as error:  # as of a graph's network, which sorts and searches
            cause = getattr(error.__cause__, "__cause__", None) or error.__cause__ or error
            why = f"PyTorch cannot write this network as {form} ({one_line(cause, 120)})"
            raise PlanError(f"{why}; try another --format") from None
        for batch in (rows, rows[:1]):
            _check(stored, batch, run(batch))
    return files.write(path, content)


def meaning(package: Package) -> dict[str, str]:
    """What the numbers of an exported file mean."""
    form = package.preparation.form
    return {
        "input": json.dumps(form.feature_names if form.kind == "table" else list(package.preparation.shape)),
        "classes": json.dumps(package.class_names),
        "target": package.target or "",
        "times": json.dumps(package.cuts),
        "labels": json.dumps(package.labels),
        "positive": package.positive or "",
        "threshold": repr(package.threshold),
        "model": f"{package.name}, {package.label}, seed {package.seed}",
    }


def _onnx(stored: Stored, rows: Tensor, file: Path) -> tuple[bytes, Callable[[np.ndarray], np.ndarray]]:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise PlanError(f"writing ONNX needs {', '.join(missing)}, not installed here: pip install 'fedsmall[export]'")
    import onnx
    import onnxruntime

    kind = np.uint8 if rows.dtype == torch.uint8 else np.float32
    torch.onnx.export(
        WithPreparation(stored).eval().requires_grad_(False),
        (rows if kind is np.uint8 else rows.float(),),
        str(file),
        input_names=["x"],
        output_names=[{"numbers": "numbers", "times": "survival"}.get(stored.package.kind, "probabilities")],
        dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
        external_data=False,
        verbose=False,
    )
    model = onnx.load(str(file))
    onnx.helper.set_model_props(model, meaning(stored.package))
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda batch: session.run(None, {"x": batch.astype(kind)})[0]


def _torchscript(stored: Stored, rows: Tensor, file: Path) -> tuple[bytes, Callable[[np.ndarray], np.ndarray]]:
    jit: Any = torch.jit
    traced = jit.trace(WithPreparation(stored).eval().requires_grad_(False), rows)
    jit.save(traced, str(file), _extra_files={META: json.dumps(meaning(stored.package)).encode()})
    model = jit.load(str(file))
    return file.read_bytes(), lambda batch: model(torch.from_numpy(batch)).numpy()


WRITERS = {"onnx": _onnx, "torchscript": _torchscript}
ENDINGS = {"onnx": ".onnx", "torchscript": ".pt", "zip": ".zip"}


def form_of(path: Path | None) -> str:
    """The format that a file's name ends in, ONNX where there is none; PlanError for another ending."""
    forms = {ending: form for form, ending in ENDINGS.items()}
    ending = ".onnx" if path is None else path.suffix
    check_known(ending, forms, f"a file that ends in {ending!r} has no format that is written here; say --format")
    return forms[ending]


def _make_rows(prepared: Preparation) -> np.ndarray:
    rng = rng_for(0, "export")
    if (deep := _deep_range(prepared)) is not None:
        return rng.uniform(*deep, (CHECKED, *prepared.shape)).astype(np.float32)
    if prepared.form.kind == "images":
        return rng.integers(0, 256, (CHECKED, *prepared.shape), dtype=np.uint8)
    x = rng.normal(size=(CHECKED, *prepared.shape))
    if (scaling := prepared.scaling) is not None:
        x = scaling.mean + 2 * scaling.scale * x
    if prepared.form.kind == "table" and prepared.form.missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x.astype(np.float32).astype(np.float64)


def _check(stored: Stored, rows: np.ndarray, exported: np.ndarray) -> None:
    package = stored.package
    outputs = outputs_of(network(*stored), package.preparation.inputs(rows))
    expected = probabilities(outputs, package.loss) if package.kind == "classes" else package.interpret(outputs)
    off = float(np.abs(exported - expected).max()) if exported.shape == expected.shape else np.inf
    if not off <= CLOSE * max(1.0, float(np.abs(expected).max())):
        raise PlanError(f"the exported file is off by {off:.2g} from the package, so it was not written")
