"""What a site keeps of a run on its own disk, and packages of it: it can use the models without the coordinator.

In the folder of a run, ``kept/about.json`` says what the run is of, ``kept/common.safetensors`` is the common model of
its end, and ``kept/own.safetensors`` the model that the site trained last; ``visitors/`` are the last that trained
there, as they left (:mod:`fedsmall.clients.visitors`). Arrays alone are written while a run goes on; what makes a
package of them comes when somebody asks for one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load, save

from fedsmall import __version__
from fedsmall.clients.memory import put
from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.clients.visitors import FOLDER as VISITORS_FOLDER
from fedsmall.clients.visitors import KeptVisitors
from fedsmall.data.preparation import Preparation
from fedsmall.data.raw_site import RawSite
from fedsmall.data.standardise import Scaling
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import members_of
from fedsmall.federation import task_from
from fedsmall.models.own_models import has_own_models
from fedsmall.models.registry import completed, initial_model
from fedsmall.package.record import COMMON, TrainedOn, describe, visitors_of
from fedsmall.package.store import Stored
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.travel.schedule import times_travelled
from fedsmall.wire import EXAMPLES, KEPT, Arrays

FOLDER = "kept"  # in the folder of a run
OWN_MODEL, VISITORS = "own", "visitors"  # what is kept beside the common model
STAYS = {
    OWN_MODEL: "It was trained here last and holds what it learnt of patients here, before any noise was added for its "
    "way out: it stays at this site.",
    VISITORS: "They are the last models that were trained here, as they left; these copies stay at this site.",
}


class Place(NamedTuple):
    """Where and for whom models are kept: the folder of a run, its name, the site's data, and how many sites it has;
    ``t`` is the round after which they were as they are kept.
    """

    folder: Path
    run: str
    raw: RawSite
    scaling: Scaling | None
    sites: int
    t: int


class About(Frozen):
    """What the kept models of a run are of, and what a row goes through to become what they take."""

    run: str
    site: str
    sites: int
    plan: Plan
    task: dict[str, Any]
    preparation: Preparation


def keep(at: Place, plan: Plan, what: str, model: Arrays, said: Mapping[str, Any] | None = None) -> None:
    """Keep a model of ``plan``, the common one or the site's own, unless it is only a part of one.

    ``said`` is what the site answered about it. Raises PlanError for arrays that are not the plan's common model.
    """
    if has_own_models(plan):
        return
    if what == COMMON:
        _check(plan, at.raw, members_of(model, plan.method.is_ensemble))
    about = at.folder / FOLDER / "about.json"
    if not about.exists():
        preparation, task = at.raw.preparation.with_scaling(at.scaling), asdict(at.raw.task)
        record = About(run=at.run, site=at.raw.name, sites=at.sites, plan=plan, task=task, preparation=preparation)
        put(about, seal(record.model_dump_json().encode()))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    words = {"kept": now, "t": str(at.t), "said": json.dumps(dict(said or {}))}
    held = save({name: array.copy(order="C") for name, array in model.items()}, words)
    put(_path(at.folder, what), seal(held))


def kept(folder: Path, what: str) -> Stored | None:
    """A package of what a site has kept of the run in ``folder``, "common", "own" or "visitors"; None for nothing.

    Of its data a package says how many sites there were: this site knows the counts of no other.
    """
    about = folder / FOLDER / "about.json"
    if not about.exists():
        return None
    record = About.model_validate_json(opened(about.read_bytes()))
    trained, task = _arrays(folder, what, record.plan), task_from(record.task)
    if not trained:
        return None
    several = what == VISITORS or (what == COMMON and record.plan.method.is_ensemble)
    whose = {COMMON: COMMON, VISITORS: visitors_of(record.site)}.get(what, record.site)
    words = _words(_path(folder, COMMON if what == VISITORS else what))
    measured = _measured(json.loads(words.get("said", "{}")), what)
    rounds = int(words["t"]) if record.plan.stop is not None and "t" in words else record.plan.rounds
    more = {
        "whose": whose,
        "performance": {f"held out at {record.site}": measured} if measured else {},
        "notes": (f"Run {record.run}.", *([STAYS[what]] if what in STAYS else [])),
        "rounds": rounds,
        "contacts": times_travelled(record.plan, rounds),
        "created": words.get("kept", ""),
        "versions": {"fedsmall": __version__, **{name: version(name) for name in ("torch", "numpy")}},
    }
    members = len(next(iter(trained.values()))) if several else None
    package = describe(record.plan, task, record.preparation, TrainedOn(sites=record.sites), members, **more)
    return Stored(package, completed(record.plan, task, trained))


def _arrays(folder: Path, what: str, plan: Plan) -> Arrays:
    if what == VISITORS:
        return KeptVisitors(folder / VISITORS_FOLDER, plan.method.keep_last or 1).members()
    path = _path(folder, what)
    return load(opened(path.read_bytes())) if path.exists() else {}


def _words(path: Path) -> dict[str, str]:
    """What stands beside the arrays of a kept model; empty where there is none."""
    if not path.exists():
        return {}
    content = opened(path.read_bytes())
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return dict(header.get("__metadata__", {}))


def _measured(said: Mapping[str, Any], what: str) -> dict[str, float]:
    """What the site found its common model worth, or its visitors, which it says beside."""
    of_visitors = {name.removeprefix(KEPT): float(value) for name, value in said.items() if name.startswith(KEPT)}
    of_model = {n: float(v) for n, v in said.items() if n != EXAMPLES and not n.startswith(KEPT)}
    return of_visitors if what == VISITORS else of_model


def _path(folder: Path, what: str) -> Path:
    return folder / FOLDER / f"{what}.safetensors"


def _check(plan: Plan, raw: RawSite, members: list[Arrays]) -> None:
    expected = {name: array.shape for name, array in initial_model(plan, raw.task).items()}
    for member in members:
        if {name: array.shape for name, array in member.items()} != expected:
            raise PlanError("the model that came is not that of the plan")
