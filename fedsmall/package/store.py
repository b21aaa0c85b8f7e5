"""A package on disk: a folder, or a .zip of one, whose every file is in a list of digests.

::

    README.md           the model card, for people and for the Hugging Face hub
    package.json        the record (:class:`fedsmall.package.record.Package`)
    model.safetensors   the weights
    SHA256SUMS          the digest of each of the others; `sha256sum -c SHA256SUMS` checks them
"""

import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fedsmall import __version__, files
from fedsmall.data.image_files import EIGHT_BITS
from fedsmall.data.outcomes import ORDINAL, Outcome
from fedsmall.data.preparation import FAR, Pixels
from fedsmall.errors import PlanError
from fedsmall.package.record import CENTRAL, COMMON, DISTILLED, FORMAT, VISITORS, Package
from fedsmall.wire import Arrays

CARD, RECORD, WEIGHTS, DIGESTS = "README.md", "package.json", "model.safetensors", "SHA256SUMS"


class Stored(NamedTuple):
    """A package as it was read: its record and its weights, checked against its digests."""

    package: Package
    weights: Arrays


def contents(package: Package, weights: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """The files of a package by name."""
    metadata = {"format": "pt", "fedsmall": __version__, "method": package.label, "model": package.architecture.model}
    held = {
        CARD: card(package, weights).encode(),
        RECORD: (package.model_dump_json(indent=1) + "\n").encode(),
        WEIGHTS: _same_bytes(save_arrays({name: np.ascontiguousarray(a) for name, a in weights.items()}, metadata)),
    }
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in held.items()]
    return {**held, DIGESTS: "".join(lines).encode()}


def save(folder: Path, package: Package, weights: Mapping[str, np.ndarray]) -> None:
    """Write a package into ``folder``; its digests come last, so that half a package is never taken for a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents(package, weights).items():
        files.write(folder / name, content)


def save_zip(path: Path, stored: Stored) -> None:
    """Write a package as one .zip, the same bytes every time."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents(*stored).items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    files.write(path, held.getvalue())


def is_package(path: Path) -> bool:
    """Whether something at ``path`` looks like a package."""
    return (path / RECORD).is_file() or path.suffix == ".zip"


def read(path: Path | str) -> Stored:
    """The package in a folder or a .zip. Nothing is unpickled, and no code comes with it.

    Raises PlanError where there is none, it is not what its digests say, or a later release has written it.
    """
    path = Path(path)
    held = _of_zip(path) if path.suffix == ".zip" else _of_folder(path)
    _check_digests(path, held)
    try:
        if json.loads(held[RECORD])["format"] > FORMAT:
            raise PlanError(f"{path} is of a later fedsmall than this one, {__version__}; install that")
        record = Package.model_validate_json(held[RECORD])
    except ValidationError as error:
        raise PlanError(f"{path}: {RECORD} is not one that fedsmall {__version__} reads: {_first(error)}") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{path}: {RECORD} is no record of a package") from None
    try:
        return Stored(record, load_arrays(held[WEIGHTS]))
    except SafetensorError:
        raise PlanError(f"{path}: {WEIGHTS} holds no weights that can be read") from None


def _same_bytes(content: bytes) -> bytes:
    """Safetensors whose metadata stand in order: the library writes them in another one each time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[end:]


def _of_folder(path: Path) -> dict[str, bytes]:
    if (path / "run.json").is_file():
        raise PlanError(f"{path} is a run, of several models; choose a package in {path / 'packages'}")
    if not (path / RECORD).is_file():
        raise PlanError(f"{path} holds no package: it has no {RECORD}")
    return {name: (path / name).read_bytes() for name in (CARD, RECORD, WEIGHTS, DIGESTS) if (path / name).is_file()}


def _of_zip(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            known = {name for name in (CARD, RECORD, WEIGHTS, DIGESTS) if name in archive.namelist()}
            return {name: archive.read(name) for name in sorted(known)}
    except FileNotFoundError:
        raise PlanError(f"there is no package {path}") from None
    except (OSError, zipfile.BadZipFile):
        raise PlanError(f"{path} is no .zip that can be read") from None


def _check_digests(path: Path, held: Mapping[str, bytes]) -> None:
    for name in (RECORD, WEIGHTS, DIGESTS):
        if name not in held:
            raise PlanError(f"{path} is no whole package: it has no {name}")
    lines = held[DIGESTS].decode(errors="replace").splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, content in held.items():
        if name != DIGESTS and digests.get(name) != hashlib.sha256(content).hexdigest():
            raise PlanError(
                f"{path}: {name} is not what {DIGESTS} says; it was changed or damaged since it was written"
            )


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


KINDS = {"table": "tabular", "images": "image", "arrays": "tabular"}
WHO = {
    COMMON: "The common model of all sites",
    CENTRAL: "A model of the same patients pooled",
    DISTILLED: "One model that the sites made of several",
}
SHOWN = 40  # columns that are listed by name
USE = """## Use

```bash
fedsmall predict {0} new-patients.csv
```

```python
import fedsmall

model = fedsmall.load({1})
"""


def card(package: Package, weights: Mapping[str, np.ndarray]) -> str:
    """The card as Markdown, made from the record alone, with the hub's header."""
    return f"{_header(package)}\n\n{words(package, weights)}"


def words(package: Package, weights: Mapping[str, np.ndarray], place: str = ".") -> str:
    """The card without the header; its commands name the package by the ``place`` where it is."""
    size = sum(int(array.size) for array in weights.values())
    parts = [
        f"# {package.name}: {package.label}",
        _what(package, size),
        _use(package, USE.format(shlex.quote(place), json.dumps(place))),
    ]
    parts += [_takes(package), _trained(package), _performance(package), _limits(package), _made(package)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(package: Package) -> str:
    kind = KINDS[package.preparation.form.kind]
    aim = f"{kind}-{'regression' if package.numbers and not package.labels else 'classification'}"
    lines = ["---", "library_name: fedsmall", f"pipeline_tag: {aim}", "tags:", "- fedsmall", "- federated-learning"]
    lines += [f"- {_word(package.method)}", "model-index:", f"- name: {_quoted(f'{package.name} {package.label}')}"]
    lines += ["  results:"]
    for where, metrics in package.performance.items():
        lines += [
            "  - task:",
            f"      type: {aim}",
            "    dataset:",
            f"      name: {_quoted(f'{package.task}, {where}')}",
        ]
        lines += [f"      type: {_quoted(package.task)}", "    metrics:"]
        for name, value in metrics.items():
            lines += [f"    - type: {name}", f"      value: {value:.6g}"]
    if not package.performance:
        lines[-1] = "  results: []"
    return "\n".join([*lines, "---"])


def _what(package: Package, size: int) -> str:
    who = WHO.get(package.whose, f"The model that {package.whose} trained last")
    if package.whose.startswith(VISITORS):
        who = f"The last models that were trained at {package.whose.removeprefix(VISITORS)}"
    design = package.architecture
    several = f", {design.members} networks that answer together" if design.members else ""
    aim = f"It predicts {_numbers(package)}" if package.numbers else f"It tells {' from '.join(package.class_names)}"
    positive = f"; **{package.positive}** is the positive class" if package.positive else ""
    return (
        f"{who}, trained by {package.label} over {package.trained_on.sites} sites (seed {package.seed}). "
        f"{aim}{positive}. "
        f"Network: `{design.model}`{several}, {size:,} numbers."
    )


def _numbers(package: Package) -> str:
    outcome = package.preparation.outcome
    if outcome is None:
        return f"{package.outputs} numbers"
    if outcome.kind == "findings":
        return f"each of {_join_words(outcome.names)} by itself, several of which may be there at once"
    return f"**{outcome.name}**, a number" if outcome.kind == "amount" else f"**{outcome.name}** until {outcome.event}"


def _join_words(names: Sequence[str]) -> str:
    return ", ".join(f"**{name}**" for name in names)


def _use(package: Package, use: str) -> str:
    rule = "The class is the likeliest one."
    if package.loss == ORDINAL:
        rule = f"They are grades, from {package.class_names[0]} to {package.class_names[-1]}. {rule}"
    if package.positive:
        rule = (
            f"The class is {package.positive} where its probability is above {package.threshold:g} "
            f"({package.threshold_from})."
        )
    if package.kind == "times":
        return use + "model.predict_survival(rows)  # one column for each of model.times_\n```"
    if package.labels:
        return use + "model.predict_proba(rows)  # one column for each of model.labels_\n```"
    if package.numbers:
        return use + "model.predict(rows)\n```"
    return use + f"model.predict_proba(rows)  # one column for each of model.classes_\n```\n\n{rule}"


def _images(form: Pixels, size: tuple[int, ...]) -> list[str]:
    how = "brought to" if form.resize else "of"
    colour, sides = "grey" if form.channels == 1 else "colour", " x ".join(map(str, size))
    low, high = form.range or EIGHT_BITS
    values = "8-bit values 0 to 255" if (low, high) == EIGHT_BITS else f"values from {low:g} to {high:g}"
    what = f"Volumes (NIfTI), {how} {sides} voxels" if form.volume else f"Images, {colour}, {how} {sides} pixels"
    lines = [f"{what}; {values} become -1 to 1."]
    if form.volume:
        lines.append(
            "A volume is the stack of its axial slices from the feet up, whatever the order of axes in the file."
        )
    if form.window == "file":
        lines.append("A DICOM file is seen in its own window or VOI LUT, from 0 to 1.")
    if form.slice is not None:
        lines.append(f"Of a volume (NIfTI) the image is the slice {form.slice}.")
    if form.frames is not None:
        frames = "each frame is an image" if form.frames == "each" else f"the image is the frame {form.frames}"
        lines.append(f"Of a DICOM file with several frames {frames}.")
    return lines


def _takes(package: Package) -> str:
    prepared, lines = package.preparation, []
    form = prepared.form
    if form.kind == "table":
        shown = ", ".join(f"`{column}`" for column in form.columns[:SHOWN])
        more = len(form.columns) - SHOWN
        lines.append(
            f"A table with the columns {shown}" + (f" and {more} more, all in package.json." if more > 0 else ".")
        )
        lines += [f"`{column}` is one of: {', '.join(values)}." for column, values in form.categories.items()]
        lines += [f"In `{column}`, 0 stands for a missing value." for column in form.never_zero]
    elif form.kind == "images" and form.size:
        lines += _images(form, form.size)
    else:
        lines.append(f"Arrays of shape {prepared.shape}, prepared as those of training were.")
    if prepared.agreed:
        lines.append(
            "Features are scaled by the mean and the standard deviation on which the training sites agreed; values "
            f"more than {FAR:g} standard deviations from the mean are noted."
        )
    if prepared.outcome is not None:
        lines.append(_outcome(prepared.outcome))
    if prepared.ranges:
        lines.append("Features are scaled by public ranges; a value outside counts as the nearest end, and is noted.")
    return "## What it takes\n\n" + "\n".join(f"- {line}" for line in lines)


def _outcome(outcome: Outcome) -> str:
    if outcome.kind == "survival":
        cuts = ", ".join(f"{cut:g}" for cut in outcome.cuts)
        return f"It answers with the probability that `{outcome.event}` has not happened by `{outcome.name}` = {cuts}."
    if outcome.kind == "findings":
        return f"It answers with a probability for each of {', '.join(f'`{name}`' for name in outcome.names)}."
    mean, scale = outcome.mean_and_scale
    whence = "on which the training sites agreed" if outcome.agrees else "of its public range"
    return f"Its answers are in the unit of `{outcome.name}`: outputs times {scale:.6g} plus {mean:.6g}, {whence}."


def _trained(package: Package) -> str:
    on = package.trained_on
    lines = [f"{on.sites} sites" + (f", {on.samples} samples in all" if on.samples is not None else "")]
    lines += [f"{name}: {count}" for name, count in (on.classes or {}).items()]
    lines.append(f"{package.rounds} rounds, models travelled after {package.contacts} of them")
    return "## What it was trained on\n\nCounts only; no value of a patient is in this package.\n\n" + _list(lines)


def _performance(package: Package) -> str:
    if not package.performance:
        return "## Performance\n\nNot measured: nothing was held out."
    rows = ["| measured on | metric | value |", "|---|---|---|"]
    rows += [
        f"| {where} | {name} | {value:.4g} |"
        for where, metrics in package.performance.items()
        for name, value in metrics.items()
    ]
    return "## Performance\n\n" + "\n".join(rows)


def _limits(package: Package) -> str:
    return "## Limits\n\n" + _list([*package.limits, *package.notes])


def _made(package: Package) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in package.versions.items())
    when = package.created or "At an unknown time"
    return f"## Made\n\n{when}, with {versions}. `SHA256SUMS` has the digest of every file."


def _list(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-").lower() or "method"


def _quoted(text: str) -> str:
    safe = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{safe}"'
