"""The first scenario for a folder of images: ``fedsmall new scans`` reads classes, hospitals and sizes off the folder.

Its recipe reaches logistic regression on the pooled pixels at ten sites of sixteen images (docs/images.md).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.image_files import DEEP, DICOM, ENDINGS, NIFTI, images_in, is_image, open_image, read_pictures
from fedsmall.data.sources.images import NO_IMAGE
from fedsmall.data.sources.labels import spelling_key
from fedsmall.data.sources.tables import ENDINGS as TABLES
from fedsmall.errors import DataError, PlanError
from fedsmall.files import in_file
from fedsmall.planning.look import classes_of
from fedsmall.sim.runs.scenario import to_toml

LOOKED_AT = 200  # files, in equal distances, of which size, colour and depth are read
DEALT, LEAST_ROWS = 10, 20  # hospitals that samples are dealt to, and the least that each should have
LEAST_PATIENTS = 8  # of a hospital, of whom names of files can tell
LEAST = 8  # side of the smallest image that the network's two poolings leave something of
LARGEST = 32  # side of an image that the network gets as it is; larger ones are brought to that
UNREAD = (".webp", ".gif", ".jp2", ".heic", ".nrrd", ".mha")  # images that are passed over
GREY = ("1", "L", *DEEP)  # modes of Pillow
OF_PATIENTS = '# patient = "([^_]+)_"      # which part of a file\'s name is the patient, if some have several images\n'
SETTINGS = """
model = "cnn"                 # docs/networks.md has networks that know other pictures already
rounds = 60                   # the rate falls to nothing by then
seeds = [0, 1, 2, 3, 4]       # at least five, or there is no verdict
evaluate_every = 20
"""
RECIPE = """
[recipe]
optimizer = "adam"
lr = 0.003
lr_schedule = "cosine"
batch = 16
even_batches = true           # for policies' least_batch
local_epochs = 1              # a round: every hospital goes over its images once

[[method]]
name = "Standalone"           # a network at every hospital alone: what federation has to beat
"""
FEDERATED = """
[[method]]
name = "FedAvg"               # averaged every round
aggregate_every = 1

[[method]]
name = "FedDC"                # handed over every round, averaged every tenth
permute_every = 1
aggregate_every = 10
privacy = {blur = 1}          # records are harder to read; {exposure = 1.0} sets a limit, and costs more
{}
[[method]]
name = "Central"              # the same patients pooled: what may not be done
"""


def holds_images(folder: Path) -> bool:
    """Whether a folder holds image files, however deep; beside tables in folders in it. DataError for neither."""
    of_tables = folder.is_dir() and any(path.name.lower().endswith(TABLES) for path in folder.iterdir())
    of_images = any(is_image(path) for path in folder.rglob("*") if not of_tables or path.parent != folder)
    if folder.is_dir() and not (of_tables or of_images):
        raise DataError(f"the folder holds no table ({', '.join(TABLES)}), and no image ({', '.join(ENDINGS)})")
    return of_images


def sites_for(samples: int) -> int:
    """To how many pretended hospitals so many samples are dealt."""
    return max(2, min(DEALT, samples // LEAST_ROWS))


def scenario_of_images(
    folder: Path, path: str, name: str, positive: str | None, test: str | None = None
) -> tuple[str, list[str]]:
    """A scenario's text for the images in ``folder``, which it calls ``path``, and what was decided, in sentences.

    ``test`` is the path of official test images. Of a folder that holds "train" and "test" these are found.
    """
    parts = {child.name.lower(): child.name for child in folder.iterdir() if child.is_dir()}
    if train := parts.get("train", parts.get("training")):
        test = next((f"{path}/{parts[word]}" for word in ("test", "testing") if word in parts), None)
        return scenario_of_images(folder / train, f"{path}/{train}", name, positive, test)
    files = images_in(folder)
    if not files:
        raise DataError(NO_IMAGE)
    in_hospitals = _are_in_hospitals(folder, files)
    if kinds := sorted({file.suffix.lower() for file in files} & {*NIFTI, ".gz"}):
        raise PlanError(f"of {', '.join(kinds)} a scenario must say which slice and values count (docs/images.md)")
    classes, notes, is_rare = classes_of("an image", [file.parent.name for file in files], positive)
    task: dict[str, Any] = {"images": path, "classes": classes, **({"test": test} if test else {})}
    if patient := None if test else _patient_in(files):
        task["patient"] = patient
        notes.append("files' names begin with numbers that come again: taken for patients, whose images stay together")
    seen = [_look_at(file) for file in files[:: len(files) // LOOKED_AT + 1]]
    sizes = sorted({look.size for look in seen})
    if len(sizes) > 1 or min(sizes[0]) < LEAST or max(max(sizes)) > LARGEST:
        side = min(LARGEST, max(LEAST, int(np.median([min(look.size) for look in seen]))))
        task["size"] = [side, side]
        ends = " to ".join(f"{wide} x {high}" for wide, high in dict.fromkeys((sizes[0], sizes[-1])))
        notes.append(f"of {ends} pixels, brought to {side} x {side}: twice the side takes four times as long")
    if not all(look.is_grey for look in seen):
        task["channels"] = 3
    if of_all := [look.ends for look in seen if look.ends]:
        low, high = task["range"] = [min(low for low, _ in of_all), max(high for _, high in of_all)]
        notes.append(f"values count from {low} to {high}, where most lie (range); of DICOM a window can say which do")
    if len(of_all) not in (0, len(seen)):
        raise PlanError("some images have 8 bits and some more, which do not compare; bring all to one depth")
    notes += [f"{test} is the test set"] if test else []
    others = Counter(path.suffix.lower() for path in folder.rglob("*") if path.name.lower().endswith(UNREAD))
    notes += [f"{ending} images are not read: {count} left out" for ending, count in others.items()]
    split = f"sites = {sites_for(len(files))}    # one folder, split over as many pretended hospitals"
    dealt = 'partition = {natural = "folder"}    # a hospital for each folder' if in_hospitals else split
    lines = ["# Written by `fedsmall new`", *(f"# {line}" for line in notes), f"name = {to_toml(name)}", "", dealt]
    text = "\n".join(lines) + SETTINGS
    text += 'metric = "auc"\n' if len(classes) == 2 else ""
    text += '# threshold = "youden"        # one class is rare; every network is trained six times for it\n' * is_rare
    methods = FEDERATED.replace("{}", 'recipe = {optimizer_state = "reset"}\n')
    keys = [f"{key} = {to_toml(value)}\n" for key, value in task.items()]
    return text + "\n[task]\n" + "".join([*keys, "" if patient else OF_PATIENTS, RECIPE, methods]), notes


def _patient_in(files: Sequence[Path]) -> str | None:
    """Where in names patients stand, if all begin with a word that has a digit and some share it; None without."""
    for mark in "_-":
        words = Counter((file.parts[:-2], file.name.partition(mark)[0]) for file in files if mark in file.name)
        many = min(Counter(home for home, _ in words).values(), default=0) >= LEAST_PATIENTS
        if many and words.total() == len(files) > len(words) and all(re.search(r"\d", word) for _, word in words):
            return f"([^{mark}]+){mark}"
    return None


def _are_in_hospitals(folder: Path, files: Sequence[Path]) -> bool:
    """Whether images lie in hospital/class/image and not in class/image; PlanError where they lie in neither."""
    depths = Counter(len(file.relative_to(folder).parts) for file in files)
    if depths.keys() not in ({2}, {3}):
        rarest = min(depths, key=lambda depth: (depth in (2, 3), depths[depth]))
        odd = next(file for file in files if len(file.relative_to(folder).parts) == rarest)
        raise PlanError(
            "images lie in a folder for each class, or in one for each hospital that holds these; "
            f"{odd.relative_to(folder).as_posix()} does not"
        )
    homes = {(file.parts[-3], spelling_key(file.parent.name)) for file in files}
    if 3 in depths and 1 < len({home for home, _ in homes}) < len({word for _, word in homes}) == len(homes):
        raise PlanError(
            "no two folders hold the same class, so they are no hospitals. Where these are classes that hold a folder "
            "for each patient, let a file's name say the patient, in the folder of its class (docs/samples.md, patient)"
        )
    return 3 in depths


class _Look(NamedTuple):
    """An image's (width, height), whether it is grey, and of more than 8 bits between what most of its values lie."""

    size: tuple[int, int]
    is_grey: bool
    ends: tuple[int, int] | None


def _look_at(file: Path) -> _Look:
    """What an image is like; DataError for a file that is none."""
    if file.suffix.lower() in DICOM:
        values = read_pictures(file, colour=True)[0].values
        is_grey = bool((values == values[..., :1]).all())
        return _Look((values.shape[1], values.shape[0]), is_grey, _ends(values) if values.dtype == np.float32 else None)
    with in_file(file), open_image(file) as image:
        return _Look(image.size, image.mode in GREY, _ends(np.asarray(image)) if image.mode in DEEP else None)


def _ends(values: np.ndarray) -> tuple[int, int]:
    low, high = np.percentile(values[np.isfinite(values)], [1, 99]) if np.isfinite(values).any() else (0, 1)
    return math.floor(low), max(math.floor(low) + 1, math.ceil(high))
