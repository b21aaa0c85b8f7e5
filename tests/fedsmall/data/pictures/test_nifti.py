"""NIfTI: a slice of a volume is what numpy takes from nibabel's array, in the patient's own planes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.images import images
from fedsmall.errors import DataError, PlanError
from fedsmall.sim import run
from tests.fedsmall.data.pictures.refusing import refused

nibabel = pytest.importorskip("nibabel")
SHAPE = (5, 6, 7)  # right, anterior, superior
RAS = np.diag([1.0, 1.0, 1.0, 1.0])


def volume(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-50, 400, SHAPE).astype(np.int16)


def write(path: Path, values: np.ndarray, affine: np.ndarray = RAS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = nibabel.Nifti1Image(values, affine)
    held.header["descrip"] = b"Mueller, Hans"
    nibabel.save(held, path)


def folder(path: Path, ending: str = "nii.gz") -> None:
    for index in range(8):
        write(path / ("ill", "well")[index % 2] / f"{index}.{ending}", volume(index))


def of(cut: str | None) -> Pixels:
    return Pixels(channels=1, range=(-50, 400), stated=True, slice=cut)


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("axial:middle", lambda v: v[:, ::-1, 3].T),  # anterior is up, right is right
        ("axial:0", lambda v: v[:, ::-1, 0].T),
        ("coronal:5", lambda v: v[:, 5, ::-1].T),
        ("sagittal:0.75", lambda v: v[3, :, ::-1].T),
        ("sagittal:1.0", lambda v: v[4, :, ::-1].T),
    ],
)
def test_a_slice_is_what_numpy_takes_from_the_volume(tmp_path: Path, ending: str, cut: str, expected: Any) -> None:
    write(tmp_path / f"a.{ending}", volume(0))

    x = of(cut).numbers([tmp_path / f"a.{ending}"])

    assert x.dtype == np.float32
    np.testing.assert_array_equal(x[0, 0], expected(volume(0)))


def test_planes_are_the_patients_whatever_the_order_of_axes_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.nii", volume(0))
    turned = np.array([[0, -1, 0, 4], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])  # axes: superior, left, anterior
    write(tmp_path / "b.nii", np.ascontiguousarray(volume(0)[::-1].transpose(2, 0, 1)), turned)

    one, other = of("axial:2").numbers([tmp_path / "a.nii", tmp_path / "b.nii"])

    np.testing.assert_array_equal(one, other)


def test_values_are_scaled_as_the_file_says(tmp_path: Path) -> None:
    held = nibabel.Nifti1Image(volume(0), RAS)
    held.header.set_slope_inter(0.5, -10)
    nibabel.save(held, tmp_path / "a.nii")

    x = of("axial:1").numbers([tmp_path / "a.nii"])

    theirs = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    np.testing.assert_allclose(x[0, 0], np.rot90(theirs[:, :, 1]), rtol=1e-6)


@pytest.mark.thorough
def test_a_run_and_its_prediction_take_the_same_files(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    folder(tmp_path / "scans")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "x"\ntask = {images = "scans", slice = "axial:middle", range = [-50, 400]}\nmodel = "linear"\n'
        'sites = 2\nsamples_per_site = 3\nrounds = 2\nseeds = [0]\n[[method]]\nname = "FedAvg"\n'
    )

    result = run("s.toml", out="runs")
    told = result.predict(tmp_path / "scans" / "ill")

    form = json.loads(next(Path("runs").rglob("package.json")).read_text())["preparation"]["form"]
    assert (form["slice"], form["range"], form["size"]) == ("axial:middle", [-50, 400], [6, 5])
    assert len(told) == 4
    assert "the image is the slice axial:middle." in next(Path("runs").rglob("README.md")).read_text()
    written = b"".join(path.read_bytes() for path in Path("runs").rglob("*") if path.is_file())
    assert b"Mueller" not in written + "".join(capfd.readouterr()).encode()


def _damaged(path: Path) -> None:
    folder(path)
    (path / "ill" / "2.nii.gz").write_bytes((path / "ill" / "2.nii.gz").read_bytes()[:60])


def _none(path: Path) -> None:
    folder(path)
    (path / "ill" / "2.nii").write_bytes(b"nothing")


def _in_time(path: Path) -> None:
    folder(path)
    write(path / "ill" / "2.nii.gz", np.zeros((*SHAPE, 3), np.int16))


def _not_finite(path: Path) -> None:
    folder(path)
    write(path / "ill" / "2.nii.gz", np.full(SHAPE, np.nan, np.float32))


AXIAL = {"slice": "axial:middle", "range": [-50, 400]}


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (_damaged, AXIAL, r"^ill/2\.nii\.gz: a file with the ending of NIfTI is none, or is damaged$"),
        (_none, AXIAL, r"^ill/2\.nii: a file with the ending of NIfTI is none, or is damaged$"),
        (_in_time, AXIAL, r"^ill/2\.nii\.gz: it has 4 dimensions, and a volume has 3; a series in time is not read$"),
        (_not_finite, AXIAL, r"^ill/2\.nii\.gz: its slice holds values that are not finite$"),
        (
            folder,
            {},
            r'^ill/0\.nii\.gz: it is a volume; say which slice, slice = "axial:middle", or take all of it: '
            "volume = true",
        ),
        (
            folder,
            AXIAL | {"slice": "axial:7"},
            r"^ill/0\.nii\.gz: it has 7 axial slices, counted from 0, and so no 7$",
        ),
        (folder, {"slice": "axial:middle"}, r"no range that their files say; say which values count"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: Any, options: dict[str, Any], line: str) -> None:
    make(tmp_path)

    refused(tmp_path, options, line)


@pytest.mark.parametrize("cut", ["axial", "top:3", "axial:-1", "axial:1.5", "axial:x", "axial:nan", 3])
def test_a_slice_that_is_none_is_refused(tmp_path: Path, cut: Any) -> None:
    folder(tmp_path)

    with pytest.raises(PlanError, match=r"slice is a plane and a place, as in \"axial:middle\""):
        images(None, 0, str(tmp_path), slice=cut)


def test_a_slice_of_a_flat_image_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "a.png")

    with pytest.raises(DataError, match=r"a\.png: slice is for volumes \(NIfTI\), and this file is none; leave slice"):
        of("axial:0").numbers([tmp_path / "a.png"])
    with pytest.raises(DataError, match=r'a\.png: window = "file" is for DICOM, and this file is none'):
        Pixels(channels=1, window="file").numbers([tmp_path / "a.png"])
