"""Cases of films in DICOM and of volumes in NIfTI; none where what writes them is not installed."""

import importlib.util
import io
from typing import Any

import numpy as np

from tests.sim.input.cases import SCANS, Case, Content

SIDE = 6


def film(seed: int, frames: int = 3, **more: Any) -> bytes:
    """A DICOM film that no other is like."""
    from pydicom import Dataset
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, UltrasoundMultiFrameImageStorage

    held = Dataset()
    held.file_meta = FileMetaDataset()
    held.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    held.file_meta.MediaStorageSOPClassUID = UltrasoundMultiFrameImageStorage
    held.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    held.Rows, held.Columns, held.NumberOfFrames = SIDE, SIDE, frames
    held.SamplesPerPixel, held.PhotometricInterpretation = 1, "MONOCHROME2"
    held.BitsAllocated, held.BitsStored, held.HighBit, held.PixelRepresentation = 8, 8, 7, 0
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, SIDE, SIDE), dtype=np.uint8)
    held.PixelData = pixels.tobytes() + b"\0" * (pixels.size % 2)
    for name, value in more.items():
        setattr(held, name, value)
    written = io.BytesIO()
    held.save_as(written, enforce_file_format=True)
    return written.getvalue()


def films(keys: str, odd: bytes | None = None, **expected: Any) -> Case:
    """Four films of three frames in each of two classes, of which one may be ``odd``; ``keys`` of its task."""
    files: dict[str, Content] = {
        f"scans/{label}/{index}.dcm": film(100 * place + index)
        for place, label in enumerate(("ill", "well"))
        for index in range(4)
    }
    files |= {} if odd is None else {"scans/ill/0.dcm": odd}
    return Case(files, SCANS.replace('"scans"', f'"scans", {keys}' if keys else '"scans"'), **expected)


def of_films() -> dict[str, Case]:
    """Films in DICOM."""
    if importlib.util.find_spec("pydicom") is None:
        return {}
    unreadable = r"0\.dcm: a file with the ending of DICOM is none, or its pixels cannot be read"
    return {
        "each frame": films('frames = "each"', samples=24, note="Every file counts as a patient of its own"),
        "the middle frame": films('frames = "middle"', samples=8),
        "a frame by its number": films("frames = 2", samples=8),
        "a frame by its share": films("frames = 0.5", samples=8),
        "several frames and no word": films("", line=r'0\.dcm: it holds 3 frames; say which: frames = "middle"'),
        "a frame that is not there": films("frames = 3", line=r"0\.dcm: it has 3 frames, counted from 0, and so no 3"),
        "frames that are none": films('frames = "all"', line='frames is "middle", "each", a number counted from 0'),
        "a film of another size": films(
            'frames = "each"', film(1, 2, Columns=3, PixelData=bytes(2 * 3 * SIDE)), line="the images have 2 sizes"
        ),
        "a film cut short": films("frames = 0", film(1, PixelData=b"\0" * 40), line=unreadable),
        "a film without pixels": films("frames = 0", film(1, PixelData=b""), line=unreadable),
        "a film with a name in it": films(
            "frames = 0", film(1, BurnedInAnnotation="YES"), line="writing is burnt into"
        ),
        "a film with colours in a table": films(
            "frames = 0", film(1, PhotometricInterpretation="PALETTE COLOR"), line="PALETTE COLOR are not read"
        ),
    }


def nifti(seed: int, shape: tuple[int, ...] = (5, 6, 7), value: float | None = None) -> bytes:
    """A volume that no other is like, or one that holds ``value`` somewhere."""
    import nibabel

    values = np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)
    values.flat[3] = values.flat[3] if value is None else value
    written: bytes = nibabel.Nifti1Image(values, np.eye(4)).to_bytes()  # type: ignore[no-untyped-call]
    return written


def volumes(keys: str, odd: bytes | None = None, model: str = "cnn3d", **expected: Any) -> Case:
    """Six volumes in each of two classes, of which one may be ``odd``; ``keys`` of its task."""
    files: dict[str, Content] = {
        f"scans/{label}/{index}.nii": nifti(100 * place + index)
        for place, label in enumerate(("ill", "well"))
        for index in range(6)
    }
    files |= {} if odd is None else {"scans/ill/0.nii": odd}
    scans = SCANS.replace('"scans"', f'"scans", {keys}').replace('"linear"', f'"{model}"')
    return Case(files, scans, **expected)


def of_volumes() -> dict[str, Case]:
    """Volumes in NIfTI."""
    if importlib.util.find_spec("nibabel") is None:
        return {}
    whole = "volume = true, range = [0, 200]"
    return {
        "whole": volumes(whole, samples=12),
        "whole, of several sizes": volumes(whole, nifti(0, (5, 9, 7)), line="the volumes have 2 sizes, from .* size ="),
        "whole, of several sizes and brought to one": volumes(f"{whole}, size = 8", nifti(0, (5, 9, 7)), samples=12),
        "whole, without a range": volumes("volume = true", line="say which values count: range = "),
        "whole, a series in time": volumes(
            whole, nifti(0, (5, 6, 7, 2)), line="4 dimensions, and a volume has 3; a ser"
        ),
        "whole, with a hole": volumes(whole, nifti(0, value=float("nan")), line="volume holds values that are not fin"),
        "whole, cut short": volumes(whole, nifti(0)[:500], line=r"0\.nii: a file with the ending of NIfTI is none"),
        "whole, in a flat size": volumes(f"{whole}, size = [8, 8]", line="size is of volumes a side"),
        "whole and a slice": volumes(f'{whole}, slice = "axial:0"', line="volume takes all of a file and slice a part"),
        "whole, in colour": volumes(f"{whole}, channels = 3", line="volumes are grey"),
        "whole by a word": volumes('volume = "yes"', line="volume = true takes whole volumes"),
        "whole, for a flat network": volumes(whole, model="cnn", line="use cnn3d"),
        "a slice, for a network of volumes": volumes(
            'slice = "axial:0", range = [0, 200]', line="it takes volumes, and a sample has shape"
        ),
        "neither whole nor a slice": volumes("range = [0, 200]", line="say which slice, slice = .*, or take all of it"),
    }
