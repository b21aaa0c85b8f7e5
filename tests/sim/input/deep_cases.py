"""Cases of files with several images: films in DICOM. None where what writes them is not installed."""

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
