"""The first scenario for a folder of images: ``fedsmall new scans`` reads classes, hospitals and sizes off the folder.

Its recipe reaches logistic regression on the pooled pixels at ten sites of sixteen images (docs/images.md).
"""

from collections import Counter
from itertools import islice
from pathlib import Path

from fedsmall.data.image_files import DICOM, NIFTI, is_image
from fedsmall.data.sources.tables import ENDINGS as TABLES
from fedsmall.errors import DataError, PlanError
from fedsmall.planning.look import name_classes
from fedsmall.sim.runs.scenario import to_toml

LOOKED_AT = 500  # files of which size and colour are read
DEALT, LEAST_ROWS = 10, 20  # hospitals that samples are dealt to, and the least that each should have
UNEQUAL = 0.4  # share of the rarer class, below which a threshold of a half calls too few positive
LARGEST = 32  # side of an image that the network gets as it is; larger ones are brought to that
GREY = ("1", "L", "I", "F", "I;16")  # modes of Pillow
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
batch = 8
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
    """Whether a folder holds image files, however deep; beside tables those in folders within it alone."""
    of_tables = folder.is_dir() and any(path.name.lower().endswith(TABLES) for path in folder.iterdir())
    return any(is_image(path) for path in folder.rglob("*") if not of_tables or path.parent != folder)


def sites_for(samples: int) -> int:
    """To how many pretended hospitals so many samples are dealt."""
    return max(2, min(DEALT, samples // LEAST_ROWS))


def scenario_of_images(folder: Path, path: str, name: str, positive: str | None) -> tuple[str, list[str]]:
    """A scenario's text for the images in ``folder``, which it calls ``path``, and what was decided, in sentences."""
    files = [file for file in sorted(folder.rglob("*")) if is_image(file) and "__MACOSX" not in file.parts]
    depths = {len(file.relative_to(folder).parts) for file in files}
    if depths not in ({2}, {3}):
        raise PlanError("images lie in a folder for each class, or in one for each hospital that holds these")
    if kinds := sorted({file.suffix.lower() for file in files} & {*DICOM, *NIFTI, ".gz"}):
        raise PlanError(f"of {', '.join(kinds)} a scenario must say which values count: docs/images.md has how")
    counts = Counter(file.parent.name for file in files)
    classes, said = name_classes("an image", counts, positive)
    is_binary = len(classes) == 2
    task: dict[str, object] = {"images": path, "classes": classes}
    sizes, is_grey = _sizes(files)
    if len(sizes) > 1 or max(max(sizes)) > LARGEST:
        side = min(LARGEST, min(map(min, sizes)))
        task["size"] = [side, side]
        ends = " to ".join(dict.fromkeys(f"{wide} x {high}" for wide, high in (min(sizes), max(sizes))))
        said.append(f"of {ends} pixels, brought to {side} x {side}: twice the side takes four times as long")
    if not is_grey:
        task["channels"] = 3
    dealt = 'partition = {natural = "folder"}    # a hospital for each folder'
    if depths == {2}:
        dealt = f"sites = {sites_for(len(files))}    # one folder, split over as many pretended hospitals"
    lines = ["# Written by `fedsmall new`", *(f"# {line}" for line in said), f"name = {to_toml(name)}", "", dealt]
    text = "\n".join(lines) + SETTINGS
    text += 'metric = "auc"\n' if is_binary else ""
    if is_binary and min(counts.values()) < UNEQUAL * len(files):
        text += '# threshold = "youden"        # one class is rare; every network is trained six times for it\n'
    methods = FEDERATED.replace("{}", 'recipe = {optimizer_state = "reset"}\n')
    return text + "\n[task]\n" + "".join(
        f"{key} = {to_toml(value)}\n" for key, value in task.items()
    ) + RECIPE + methods, said


def _sizes(files: list[Path]) -> tuple[set[tuple[int, int]], bool]:
    """The sizes of the first images, and whether all are grey; DataError for a file that is no image."""
    from PIL import Image

    sizes, modes = set(), set()
    for file in islice(files, LOOKED_AT):
        try:
            with Image.open(file) as image:
                sizes.add(image.size)
                modes.add(image.mode)
        except OSError:
            raise DataError(f"{file.name} is no image that can be read") from None
    return sizes, modes <= set(GREY)
