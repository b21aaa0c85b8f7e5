"""What was read of an image file: its values, and what the file could hold."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedsmall.errors import DataError

EIGHT_BITS = (0.0, 255.0)
Window = tuple[float, float] | Literal["file"] | None
Frames = Literal["middle", "each"] | int | float | None


class Picture(NamedTuple):
    """``values`` (height, width), (height, width, 3) or (depth, height, width), and the ends of what a file could hold.

    The ends are None where the file does not say them.
    """

    values: np.ndarray
    ends: tuple[float, float] | None


def in_channels(values: np.ndarray, ends: tuple[float, float] | None, colour: bool) -> Picture:
    """A grey image, (height, width), as it is or as three equal channels."""
    return Picture(np.repeat(values[..., None], 3, axis=2) if colour else values, ends)


def resized(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """``values`` brought to (height, width), bilinear, with their dtype."""
    from PIL import Image

    if values.dtype == np.float32 and values.ndim == 3:
        return np.stack([resized(values[..., channel], size) for channel in range(values.shape[2])], axis=-1)
    return np.asarray(Image.fromarray(values).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def resampled(values: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """A volume, (depth, height, width) in float32, brought to ``size``: the whole of it, whatever its voxels measure.

    Linear interpolation between the middles of voxels (``scipy.ndimage.zoom``, order 1, beyond an edge the edge); along
    a side that shrinks by a factor f it is first smoothed by a Gaussian of (f - 1) / 2 voxels, so that none is missed.
    """
    from scipy.ndimage import gaussian_filter, zoom

    if values.shape == size:
        return values
    factors = [before / after for before, after in zip(values.shape, size, strict=True)]
    smooth = gaussian_filter(values, [max(0.0, (factor - 1) / 2) for factor in factors], mode="nearest")
    found = zoom(smooth, [1 / factor for factor in factors], order=1, mode="nearest", grid_mode=True)
    return np.asarray(found, dtype=np.float32)


def common_ends(pictures: Sequence[Picture]) -> tuple[float, float]:
    """The ends of what the files could hold; DataError where they differ, or one does not say."""
    ends = sorted({picture.ends for picture in pictures if picture.ends is not None})
    if len(ends) != 1 or any(picture.ends is None for picture in pictures):
        found = " and ".join(f"{low:g} to {high:g}" for low, high in ends[:2]) or "no range that their files say"
        raise DataError(f"the images have values from {found}; say which values count: range = [0, 4095]")
    return ends[0]
