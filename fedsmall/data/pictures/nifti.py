"""A NIfTI volume by nibabel, whole or one slice of it: ``volume = true``, or ``slice = "axial:middle"``.

Planes are those of the patient, whatever the order of the axes in the file: axes are turned to right, anterior,
superior by its affine. A slice is drawn as it is looked at, with anterior (axial) or superior (coronal, sagittal) up.
A whole volume is the stack of its axial slices, from the feet up.
Of the header the affine and the scaling of values are used, and nothing else.
"""

import zlib
from pathlib import Path

import numpy as np

from fedsmall.data.pictures.places import MIDDLE, Place, index_of, is_place
from fedsmall.errors import DataError, PlanError

PLANES = {"sagittal": 0, "coronal": 1, "axial": 2}  # the axis that a plane cuts across
HELP = 'slice is a plane and a place, as in "axial:middle", "coronal:12" (counted from 0) or "sagittal:0.4" (a share)'


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


def read(path: Path, cut: str | None) -> np.ndarray:
    """The slice ``cut`` of the volume in a file, (height, width) in float32; DataError where it has none such."""
    if cut is None:
        raise DataError('it is a volume; say which slice, slice = "axial:middle", or take all of it: volume = true')
    volume, (plane, where) = _volume(path), plane_and_place(cut)
    count = volume.shape[PLANES[plane]]
    place = index_of(where, count)
    if place >= count:
        raise DataError(f"it has {count} {plane} slices, counted from 0, and so no {place}")
    return _finite(np.rot90(np.take(volume, place, axis=PLANES[plane])), "slice")


def read_whole(path: Path) -> np.ndarray:
    """The volume in a file, (depth, height, width) in float32: its axial slices as they are looked at, one by one."""
    stack = _volume(path).transpose(2, 1, 0)[:, ::-1]  # (superior, posterior, right)
    return _finite(stack, "volume")


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
    try:
        held = nibabel.as_closest_canonical(nibabel.load(path))  # type: ignore[no-untyped-call]
        volume: np.ndarray = held.get_fdata(dtype=np.float32, caching="unchanged")
    except (nibabel.filebasedimages.ImageFileError, OSError, EOFError, ValueError, zlib.error, TypeError) as wrong:
        raise DataError("a file with the ending of NIfTI is none, or is damaged") from wrong
    if volume.ndim == 4 and volume.shape[3] == 1:
        volume = volume[..., 0]
    if volume.ndim != 3:
        series = "; a series in time is not read" if volume.ndim == 4 else ""
        raise DataError(f"it has {volume.ndim} dimensions, and a volume has 3{series}")
    return volume
