"""The image of a DICOM file, by pydicom: its pixels and what says how they are meant, and no other element.

No name, no date, no identifier is read. What the pixels stand for is pydicom's to say: the rescale or the modality LUT,
then the window. A window that the scenario states, (centre, width) in the units of what was measured, is the one that
the standard calls LINEAR (PS3.3 C.11.2.1.2.1); "file" takes each file's own, or its VOI LUT, and gives values from 0
to 1. Where the smallest value is white (MONOCHROME1) values are mirrored, so that much of what is measured is bright.

A file may hold several frames (a film of ultrasound, the slices of an enhanced CT or MR): ``frames`` says which are
images, "middle", a number counted from 0, a share of the way, or "each". What says how a frame is meant may then stand
in the functional groups of all frames or of that one; of these only the rescale and the window are looked at.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.data.pictures.picture import EIGHT_BITS, Frames, Picture, Window, in_channels
from fedsmall.data.pictures.places import EACH, index_of
from fedsmall.errors import DataError

ELEMENTS = [  # that are read, and no others
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "NumberOfFrames",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "VOILUTSequence",
    "BurnedInAnnotation",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
    "PixelData",
]
OF_FRAMES = {  # what functional groups may say, by the sequences in which they say it
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
}
SAID = [name for name in ELEMENTS if name != "PixelData" and "FunctionalGroups" not in name]
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT")
UNREADABLE = "a file with the ending of DICOM is none, or its pixels cannot be read"


def window_ends(centre: float, width: float) -> tuple[float, float]:
    """The values that a window makes black and white."""
    middle, half = centre - 0.5, (width - 1) / 2
    return middle - half, middle + half


def read(path: Path, colour: bool, window: Window, frames: Frames = None) -> list[Picture]:
    """The images in a file; DataError where there is none, or writing about the patient is burnt into it.

    ``frames`` says which of several are meant; without it a file has one.
    """
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ImportError as wrong:
        raise DataError("DICOM is read by pydicom: pip install 'fedsmall[dicom]'") from wrong
    try:
        held = dcmread(path, specific_tags=ELEMENTS)
        burnt = str(held.get("BurnedInAnnotation", "")).strip().upper() == "YES"
        places = [] if burnt else _places(int(held.get("NumberOfFrames") or 1), frames)
        pixels = [_frame(held, place) for place in places]
    except DataError:
        raise
    except (InvalidDicomError, OSError, AttributeError, ValueError, RuntimeError, LookupError, TypeError) as wrong:
        raise DataError(UNREADABLE) from wrong
    if burnt:
        raise DataError("writing is burnt into its pixels (BurnedInAnnotation = YES); blank it, or leave it out")
    return [_picture(_said_of(held, place), seen, colour, window) for place, seen in zip(places, pixels, strict=True)]


def _places(count: int, frames: Frames) -> list[int]:
    """The numbers of the frames that are meant, of ``count``."""
    if frames is None and count > 1:
        raise DataError(f'it holds {count} frames; say which: frames = "middle", "each", or a number counted from 0')
    if frames is None or frames == EACH:
        return list(range(count))
    place = index_of(0.5 if isinstance(frames, str) else frames, count)
    if place >= count:
        raise DataError(f"it has {count} frame{'s' * (count > 1)}, counted from 0, and so no {place}")
    return [place]


def _frame(held: Any, place: int) -> np.ndarray:
    """The stored values of one frame, (height, width) or (height, width, 3); the others are not decoded."""
    held.pixel_array_options(index=place)
    return np.asarray(held.pixel_array)


def _said_of(held: Any, place: int) -> Any:
    """What is said of one frame: by the file, by the functional groups of all frames, and by those of its own."""
    from pydicom import Dataset

    shared, own = (held.get(f"{whose}FunctionalGroupsSequence") or [] for whose in ("Shared", "PerFrame"))
    if not shared and not own:
        return held
    said = Dataset()
    said.file_meta = held.file_meta
    found = {name: held[name] for name in SAID if name in held}
    for group in (*shared[:1], *own[place : place + 1]):  # what a frame's own says comes last, and counts
        for sequence, names in OF_FRAMES.items():
            for item in (group.get(sequence) or [])[:1]:
                found |= {name: item[name] for name in names if name in item}
    for element in found.values():
        said.add(element)
    return said


def _picture(held: Any, pixels: np.ndarray, colour: bool, window: Window) -> Picture:
    photometric = str(held.PhotometricInterpretation)
    if pixels.ndim == 3 or photometric not in GREY:
        return _coloured(photometric, pixels, colour)
    try:
        values, ends = _seen(held, pixels, window)
    except DataError:
        raise
    except (AttributeError, ValueError, TypeError, LookupError, NotImplementedError) as wrong:
        raise DataError("what says how its pixels are meant (rescale, window or LUT) cannot be used") from wrong
    if photometric == "MONOCHROME1":
        values = np.float32(sum(ends)) - values
    return in_channels(values, ends, colour)


def _coloured(photometric: str, pixels: np.ndarray, colour: bool) -> Picture:
    from PIL import Image

    if photometric not in COLOURS:
        raise DataError(f"colours as {photometric} are not read; save them as RGB")
    if pixels.dtype != np.uint8:
        raise DataError("colours of more than 8 bits cannot be read at their full depth; save them at 8 bits")
    image = Image.fromarray(pixels.astype(np.uint8))
    return Picture(np.asarray(image if colour else image.convert("L")), EIGHT_BITS)


def _seen(held: Any, pixels: np.ndarray, window: Window) -> tuple[np.ndarray, tuple[float, float]]:
    """Stored values as what they stand for, in the window where there is one, and the ends of that."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    measured = apply_modality_lut(pixels, held)
    if window == "file":
        low, high = _shown_ends(held)
        return ((apply_voi_lut(measured, held) - low) / (high - low)).astype(np.float32), (0.0, 1.0)
    if window is not None:
        ends = window_ends(*window)
        return np.clip(measured, *ends).astype(np.float32), ends
    return measured.astype(np.float32), _measured_ends(held)


def _measured_ends(held: Any) -> tuple[float, float]:
    """What the modality LUT, or the stored bits and the rescale, can come to."""
    if held.get("ModalityLUTSequence"):
        return 0.0, 2.0 ** int(held.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    slope, intercept = (held.get(name, neutral) for name, neutral in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    bits = int(held.BitsStored)
    stored = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if held.PixelRepresentation else (0, 2**bits - 1)
    low, high = sorted(float(slope) * end + float(intercept) for end in stored)
    return low, high


def _shown_ends(held: Any) -> tuple[float, float]:
    """What the file's own VOI LUT or window comes to; DataError where it has neither."""
    if held.get("VOILUTSequence"):
        return 0.0, 2.0 ** int(held.VOILUTSequence[0].LUTDescriptor[2]) - 1
    if held.get("WindowCenter") is None or held.get("WindowWidth") is None:
        raise DataError("it says no window of its own; write the window of all: window = [40, 400]")
    return _measured_ends(held)
