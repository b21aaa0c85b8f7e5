"""One image file as numbers at the depth it has: PNG, JPEG, BMP, TIFF; DICOM and NIfTI where their readers are here."""

from pathlib import Path

import numpy as np

from fedsmall.data.pictures import dicom, nifti
from fedsmall.data.pictures.picture import EIGHT_BITS, Frames, Picture, Window, in_channels
from fedsmall.errors import DataError
from fedsmall.files import check_is_regular

DICOM, NIFTI = (".dcm", ".dicom"), (".nii", ".nii.gz")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", *DICOM, *NIFTI)
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes
DEEP = (*SIXTEEN_BITS, "I", "F")


def is_image(path: Path) -> bool:
    """Whether a file has the ending of an image that is read here."""
    return path.name.lower().endswith(ENDINGS)


def read_pictures(
    path: Path,
    colour: bool,
    window: Window = None,
    cut: str | None = None,
    frames: Frames = None,
    volume: bool = False,
) -> list[Picture]:
    """The images in a file, in ``colour`` or grey; deep ones in float32, others in uint8.

    ``window`` (:mod:`fedsmall.data.pictures.dicom`) says which values of a DICOM file count and ``frames`` which of its
    frames are images; ``cut`` (:mod:`fedsmall.data.pictures.nifti`) says which slice of a volume is the image,
    or ``volume`` that all of it is.

    Raises DataError, with the file's name, where it holds no image that can be read at its full depth.
    """
    check_is_regular(path)
    try:
        return _read(path, colour, window, cut, frames, volume)
    except DataError as wrong:
        raise DataError(wrong.words, file=path.name) from wrong


def _read(path: Path, colour: bool, window: Window, cut: str | None, frames: Frames, volume: bool) -> list[Picture]:
    name = path.name.lower()
    if frames is not None and not name.endswith(DICOM):
        raise DataError("frames is for DICOM, and this file is none; leave frames out")
    if window == "file" and not name.endswith(DICOM):
        raise DataError('window = "file" is for DICOM, and this file is none; say range = [lowest, highest]')
    if volume and not name.endswith(NIFTI):
        raise DataError("volume is for volumes (NIfTI), and this file is none; leave volume out")
    if volume:
        return [Picture(nifti.read_whole(path), None)]
    if name.endswith(NIFTI):
        return [in_channels(nifti.read(path, cut), None, colour)]
    if cut is not None:
        raise DataError("slice is for volumes (NIfTI), and this file is none; leave slice out")
    if name.endswith(DICOM):
        return dicom.read(path, colour, window, frames)
    return [_plain(path, colour)]


def _plain(path: Path, colour: bool) -> Picture:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode in DEEP:
                ends = (0.0, 65535.0) if image.mode in SIXTEEN_BITS or image.format == "PNG" else None
                values = np.asarray(image).astype(np.float32)
                return in_channels(values, ends, colour)
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
