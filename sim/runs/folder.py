"""The folder of a run: everything in it, written whole or not at all, so that it can be read and repeated at any time.

::

    scenario.toml    the scenario, resolved: `fedsmall run RUN/scenario.toml` repeats the run
    run.json         engine, versions, machine, times; how many plans were run, and which were not
    plans.json       every plan, in the order in which they are run
    summary.json     one row per finished plan, and what the trivial predictor gets beside it
    rounds.json      every evaluation; rounds.csv holds the numbers of them
    packages/        the model of each plan at its end, with everything needed to use it (:mod:`fedsmall.package.store`)
    models/          what cannot be packaged, as safetensors; older runs have all of theirs here
    predictions.npz  what each of them says of the test samples, beside the truth (:func:`prediction_key`)
    report.html      made from the rest by `fedsmall report RUN`
"""

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save

from fedsmall.data.federation import Federation, Samples
from fedsmall.data.raw_site import BALANCED, agreed_weights
from fedsmall.errors import PlanError
from fedsmall.evaluation.clinical import chosen_threshold
from fedsmall.methods import nearest
from fedsmall.package.record import CENTRAL, GLOBAL, describe, members_in
from fedsmall.package.store import WEIGHTS, Stored
from fedsmall.package.store import read as read_package
from fedsmall.package.store import save as save_package
from fedsmall.plan import Method, Plan
from fedsmall.privacy.reading import noise_borne
from fedsmall.replicas import idle
from fedsmall.sim.runs import files
from fedsmall.sim.runs.scenario import Scenario, as_toml, load
from fedsmall.travel.schedule import times_travelled
from fedsmall.wire import Arrays

if TYPE_CHECKING:  # the engines bring Flower and torch, which reading a folder does not need
    from fedsmall.sim.engines.run import RunRecord

REAL_SITES = "real sites"  # the engine of a run that was none of a simulation
PREDICTIONS, PACKAGES = "predictions.npz", "packages"
SINGLE = "per_site"
OF_DATA = ("sites", "training_samples", "test_samples", "class_counts", "data")  # in run.json
MANY_SITES = 500  # of more, nobody reads how many of each class they have


class Failed(NamedTuple):
    """Why a plan was not run to its end, in one line, and the traceback behind it."""

    reason: str
    trace: str = ""


@dataclass(frozen=True)
class PlanRun:
    """One plan's outcome as the folder holds it: its place in the scenario, its summary row, its evaluations."""

    index: int
    plan: Plan
    row: dict[str, Any]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @property
    def label(self) -> str:
        """The method's name in tables and figures."""
        return self.plan.method.label

    def labelled(self, label: str) -> "PlanRun":
        """The same of a method with another name."""
        method = self.plan.method.model_copy(update={"label": label})
        return replace(self, plan=self.plan.model_copy(update={"method": method}), row=self.row | {"label": label})

    @cached_property
    def rounds(self) -> str:
        """What rounds.json says of it, written once however often the file is."""
        which = {"index": self.index} | _which(self.plan)
        return json.dumps(which | {"evaluations": self.evaluations, "events": self.events}, default=float)

    @property
    def key(self) -> tuple[int, int]:
        """Its seed and fold."""
        return self.plan.seed, self.plan.fold


@dataclass
class Run:
    """A run, read from its folder or just made; ``without`` caches metrics without some of the test patients.

    ``due`` is when its folder is next written, by the system's clock: writing takes a thirtieth of the time.
    """

    scenario: Scenario
    plans: list[Plan]
    folder: Path | None = None
    done: list[PlanRun] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    models: dict[int, Arrays] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    packages: dict[int, list[Stored]] = field(default_factory=dict)
    without: dict[tuple[object, ...], Arrays] = field(default_factory=dict, repr=False)
    due: float = field(default=0.0, repr=False)

    @property
    def not_run(self) -> list[Plan]:
        """The plans that were never finished, and did not fail either."""
        ended = {plan_run.index for plan_run in self.done if not plan_run.row["stopped"]}
        ended |= {failure["index"] for failure in self.failed}
        return [plan for index, plan in enumerate(self.plans) if index not in ended]

    @property
    def reference(self) -> str | None:
        """The label of its main method, against which tables measure the others."""
        return self.scenario.reference or reference_of([plan_run.plan.method for plan_run in self.done])

    @property
    def place(self) -> str:
        """The path of its folder as it was given, for commands that a reader can copy."""
        return str(self.folder) if self.folder is not None else "RUN"

    @property
    def real(self) -> bool:
        """Whether it was over real sites, and no simulation."""
        return bool(self.done) and all("real" in plan_run.row for plan_run in self.done)

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The plans that failed: index, label, seed, fold and reason, in the order of the plans."""
        return sorted(self.about.get("failed", ()), key=lambda failure: failure["index"])

    def fail(self, index: int, failed: Failed) -> None:
        """Write down that the plan at ``index`` failed, and why."""
        row = {"index": index} | _which(self.plans[index]) | {"reason": failed.reason, "traceback": failed.trace}
        self.about["failed"] = [*self.about.get("failed", ()), row]
        self.save()

    def add(self, index: int, record: "RunRecord", trivial: dict[str, Any] | None = None) -> PlanRun:
        """Take in what an engine made of the plan at ``index``, and the trivial predictor beside; write it when due."""
        evaluations = json.loads(json.dumps([vars(e) for e in record.evaluations], default=float))
        row = _summary_row(record, evaluations, trivial)
        plan_run = PlanRun(index, record.plan, row, evaluations, list(record.events))
        self.done = sorted([*self.done, plan_run], key=lambda ended: ended.index)
        self.about |= {name: getattr(record, name) for name in ("engine", "versions", "device")}
        self.about["path"] = " and ".join(sorted({*self.about.get("path", record.path).split(" and "), record.path}))
        notes = [f'device = "kernel" needs {record.unmet_need}; torch trained instead'] * bool(record.unmet_need)
        if record.model is not None:
            self.models[index] = record.model
            extension = record.plan.method.extension
            if extension is not None and (note := extension.note_of_end(record.plan, record.model, record.rounds)):
                notes.append(note)
        self.about["notes"] = [*dict.fromkeys([*self.about.get("notes", ()), *notes])]
        self.packages[index] = _packages_of(record, row, self.about["notes"])
        self.predictions |= keyed(plan_run, record.predictions)
        if pooled := row.get("pooled"):
            self.predictions |= keyed(plan_run.labelled(pooled["label"]), pooled.pop("predictions"))
        if self.folder is not None:
            self._write_models(self.folder, plan_run, record)
        if time.monotonic() >= self.due:
            self.save()
        return plan_run

    def _write_models(self, folder: Path, plan_run: PlanRun, record: "RunRecord") -> None:
        """Keep a plan's models: as packages, or as arrays where they are not enough to predict with."""
        for stored in self.packages[plan_run.index]:
            save_package(folder / PACKAGES / stem(plan_run, stored.package.whose), *stored)
        if not self.packages[plan_run.index] and record.model is not None:
            files.write(folder / "models" / model_name(plan_run), save(record.model))

    def model_of(self, plan_run: PlanRun) -> Arrays | None:
        """The global model at the end of a plan, or None where there was none."""
        path = self.weights_of(plan_run) if plan_run.plan.method.is_federated else None
        if path is not None and plan_run.index not in self.models:
            self.models[plan_run.index] = load_file(path)
        return self.models.get(plan_run.index)

    def weights_of(self, plan_run: PlanRun) -> Path | None:
        """The file with the weights of a plan's model, or None where none was kept."""
        if self.folder is None:
            return None
        places = self.folder / PACKAGES / stem(plan_run) / WEIGHTS, self.folder / "models" / model_name(plan_run)
        return next((place for place in places if place.exists()), None)

    def has_packages(self, plan_run: PlanRun) -> bool:
        """Whether there are packages of a plan."""
        inside = (self.folder / PACKAGES).glob(f"{stem(plan_run)}*") if self.folder is not None else iter(())
        return bool(self.packages.get(plan_run.index)) or any(inside)

    def packages_of(self, plan_run: PlanRun) -> list[Stored]:
        """The packages of a plan: the global model's or Central's first, then the sites' own where they were kept."""
        if plan_run.index not in self.packages and self.folder is not None:
            first = self.folder / PACKAGES / stem(plan_run)
            of_sites = sorted((self.folder / PACKAGES).glob(f"{stem(plan_run)}-of-*"))
            self.packages[plan_run.index] = [read_package(path) for path in (first, *of_sites) if path.is_dir()]
        return self.packages.get(plan_run.index, [])

    def predictions_of(self, plan_run: PlanRun) -> Arrays:
        """The predictions of a plan's one model on the test samples, beside the truth; empty if not kept.

        "probabilities" (samples, classes), "predictions", or "survival" and "cuts"; "labels", "sites", "patients".
        """
        key = f"{prediction_key(plan_run)}/"
        return {name.removeprefix(key): array for name, array in self.predictions.items() if name.startswith(key)}

    def labels_of(self, plan_run: PlanRun) -> np.ndarray | None:
        """The truth beside :meth:`predictions_of`; None where they are not kept."""
        return self.predictions.get(f"{prediction_key(plan_run)}/labels")

    def save(self) -> None:
        """Write what is known so far into the run's folder, where it has one; every file is replaced whole."""
        if self.folder is None:
            return
        began = time.monotonic()
        if self.predictions:
            files.write_arrays(self.folder / PREDICTIONS, self.predictions)
        about = self.about | {
            "planned": len(self.plans),
            "finished": len(self.plans) - len(self.not_run) - len(self.failed),
            "not_run": [_which(plan) for plan in self.not_run],
        }
        rows = [_curve_row(run.plan, evaluation) for run in self.done for evaluation in run.evaluations]
        files.write_json(self.folder / "summary.json", [plan_run.row for plan_run in self.done])
        files.write(self.folder / "rounds.json", files.json_list([plan_run.rounds for plan_run in self.done]).encode())
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["label"]
        files.write_csv(self.folder / "rounds.csv", columns, rows)
        files.write_json(self.folder / "run.json", about)
        self.due = time.monotonic() + 30 * (time.monotonic() - began)


def _which(plan: Plan) -> dict[str, Any]:
    return {"label": plan.method.label, "seed": plan.seed, "fold": plan.fold}


def _curve_row(plan: Plan, evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation: the metrics of the global model and of the sites', as columns."""
    row = _which(plan) | {"round": evaluation["t"]}
    for whose, head in (("common", "global"), ("sites", "sites")):
        metrics = (evaluation[whose] or {}).items()
        row |= {f"{head}_{name}": value for name, value in metrics if isinstance(value, float)}
    return row | ({"stop_loss": evaluation["stop"]["loss"]} if evaluation.get("stop") else {})


def start(folder: Path | None, scenario: Scenario, federation: Federation, engine: str) -> Run:
    """A new run, its folder holding the scenario alone; PlanError where the folder is not empty."""
    plans = scenario.plans()
    run = Run(scenario, plans, folder, about=_about(plans, federation, engine))
    if folder is None:
        return run
    files.check_free(folder)
    files.write(folder / "scenario.toml", as_toml(scenario))
    files.write_json(folder / "plans.json", [plan.model_dump(mode="json") for plan in plans])
    run.save()
    return run


def reopen(run: Run, federation: Federation) -> Run:
    """The run, to go on with: what was cut short is not done. PlanError where its data are others now."""
    now = _about(run.plans, federation, "")
    for key in OF_DATA:
        if json.dumps(now[key], default=float) != json.dumps(run.about.get(key)):
            raise PlanError(f"the data are not those of the run in {run.place}: {key} differs. Run its scenario again.")
    return replace(run, done=[ended for ended in run.done if not ended.row["stopped"]])


def read(folder: Path | str) -> Run:
    """The run in a folder. Raises PlanError where there is none, or what is there cannot be read."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise PlanError(f"{folder} holds no run; a run's folder has a run.json and a scenario.toml")
    try:
        plans = [Plan.model_validate_json(json.dumps(plan)) for plan in files.read_json(folder / "plans.json")]
        rows = files.read_json(folder / "summary.json")
        rounds = files.read_json(folder / "rounds.json")
        about = files.read_json(folder / "run.json")
    except (OSError, json.JSONDecodeError) as error:
        raise PlanError(f"the run in {folder} cannot be read: {error}") from None
    if abs(len(rows) - len(rounds)) > 1:
        raise PlanError(
            f"the run in {folder} is damaged: summary.json has {len(rows)} plans and rounds.json {len(rounds)}. "
            "Take the folder from a copy, or run its scenario.toml again"
        )
    row_of = {(row["label"], row["seed"], row.get("fold", 0)): row for row in rows}
    done = [  # killed between two files, a run has a plan in one alone: it is not done
        PlanRun(entry["index"], plans[entry["index"]], row, entry["evaluations"], entry["events"])
        for entry in rounds
        if (row := row_of.get((entry["label"], entry["seed"], entry.get("fold", 0)))) is not None
    ]
    kept = folder / PREDICTIONS
    predictions = files.read_arrays(kept) if kept.is_file() else {}  # older runs kept none
    return Run(load(folder / "scenario.toml"), plans, folder, done, about, predictions=predictions)


def read_all(folder: Path) -> list[Run]:
    """The run in a folder, or those in the folders below it: a demo is a run for each data set."""
    if (folder / "run.json").is_file():
        return [read(folder)]
    below = sorted(path.parent for path in folder.glob("*/run.json"))
    return [read(path) for path in below] or [read(folder)]


def reference_of(methods: Sequence[Method]) -> str | None:
    """The method that others are measured against: the first that chains and averages, or else grows trees."""
    federated = [method for method in methods if method.is_federated]
    wanted = (
        [method for method in federated if method.permute_every and method.aggregate_every],
        [method for method in federated if method.tree],
        [method for method in federated if method.name != "FedAvg"],
        federated,
    )
    return next((group[0].label for group in wanted if group), None)


def engine_of(about: Mapping[str, Any]) -> str:
    """On what a run was made, by its run.json: "cohort (mlp)", and the device where it is not the CPU."""
    path, device = about.get("path"), about.get("device") or "cpu"
    return f"{about.get('engine')}" + (f" ({path})" if path else "") + (f" on {device}" if device != "cpu" else "")


def prediction_key(plan_run: PlanRun) -> str:
    """Under what predictions.npz keeps a plan's arrays: method/seed, and for cross-validation method/seed/fold0."""
    return f"{plan_run.label}/{plan_run.plan.seed}" + (f"/fold{plan_run.plan.fold}" if plan_run.plan.folds else "")


def keyed(plan_run: PlanRun, predictions: Arrays) -> Arrays:
    """A plan's predictions by their names in predictions.npz."""
    return {f"{prediction_key(plan_run)}/{name}": array for name, array in predictions.items()}


def stem(plan_run: PlanRun, whose: str = GLOBAL) -> str:
    """The name of what is kept of a plan's model, or of that of the site ``whose`` it is."""
    words = [f"{plan_run.index:03d}", plan_run.label, f"seed{plan_run.plan.seed}"]
    words += [f"fold{plan_run.plan.fold}"] if plan_run.plan.folds else []
    words += [] if whose in (GLOBAL, CENTRAL) else ["of", whose]
    return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(words)).strip("-")


def model_name(plan_run: PlanRun) -> str:
    """The name of the file that keeps the arrays of a plan's global model, where they are no package."""
    return f"{stem(plan_run)}.safetensors"


def _about(plans: Sequence[Plan], federation: Federation, engine: str) -> dict[str, Any]:
    sizes = [len(samples) for samples in federation.train]
    return {
        "engine": engine,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": cores(),
        "machine": f"{platform.system()} {platform.machine()}",
        "task": asdict(federation.task),
        "sites": len(sizes),
        "samples_per_site": [min(sizes), max(sizes)],
        "training_samples": sum(sizes),
        "test_samples": federation.test_samples,
        "class_counts": _class_counts(federation),
        "data": federation.description,
        "notes": [*federation.notes, *_notes(plans, federation, sizes)],
    }


def _notes(plans: Sequence[Plan], federation: Federation, sizes: Sequence[int]) -> list[str]:
    """Notes for a reader on how methods and data go together, such as the class weights that sites agree on."""
    from fedsmall.planning.validation import parameter_count  # torch, which who reads a run does without

    trees = [(plan.method.label, plan.method.tree) for plan in plans]
    notes = [f"{label}: {line}" for label, tree in trees if tree and (line := idle(tree, sizes))]
    if any(plan.recipe.class_weights == BALANCED for plan in plans):
        weights = agreed_weights(federation.class_sums, federation.task)
        names = federation.task.class_names or range(len(weights))
        class_weights = ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, weights, strict=False))
        notes.append(f"class weights agreed from the sites' counts (first seed): {class_weights}")
    features, fewest = min((len(part), part.x[0].size if len(part) else 0) for part in federation.train)[::-1]
    notes += [
        line
        for plan in plans
        if plan.privacy.exposure
        and (line := noise_borne(plan, parameter_count(plan, federation.task), fewest, features, len(sizes)))
    ]
    noted: dict[str, dict[str, None]] = {}
    for method, extension in ((plan.method, plan.method.extension) for plan in plans):
        noted.setdefault(extension.note_of(method) if extension else "", {})[method.label] = None
    return list(dict.fromkeys([*notes, *(f"{', '.join(labels)}: {note}" for note, labels in noted.items() if note)]))


def cores() -> int:
    """How many cores this process may use: those of the machine, or fewer where it was given fewer."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _class_counts(federation: Federation) -> dict[str, dict[str, list[int]]]:
    """How many of each class every site trains on and holds out; nothing for numbers, or for very many sites."""
    task, held = federation.task, federation.held_out or (None,) * len(federation.names)
    if task.kind != "classes" or len(federation.names) > MANY_SITES:
        return {}

    def count(samples: Samples | None) -> list[int]:
        return [] if samples is None else np.bincount(samples.y, minlength=task.classes).tolist()

    sites = zip(federation.names, federation.train, held, strict=True)
    return {name: {"train": count(train), "held_out": count(out)} for name, train, out in sites}


def _summary_row(
    record: "RunRecord", evaluations: Sequence[dict[str, Any]], trivial: dict[str, Any] | None
) -> dict[str, Any]:
    """The plan's row of summary.json, by the last of its ``evaluations`` or that of the round whose model it keeps.

    What only some plans have stands at its end, with the ``trivial`` predictor's metrics, and those of a regression on
    pooled rows that may stand in it ("pooled"), and the sites' training samples where models travel: a report tells
    how many a model has met.
    """
    last = evaluations[-1] if evaluations else {"common": None, "sites": {}, "extra": {}}
    last = next((evaluation for evaluation in evaluations if record.chosen and evaluation["t"] == record.chosen), last)
    method = record.plan.method
    pooled = trivial.pop("pooled", None) if trivial else None
    row = {
        "method": method.name,
        "label": method.label,
        "seed": record.plan.seed,
        "engine": record.engine,
        "device": record.device,
        "common": last["common"] and last["common"] | record.recalibration.get("common", {}),
        "sites": {name: value for name, value in last["sites"].items() if isinstance(value, float)},
        "rounds": record.rounds,
        "contacts": record.comm_rounds,
        "bytes_sent": record.bytes_sent,
        "seconds": round(record.seconds, 4),
        "client_updates_per_second": round(record.client_updates / max(record.seconds, 1e-9), 1),
        "fold": record.plan.fold,
        "stopped": record.stopped,
        "extra": _without_singles(last["extra"]),
    }
    of_sites = record.trained_on.items() if method.moves else ()
    in_some = {
        "spread": _without_singles(last.get("spread")),
        "privacy": record.privacy,
        "validation": last.get("validation"),
        "bytes_between": record.bytes_between if record.plan.method.region_count > 1 else None,
        "averages": _averages(record),
        "chosen": record.chosen or None,
        "stop": last["stop"] if record.chosen else None,
        "read": record.read,
        "thresholds": record.thresholds,
        "recalibration": record.recalibration and record.recalibration | {"common": last["common"]},
        "importance": record.importance,
        "at_home": record.at_home,
        "samples": {whose: data.samples for whose, data in of_sites if whose not in (GLOBAL, CENTRAL)},
        "trivial": trivial,
        "pooled": pooled,
    }
    return row | {name: fact for name, fact in in_some.items() if fact not in (None, {}, [])}


def _averages(record: "RunRecord") -> dict[str, Any] | None:
    """How many of the averages that were due took all models, some or none; None where none may be left out."""
    if not record.averaged:
        return None
    models, whole = [took for took, _ in record.averaged], sum(of_all for _, of_all in record.averaged)
    counts = {"whole": whole, "partial": len(models) - whole - models.count(0), "left_out": models.count(0)}
    return counts | {"models": models, "bytes_sent": record.sent_by}


def _without_singles(tree: Any) -> Any:
    """A tree of metrics without the value of every single site: those are in rounds.json."""
    if not isinstance(tree, dict):
        return tree
    return {name: _without_singles(value) for name, value in tree.items() if name != SINGLE}


def _packages_of(record: "RunRecord", row: dict[str, Any], notes: Sequence[str]) -> list[Stored]:
    """The global model or Central's, then the sites' own.

    ``row`` is the plan's in the summary. Empty where sites have models of their own, or nothing is known of the data.
    """
    if record.preparation is None or record.task is None or record.plan.has_own_models:
        return []
    models: dict[str, Arrays] = {} if record.model is None else {GLOBAL: record.model}
    return [_stored(record, row, whose, model, notes) for whose, model in (models | record.own).items()]


def _stored(record: "RunRecord", row: dict[str, Any], whose: str, model: Arrays, notes: Sequence[str]) -> Stored:
    assert record.preparation is not None
    assert record.task is not None
    more = {
        "whose": whose,
        "performance": _performance(row, whose),
        "notes": (*_notes_of_model(record), *notes),
        "rounds": record.chosen or record.rounds,
        "contacts": times_travelled(record.plan, record.chosen) if record.chosen else record.comm_rounds,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": record.versions,
    }
    chosen = chosen_threshold(record.plan, record.thresholds) if whose in (GLOBAL, CENTRAL) else None
    if chosen is not None and record.task.classes == 2:
        more |= {"threshold": chosen[0], "threshold_from": chosen[1]}
    if record.recalibration and whose in (GLOBAL, CENTRAL):
        more["recalibration"] = record.recalibration["intercept"], record.recalibration["slope"]
    members = members_in(record.plan, whose, model)
    trained_on = record.trained_on.get(whose, record.trained_on[GLOBAL])
    return Stored(describe(record.plan, record.task, record.preparation, trained_on, members, **more), model)


def _performance(row: dict[str, Any], whose: str) -> dict[str, dict[str, float]]:
    """The metrics at the end, and the trivial predictor's on the same samples."""
    if whose not in (GLOBAL, CENTRAL):
        return {}
    trivial = row.get("trivial") or {}
    measured = {"test samples": row.get("common"), str(trivial.get("label")): trivial.get("common")}
    return {
        where: {name: float(value) for name, value in metrics.items()} for where, metrics in measured.items() if metrics
    }


def _notes_of_model(record: "RunRecord") -> list[str]:
    notes = []
    if record.stopped:
        notes.append(f"The run was cut short after round {record.rounds} of {record.plan.rounds}.")
    if record.chosen:
        ended = f"The run ended after round {record.rounds} of {record.plan.rounds}; this is its model of round"
        notes.append(f"{ended} {record.chosen}, where the loss on training samples that it had not seen was lowest.")
    if record.plan.recalibrate and not record.recalibration:
        why = "there were too few, or it told their classes apart not at all or wholly"
        notes.append(f"Not recalibrated on samples that the model had not seen: {why}.")
    if "epsilon" in record.privacy:
        notes.append(f"Trained under differential privacy, epsilon {record.privacy['epsilon']:.3g}.")
    return notes


def choose_packages(
    run: Run, method: str | None = None, seed: int | None = None, whose: str | None = None
) -> list[Stored]:
    """The chosen packages, by default the global models of the main method, of every seed; PlanError for none."""
    if not run.done:
        raise PlanError("none of this run's plans has ended: `fedsmall resume RUN` goes on with it")
    label = method or main_method(run)
    labels = list(dict.fromkeys(plan_run.label for plan_run in run.done))
    if label not in labels:
        raise PlanError(f"this run has no method {label!r}. {nearest(label, labels)}")
    of_method = [plan_run for plan_run in run.done if plan_run.label == label]
    of_seed = [plan_run for plan_run in of_method if seed is None or plan_run.plan.seed == seed]
    if not of_seed:
        seeds = ", ".join(str(plan_run.plan.seed) for plan_run in of_method)
        raise PlanError(f"{label} was run with the seeds {seeds}, not {seed}")
    wanted = (GLOBAL, CENTRAL) if whose is None else (whose,)
    packages = [stored for plan_run in of_seed for stored in run.packages_of(plan_run)]
    return [stored for stored in packages if stored.package.whose in wanted] or _raise_missing(label, whose, packages)


def main_method(run: Run) -> str:
    """The reference method of tables, or else the first of which there is a package; PlanError where there is none."""
    usable = [plan_run for plan_run in run.done if run.has_packages(plan_run)]
    if not usable:
        raise PlanError(
            "this run holds no model that can be used: it is of an older release, or its sites have models of their "
            'own. `fedsmall run RUN/scenario.toml` runs it again; keep = "sites" in the scenario keeps models of sites'
        )
    return next((plan_run.label for plan_run in usable if plan_run.label == run.reference), usable[0].label)


def _raise_missing(label: str, whose: str | None, packages: list[Stored]) -> list[Stored]:
    """Raise PlanError that says why there is no such model, and which there are."""
    known = [stored.package.whose for stored in packages if stored.package.whose not in (GLOBAL, CENTRAL)]
    if whose is not None and known:
        raise PlanError(f"there is no model of the site {whose!r}. {nearest(whose, known)}")
    if whose is not None:
        raise PlanError(f'the local models of {label} were not kept; keep = "sites" in the scenario keeps them')
    where = f"; name a site: --site {known[0]}" if known else '; keep = "sites" in the scenario keeps the sites\' own'
    raise PlanError(f"{label} ends with no global model{where}")
