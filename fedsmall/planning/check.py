"""What a site should know of its data before it joins: in plain words, at the site, before anything is sent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedsmall.data.federation import Task
from fedsmall.data.preparation import COUNT_FLOOR
from fedsmall.data.raw_site import BALANCED, RawSite
from fedsmall.data.sources.pool import Part
from fedsmall.data.sources.registry import OWN_FILES, read_pool, read_task
from fedsmall.data.sources.tables import BY_NAME, CONSTANT, IDENTIFIER
from fedsmall.errors import DataError, PlanError
from fedsmall.files import list_some
from fedsmall.plan import Plan
from fedsmall.planning.tasks import load_site
from fedsmall.privacy.site_level import tells_loss
from fedsmall.replicas import idle

NEVER = (
    "No sample, image, label, patient number, path or file name.",
    "No table cell, and no count, sum or mean of fewer than {floor} values of a feature.",
    "Nothing at a time that was not asked for: the site only answers.",
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: "good", a "note" to think about, or a "problem" that stops the site."""

    level: Literal["good", "note", "problem"]
    text: str


@dataclass(frozen=True)
class Check:
    """What was found in a site's data ``raw``, what would leave the site, and what never does."""

    findings: tuple[Finding, ...]
    leaves: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    raw: RawSite | None = None

    @property
    def good(self) -> bool:
        """Whether the site can take part."""
        return all(finding.level != "problem" for finding in self.findings)

    def lines(self) -> list[str]:
        """The whole report as plain text."""
        marks = {"good": "ok     ", "note": "note   ", "problem": "PROBLEM"}
        lines = [f"{marks[finding.level]}  {finding.text}" for finding in self.findings]
        for title, texts in (("What leaves this site:", self.leaves), ("What never leaves it:", self.never)):
            if texts:
                lines += ["", title, *(f"  - {text}" for text in texts)]
        return lines


def check_site(plan: Plan, site: str, path: Path | None, floor: int = COUNT_FLOOR, more: Sequence[Plan] = ()) -> Check:
    """Check the data of ``site`` at ``path`` as ``plan`` would use them (:func:`fedsmall.planning.tasks.load_site`).

    Counts from 1 to ``floor`` - 1 are not written out. Unusable data are a finding. ``more`` are other methods' plans.
    """
    try:
        plan, notes = _with_classes(plan, path)
        raw = load_site(plan, site, path)
        leaving = _leaving((plan, *more), raw, floor)
    except (DataError, PlanError) as wrong:
        return Check((Finding("problem", str(wrong)),))
    parts = [raw.train, *([raw.held_out] if raw.held_out is not None and len(raw.held_out) else [])]
    x, y = (np.concatenate([getattr(part, field) for part in parts]) for field in "xy")
    findings = [
        *notes,
        _shape(raw, floor),
        *_classes(raw.learns(None), y, floor),
        *_features(raw.task, x, floor),
        *(_note(note) for note in raw.notes if not any(word in note for word in (BY_NAME, CONSTANT))),
        *_duplicates(Part(x, y), floor),
        *_patients(raw, floor),
        _leakage(raw, floor),
    ]
    least = max(raw.floor, floor)
    if withheld := list_some(replace(raw, floor=least).withheld(is_told=True)):
        finding = f"Nothing is sent of {withheld}, where a value is of fewer than {least} patients; others scale it"
        findings.append(_note(finding))
    findings += dict.fromkeys(note for each in (plan, *more) for note in _idle(each, raw))
    return Check(tuple(findings), leaving, tuple(line.format(floor=floor) for line in NEVER), raw)


def _leaving(plans: Sequence[Plan], raw: RawSite, floor: int) -> tuple[str, ...]:
    """What leaves under these plans: what is not of all begins with whose it is."""
    whose: dict[str, list[str]] = {}
    for plan in plans:
        for line in leaves(plan, raw, floor):
            whose.setdefault(line, []).append(plan.method.label)
    return tuple(line if len(of) == len(plans) else f"{', '.join(of)}: {line}" for line, of in whose.items())


def _good(text: str) -> Finding:
    return Finding("good", text)


def _note(text: str) -> Finding:
    return Finding("note", text)


def few(count: int, floor: int = COUNT_FLOOR) -> str:
    """A count as it may be shown: "fewer than 5" where it is small enough to point at somebody."""
    return f"fewer than {floor}" if 0 < count < floor else str(count)


def _with_classes(plan: Plan, path: Path | None) -> tuple[Plan, list[Finding]]:
    source = read_task(plan.task)
    is_named = bool({"classes", "target", "targets", "time"} & set(source.options))
    if source.kind not in OWN_FILES or is_named or path is None or not path.exists():
        return plan, []
    task = {**source.options, source.kind: str(path)}
    classes = list(read_pool(read_task(task), ("iid", None), plan.seed, None).class_names)
    text = f"The scenario does not name the classes; all sites need the same. Here they would be: classes = {classes}"
    return plan.model_copy(update={"task": {**task, "classes": classes}}), [_note(text.replace("'", '"'))]


def _shape(raw: RawSite, floor: int) -> Finding:
    shape = raw.task.input_shape
    colour = {1: "grey", 3: "colour"}.get(shape[0], f"{shape[0]}-channel")
    kind = {3: f"{colour} images of ", 4: f"{colour} volumes of "}.get(len(shape))
    what = f"{shape[0]} features" if kind is None else kind + " x ".join(map(str, shape[1:]))
    held = 0 if raw.held_out is None else len(raw.held_out)
    apart = 0 if raw.kept_back is None else len(raw.kept_back)
    kept = f"{few(apart, floor)} held out to tell when to stop, " if apart else ""
    total, train = few(len(raw.train) + held + apart, floor), few(len(raw.train), floor)
    return Finding("good", f"{total} samples ({what}): {train} to train on, {kept}{few(held, floor)} held out")


def _classes(task: Task, y: np.ndarray, floor: int) -> list[Finding]:
    if task.kind == "labels":
        of_labels = ", ".join(f"{name}: {few(int(y[:, k].sum()), floor)}" for k, name in enumerate(task.labels))
        return [_good(f"Samples with each label: {of_labels}")]
    if y.ndim != 1 or task.kind != "classes":
        return []
    counts = {name: int((y == label).sum()) for label, name in enumerate(task.class_names)}
    shown = ", ".join(f"{name}: {few(count, floor)}" for name, count in counts.items())
    if sum(count > 0 for count in counts.values()) == 1:
        return [_note(f"All samples are of one class ({shown}); the site can train, but not judge a model alone")]
    return [_good(f"Samples by class: {shown}")]


def _features(task: Task, x: np.ndarray, floor: int) -> list[Finding]:
    if x.dtype == np.uint8 or x.ndim != 2:
        pixels = x.reshape(len(x), -1)
        blank = int((pixels.min(axis=1) == pixels.max(axis=1)).sum())
        return [_note(f"{few(blank, floor)} images are of one colour only")] if blank else []
    names = task.feature_names or tuple(f"x{index}" for index in range(x.shape[1]))
    missing = np.isnan(x)
    columns = {name.partition("=")[0]: int(gaps) for name, gaps in zip(names, missing.sum(axis=0), strict=True)}
    gaps = [f"{name} ({few(count, floor)} of {few(len(x), floor)})" for name, count in columns.items() if count]
    with np.errstate(invalid="ignore"):
        low, high = np.where(missing, np.inf, x).min(axis=0), np.where(missing, -np.inf, x).max(axis=0)
    flat = [name for name, least, most in zip(names, low, high, strict=True) if least >= most]
    named = [name for name in columns if IDENTIFIER.search(name)]
    findings = [_good("Missing values: none")]
    if gaps:
        replaced = "A missing value is replaced at this site by the mean over all sites"
        findings = [_note(f"Missing values: {list_some(gaps)}"), _good(replaced)]
    if flat:
        findings.append(_note(f"Columns that say nothing here (one value, or none): {list_some(flat)}"))
    if named:
        findings.append(_note(f"Columns that look like identifiers or dates: {list_some(named)}. Leave them out"))
    return findings


def _duplicates(part: Part, floor: int) -> list[Finding]:
    seen: dict[bytes, Counter[bytes]] = {}
    for x, y in zip(part.x, part.y, strict=True):
        seen.setdefault(x.tobytes(), Counter())[np.asarray(y).tobytes()] += 1
    again = sum(labels.total() - 1 for labels in seen.values())
    torn = sum(len(labels) > 1 for labels in seen.values())
    if not again:
        return [_good("Samples that occur more than once: none")]
    findings = [_note(f"Samples that occur more than once: {few(again, floor)}")]
    if torn:
        findings.append(_note(f"{few(torn, floor)} of them have different labels; one of the labels must be wrong"))
    return findings


def _leakage(raw: RawSite, floor: int) -> Finding:
    if raw.held_out is None or not len(raw.held_out):
        return _note("Nothing is held out here: models are judged on other data")
    trained = {row.tobytes() for row in raw.train.x}
    both = sum(row.tobytes() in trained for row in raw.held_out.x)
    if both:
        text = f"{few(both, floor)} held-out samples equal one that is trained on"
        return _note(f"{text}; results here will look better than they are")
    return _good("No held-out sample is trained on")


def _patients(raw: RawSite, floor: int) -> list[Finding]:
    trained, held = raw.train.patients, None if raw.held_out is None else raw.held_out.patients
    if trained is None:
        return []
    out = 0 if held is None else len(np.unique(held))
    counts = f"{few(len(np.unique(trained)), floor)} to train on, {few(out, floor)} held out"
    return [_good(f"Split by patients: {counts}, and all samples of a patient on one side, or in no part")]


def _idle(plan: Plan, raw: RawSite) -> list[Finding]:
    tree = plan.method.tree
    if tree is None or any(isinstance(setting, tuple) for setting in (tree.fanout, tree.depth, tree.drop)):
        return []  # which of the values is this site's is known when the run has its sites
    if idle(tree, [len(raw.train)]) is None:
        return []
    return [_note("Replicas would lack no sample here (drop is too small): copies, trained for nothing")]


def leaves(plan: Plan, raw: RawSite, floor: int) -> tuple[str, ...]:
    """What the site's program would send under this plan, from the handshake to the last communication round."""
    from fedsmall.models.registry import initial_model  # brings torch, which takes its time

    model = initial_model(plan, raw.task, None)
    numbers, size = sum(array.size for array in model.values()), sum(array.nbytes for array in model.values())
    arrays = list_some([f"{name} {tuple(array.shape)}" for name, array in model.items()])
    count = "" if plan.privacy.is_patient_level else "its number of samples, "
    rows = "how its rows become samples (columns, categories, public ranges)"
    lines = [f"At the handshake: the site's name, {count}the names and shapes of the model's arrays, {rows}."]
    if raw.scaled:
        outcome = raw.preparation.outcome
        whose = f" and for {outcome.name}" if outcome is not None and outcome.agrees else ""
        lines.append(f"With it: for each feature{whose} count, sum and sum of squares of at least {floor} values.")
    if plan.recipe.class_weights == BALANCED:
        lines.append(f"With it: how many samples are of each class, where at least {floor} are and as many are not.")
    what = "the trained model" if plan.method.trains_networks else "what is computed of its samples"
    lines.append(
        f"At every communication round: {what}, {numbers:,} numbers in {len(model)} arrays: {arrays}; {size:,} bytes."
    )
    loss = " and the mean training loss" if tells_loss(plan) else "; the training loss stays here"
    counts = "the number of steps" if plan.privacy.is_patient_level else "the number of samples, the number of steps"
    lines.append(f"With it: {counts}{loss}.")
    if raw.held_out is not None and len(raw.held_out) >= floor:
        lines.append(
            "At evaluations: what the global model is worth on the held-out samples, as metrics; at the end also as "
            "sums and binned counts, unless the policy says judge = false."
        )
    return (*lines, *_by_method(plan))


def _by_method(plan: Plan) -> Iterable[str]:
    method, recipe, privacy = plan.method, plan.recipe, plan.privacy
    if recipe.moments == "travel":
        yield "With it: the optimizer's state, as large as the model once or twice."
    if method.permutes:
        how = "sealed: it alone can open it" if privacy.sealed else "as it is"
        yield f"Daisy-chaining: the model that was trained here goes on to another site, {how}."
    if privacy.secure:
        yield "What is averaged leaves masked: the server receives the sum over the sites alone (experimental)."
    if privacy.is_patient_level:
        yield (
            "What a model learns here is noised at every step, so that no patient of ours can be told from it; the "
            "number of samples and the training loss are not told."
        )
    elif privacy.clip:
        yield f"Before it leaves, what changed is clipped to {privacy.clip} and noise is added."
    if privacy.exposure:
        yield (
            "Before it leaves, so much noise is added that in the whole run nobody can tell a record to within "
            f"{privacy.exposure**-0.5:.2g} standard deviations on average."
        )
    if privacy.blur:
        yield f"Before it leaves, noise is added, {privacy.blur:g} times as large as what changed."
