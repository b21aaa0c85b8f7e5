"""Image folders: folder/class/image, or folder/site/class/image where sites have folders; official test sets alike."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data import image_files
from fedsmall.data.image_files import Picture, Window, images_in, is_hidden, is_image
from fedsmall.data.preparation import Pixels
from fedsmall.data.sources.files import at_site, locate
from fedsmall.data.sources.labels import Classes, as_classes, number_patients, patients_in, share_classes
from fedsmall.data.sources.pool import NOWHERE, Part, Pool, digests_of
from fedsmall.data.table_files import plain
from fedsmall.errors import DataError, PlanError

SIZES = {  # the longest side, and how a size is written
    2: (10_000, "a side (150) or height and width ([150, 150])"),
    3: (512, "of volumes a side (32) or depth, height and width ([16, 32, 32])"),
}
NO_IMAGE = f"the class folders hold no image ({', '.join(image_files.ENDINGS)})"
DEEPER = 'a folder within that of a class holds {} image{}: move it up, or say partition = {{natural = "folder"}}'
EACH_ITS_OWN = "Every file counts as a patient of its own, with its frames; patient = ... says whose files are whose"


class Labelled(NamedTuple):
    """An image, its class, and the folder and name of its file."""

    picture: Picture
    label: str
    folder: str
    file: str


def images(
    root: Path | None,
    seed: int,
    path: str,
    *,
    test: str | None = None,
    size: int | Sequence[int] | None = None,
    channels: int | None = None,
    colour: bool = False,
    classes: Classes | None = None,
    range: Sequence[float] | None = None,
    window: Sequence[float] | str | None = None,
    slice: str | None = None,
    frames: str | float | None = None,
    volume: bool = False,
    patient: str | None = None,
    by_site: bool = False,
    own: bool = False,
) -> Pool:
    """The images at ``path``, and the official test images at ``test`` where there are such.

    ``range`` says which values become -1 and 1, where files hold more than 8 bits, ``window`` says it for DICOM, as
    [centre, width] or "file"; ``slice``, ``frames`` and ``volume`` say what of NIfTI and DICOM files is a sample.
    ``patient`` is a regular expression whose first group finds the patient in a file's name, as "person([0-9]+)_"; of a
    hospital's ``own`` files those without are a patient each.

    Raises PlanError for what no image has, and DataError for files that cannot be read or differ in size.
    """
    form = _form(size, channels, colour, range, window, slice, frames, volume)
    sides = [_site_folders(path, root, by_site), {} if test is None else _site_folders(test, root, by_site)]
    folders, tests = sides
    if by_site and tests and tests.keys() != folders.keys():
        raise DataError(f"{len(folders)} sites have images to train on and {len(tests)} have test images")
    words = {name: [plain(f.name) for side in sides if name in side for f in _folders(side[name])] for name in folders}
    names, means, class_notes = share_classes(words, classes)
    read = [{site: _read_site(site, folder, form, means) for site, folder in side.items()} for side in sides]
    pictures = [image.picture for side in read for held in side.values() for image in held]
    form = form if form.stated else form.model_copy(update={"range": image_files.common_ends(pictures)})
    numbers = number_patients(*(_whose(side, patient, form, own) for side in read))
    train, official = (
        {site: replace(_part(site, held, names, form), patients=of.get(site)) for site, held in side.items()}
        for side, of in zip(read, numbers, strict=True)
    )
    notes = [*_unused_depth(pictures, form)]
    notes += [EACH_ITS_OWN] if form.frames == image_files.EACH and patient is None else []
    size = next(iter(train.values())).x.shape[2:]
    return Pool(train, names, official, form=form.model_copy(update={"size": size}), notes=(*notes, *class_notes))


def _whose(side: dict[str, list[Labelled]], patient: str | None, form: Pixels, own: bool) -> dict[str, np.ndarray]:
    if patient is not None or form.frames != image_files.EACH:
        return patients_in({site: [image.file for image in held] for site, held in side.items()}, patient, own)
    return {site: np.array([f"{image.folder}/{image.file}" for image in held]) for site, held in side.items()}


def _form(
    size: Any, channels: Any, colour: Any, range: Any, window: Any, cut: str | None, frames: Any, volume: Any
) -> Pixels:
    """What a scenario's options say of a sample; PlanError for what no image has."""
    if type(colour) is not bool or channels not in (None, 1, 3) or (channels == 1 and colour):
        raise PlanError(f"channels = 1 is grey and channels = 3 is colour; got channels = {channels!r}")
    sides, seen, stated = _shape(size, 3 if volume else 2), _window(window, range), _value_range(range)
    if seen is not None:
        stated = (0.0, 1.0) if seen == "file" else image_files.window_ends(*seen)
    if cut is not None:
        image_files.plane_and_place(cut)
    if frames not in (None, image_files.MIDDLE, image_files.EACH) and not image_files.is_place(frames):
        raise PlanError(f'frames is "middle", "each", a number counted from 0, or a share as 0.4; got {frames!r}')
    if type(volume) is not bool:
        raise PlanError(f"volume = true takes whole volumes (NIfTI); got {volume!r}")
    if volume and (cut is not None or frames is not None):
        raise PlanError(f"volume takes all of a file and {'slice' if cut else 'frames'} a part; remove one of them")
    if volume and channels == 3:
        raise PlanError("volumes are grey; leave channels out")
    return Pixels(
        channels=3 if colour or channels == 3 else 1,
        size=sides,
        resize=size is not None,
        range=stated,
        stated=stated is not None,
        window=seen,
        slice=cut,
        frames=frames,
        volume=volume,
    )


def _is_pair(asked: Any) -> bool:
    return isinstance(asked, list | tuple) and [type(value) in (int, float) for value in asked] == [True, True]


def _value_range(asked: Sequence[float] | None) -> tuple[float, float] | None:
    if asked is None:
        return None
    if not _is_pair(asked) or not -np.inf < asked[0] < asked[1] < np.inf:
        raise PlanError(f"range is the lowest and the highest value that count, as in [0, 4095]; got {asked!r}")
    return float(asked[0]), float(asked[1])


def _window(asked: Sequence[float] | str | None, range: Sequence[float] | None) -> Window:
    if asked is None:
        return None
    if range is not None:
        raise PlanError("range and window both say which values count; remove one of them")
    if isinstance(asked, str) and asked == "file":
        return "file"
    if not _is_pair(asked) or not np.isfinite(asked[0]) or not 1 < asked[1] < np.inf:  # type: ignore[operator]
        raise PlanError(f'window is [centre, width], as in [40, 400], or "file" for that of each file; got {asked!r}')
    return float(asked[0]), float(asked[1])


def _unused_depth(pictures: Sequence[Picture], form: Pixels) -> tuple[str, ...]:
    low, high = form.ends
    highest = max(float(picture.values.max()) for picture in pictures)
    if form.stated or (low, high) == image_files.EIGHT_BITS or highest - low > (high - low) / 4:
        return ()
    end = 2 ** max(int(highest - low), 1).bit_length() - 1
    return (f"the images hold values up to {end} of {high:g}: range = [0, {end}] would use the whole range",)


def _shape(size: int | Sequence[int] | None, axes: int) -> Any:
    if size is None:
        return None
    longest, what = SIZES[axes]
    sides = [size] * axes if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
    if len(sides) != axes or not all(type(side) is int and 1 <= side <= longest for side in sides):
        raise PlanError(f"size is {what}, 1 to {longest}; got {size!r}")
    return tuple(sides)


def _site_folders(path: str, root: Path | None, by_site: bool) -> dict[str, Path]:
    folder = locate(path, root)
    return {child.name: child for child in _folders(folder)} if by_site else {NOWHERE: folder}


def _folders(folder: Path) -> list[Path]:
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    folders = [child for child in children if child.is_dir() and _counts(child)]
    if not folders and any(child.is_dir() and any(child.iterdir()) for child in children):
        raise DataError(NO_IMAGE)
    if not folders:
        raise DataError("an image folder holds one folder for each class; this one holds none")
    return folders


def _counts(folder: Path) -> bool:
    return not is_hidden(Path(folder.name)) and any(child.is_dir() or is_image(child) for child in folder.iterdir())


def _read_site(site: str, folder: Path, form: Pixels, means: Mapping[str, str]) -> list[Labelled]:
    with at_site(site):
        files = [path for child in _folders(folder) for path in images_in(child)]
        if deeper := sum(path.parent.parent != folder for path in files):
            raise DataError(DEEPER.format(deeper, "" if deeper == 1 else "s"))
        if not files:
            raise DataError(NO_IMAGE)
        held: list[Labelled] = []
        for path in files:
            label, pictures = plain(path.parent.name), form.pictures(path)
            held += [Labelled(picture, means.get(label, label), label, path.name) for picture in pictures]
        return held


def _part(site: str, held: Sequence[Labelled], names: Sequence[str], form: Pixels) -> Part:
    with at_site(site):
        x = form.arrays([(image.file, image.picture) for image in held])
        digests = digests_of(f"{image.folder}/{image.file}" for image in held)
        return Part(x, as_classes([image.label for image in held], names), digests=digests)
