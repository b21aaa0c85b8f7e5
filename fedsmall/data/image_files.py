"""One image file as numbers at the depth it has: PNG, JPEG, BMP, TIFF; DICOM and NIfTI where their readers are here."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedsmall.errors import DataError, PlanError, as_data_error
from fedsmall.files import in_file

EIGHT_BITS = (0.0, 255.0)
Window = tuple[float, float] | Literal["file"] | None
Frames = Literal["middle", "each"] | int | float | None
MIDDLE, EACH = "middle", "each"
Place = int | float
DICOM, NIFTI = (".dcm", ".dicom"), (".nii", ".nii.gz")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", *DICOM, *NIFTI)
LEFTOVERS = "__MACOSX"  # what some programs put into an archive beside the files
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes
DEEP = (*SIXTEEN_BITS, "I", "F")
ELEMENTS = [  # that are read, and no others
    *("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "PhotometricInterpretation", "PlanarConfiguration", "RescaleSlope"),
    *("RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("VOILUTSequence", "BurnedInAnnotation", "SharedFunctionalGroupsSequence"),
    *("PerFrameFunctionalGroupsSequence", "PixelData"),
]
OF_FRAMES = {  # what functional groups may say, by the sequences in which they say it
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
}
SAID = [name for name in ELEMENTS if name != "PixelData" and "FunctionalGroups" not in name]
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT")
PLANES = {"sagittal": 0, "coronal": 1, "axial": 2}  # the axis that a plane cuts across
HELP = 'slice is a plane and a place, as in "axial:middle", "coronal:12" (counted from 0) or "sagittal:0.4" (a share)'


class Picture(NamedTuple):
    """``values`` (height, width), (height, width, 3) or (depth, height, width), and the ends that the file says."""

    values: np.ndarray
    ends: tuple[float, float] | None


def _in_channels(values: np.ndarray, ends: tuple[float, float] | None, colour: bool) -> Picture:
    """A grey image, (height, width), as it is or as three equal channels."""
    return Picture(np.repeat(values[..., None], 3, axis=2) if colour else values, ends)


def resize_image(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """``values`` brought to (height, width), bilinear, with their dtype."""
    from PIL import Image

    if values.dtype == np.float32 and values.ndim == 3:
        return np.stack([resize_image(values[..., channel], size) for channel in range(values.shape[2])], axis=-1)
    return np.asarray(Image.fromarray(values).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def resample_volume(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """A volume, (depth, height, width) in float32, brought to ``size`` by linear interpolation between voxels.

    A side that shrinks by a factor f is first smoothed by a Gaussian of (f - 1) / 2 voxels, so that none is missed.
    """
    from scipy.ndimage import gaussian_filter, zoom

    if values.shape == size:
        return values
    factors = [before / after for before, after in zip(values.shape, size, strict=True)]
    smooth = gaussian_filter(values, [max(0.0, (factor - 1) / 2) for factor in factors], mode="nearest")
    voxels = zoom(smooth, [1 / factor for factor in factors], order=1, mode="nearest", grid_mode=True)
    return np.asarray(voxels, dtype=np.float32)


def common_ends(pictures: Sequence[Picture]) -> tuple[float, float]:
    """The ends of what the files could hold; DataError where they differ, or one does not say."""
    ends = sorted({picture.ends for picture in pictures if picture.ends is not None})
    if len(ends) != 1 or any(picture.ends is None for picture in pictures):
        ranges = " and ".join(f"{low:g} to {high:g}" for low, high in ends[:2]) or "no range that their files say"
        raise DataError(f"the images have values from {ranges}; say which values count: range = [0, 4095]")
    return ends[0]


def is_place(where: object) -> bool:
    """Whether ``where`` is a number counted from 0, or a share from 0 to 1."""
    return (type(where) is int and where >= 0) or (type(where) is float and 0 <= where <= 1)


def _index_of(where: Place, count: int) -> int:
    return where if isinstance(where, int) else round(where * (count - 1))


def is_image(path: Path) -> bool:
    """Whether a file has the ending of an image that is read here."""
    return path.name.lower().endswith(ENDINGS)


def is_hidden(path: Path) -> bool:
    """Whether a program left it there beside what a person put there; ``path`` is relative."""
    return any(part.startswith(".") or part == LEFTOVERS for part in path.parts)


def images_in(folder: Path) -> list[Path]:
    """The files of images at any depth of a folder, sorted, without what programs left there."""
    return [path for path in sorted(folder.rglob("*")) if is_image(path) and not is_hidden(path.relative_to(folder))]


def read_pictures(
    path: Path, colour: bool, window: Window = None, cut: str | None = None, frames: Frames = None, volume: bool = False
) -> list[Picture]:
    """The images in a file, in ``colour`` or grey; deep ones in float32, others in uint8.

    ``window``: which values of a DICOM file count; ``frames``: which of its frames; ``cut``: which slice of a volume,
    or ``volume``: all of it. Raises DataError, with the file's name, where no image can be read at its full depth.
    """
    with in_file(path, "/".join(path.parts[-2:])):
        name = path.name.lower()
        if frames is not None and not name.endswith(DICOM):
            raise DataError("frames is for DICOM, and this file is none; leave frames out")
        if window == "file" and not name.endswith(DICOM):
            raise DataError('window = "file" is for DICOM, and this file is none; say range = [lowest, highest]')
        if volume and not name.endswith(NIFTI):
            raise DataError("volume is for volumes (NIfTI), and this file is none; leave volume out")
        if volume:  # its axial slices as they are looked at, one by one: (superior, posterior, right)
            return [Picture(_finite(_volume(path).transpose(2, 1, 0)[:, ::-1], "volume"), None)]
        if name.endswith(NIFTI):
            return [_in_channels(_read_slice(path, cut), None, colour)]
        if cut is not None:
            raise DataError("slice is for volumes (NIfTI), and this file is none; leave slice out")
        if name.endswith(DICOM):
            return _read_dicom(path, colour, window, frames)
        return [_read_plain_image(path, colour)]


@contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """Pillow's image of a file; DataError where there is none."""
    from PIL import Image, UnidentifiedImageError

    broken = (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    with as_data_error("a file with the ending of an image is none, or is damaged", *broken), Image.open(path) as image:
        yield image


def _read_plain_image(path: Path, colour: bool) -> Picture:
    with open_image(path) as image:
        if image.format == "TIFF" and image.n_frames > 1:
            raise DataError(f"it holds {image.n_frames} images; save each as a file of its own")
        if image.mode in DEEP:
            ends = (0.0, 65535.0) if image.mode in SIXTEEN_BITS or image.format == "PNG" else None
            return _in_channels(_finite(np.asarray(image).astype(np.float32), "image"), ends, colour)
        if image.format == "PNG" and _bits(path) == 16:
            raise DataError("16-bit colour cannot be read at its full depth; save it as grey or at 8 bits")
        return Picture(np.asarray(image.convert("RGB" if colour else "L")), EIGHT_BITS)


def _bits(path: Path) -> int:
    with path.open("rb") as file:
        return file.read(25)[24]


def window_ends(centre: float, width: float) -> tuple[float, float]:
    """The values that a window makes black and white."""
    middle, half = centre - 0.5, (width - 1) / 2
    return middle - half, middle + half


def _read_dicom(path: Path, colour: bool, window: Window, frames: Frames) -> list[Picture]:
    """The images in a file; DataError where there is none, or writing about the patient is burnt into it."""
    try:
        from pydicom import dcmread
        from pydicom.errors import InvalidDicomError
    except ImportError as wrong:
        raise DataError("DICOM is read by pydicom: pip install 'fedsmall[dicom]'") from wrong
    broken = (InvalidDicomError, OSError, AttributeError, ValueError, RuntimeError, LookupError, TypeError)
    with as_data_error("a file with the ending of DICOM is none, or its pixels cannot be read", *broken):
        held = dcmread(path, specific_tags=ELEMENTS)
        burnt = str(held.get("BurnedInAnnotation", "")).strip().upper() == "YES"
        places = [] if burnt else _frame_places(int(held.get("NumberOfFrames") or 1), frames)
        pixels = []
        for place in places:
            held.pixel_array_options(index=place)
            pixels.append(np.asarray(held.pixel_array))
    if burnt:
        raise DataError("writing is burnt into its pixels (BurnedInAnnotation = YES); blank it, or leave it out")
    headers = [_frame_header(held, place) for place in places]
    return [_picture(header, values, colour, window) for header, values in zip(headers, pixels, strict=True)]


def _frame_places(count: int, frames: Frames) -> list[int]:
    if frames is None and count > 1:
        raise DataError(f'it holds {count} frames; say which: frames = "middle", "each", or a number counted from 0')
    if frames is None or frames == EACH:
        return list(range(count))
    if (place := _index_of(0.5 if isinstance(frames, str) else frames, count)) >= count:
        raise DataError(f"it has {count} frame{'s' * (count > 1)}, counted from 0, and so no {place}")
    return [place]


def _frame_header(held: Any, place: int) -> Any:
    from pydicom import Dataset

    shared, per_frame = (held.get(f"{whose}FunctionalGroupsSequence") or [] for whose in ("Shared", "PerFrame"))
    if not shared and not per_frame:
        return held
    header = Dataset()
    header.file_meta = held.file_meta
    fields = {name: held[name] for name in SAID if name in held}
    for group in (*shared[:1], *per_frame[place : place + 1]):  # what a frame's own says comes last, and counts
        for sequence, names in OF_FRAMES.items():
            for item in (group.get(sequence) or [])[:1]:
                fields |= {name: item[name] for name in names if name in item}
    for element in fields.values():
        header.add(element)
    return header


def _picture(held: Any, pixels: np.ndarray, colour: bool, window: Window) -> Picture:
    photometric = str(held.PhotometricInterpretation)
    if pixels.ndim == 3 or photometric not in GREY:
        return _coloured(photometric, pixels, colour)
    unusable = (AttributeError, ValueError, TypeError, LookupError, NotImplementedError)
    with as_data_error("what says how its pixels are meant (rescale, window or LUT) cannot be used", *unusable):
        values, ends = _apply_window(held, pixels, window)
    if photometric == "MONOCHROME1":
        values = np.float32(sum(ends)) - values
    return _in_channels(values, ends, colour)


def _coloured(photometric: str, pixels: np.ndarray, colour: bool) -> Picture:
    from PIL import Image

    if photometric not in COLOURS:
        raise DataError(f"colours as {photometric} are not read; save them as RGB")
    if pixels.dtype != np.uint8:
        raise DataError("colours of more than 8 bits cannot be read at their full depth; save them at 8 bits")
    image = Image.fromarray(pixels.astype(np.uint8))
    return Picture(np.asarray(image if colour else image.convert("L")), EIGHT_BITS)


def _apply_window(held: Any, pixels: np.ndarray, window: Window) -> tuple[np.ndarray, tuple[float, float]]:
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
    if held.get("ModalityLUTSequence"):
        return 0.0, 2.0 ** int(held.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    slope, intercept = (held.get(name, neutral) for name, neutral in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    bits = int(held.BitsStored)
    stored = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if held.PixelRepresentation else (0, 2**bits - 1)
    low, high = sorted(float(slope) * end + float(intercept) for end in stored)
    return low, high


def _shown_ends(held: Any) -> tuple[float, float]:
    if held.get("VOILUTSequence"):
        return 0.0, 2.0 ** int(held.VOILUTSequence[0].LUTDescriptor[2]) - 1
    if held.get("WindowCenter") is None or held.get("WindowWidth") is None:
        raise DataError("it says no window of its own; write the window of all: window = [40, 400]")
    return _measured_ends(held)


def plane_and_place(cut: object) -> tuple[str, Place]:
    """The plane, and the number of a slice or what share of the way; PlanError where ``cut`` is none."""
    plane, _, place = cut.partition(":") if isinstance(cut, str) else ("", "", "")
    try:
        where: Place = 0.5 if place == MIDDLE else int(place) if place.isdecimal() else float(place)
    except ValueError:
        where = -1
    if plane not in PLANES or not is_place(where):
        raise PlanError(f"{HELP}; got {cut!r}")
    return plane, where


def _read_slice(path: Path, cut: str | None) -> np.ndarray:
    """The slice ``cut`` of the volume in a file, (height, width) in float32; DataError where it has none such."""
    if cut is None:
        raise DataError('it is a volume; say which slice, slice = "axial:middle", or take all of it: volume = true')
    volume, (plane, where) = _volume(path), plane_and_place(cut)
    count = volume.shape[PLANES[plane]]
    if (place := _index_of(where, count)) >= count:
        raise DataError(f"it has {count} {plane} slices, counted from 0, and so no {place}")
    return _finite(np.rot90(np.take(volume, place, axis=PLANES[plane])), "slice")


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise DataError(f"its {what} holds values that are not finite")
    return np.ascontiguousarray(values)


def _volume(path: Path) -> np.ndarray:
    """All values as the file scales them, (right, anterior, superior)."""
    try:
        import nibabel
    except ImportError as wrong:
        raise DataError("NIfTI is read by nibabel: pip install 'fedsmall[nifti]'") from wrong
    broken = (nibabel.filebasedimages.ImageFileError, OSError, EOFError, ValueError, zlib.error, TypeError)
    with as_data_error("a file with the ending of NIfTI is none, or is damaged", *broken):
        held = nibabel.as_closest_canonical(nibabel.load(path))  # type: ignore[no-untyped-call]
        volume: np.ndarray = held.get_fdata(dtype=np.float32, caching="unchanged")
    if volume.ndim == 4 and volume.shape[3] == 1:
        volume = volume[..., 0]
    if volume.ndim != 3:
        series = "; a series in time is not read" if volume.ndim == 4 else ""
        raise DataError(f"it has {volume.ndim} dimensions, and a volume has 3{series}")
    return volume
