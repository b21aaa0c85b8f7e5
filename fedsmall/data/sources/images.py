"""Image folders: folder/class/image, or folder/site/class/image where every site has a folder of its own.

An official test set is a folder of the same shape beside it.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsmall.data.forms import ENDINGS, Pixels
from fedsmall.data.sources.files import as_classes, class_names, locate
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError, PlanError

LONGEST_SIDE = 10_000


def images(
    root: Path | None,
    seed: int,
    path: str,
    *,
    test: str | None = None,
    size: int | Sequence[int] | None = None,
    channels: int | None = None,
    colour: bool = False,
    classes: Sequence[object] | None = None,
    by_site: bool = False,
) -> Pool:
    """The images at ``path``, and the official test images at ``test`` where there are such.

    They are grey (``channels`` = 1, the default) or in colour (3, or ``colour``), and brought to ``size``, one number
    or (height, width), where that is given.

    Raises PlanError for a size or number of channels that no image has, and DataError where there are no images, where
    one cannot be read, or where they differ in size and none is given.
    """
    form = Pixels(channels=3 if _in_colour(channels, colour) else 1, size=_shape(size), resize=size is not None)
    folders = _by_site(locate(path, root), by_site)
    tests = {} if test is None else _by_site(locate(test, root), by_site)
    if by_site and tests and tests.keys() != folders.keys():
        raise DataError(f"{len(folders)} sites have images to train on and {len(tests)} have test images")
    held = {child.name for folder in (*folders.values(), *tests.values()) for child in _folders(folder)}
    names = class_names(held, classes)
    train, official = ({name: _part(each, names, form) for name, each in side.items()} for side in (folders, tests))
    shape = next(iter(train.values())).x.shape
    return Pool(train, names, official, form=form.model_copy(update={"size": (shape[2], shape[3])}))


def _shape(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width."""
    if size is None:
        return None
    sides = [size, size] if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= LONGEST_SIDE for side in sides):
        raise PlanError(f"size is a side (150) or height and width ([150, 150]), 1 to {LONGEST_SIDE}; got {size!r}")
    return sides[0], sides[1]


def _in_colour(channels: int | None, colour: bool) -> bool:
    if type(colour) is not bool or channels not in (None, 1, 3) or (channels == 1 and colour):
        raise PlanError(f"channels = 1 is grey and channels = 3 is colour; got channels = {channels!r}")
    return colour or channels == 3


def _by_site(found: Path, by_site: bool) -> dict[str, Path]:
    return {child.name: child for child in _folders(found)} if by_site else {NOWHERE: found}


def image_files(folder: Path) -> list[Path]:
    """The images of one class, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)


def _folders(folder: Path) -> list[Path]:
    found = sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    if not found:
        raise DataError("an image folder holds one folder for each class; this one holds none")
    return found


def _part(folder: Path, names: Sequence[str], form: Pixels) -> Part:
    files = [(path, child.name) for child in _folders(folder) for path in image_files(child)]
    if not files:
        raise DataError(f"the class folders hold no image ({', '.join(ENDINGS)})")
    return Part(form.numbers([path for path, _ in files]), as_classes([label for _, label in files], names))
