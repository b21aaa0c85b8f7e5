"""DICOM: what a model sees is what pydicom makes of the file, and nothing of whom it is of."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.images import images
from fedsmall.errors import DataError, PlanError
from fedsmall.sim import run
from tests.fedsmall.data.pictures.test_files import deep, dicom

pydicom = pytest.importorskip("pydicom")
CT = {"RescaleSlope": 1, "RescaleIntercept": -1024}
WINDOW = CT | {"WindowCenter": 40, "WindowWidth": 400}


def folder(path: Path, photometric: str = "MONOCHROME2", **more: Any) -> list[Any]:
    for index in range(8):
        dicom(path / ("ill", "well")[index % 2] / f"{index}.dcm", deep(index), photometric, **more)
    return [pydicom.dcmread(each) for each in sorted(path.glob("*/*.dcm"))]


def seen(path: Path, **options: Any) -> np.ndarray:
    """Images as a model sees them, from 0 to 1."""
    pool = images(None, 0, str(path), **options)
    assert isinstance(pool.form, Pixels)
    return pool.form.scaled(pool.train[""].x)[:, 0] / 2 + 0.5


def lut(bits: int = 12) -> Any:
    item = pydicom.Dataset()
    item.LUTDescriptor, item.LUTExplanation = [4096, 0, bits], "for Müller^Hans"
    item.LUTData = np.linspace(2**bits - 1, 0, 4096).astype(np.uint16).tobytes()
    item["LUTDescriptor"].VR, item["LUTData"].VR = "US", "OW"
    return pydicom.Sequence([item])


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    "more",
    [
        WINDOW,
        WINDOW | {"VOILUTFunction": "SIGMOID"},
        WINDOW | {"VOILUTFunction": "LINEAR_EXACT"},
        {"VOILUTSequence": 1},
    ],
)
def test_a_files_own_window_gives_the_histogram_of_pydicom(tmp_path: Path, photometric: str, more: Any) -> None:
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    more = {"VOILUTSequence": lut()} if "VOILUTSequence" in more else more
    held = folder(tmp_path, photometric, **more)

    mine = seen(tmp_path, window="file")

    theirs = np.stack([apply_voi_lut(apply_modality_lut(each.pixel_array, each), each) for each in held])
    low = -1024 if "RescaleSlope" in more else 0
    share = (theirs - low) / 4095
    share = 1 - share if photometric == "MONOCHROME1" else share
    np.testing.assert_allclose(mine, share, atol=1e-6)
    bins = np.linspace(-0.5 / 4095, 1 + 0.5 / 4095, 41)
    assert np.abs(np.histogram(mine, bins)[0] - np.histogram(share, bins)[0]).sum() <= 2  # a tie at a bin's end


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_stated_window_is_pydicoms_linear_one(tmp_path: Path, photometric: str) -> None:
    from pydicom.pixels import apply_modality_lut, apply_windowing

    held = folder(tmp_path, photometric, **CT)

    mine = seen(tmp_path, window=[40, 400])

    for each in held:
        each.WindowCenter, each.WindowWidth = 40, 400
    theirs = np.stack([apply_windowing(apply_modality_lut(each.pixel_array, each), each) for each in held])
    share = (theirs + 1024) / 4095
    np.testing.assert_allclose(mine, 1 - share if photometric == "MONOCHROME1" else share, atol=1e-6)
    assert 0.05 < np.mean((mine > 0) & (mine < 1)) < 0.5  # the window cuts, and not all


def test_a_modality_lut_is_what_pydicom_makes_of_it(tmp_path: Path) -> None:
    from pydicom.pixels import apply_modality_lut

    table = lut(bits=16)
    table[0].ModalityLUTType = "US"
    held = folder(tmp_path, ModalityLUTSequence=table)

    mine = seen(tmp_path)

    theirs = np.stack([apply_modality_lut(each.pixel_array, each) for each in held])
    np.testing.assert_allclose(mine * 65535, theirs, atol=0.01)


def test_a_prediction_takes_the_window_of_training_and_nothing_says_whose_images_they_are(
    tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    held = folder(tmp_path / "scans", PatientID="4711-XY", PatientBirthDate="19500101", **WINDOW)
    assert str(held[0].PatientName) == "Müller^Hans"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "x"\ntask = {images = "scans", window = [40, 400]}\nmodel = "linear"\nsites = 2\nsamples_per_site = 3\n'
        'rounds = 2\nseeds = [0]\n[[method]]\nname = "FedAvg"\n'
    )

    result = run("s.toml", out="runs")
    result.predict(tmp_path / "scans" / "ill")

    form = json.loads(next(Path("runs").rglob("package.json")).read_text())["preparation"]["form"]
    assert form["window"] == [40, 400]
    assert form["range"] == [-160, 239]
    written = b"".join(path.read_bytes() for path in Path("runs").rglob("*") if path.is_file())
    said = "".join(capfd.readouterr()).encode()
    for whose in ("Müller", "Hans", "4711-XY", "19500101"):
        assert whose.encode() not in written + said


@pytest.mark.parametrize(
    ("more", "options", "line"),
    [
        (
            {"BurnedInAnnotation": "YES"},
            {},
            r"^ill/[07]\.dcm: writing is burnt into its pixels \(BurnedInAnnotation = YES",
        ),
        ({}, {"window": "file"}, r"^ill/[07]\.dcm: it says no window of its own; write the window of all: window = "),
        (
            {"WindowCenter": 40, "WindowWidth": 0},
            {"window": "file"},
            r"^ill/[07]\.dcm: what says how its pixels are meant \(rescale, window or LUT\) cannot be used$",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_without_a_name(
    tmp_path: Path, more: dict[str, Any], options: dict[str, Any], line: str
) -> None:
    folder(tmp_path, **more)

    with pytest.raises(DataError, match=line) as caught:
        images(None, 0, str(tmp_path), **options)

    assert "Müller" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"window": [40]},
            r'window is \[centre, width\], as in \[40, 400\], or "file" for .*; got \[40\]',
        ),
        ({"window": [40, 1]}, r"window is \[centre, width\]"),
        ({"window": "own"}, r"window is \[centre, width\]"),
        (
            {"window": [40, 400], "range": [0, 4095]},
            r"range and window both say which values count; remove one",
        ),
    ],
)
def test_a_window_that_is_none_is_refused(tmp_path: Path, options: dict[str, Any], line: str) -> None:
    folder(tmp_path)

    with pytest.raises(PlanError, match=line):
        images(None, 0, str(tmp_path), **options)


def test_a_note_about_writing_that_is_not_burnt_in_is_no_reason(tmp_path: Path) -> None:
    folder(tmp_path, BurnedInAnnotation="NO")

    assert len(seen(tmp_path)) == 8
