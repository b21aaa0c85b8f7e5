"""Whole NIfTI volumes: one sample for each, the same for a body however its file stores it, of one size."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from fedsmall.data.image_files import resample_volume
from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.images import images
from fedsmall.errors import DataError, PlanError
from fedsmall.package.export import export
from fedsmall.sim import run
from tests.fedsmall.data.pictures.refusing import refused
from tests.fedsmall.data.pictures.test_nifti import SHAPE, write
from tests.fedsmall.data.pictures.test_nifti import volume as drawn

nibabel = pytest.importorskip("nibabel")
WHOLE: dict[str, Any] = {"volume": True, "range": [-50, 400]}
SIZE = (8, 6, 5)
TURNED = np.array([[0, -1, 0, 4], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])  # axes: superior, left, anterior


def of(size: Any = None, **more: Any) -> Pixels:
    whole = {"channels": 1, "range": (-50, 400), "stated": True, "volume": True}
    return Pixels(**whole | {"size": size, "resize": size is not None} | more)


def turned(values: np.ndarray) -> np.ndarray:
    """A body as another scanner stores it, under the affine ``TURNED``."""
    return np.ascontiguousarray(values[::-1].transpose(2, 0, 1))


def ball(seed: int, ill: bool) -> np.ndarray:
    """A noisy volume with a bright ball in it, large in the ill."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*map(np.arange, (10, 12, 14)), indexing="ij"), axis=-1)
    middle = rng.uniform(4, 6, 3)
    within = np.linalg.norm(grid - middle, axis=-1) < (3.5 if ill else 1.5)
    return (300 * within + rng.normal(0, 20, within.shape)).astype(np.int16)


def folder(path: Path, each: int = 5) -> None:
    for index in range(2 * each):
        write(path / ("ill", "well")[index % 2] / f"{index}.nii.gz", ball(index, index % 2 == 0))


def test_a_volume_is_the_stack_of_its_axial_slices(tmp_path: Path) -> None:
    write(tmp_path / "a.nii.gz", drawn(0))

    x = of().numbers([tmp_path / "a.nii.gz"])

    slices = [of(volume=False, slice=f"axial:{place}").numbers([tmp_path / "a.nii.gz"])[0, 0] for place in range(7)]
    assert (x.shape, x.dtype) == ((1, 1, SHAPE[2], SHAPE[1], SHAPE[0]), np.float32)
    np.testing.assert_array_equal(x[0, 0], np.stack(slices))


@pytest.mark.parametrize("size", [None, SIZE])
def test_two_orientations_of_one_body_are_one_sample(tmp_path: Path, size: Any) -> None:
    write(tmp_path / "a.nii", drawn(0))
    write(tmp_path / "b.nii", turned(drawn(0)), TURNED)
    write(tmp_path / "c.nii", drawn(0)[::-1, ::-1].copy(), np.diag([-1.0, -1.0, 1.0, 1.0]))  # left, posterior, superior

    one, *others = of(size).numbers([tmp_path / f"{name}.nii" for name in "abc"])

    for other in others:
        np.testing.assert_array_equal(one, other)
    without = nibabel.load(tmp_path / "b.nii").get_fdata()
    assert without.shape != nibabel.load(tmp_path / "a.nii").get_fdata().shape  # and the files do differ


@pytest.mark.parametrize("size", [(10, 12, 14), (5, 9, 14)])
def test_growing_is_what_torch_interpolates(size: tuple[int, ...]) -> None:
    values = drawn(3).astype(np.float32)

    theirs = interpolate(torch.from_numpy(values)[None, None], size, mode="trilinear", align_corners=False)[0, 0]

    np.testing.assert_allclose(resample_volume(values, size), theirs, atol=1e-3)


def test_shrinking_loses_nothing_between_the_voxels_that_are_left() -> None:
    values = np.zeros((32, 32, 32), np.float32)
    values[9, 14, 22] = 1000

    small = resample_volume(values, (8, 8, 8))

    assert small.sum() == pytest.approx(1000 / 4**3, rel=0.2)  # straight interpolation finds none of it
    assert np.unravel_index(small.argmax(), small.shape) == (2, 3, 5)
    np.testing.assert_array_equal(resample_volume(np.full((9, 7, 5), 3, np.float32), (3, 3, 3)), np.full((3, 3, 3), 3))


def test_volumes_of_several_sizes_are_brought_to_one(tmp_path: Path) -> None:
    folder(tmp_path)
    write(tmp_path / "ill" / "x.nii", ball(30, True)[:8, :9])

    pool = images(None, 0, str(tmp_path), size=[8, 6, 5], **WHOLE)

    assert pool.train[""].x.shape == (11, 1, *SIZE)
    assert isinstance(pool.form, Pixels)
    assert pool.form.size == SIZE
    assert images(None, 0, str(tmp_path), size=8, **WHOLE).train[""].x.shape[1:] == (1, 8, 8, 8)
    with pytest.raises(DataError, match=r"the volumes have 2 sizes, from .* give one: size = \[16, 32, 32\]"):
        images(None, 0, str(tmp_path), **WHOLE)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is what was asked for
def test_a_run_its_page_a_prediction_and_an_export_take_volumes(tmp_path: Path, monkeypatch: Any) -> None:
    folder(tmp_path / "scans", 8)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "x"\ntask = {images = "scans", volume = true, size = [8, 8, 8], range = [-50, 400]}\nmodel = "cnn3d"\n'
        "model_options = {widths = [8]}\n"
        "sites = 2\nsamples_per_site = 4\ntest = 8\nrounds = 25\nseeds = [0]\n"
        'recipe = {optimizer = "adam", lr = 0.02}\n'
        '[[method]]\nname = "FedDC"\naggregate_every = 5\n'
    )
    write(tmp_path / "new" / "turned.nii", turned(ball(0, True)), TURNED)
    write(tmp_path / "new" / "upright.nii", ball(0, True))

    result = run("s.toml", out="runs")
    told = result.predict("new")
    export(result.run.packages[0][0], tmp_path / "model.pt", "torchscript")

    assert result.table("accuracy").loc["FedDC", "global"] >= 0.75
    assert told.loc[0, "p_ill"] == told.loc[1, "p_ill"] > 0.5
    form = json.loads(next(Path("runs").rglob("package.json")).read_text())["preparation"]["form"]
    assert (form["volume"], form["size"]) == (True, [8, 8, 8])
    card = next(Path("runs").rglob("README.md")).read_text()
    assert "Volumes (NIfTI), brought to 8 x 8 x 8 voxels; values from -50 to 400 become -1 to 1." in card
    assert "the stack of its axial slices" in card
    assert next(Path("runs").rglob("report.html")).stat().st_size > 0
    raw = torch.from_numpy(of((8, 8, 8)).numbers([tmp_path / "new" / "upright.nii"]))
    written = torch.jit.load(tmp_path / "model.pt")(raw)
    np.testing.assert_allclose(written.numpy(), told.loc[[0], ["p_ill", "p_well"]], atol=1e-6)


def _in_time(path: Path) -> None:
    folder(path)
    write(path / "ill" / "2.nii.gz", np.zeros((*SHAPE, 3), np.int16))


def _not_finite(path: Path) -> None:
    folder(path)
    write(path / "ill" / "2.nii.gz", np.full((10, 12, 14), np.inf, np.float32))


def _damaged(path: Path) -> None:
    folder(path)
    (path / "ill" / "2.nii.gz").write_bytes((path / "ill" / "2.nii.gz").read_bytes()[:400])


def _picture(path: Path) -> None:
    from PIL import Image

    folder(path)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path / "ill" / "a.png")


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (_in_time, WHOLE, r"^ill/2\.nii\.gz: it has 4 dimensions, and a volume has 3; a series in time is not read$"),
        (_not_finite, WHOLE, r"^ill/2\.nii\.gz: its volume holds values that are not finite$"),
        (_damaged, WHOLE, r"^ill/2\.nii\.gz: a file with the ending of NIfTI is none, or is damaged$"),
        (_picture, WHOLE, r"^ill/a\.png: volume is for volumes \(NIfTI\), and this file is none; leave volume out$"),
        (folder, {"volume": True}, "no range that their files say; say which values count: range = "),
        (
            folder,
            {"volume": True, "window": "file"},
            r'^ill/0\.nii\.gz: window = "file" is for DICOM, and this file is',
        ),
        (
            folder,
            {},
            r"^ill/0\.nii\.gz: it is a volume; say which slice, slice = .*, or take all of it: volume = true$",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: Any, options: dict[str, Any], line: str) -> None:
    make(tmp_path)

    refused(tmp_path, options, line)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"volume": "yes"}, r"volume = true takes whole volumes \(NIfTI\); got 'yes'"),
        ({"slice": "axial:middle"}, "volume takes all of a file and slice a part; remove one of them"),
        ({"frames": 0}, "volume takes all of a file and frames a part; remove one of them"),
        ({"channels": 3}, "volumes are grey; leave channels out"),
        (
            {"size": [32, 32]},
            r"size is of volumes a side \(32\) or depth, height and width .* 1 to 512; got \[32, 32\]",
        ),
        ({"size": 1000}, r"1 to 512; got 1000"),
    ],
)
def test_what_goes_not_with_whole_volumes_is_refused(tmp_path: Path, options: dict[str, Any], line: str) -> None:
    folder(tmp_path)

    with pytest.raises(PlanError, match=line):
        images(None, 0, str(tmp_path), **WHOLE | options)


def test_a_volume_of_another_size_is_refused_where_none_was_said(tmp_path: Path) -> None:
    write(tmp_path / "a.nii", drawn(0))

    with pytest.raises(DataError, match=r"^a\.nii: the volume is 7 x 6 x 5, and the model takes 7 x 6 x 6$"):
        of((7, 6, 6), resize=False).numbers([tmp_path / "a.nii"])
