"""Images at their full depth: what a model sees is what numpy and pydicom read from the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedsmall.data.federation import Federation
from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.images import images
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.package.export import export
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim import run

SIZE = (9, 7)


def deep(seed: int, most: int = 4095) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most + 1, SIZE).astype(np.uint16)


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def dicom(path: Path, stored: np.ndarray, photometric: str = "MONOCHROME2", **more: Any) -> None:
    pydicom = pytest.importorskip("pydicom")
    path.parent.mkdir(parents=True, exist_ok=True)
    held = pydicom.Dataset()
    held.file_meta = pydicom.dataset.FileMetaDataset()
    held.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    held.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    held.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    held.PatientName = "Müller^Hans"
    held.Rows, held.Columns = stored.shape
    held.SamplesPerPixel, held.PhotometricInterpretation = 1, photometric
    held.BitsAllocated, held.BitsStored, held.HighBit, held.PixelRepresentation = 16, 12, 11, 0
    held.PixelData = stored.tobytes()
    for name, value in more.items():
        setattr(held, name, value)
    held.save_as(path, enforce_file_format=True)


def folder(tmp_path: Path, ending: str, each: int = 4) -> list[np.ndarray]:
    arrays = []
    for place, name in enumerate(("ill", "well")):
        for index in range(each):
            arrays.append(deep(10 * place + index))
            write(tmp_path / name / f"{index}.{ending}", arrays[-1])
    return arrays


def federation(path: Path, **options: Any) -> Federation:
    sites = {"sites": 2, "samples_per_site": 3}
    return build_federation(Plan(name="x", task={"images": str(path), **options}, method=method("FedAvg"), **sites))


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize(("options", "high"), [({"range": [0, 4095]}, 4095), ({}, 65535)])
def test_a_model_sees_the_histogram_of_the_files(
    tmp_path: Path, ending: str, options: dict[str, Any], high: int
) -> None:
    arrays = folder(tmp_path, ending)

    seen = federation(tmp_path, **options)

    values = np.concatenate([x.x for x in seen.train] + [seen.test.x]) / 2 + 0.5
    assert len(values) == 8
    bins = np.linspace(0, 4096, 17) - 0.5
    there = np.histogram(values * high, bins)[0]
    np.testing.assert_array_equal(there, np.histogram(np.stack(arrays), bins)[0])
    assert bool([note for note in seen.notes if "values up to 4095 of 65535" in note]) == (high == 65535)


def test_twelve_bits_are_not_cut_to_white(tmp_path: Path) -> None:
    """As it was: Pillow's conversion of 16-bit images to grey puts all above 255 at 255."""
    write(tmp_path / "a.png", deep(0))

    x = Pixels(channels=1, range=(0, 4095), stated=True).numbers([tmp_path / "a.png"])

    assert (np.asarray(Image.open(tmp_path / "a.png").convert("L")) == 255).mean() > 0.8
    np.testing.assert_array_equal(x[0, 0], deep(0))


def test_resized_images_keep_their_depth(tmp_path: Path) -> None:
    write(tmp_path / "a.png", np.full(SIZE, 3000, dtype=np.uint16))

    form = Pixels(channels=3, range=(0, 4095), stated=True, size=(4, 5), resize=True)

    np.testing.assert_array_equal(form.numbers([tmp_path / "a.png"]), np.full((1, 3, 4, 5), 3000))


def test_what_is_beyond_the_range_counts_as_its_end() -> None:
    form = Pixels(channels=1, range=(-200, 300), stated=True)

    np.testing.assert_allclose(
        form.scaled(np.array([[[[-1000, -200, 50, 300, 900]]]], np.float32)).ravel(), [-1, -1, 0, 1, 1]
    )


def test_eight_bits_have_the_same_bits_as_ever(tmp_path: Path) -> None:
    pixels = np.arange(63).reshape(SIZE).astype(np.uint8) * 4
    write(tmp_path / "a.png", pixels)

    form = Pixels(channels=1, range=(0, 255))

    expected = (pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    np.testing.assert_array_equal(form.scaled(form.numbers([tmp_path / "a.png"]))[0, 0], expected)


@pytest.mark.parametrize(
    ("photometric", "more"),
    [
        ("MONOCHROME2", {"RescaleSlope": 1, "RescaleIntercept": -1024}),
        ("MONOCHROME2", {"RescaleSlope": 0.5, "RescaleIntercept": 3}),
        ("MONOCHROME1", {}),
    ],
)
def test_dicom_is_what_pydicom_makes_of_it(tmp_path: Path, photometric: str, more: dict[str, Any]) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.pixels import apply_rescale

    for index in range(8):
        dicom(tmp_path / ("ill", "well")[index % 2] / f"{index}.dcm", deep(index), photometric, **more)

    pool = images(None, 0, str(tmp_path))

    held = [pydicom.dcmread(path) for path in sorted(tmp_path.glob("*/*.dcm"))]
    theirs = np.stack([apply_rescale(each.pixel_array, each) for each in held])
    if photometric == "MONOCHROME1":
        theirs = 4095 - theirs
    np.testing.assert_array_equal(pool.train[""].x[:, 0], theirs)
    low, high = sorted(more.get("RescaleIntercept", 0) + more.get("RescaleSlope", 1) * end for end in (0, 4095))
    assert pool.form is not None
    assert pool.form.range == (low, high)


def test_no_identifier_of_a_dicom_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    pydicom = pytest.importorskip("pydicom")
    dicom(tmp_path / "a.dcm", deep(0), PatientID="4711", PatientBirthDate="19500101")
    read, asked = pydicom.dcmread, []
    monkeypatch.setattr(pydicom, "dcmread", lambda *given, **more: asked.append(read(*given, **more)) or asked[-1])

    Pixels(channels=1, range=(0, 4095), stated=True).numbers([tmp_path / "a.dcm"])

    assert not [
        element
        for element in asked[0]
        if element.tag.group in (0x0008, 0x0010, 0x0020) and element.keyword not in ("SpecificCharacterSet",)
    ]


def test_leftovers_and_empty_folders_are_no_classes(tmp_path: Path) -> None:
    folder(tmp_path, "png")
    (tmp_path / "empty").mkdir()
    for name in ("__MACOSX", ".cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "._0.png").write_bytes(b"\x00\x05")
    (tmp_path / "ill" / "._0.png").write_bytes(b"\x00\x05")

    pool = images(None, 0, str(tmp_path))

    assert pool.class_names == ("ill", "well")
    assert len(pool.train[""]) == 8


def test_a_class_that_macos_spells_in_its_way_is_that_of_the_scenario(tmp_path: Path) -> None:
    folder(tmp_path, "png")
    (tmp_path / "ill").rename(tmp_path / "kra\u0308nker")

    pool = images(None, 0, str(tmp_path), classes={"well": [], "ill": ["kr\u00e4nker"]})

    assert (pool.class_names, len(pool.train[""])) == (("well", "ill"), 8)


def _eight_and_sixteen(path: Path) -> None:
    folder(path, "png")
    write(path / "ill" / "9.png", np.zeros(SIZE, np.uint8))


def _deep_pngs(path: Path) -> None:
    folder(path, "png")


def _damaged(path: Path) -> None:
    folder(path, "png")
    (path / "ill" / "3.png").write_bytes((path / "ill" / "3.png").read_bytes()[:60])


def _volume(path: Path) -> None:
    for name in ("ill", "well"):
        dicom(path / name / "a.dcm", np.zeros((4, 6), np.uint16), NumberOfFrames=2, Rows=2, PixelData=bytes(48))


def _pages(path: Path) -> None:
    folder(path, "png")
    pages = [Image.fromarray(np.full(SIZE, shade, np.uint8)) for shade in (0, 9, 99)]
    pages[0].save(path / "ill" / "9.tif", save_all=True, append_images=pages[1:])


def _no_dicom(path: Path) -> None:
    pytest.importorskip("pydicom")
    folder(path, "png")
    (path / "ill" / "x.dcm").write_bytes(b"nothing")


def _deep_floats(path: Path) -> None:
    for name in ("ill", "well"):
        write(path / name / "a.tif", deep(0).astype(np.float32))


def _not_a_number(path: Path) -> None:
    _deep_floats(path)
    write(path / "ill" / "b.tif", np.where(deep(0) == deep(0).max(), np.nan, deep(0)).astype(np.float32))


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (_not_a_number, {"range": [0, 9]}, r"^ill/b\.tif: its image holds values that are not finite$"),
        (
            _eight_and_sixteen,
            {},
            r"^the images have values from 0 to 255 and 0 to 65535; say which values count",
        ),
        (_deep_floats, {}, r"^the images have values from no range that their files say; say which values count"),
        (_damaged, {}, r"^ill/3\.png: a file with the ending of an image is none, or is damaged$"),
        (_pages, {}, r"^ill/9\.tif: it holds 3 images; save each as a file of its own$"),
        (_no_dicom, {}, r"^ill/x\.dcm: a file with the ending of DICOM is none"),
        (_volume, {}, r"^ill/a\.dcm: it holds 2 frames; say which: frames = .middle., .each., or a number"),
        (_deep_pngs, {"range": [5, 5]}, r"range is the lowest and the highest"),
        (_deep_pngs, {"range": "12 bit"}, r"range is the lowest and the highest value that count, as in \[0, 4095\]"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: Any, options: dict[str, Any], line: str) -> None:
    make(tmp_path)

    with pytest.raises((DataError, PlanError), match=line) as caught:
        images(None, 0, str(tmp_path), **options)

    assert str(tmp_path) not in str(caught.value)


def test_a_damaged_image_is_named_by_its_site_here_and_not_where_the_error_leaves(tmp_path: Path) -> None:
    folder(tmp_path / "graz", "png")
    _damaged(tmp_path / "essen")

    with pytest.raises(
        DataError, match=r"^site 'essen', ill/3\.png: a file with the ending of an image is none"
    ) as caught:
        images(None, 0, str(tmp_path), by_site=True)

    assert caught.value.words == "a file with the ending of an image is none, or is damaged"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is what was asked for
def test_a_prediction_and_an_export_take_the_range_of_training(tmp_path: Path, monkeypatch: Any) -> None:
    folder(tmp_path / "scans", "png")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "x"\ntask = {images = "scans", range = [0, 4095]}\nmodel = "linear"\nsites = 2\nsamples_per_site = 3\n'
        'rounds = 2\nseeds = [0]\n[[method]]\nname = "FedAvg"\n'
    )

    result = run("s.toml")
    (tmp_path / "scans" / "ill" / "._0.png").write_bytes(b"\x00\x05")  # as programs leave it: no image
    told = result.predict(tmp_path / "scans" / "ill")
    stored = result.run.packages[0][0]
    export(stored, tmp_path / "model.pt", "torchscript")

    paths = sorted((tmp_path / "scans" / "ill").glob("[!.]*.png"))
    pixels = np.stack([np.asarray(Image.open(path), dtype=np.float32) for path in paths])
    module = result.model
    outputs = module(torch.from_numpy((pixels[:, None] / np.float32(4095)) * 2 - 1)).detach()
    np.testing.assert_allclose(told[["p_ill", "p_well"]], torch.softmax(outputs, 1), atol=1e-5)
    written = torch.jit.load(tmp_path / "model.pt")(torch.from_numpy(pixels[:, None]))
    np.testing.assert_allclose(written, torch.softmax(outputs, 1), atol=1e-5)


def test_a_prediction_refuses_images_of_another_depth(tmp_path: Path) -> None:
    write(tmp_path / "a.png", deep(0))
    write(tmp_path / "b.png", np.zeros(SIZE, np.uint8))

    with pytest.raises(DataError, match=r"a\.png: its values are of another depth than the model's, 0 to 255"):
        Pixels(channels=1).numbers([tmp_path / "a.png"])
    with pytest.raises(DataError, match=r"b\.png: its values are of another depth than the model's, 0 to 65535"):
        Pixels(channels=1, range=(0, 65535)).numbers([tmp_path / "b.png"])
