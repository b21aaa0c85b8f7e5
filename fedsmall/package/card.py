"""The model card: what a package says of itself in words, with the header that the Hugging Face hub reads."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsmall.data.image_files import EIGHT_BITS
from fedsmall.data.outcomes import ORDINAL, Outcome
from fedsmall.data.preparation import FAR, Pixels
from fedsmall.package.record import CENTRAL, COMMON, DISTILLED, VISITORS, Package

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
