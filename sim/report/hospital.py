"""A hospital's own page on a run, made from its disk and for itself: curves have a point for each patient held out."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit

from fedsmall.audit_log import LogCheck
from fedsmall.clients.kept import load_kept
from fedsmall.clients.patients import spent_here
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.clients.shelf import sealed_by
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import Agreed, read_agreed
from fedsmall.clients.telling import OwnEvaluation, own_evaluation
from fedsmall.data.federation import Task
from fedsmall.data.outcomes import ORDINAL
from fedsmall.entry_points import SCENARIOS, extensions, load_extension
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import GRADED, OF_LABELS, default_metric, evaluate
from fedsmall.evaluation.outputs import outputs_of
from fedsmall.package.record import GLOBAL, Package
from fedsmall.privacy.site_level import epsilon
from fedsmall.sim.engines.evaluation import arrays_of
from fedsmall.sim.report.at_home import sentence_at_site
from fedsmall.sim.report.html import fill
from fedsmall.sim.runs.folder import PlanRun, Run, keyed
from fedsmall.sim.runs.scenario import as_toml, of_plan

LISTED = 200  # messages that are shown one by one
KINDS = {
    "roll": "who it is: name, task, model, number of samples, and how its rows become samples; with it sums of each "
    "feature, for a scaling that all share, and of each class where those are balanced",
    "scaling": "that it has taken the agreed scaling, and sketches by which the server sees two names for one table",
    "train": "a trained model or a method's sums, with counts of samples and steps, and the training loss where no "
    "privacy forbids it; sealed, a message that the next site alone can open; at a secure average numbers under masks",
    "before": "under masks, sums of each feature and class, for a scaling and weights that all share",
    "balance": "the model that it had kept, which an average asked for",
    "pairs": "that it has taken the keys of masks that cancel",
    "help": "its part of what opens one sum of the sites' numbers",
    "readdress": "an encrypted message of ours, sealed again because the site it went to was silent",
    "evaluate": "what a model is worth on its held-out patients; at the end sums over them",
    "validate": "sums over its patients, of models that never saw them",
}

OF_CLASSES = ("accuracy", "balanced_accuracy", "auc", "brier", "loss")


class Kind(NamedTuple):
    """All that left of one kind: how many messages, bytes of arrays, and from when to when."""

    kind: str
    what: str
    messages: int
    size: int
    first: str
    last: str


class OwnRun(NamedTuple):
    """A run as a hospital's disk has it: its lines of the log, what was agreed, and what the model answered here."""

    site: str
    run: str
    entries: list[dict[str, Any]]
    check: LogCheck
    agreed: Agreed | None
    evaluation: OwnEvaluation | None
    package: Package | None
    budget: tuple[str, ...]
    extension: Any = None  # of an extension's run: its ``part`` of the page, and what is said of its ``worth`` here

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The lines of what left."""
        return [entry for entry in self.entries if entry["event"] == "sent"]

    @property
    def kinds(self) -> list[Kind]:
        """What left, by kind."""
        kinds = []
        for kind in dict.fromkeys(entry["kind"] for entry in self.sent):
            sent = [entry for entry in self.sent if entry["kind"] == kind]
            times = sent[0]["time"][:19], sent[-1]["time"][:19]
            kinds.append(Kind(kind, _leaves(kind), len(sent), _size(sent), *times))
        return kinds

    @property
    def size(self) -> int:
        """The bytes of all that left."""
        return _size(self.sent)

    @property
    def others(self) -> list[dict[str, Any]]:
        """The lines of what was refused, kept back, blurred or charged."""
        return [entry for entry in self.entries if entry["event"] not in ("sent", "charged", "spent", "told")]

    @property
    def settings(self) -> str:
        """What was agreed, as a scenario."""
        return as_toml(of_plan(self.agreed.plan)).decode() if self.agreed else ""


def own_run(home: Path, policy: Policy, site: str, run: str) -> OwnRun:
    """The run ``run`` as the disk of ``site`` has it. PlanError where the site was in none of that name.

    Sealed files are opened by the key that the policy names; PolicyError for a wrong key.
    """
    log, folder = SiteLog(home, site), run_folder(home / RUNS, run)
    entries, budget = log.of_run(run), tuple(_budget(log, policy))
    with sealed_by(policy.rest_key):
        common, evaluation = load_kept(folder, GLOBAL), own_evaluation(folder)
        kinds = {str(entry.get("kind")) for entry in entries} & set(extensions(SCENARIOS))
        extension = load_extension(SCENARIOS, kinds.pop()).site_part(folder, site) if kinds else None
    package = None if common is None else common.package
    return OwnRun(site, run, entries, log.verify(), read_agreed(folder), evaluation, package, budget, extension)


def _leaves(kind: str) -> str:
    return str(load_extension(SCENARIOS, kind).LEAVES) if kind in extensions(SCENARIOS) else KINDS.get(kind, "")


def _size(entries: Sequence[dict[str, Any]]) -> int:
    return sum(int(entry.get("bytes", 0)) for entry in entries)


def page(own: OwnRun, data: Path | None = None) -> str:
    """The whole page; from the hospital's ``data`` also what it has of joining."""
    shown, now = as_run(own), datetime.now(UTC).isoformat(timespec="minutes")[:16].replace("T", " ")
    joining = ""
    if data is not None:
        if own.agreed is None or own.evaluation is None:
            raise PlanError("no model of this run was judged here, so nothing can be compared with it")
        joining = sentence_at_site(own.agreed.plan, own.site, own.evaluation, data)
    return fill("hospital.html", own=own, run=shown, now=now, listed=LISTED, joining=joining)


def as_run(own_run: OwnRun) -> Run | None:
    """The evaluation here as a run of one plan, such as clinical pages are made of; None where there is none."""
    if own_run.agreed is None or own_run.evaluation is None:
        return None
    plan, (t, predicted, y, _) = own_run.agreed.plan, own_run.evaluation
    task = _task(own_run.package, own_run.evaluation)
    outputs = np.log(np.clip(predicted, 1e-300, None)) if task.kind == "classes" else predicted
    outputs = outputs_of(outputs) if task.ordered else logit(predicted) if task.kind == "labels" else outputs
    worth = evaluate(outputs, y, task)
    row = {"method": plan.method.name, "label": plan.method.label, "seed": plan.seed, "common": worth, "sites": {}}
    row |= {"extra": {}, "contacts": 0, "bytes_sent": 0, "stopped": False, "rounds": t}
    plan_run = PlanRun(0, plan, row, [{"t": t, "common": worth, "sites": {}, "extra": {}}], [])
    shown = {name: getattr(task, name) for name in ("loss", "class_names", "target", "cuts", "labels")}
    scenario = of_plan(plan).model_copy(update={"metric": plan.metric or default_metric([y], task)})
    arrays = keyed(plan_run, arrays_of(outputs, y, task) | own_run.evaluation.beside)
    return Run(scenario, [plan], None, [plan_run], {"task": shown, "notes": []}, predictions=arrays)


def _task(package: Package | None, evaluation: OwnEvaluation) -> Task:
    if package is None:  # sites with models of their own, whose package holds no class
        loss = "cross_entropy" if evaluation.y.dtype.kind in "iu" else "l1"
        return Task("here", (), evaluation.predictions.shape[1], loss, ("mae", "loss") if loss == "l1" else OF_CLASSES)
    task = package.learns
    if task.kind == "labels":
        return replace(task, metrics=OF_LABELS)
    metrics: tuple[str, ...] = (*GRADED, *OF_CLASSES) if task.ordered else OF_CLASSES
    if task.kind == "classes":
        loss = ORDINAL if task.ordered else "cross_entropy"
        return Task("here", (), task.classes, loss, metrics, task.class_names)
    loss, metrics = task.loss, ("c_index", "ibs", "loss")
    if task.kind != "times":  # what was said is in the unit of the truth already
        loss, metrics = "l1", ("mae", *(("rmse", "r2") if task.target else ()), "loss")
    return Task("here", (), task.classes, loss, metrics, target=task.target, cuts=task.cuts)


def _budget(log: SiteLog, policy: Policy) -> list[str]:
    """What was spent of the privacy of patients and of the site over all runs, and what the policy allows."""
    runs, delta = spent_here(log, policy.delta), f"at delta {policy.delta:g}"
    lines = [f"{run}: epsilon {spent:.3g} {delta} to each patient" for run, spent in runs]
    if policy.most_epsilon is not None:
        lines.append(f"The policy here allows epsilon {policy.most_epsilon:g} to a patient, over all runs.")
    releases, noise = log.spent()
    if releases and noise is not None:
        spent = epsilon(noise, policy.delta, releases)
        lines.append(f"{releases} releases under clip and noise, over all runs: epsilon {spent:.3g} {delta}")
    if policy.budget is not None:
        lines.append(f"The policy here allows epsilon {policy.budget:g} to the site, over all runs.")
    return lines
