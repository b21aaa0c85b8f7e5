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
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file, save

from fedsmall.errors import PlanError
from fedsmall.federation import Federation
from fedsmall.package.record import CENTRAL, COMMON
from fedsmall.package.store import WEIGHTS, Stored
from fedsmall.package.store import read as read_package
from fedsmall.package.store import save as save_package
from fedsmall.plan import Plan
from fedsmall.replicas.tree import idle
from fedsmall.sim.runs.class_counts import class_counts, weights_told
from fedsmall.sim.runs.cores import cores
from fedsmall.sim.runs.failures import Failed
from fedsmall.sim.runs.files import check_free, read_arrays, read_json, write, write_arrays, write_csv, write_json
from fedsmall.sim.runs.packages import packages_of
from fedsmall.sim.runs.rows import curve_rows, evaluations_of, summary_row
from fedsmall.sim.runs.scenario import Scenario, as_toml, load
from fedsmall.wire import Arrays

if TYPE_CHECKING:  # the engines bring Flower and torch, which reading a folder does not need
    from fedsmall.sim.engines.record import RunRecord

REAL_SITES = "real sites"  # the engine of a run that was none of a simulation
PREDICTIONS, PACKAGES = "predictions.npz", "packages"


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


@dataclass
class Run:
    """A run, read from its folder or just made: what was asked, what came of it, with what.

    ``without`` remembers what models are worth without some of the test patients (:mod:`fedsmall.sim.report.patients`).
    """

    scenario: Scenario
    plans: list[Plan]
    folder: Path | None = None
    done: list[PlanRun] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    models: dict[int, Arrays] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    packages: dict[int, list[Stored]] = field(default_factory=dict)
    without: dict[tuple[str, bool], Arrays] = field(default_factory=dict, repr=False)

    @property
    def not_run(self) -> list[Plan]:
        """The plans that were never finished, and did not fail either."""
        ended = {one.index for one in self.done if not one.row["stopped"]} | {each["index"] for each in self.failed}
        return [plan for index, plan in enumerate(self.plans) if index not in ended]

    @property
    def place(self) -> str:
        """The path of its folder as it was given, for commands that a reader can copy."""
        return str(self.folder) if self.folder is not None else "RUN"

    @property
    def real(self) -> bool:
        """Whether it was over real sites, and no simulation."""
        return bool(self.done) and all("real" in one.row for one in self.done)

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The plans that failed: index, label, seed, fold and reason, in the order of the plans."""
        return sorted(self.about.get("failed", ()), key=lambda each: each["index"])

    def fail(self, index: int, failed: Failed) -> None:
        """Write down that the plan at ``index`` failed, and why."""
        self.about["failed"] = [*self.about.get("failed", ()), failed.row(index, self.plans[index])]
        self.save()

    def add(self, index: int, record: "RunRecord", trivial: dict[str, Any] | None = None) -> PlanRun:
        """Take in what an engine made of the plan at ``index``, and the trivial predictor beside; write it down."""
        evaluations = evaluations_of(record)
        row = summary_row(record, evaluations, trivial)
        one = PlanRun(index, record.plan, row, evaluations, list(record.events))
        self.done = sorted([*self.done, one], key=lambda each: each.index)
        self.about |= {"engine": record.engine, "versions": record.versions}
        self.about |= {"path": record.path, "device": record.device}
        if record.model is not None:
            self.models[one.index] = record.model
        self._keep(one, record)
        self.predictions |= {f"{prediction_key(one)}/{name}": array for name, array in record.predictions.items()}
        if record.predictions and self.folder is not None:
            write_arrays(self.folder / PREDICTIONS, self.predictions)
        self.save()
        return one

    def model_of(self, one: PlanRun) -> Arrays | None:
        """The common model at the end of a plan, or None where there was none."""
        if one.index not in self.models and self.folder is not None:
            path = self.weights_of(one)
            if path is not None and one.plan.method.family == "federated":
                self.models[one.index] = load_file(path)
        return self.models.get(one.index)

    def weights_of(self, one: PlanRun) -> Path | None:
        """The file with the weights of a plan's model, or None where none was kept."""
        folder = self.folder or Path()
        places = folder / PACKAGES / stem(one) / WEIGHTS, folder / "models" / model_name(one)
        return next((place for place in places if place.exists()), None) if self.folder is not None else None

    def _keep(self, one: PlanRun, record: "RunRecord") -> None:
        """Keep the models of a plan: as packages, or as arrays where they are not enough to predict with."""
        notes = tuple(self.about.get("notes", ()))
        self.packages[one.index] = packages_of(record, one.row, notes)
        if self.folder is None:
            return
        for stored in self.packages[one.index]:
            save_package(self.folder / PACKAGES / stem(one, stored.package.whose), *stored)
        if self.packages[one.index]:
            return
        if record.model is not None:
            write(self.folder / "models" / model_name(one), save(record.model))
        if record.distilled is not None:
            write(self.folder / "models" / f"distilled-{model_name(one)}", save(record.distilled.model))

    def has_packages(self, one: PlanRun) -> bool:
        """Whether there are packages of a plan."""
        inside = (self.folder / PACKAGES).glob(f"{stem(one)}*") if self.folder is not None else iter(())
        return bool(self.packages.get(one.index)) or any(inside)

    def packages_of(self, one: PlanRun) -> list[Stored]:
        """The packages of a plan: the common model's or Central's first, then the sites' own where they were kept."""
        if one.index not in self.packages and self.folder is not None:
            first, own = self.folder / PACKAGES / stem(one), sorted((self.folder / PACKAGES).glob(f"{stem(one)}-of-*"))
            self.packages[one.index] = [read_package(path) for path in (first, *own) if path.is_dir()]
        return self.packages.get(one.index, [])

    def predictions_of(self, one: PlanRun) -> Arrays:
        """What the one model at the end of a plan says of the test samples, beside the truth; empty if it is not kept.

        "probabilities" (samples, classes) for numbers "predictions", or for times "survival"
        and "cuts" (samples, intervals); "labels"; and "sites" where those are known.
        """
        key = f"{prediction_key(one)}/"
        return {name.removeprefix(key): array for name, array in self.predictions.items() if name.startswith(key)}

    def save(self) -> None:
        """Write what is known so far into the run's folder, where it has one; every file is replaced whole."""
        if self.folder is None:
            return
        about = self.about | {
            "planned": len(self.plans),
            "finished": len(self.plans) - len(self.not_run) - len(self.failed),
            "not_run": [{"label": p.method.label, "seed": p.seed, "fold": p.fold} for p in self.not_run],
        }
        rounds = [
            {"index": one.index, "label": one.label, "seed": one.plan.seed, "fold": one.plan.fold}
            | {"evaluations": one.evaluations, "events": one.events}
            for one in self.done
        ]
        write_json(self.folder / "summary.json", [one.row for one in self.done])
        write_json(self.folder / "rounds.json", rounds)
        rows = [row for one in self.done for row in curve_rows(one.plan, one.evaluations)]
        write_csv(
            self.folder / "rounds.csv", list(dict.fromkeys(name for row in rows for name in row)) or ["label"], rows
        )
        write_json(self.folder / "run.json", about)


def start(folder: Path | None, scenario: Scenario, federation: Federation, engine: str) -> Run:
    """A new run: its folder, where it has one, holds what is asked and nothing else yet.

    Raises PlanError where the folder holds something already: no run is ever written over another.
    """
    plans = scenario.plans()
    run = Run(scenario, plans, folder, about=_about(federation, engine))
    run.about["notes"] += _notes(plans, federation)
    if folder is None:
        return run
    check_free(folder)
    write(folder / "scenario.toml", as_toml(scenario))
    write_json(folder / "plans.json", [plan.model_dump(mode="json") for plan in plans])
    run.save()
    return run


def read(folder: Path | str) -> Run:
    """The run in a folder. Raises PlanError where there is none, or what is there cannot be read."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise PlanError(f"{folder} holds no run; a run's folder has a run.json and a scenario.toml")
    try:
        plans = [Plan.model_validate_json(json.dumps(plan)) for plan in read_json(folder / "plans.json")]
        rows = read_json(folder / "summary.json")
        rounds = read_json(folder / "rounds.json")
        about = read_json(folder / "run.json")
    except (OSError, json.JSONDecodeError) as error:
        raise PlanError(f"the run in {folder} cannot be read: {error}") from None
    if len(rows) != len(rounds):
        raise PlanError(
            f"the run in {folder} is damaged: summary.json has {len(rows)} plans and rounds.json {len(rounds)}. "
            "Take the folder from a copy, or run its scenario.toml again"
        )
    done = [
        PlanRun(entry["index"], plans[entry["index"]], row, entry["evaluations"], entry["events"])
        for row, entry in zip(rows, rounds, strict=True)
    ]
    told = read_arrays(folder / PREDICTIONS) if (folder / PREDICTIONS).is_file() else {}  # older runs kept none
    return Run(load(folder / "scenario.toml"), plans, folder, done, about, predictions=told)


def read_all(folder: Path) -> list[Run]:
    """The run in a folder, or those in the folders below it: a demo is a run for each data set."""
    if (folder / "run.json").is_file():
        return [read(folder)]
    below = sorted(path.parent for path in folder.glob("*/run.json"))
    return [read(path) for path in below] or [read(folder)]


def engine_of(about: Mapping[str, Any]) -> str:
    """On what a run was made, by its run.json: "cohort (mlp)", and the device where it is not the CPU."""
    path, device = about.get("path"), about.get("device") or "cpu"
    return f"{about.get('engine')}" + (f" ({path})" if path else "") + (f" on {device}" if device != "cpu" else "")


def prediction_key(one: PlanRun) -> str:
    """Under what predictions.npz keeps a plan's arrays: method/seed, and for cross-validation method/seed/fold0."""
    return f"{one.label}/{one.plan.seed}" + (f"/fold{one.plan.fold}" if one.plan.folds else "")


def stem(one: PlanRun, whose: str = COMMON) -> str:
    """The name of what is kept of a plan's model, or of that of the site ``whose`` it is."""
    words = [f"{one.index:03d}", one.label, f"seed{one.plan.seed}"] + ([f"fold{one.plan.fold}"] * bool(one.plan.folds))
    words += [] if whose in (COMMON, CENTRAL) else ["of", whose]
    return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(words)).strip("-")


def model_name(one: PlanRun) -> str:
    """The name of the file that keeps the arrays of a plan's common model, where they are no package."""
    return f"{stem(one)}.safetensors"


def _about(federation: Federation, engine: str) -> dict[str, Any]:
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
        "class_counts": class_counts(federation),
        "notes": list(federation.notes),
    }


def _notes(plans: Sequence[Plan], federation: Federation) -> list[str]:
    """What a reader should know of how methods and data go together."""
    sizes = [len(samples) for samples in federation.train]
    trees = [(plan.method.label, plan.method.tree) for plan in plans]
    told = [f"{label}: {line}" for label, tree in trees if tree and (line := idle(tree, sizes))]
    told += weights_told(plans, federation)
    extensions = [(plan.method, extension) for plan in plans if (extension := plan.method.extension) is not None]
    told += [f"{method.label}: {note}" for method, extension in extensions if (note := extension.note_of(method))]
    return list(dict.fromkeys(told))
