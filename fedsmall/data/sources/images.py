"""Image folders: folder/class/image, or folder/site/class/image where every site has a folder of its own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsmall.data.sources.files import as_classes, class_names, locate
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def images(
    root: Path | None,
    seed: int,
    path: str,
    *,
    size: Sequence[int] | None = None,
    colour: bool = False,
    classes: Sequence[object] | None = None,
    by_site: bool = False,
) -> Pool:
    """The images at ``path``: grey, or in colour; brought to ``size`` (height, width) where that is given.

    Raises DataError where there are none, where one cannot be read, or where they differ in size and none is given.
    """
    found = locate(path, root)
    folders = {child.name: child for child in _folders(found)} if by_site else {NOWHERE: found}
    held = {child.name for folder in folders.values() for child in _folders(folder)}
    names = class_names(held, classes)
    return Pool({name: _part(folder, names, size, colour) for name, folder in folders.items()}, names)


def image_files(folder: Path) -> list[Path]:
    """The images of one class, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)


def _folders(folder: Path) -> list[Path]:
    found = sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    if not found:
        raise DataError("an image folder holds one folder for each class; this one holds none")
    return found


def _part(folder: Path, names: Sequence[str], size: Sequence[int] | None, colour: bool) -> Part:
    files = [(path, child.name) for child in _folders(folder) for path in image_files(child)]
    if not files:
        raise DataError(f"the class folders hold no image ({', '.join(ENDINGS)})")
    arrays = [read_image(path, size, colour) for path, _ in files]
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise DataError(
            f"the images have {len(shapes)} sizes, from {shapes[0]} to {shapes[-1]}; give one: size = [28, 28]"
        )
    return Part(np.stack(arrays), as_classes([label for _, label in files], names))


def read_image(path: Path, size: Sequence[int] | None, colour: bool) -> np.ndarray:
    """One image as (channels, height, width) in uint8; DataError where the file is not an image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            picture = image.convert("RGB" if colour else "L")
    except (UnidentifiedImageError, OSError) as wrong:
        raise DataError("a file with the ending of an image is none, or is damaged") from wrong
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
