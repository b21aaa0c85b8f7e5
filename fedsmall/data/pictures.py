"""One image file as numbers at the depth it has: PNG, JPEG, BMP, TIFF, and DICOM where pydicom is installed.

Of a DICOM file the pixels are read and what says how they are meant (rescale, photometric interpretation), and no other
element: no name, no date, no identifier.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.errors import DataError

DICOM = (".dcm", ".dicom")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", *DICOM)
EIGHT_BITS = (0.0, 255.0)
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes
DEEP = (*SIXTEEN_BITS, "I", "F")
ELEMENTS = [  # of a DICOM file, and no others
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
    "PixelData",
]


class Picture(NamedTuple):
    """``values`` (height, width) or (height, width, 3), and the ends of what the file could hold, None for unknown."""

    values: np.ndarray
    ends: tuple[float, float] | None


def read_picture(path: Path, colour: bool) -> Picture:
    """The image in a file, in ``colour`` or grey; deep ones in float32, others in uint8.

    Raises DataError, with the file's name, where it holds no image that can be read at its full depth.
    """
    try:
        return _dicom(path, colour) if path.suffix.lower() in DICOM else _plain(path, colour)
    except DataError as wrong:
        raise DataError(wrong.words, file=path.name) from wrong


def resized(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``values`` brought to (height, width), bilinear, with their dtype."""
    from PIL import Image

    if values.dtype == np.float32 and values.ndim == 3:
        return np.stack([resized(values[..., channel], size) for channel in range(values.shape[2])], axis=-1)
    return np.asarray(Image.fromarray(values).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _plain(path: Path, colour: bool) -> Picture:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode in DEEP:
                ends = (0.0, 65535.0) if image.mode in SIXTEEN_BITS or image.format == "PNG" else None
                values = np.asarray(image).astype(np.float32)
                return Picture(np.repeat(values[..., None], 3, axis=2) if colour else values, ends)
            if image.format == "PNG" and _bits(path) == 16:
                raise DataError("16-bit colour cannot be read at its full depth; save it as grey or at 8 bits")
            return Picture(np.asarray(image.convert("RGB" if colour else "L")), EIGHT_BITS)
    except DataError:
        raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as wrong:
        raise DataError("a file with the ending of an image is none, or is damaged") from wrong


def _bits(path: Path) -> int:
    """The bits of a sample that the header of a PNG names."""
    with path.open("rb") as file:
        return file.read(25)[24]


def _dicom(path: Path, colour: bool) -> Picture:
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ImportError as wrong:
        raise DataError("DICOM is read by pydicom: pip install 'fedsmall[dicom]'") from wrong
    try:
        held = dcmread(path, specific_tags=ELEMENTS)
        pixels = held.pixel_array
    except (InvalidDicomError, OSError, AttributeError, ValueError, RuntimeError, LookupError) as wrong:
        raise DataError("a file with the ending of DICOM is none, or its pixels cannot be read") from wrong
    if pixels.ndim == 3 and not (held.SamplesPerPixel == 3 and pixels.shape[2] == 3):
        raise DataError(f"it holds {pixels.shape[0]} frames; one image a file is expected")
    return _meant(held, pixels, colour)


def _meant(held: Any, pixels: np.ndarray, colour: bool) -> Picture:
    """Stored values as what they stand for: rescaled, and bright where there is much of what is measured."""
    if pixels.ndim == 3:
        from PIL import Image

        if held.PhotometricInterpretation not in ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT"):
            raise DataError(f"colours as {held.PhotometricInterpretation} are not read; save them as RGB")
        image = Image.fromarray(pixels.astype(np.uint8))
        return Picture(np.asarray(image if colour else image.convert("L")), EIGHT_BITS)
    slope, intercept = float(held.get("RescaleSlope", 1)), float(held.get("RescaleIntercept", 0))
    bits = int(held.BitsStored)
    stored = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if held.PixelRepresentation else (0, 2**bits - 1)
    low, high = sorted(slope * end + intercept for end in stored)
    values = (pixels.astype(np.float64) * slope + intercept).astype(np.float32)
    if held.PhotometricInterpretation == "MONOCHROME1":  # there the smallest value is white
        values = np.float32(low + high) - values
    return Picture(np.repeat(values[..., None], 3, axis=2) if colour else values, (low, high))


def common_ends(pictures: Sequence[Picture]) -> tuple[float, float]:
    """The ends of what the files could hold; DataError where they differ, or one does not say."""
    ends = sorted({picture.ends for picture in pictures if picture.ends is not None})
    if len(ends) != 1 or any(picture.ends is None for picture in pictures):
        found = " and ".join(f"{low:g} to {high:g}" for low, high in ends[:2]) or "no range that their files say"
        raise DataError(f"the images have values from {found}; say which values count: range = [0, 4095]")
    return ends[0]
