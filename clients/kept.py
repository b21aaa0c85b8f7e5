"""The models that a site keeps of a run on its own disk, and packages of them for use without the coordinator.

In the run's folder ``kept/`` has about.json, common.safetensors (the last global model) and own.safetensors, its own.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall import __version__
from fedsmall.clients.shelf import Shelf
from fedsmall.data.federation import task_from
from fedsmall.data.preparation import Preparation, Scaling
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import members_of
from fedsmall.models.registry import completed, initial_model
from fedsmall.package.record import GLOBAL, TrainedOn, describe, members_in
from fedsmall.package.store import Stored
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.travel.schedule import times_travelled
from fedsmall.wire import EXAMPLES, Arrays

FOLDER, ABOUT = "kept", "about"  # in the folder of a run; and there what a package of it says
OWN_MODEL = "own"  # what is kept beside the global model
NOT_KEPT = "this site keeps no such model: the run is not over, or the site was away at its end"
STAYS = (
    "It was trained here last and holds what it learnt of patients here, before any noise was added for its way out: "
    "it stays at this site."
)


class Place(NamedTuple):
    """Where models are kept: the run's folder and name, the site's data, its count of sites, and their round ``t``."""

    folder: Path
    run: str
    raw: RawSite
    scaling: Scaling | None
    sites: int
    t: int


class About(Frozen):
    """What the kept models of a run are of, and how a row becomes their input."""

    run: str
    site: str
    sites: int
    plan: Plan
    task: dict[str, Any]
    preparation: Preparation


def keep(
    at: Place,
    plan: Plan,
    what: str,
    model: Arrays,
    metrics: Mapping[str, Any] | None = None,
    intercept: np.ndarray | None = None,
) -> None:
    """Keep a whole model of ``plan``, with its ``metrics`` here and the site's own ``intercept``, if it has one.

    Raises PlanError where it is none of the plan's.
    """
    if plan.has_own_models:
        return
    if what == GLOBAL:
        expected = {name: array.shape for name, array in initial_model(plan, at.raw.task).items()}
        for member in members_of(model, plan.method.is_ensemble):
            if {name: array.shape for name, array in member.items()} != expected:
                raise PlanError("the model that came is not that of the plan")
    shelf = Shelf(at.folder / FOLDER)
    if shelf.get(ABOUT) is None:
        preparation, task = at.raw.preparation.with_scaling(at.scaling), asdict(at.raw.task)
        record = About(run=at.run, site=at.raw.name, sites=at.sites, plan=plan, task=task, preparation=preparation)
        shelf.put(ABOUT, words=record.model_dump(mode="json"))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    own = {"intercept": intercept.tolist()} if plan.method.adds_intercepts and intercept is not None else {}
    shelf.put(what, model, {"kept": now, "t": at.t, "said": dict(metrics or {}), **own})


def load_kept(folder: Path, what: str) -> Stored | None:
    """A package of the run's "common" or "own" model; None where it is not kept."""
    shelf = Shelf(folder / FOLDER)
    about, item = shelf.words(ABOUT), shelf.get(what)
    if about is None or item is None or not item.arrays:
        return None
    record = About.model_validate_json(json.dumps(about))
    task, words, whose = task_from(record.task), item.words or {}, GLOBAL if what == GLOBAL else record.site
    measured = {name: float(value) for name, value in words.get("said", {}).items() if name != EXAMPLES}
    rounds = int(words["t"]) if record.plan.may_end_early and "t" in words else record.plan.rounds
    more = {
        "whose": whose,
        "performance": {f"held out at {record.site}": measured} if measured else {},
        "notes": (f"Run {record.run}.", *([STAYS] if what == OWN_MODEL else [])),
        "rounds": rounds,
        "contacts": times_travelled(record.plan, rounds),
        "created": words.get("kept", ""),
        "versions": {"fedsmall": __version__, **{name: version(name) for name in ("torch", "numpy")}},
        "intercept": tuple(words.get("intercept", ())) if what == GLOBAL else (),
    }
    members = members_in(record.plan, whose, item.arrays)
    package = describe(record.plan, task, record.preparation, TrainedOn(sites=record.sites), members, **more)
    return Stored(package, completed(record.plan, task, item.arrays))
