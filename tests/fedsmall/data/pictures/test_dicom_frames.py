"""DICOM of several frames: each is what pydicom makes of it, and the frames of a file stay together."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.images import images
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.package.predictor import read_rows
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim import run
from tests.fedsmall.data.pictures.test_files import SIZE, deep, dicom

pydicom = pytest.importorskip("pydicom")
RANGE = {"range": [0, 4095]}


def film(path: Path, seed: int = 0, frames: int = 5, **more: Any) -> np.ndarray:
    """A film in grey of so many frames, (frames, height, width), no two alike."""
    stored = np.stack([deep(1000 * seed + frame) for frame in range(frames)])
    more = {"NumberOfFrames": frames, "PixelData": stored.tobytes()} | more
    dicom(path, stored[0], **more)
    return stored


def in_colour(path: Path, frames: int = 3) -> np.ndarray:
    stored = np.random.default_rng(7).integers(0, 256, (frames, *SIZE, 3), dtype=np.uint8)
    held = {"SamplesPerPixel": 3, "PlanarConfiguration": 0, "BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    held |= {"NumberOfFrames": frames, "PixelData": stored.tobytes() + b"\0" * (stored.size % 2)}
    dicom(path, stored[0, ..., 0], "RGB", **held)
    return stored


def folder(path: Path, each: int = 6) -> None:
    for index in range(each):
        film(path / ("ill", "well")[index % 2] / f"{index}.dcm", index, 3 + index % 2)


def of(frames: Any, **more: Any) -> Pixels:
    return Pixels(**{"channels": 1, "range": (0, 4095), "stated": True} | more, frames=frames)


@pytest.mark.parametrize(
    ("frames", "places"),
    [("middle", [2]), (0, [0]), (4, [4]), (0.75, [3]), (1.0, [4]), ("each", [0, 1, 2, 3, 4])],
)
def test_a_frame_is_that_of_pydicom(tmp_path: Path, frames: Any, places: list[int]) -> None:
    film(tmp_path / "a.dcm")

    x = of(frames).numbers([tmp_path / "a.dcm"])

    theirs = pydicom.dcmread(tmp_path / "a.dcm").pixel_array
    assert theirs.shape == (5, *SIZE)
    np.testing.assert_array_equal(x[:, 0], theirs[places])


def test_a_frame_in_colour_is_that_of_pydicom(tmp_path: Path) -> None:
    in_colour(tmp_path / "a.dcm")

    x = of("each", channels=3, range=None, stated=False).numbers([tmp_path / "a.dcm"])

    theirs = pydicom.dcmread(tmp_path / "a.dcm").pixel_array
    np.testing.assert_array_equal(np.moveaxis(x, 1, -1), theirs)


@pytest.mark.parametrize("frames", ["middle", 0, 0.3, "each"])
def test_a_file_of_one_image_is_its_own_frame(tmp_path: Path, frames: Any) -> None:
    dicom(tmp_path / "a.dcm", deep(0))

    np.testing.assert_array_equal(of(frames).numbers([tmp_path / "a.dcm"])[0, 0], deep(0))


def grouped(**said: Any) -> Any:
    """A functional group: what is said of the values of one frame, or of all, as an enhanced CT or MR says it."""
    group = pydicom.Dataset()
    for sequence, names in (
        ("PixelValueTransformationSequence", ("RescaleSlope", "RescaleIntercept")),
        ("FrameVOILUTSequence", ("WindowCenter", "WindowWidth")),
    ):
        item = pydicom.Dataset()
        for name in names:
            if name in said:
                setattr(item, name, said[name])
        if len(item):
            setattr(group, sequence, [item])
    return group


def test_what_functional_groups_say_of_a_frame_counts(tmp_path: Path) -> None:
    shared = grouped(RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=100, WindowWidth=500)
    own = [grouped(RescaleSlope=1 + place, RescaleIntercept=-place) for place in range(5)]
    stored = film(tmp_path / "a.dcm", SharedFunctionalGroupsSequence=[shared], PerFrameFunctionalGroupsSequence=own)
    alike = film(tmp_path / "b.dcm", SharedFunctionalGroupsSequence=[shared])

    x = of("each", range=(-1e4, 1e5)).numbers([tmp_path / "a.dcm"])
    shown = of("each", range=(0, 1), window="file").numbers([tmp_path / "b.dcm"])

    for place in range(5):
        np.testing.assert_allclose(x[place, 0], stored[place] * (1.0 + place) - place)
    from pydicom.pixels import apply_windowing

    held = pydicom.Dataset()
    held.PhotometricInterpretation, held.BitsStored, held.PixelRepresentation = "MONOCHROME2", 12, 0
    held.WindowCenter, held.WindowWidth, held.RescaleSlope, held.RescaleIntercept = 100, 500, 2, -1000
    theirs = apply_windowing(alike * 2.0 - 1000, held)
    np.testing.assert_allclose(shown[:, 0], (theirs + 1000) / 8190, atol=1e-6)


def test_the_frames_of_a_file_stay_at_one_site_and_on_one_side(tmp_path: Path) -> None:
    folder(tmp_path, 12)
    task = {"images": str(tmp_path), "frames": "each", **RANGE}
    plan = Plan(name="x", task=task, method=method("FedAvg"), sites=3, samples_per_site=None)

    federation = build_federation(plan)

    film_of = {deep(1000 * index + frame).tobytes(): index for index in range(12) for frame in range(4)}
    sides = [
        [film_of[np.rint((x + 1) / 2 * 4095).astype(np.uint16).tobytes()] for x in part.x[:, 0]]
        for part in (*federation.train, federation.test)
    ]
    assert sum(map(len, sides)) == 12 * 3 + 6
    assert sum(len(set(side)) for side in sides) == 12  # each film on one side and at one site
    said = "\n".join(federation.notes)
    assert "Split by patients: " in said
    assert "Every file counts as a patient of its own, with its frames; patient = ... says whose files" in said


def test_a_patient_may_have_several_films(tmp_path: Path) -> None:
    for index in range(8):
        film(tmp_path / ("ill", "well")[index // 4] / f"p{index // 2}_{index}.dcm", index, 2)

    pool = images(None, 0, str(tmp_path), frames="each", patient="(p[0-9]+)_", **RANGE)

    assert np.bincount(pool.train[""].patients).tolist() == [4, 4, 4, 4]
    assert not pool.notes


def test_one_frame_a_file_is_one_sample_and_nobody_s_patient(tmp_path: Path) -> None:
    folder(tmp_path)

    pool = images(None, 0, str(tmp_path), frames="middle", **RANGE)

    assert (len(pool.train[""]), pool.train[""].patients) == (6, None)


@pytest.mark.thorough
def test_a_run_and_its_prediction_take_each_frame(tmp_path: Path, monkeypatch: Any) -> None:
    folder(tmp_path / "scans", 8)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "x"\ntask = {images = "scans", frames = "each", range = [0, 4095]}\nmodel = "linear"\nsites = 2\n'
        'rounds = 2\nseeds = [0]\n[[method]]\nname = "FedAvg"\n'
    )

    result = run("s.toml", out="runs")
    told = result.predict("scans/ill")

    form = json.loads(next(Path("runs").rglob("package.json")).read_text())["preparation"]["form"]
    rows = read_rows(result.predictor().package.preparation, "scans/ill")
    assert (len(told), form["frames"]) == (12, "each")
    assert rows.names[:4] == ["0.dcm:0", "0.dcm:1", "0.dcm:2", "2.dcm:0"]
    card = next(Path("runs").rglob("README.md")).read_text()
    assert "Of a DICOM file with several frames each frame is an image." in card


BURNT = {"BurnedInAnnotation": "YES"}


@pytest.mark.parametrize(
    ("frames", "more", "line"),
    [
        (None, {}, 'it holds 5 frames; say which: frames = "middle", "each", or a number counted from 0$'),
        (5, {}, "it has 5 frames, counted from 0, and so no 5$"),
        (1, {"NumberOfFrames": 1, "PixelData": deep(0).tobytes()}, "it has 1 frame, counted from 0, and so no 1$"),
        ("each", BURNT, r"writing is burnt into its pixels \(BurnedInAnnotation = YES\)"),
        (
            "middle",
            {"PixelData": deep(0).tobytes()},
            "a file with the ending of DICOM is none, or its pixels cannot be",
        ),
        ("each", {"PixelData": b""}, "a file with the ending of DICOM is none, or its pixels cannot be read$"),
        ("each", {"PhotometricInterpretation": "PALETTE COLOR"}, "colours as PALETTE COLOR are not read; save them as"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, frames: Any, more: dict[str, Any], line: str) -> None:
    film(tmp_path / "a.dcm", **more)

    with pytest.raises(DataError, match=rf"^{re.escape(tmp_path.name)}/a\.dcm: {line}") as caught:
        of(frames).numbers([tmp_path / "a.dcm"])

    assert "Müller" not in str(caught.value)


def test_a_film_without_a_window_is_refused_where_each_is_to_have_its_own(tmp_path: Path) -> None:
    film(tmp_path / "a.dcm")

    with pytest.raises(DataError, match=rf"^{re.escape(tmp_path.name)}/a\.dcm: it says no window of its own"):
        of("each", window="file").numbers([tmp_path / "a.dcm"])


def test_colours_of_sixteen_bits_are_refused(tmp_path: Path) -> None:
    stored = np.zeros((*SIZE, 3), np.uint16)
    dicom(
        tmp_path / "a.dcm", stored[..., 0], "RGB", SamplesPerPixel=3, PlanarConfiguration=0, PixelData=stored.tobytes()
    )

    with pytest.raises(DataError, match="colours of more than 8 bits cannot be read at their full depth"):
        Pixels(channels=3).numbers([tmp_path / "a.dcm"])


def test_frames_are_for_dicom(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "a.png")

    with pytest.raises(DataError, match=r"a\.png: frames is for DICOM, and this file is none; leave frames out"):
        of("each").numbers([tmp_path / "a.png"])


@pytest.mark.parametrize("frames", ["all", -1, 1.5, True, [0], float("nan"), {}])
def test_frames_that_are_none_are_refused(tmp_path: Path, frames: Any) -> None:
    folder(tmp_path)

    with pytest.raises(
        PlanError, match=r'frames is "middle", "each", a number counted from 0, or a share as 0\.4; got'
    ):
        images(None, 0, str(tmp_path), frames=frames)
