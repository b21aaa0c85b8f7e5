"""The models that a site keeps of a run on its own disk, and packages of them for use without the coordinator.

In the run's folder ``kept/about.json`` says what the run is of, ``kept/common.safetensors`` is its last common model,
``kept/own.safetensors`` the model that the site trained last, and ``visitors/`` has the last that trained there.
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
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.shelf import Shelf
from fedsmall.codec import pack, unpack
from fedsmall.data.federation import task_from
from fedsmall.data.preparation import Preparation, Scaling
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import members_of
from fedsmall.models.registry import completed, initial_model
from fedsmall.package.record import COMMON, TrainedOn, describe, members_in, visitors_of
from fedsmall.package.store import Stored
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.travel.journey import stack_members
from fedsmall.travel.schedule import times_travelled
from fedsmall.wire import EXAMPLES, KEPT, LEAVES, MODEL, ROUND, Arrays, join, split

VISITORS_FOLDER = "visitors"  # in the run's folder at the site


class KeptVisitors:
    """The last ``count`` models that trained at this site in one run, as they left, in ``folder``."""

    def __init__(self, folder: Path, count: int) -> None:
        self._shelf, self.count = Shelf(folder), count
        self.rounds = self._shelf.rounds

    def keep(self, t: int, model: Arrays) -> None:
        """Keep a model as it leaves after round ``t``; later rounds and those beyond ``count`` are deleted."""
        self._shelf.put(t, model)
        self._shelf.drop(*(later for later in self.rounds() if later > t))
        self._shelf.keep_last(self.count)

    def members(self) -> Arrays:
        """The kept models with a leading axis of members, oldest first; empty where there is none."""
        models = [self._shelf.arrays(t) for t in self.rounds()]
        return stack_members(models) if models else {}


def keep_visitor(run: Path, config: Mapping[str, Any], plan: Plan, sent: Arrays, site: str) -> None:
    """Keep the model that an order has just trained, as its receivers read it, where the plan has ``keep_last``."""
    if plan.method.keep_last and config.get(LEAVES, True):
        t, model = int(config[ROUND]), split(sent, MODEL)
        read = unpack(plan, pack(plan, join(**{MODEL: model}), site, t), model)
        KeptVisitors(run / VISITORS_FOLDER, plan.method.keep_last).keep(t, split(read, MODEL))


def worth_of_visitors(run: Path, config: Mapping[str, Any], client: HospitalClient) -> dict[str, float]:
    """The metrics of a run's last visitors together on the samples held out here, at the end of the run."""
    plan, held_out = client.plan, client.home.held_out
    if not plan.method.keep_last or int(config.get(ROUND, 0)) < plan.rounds or held_out is None:
        return {}
    kept = KeptVisitors(run / VISITORS_FOLDER, plan.method.keep_last).members()
    judged = client.evaluate_members(members_of(kept, True), held_out) if kept else {}
    return {f"{KEPT}{name}": value for name, value in judged.items()}


FOLDER, ABOUT = "kept", "about"  # in the folder of a run; and there what a package of it says
OWN_MODEL, VISITORS = "own", "visitors"  # what is kept beside the common model
STAYS = {
    OWN_MODEL: "It was trained here last and holds what it learnt of patients here, before any noise was added for its "
    "way out: it stays at this site.",
    VISITORS: "They are the last models that were trained here, as they left; these copies stay at this site.",
}


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
    if what == COMMON:
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
    """A package of the run's "common", "own" or "visitors" models; None where none are kept."""
    shelf = Shelf(folder / FOLDER)
    if (about := shelf.words(ABOUT)) is None:
        return None
    record = About.model_validate_json(json.dumps(about))
    item = shelf.get(COMMON if what == VISITORS else what)
    visitors = KeptVisitors(folder / VISITORS_FOLDER, record.plan.method.keep_last or 1)
    trained = visitors.members() if what == VISITORS else item.arrays if item else {}
    if not trained:
        return None
    task, words = task_from(record.task), (item.words if item else None) or {}
    whose = {COMMON: COMMON, VISITORS: visitors_of(record.site)}.get(what, record.site)
    measured = _measured(words.get("said", {}), what)
    rounds = int(words["t"]) if record.plan.may_end_early and "t" in words else record.plan.rounds
    more = {
        "whose": whose,
        "performance": {f"held out at {record.site}": measured} if measured else {},
        "notes": (f"Run {record.run}.", *([STAYS[what]] if what in STAYS else [])),
        "rounds": rounds,
        "contacts": times_travelled(record.plan, rounds),
        "created": words.get("kept", ""),
        "versions": {"fedsmall": __version__, **{name: version(name) for name in ("torch", "numpy")}},
        "intercept": tuple(words.get("intercept", ())) if what == COMMON else (),
    }
    members = members_in(record.plan, whose, trained)
    package = describe(record.plan, task, record.preparation, TrainedOn(sites=record.sites), members, **more)
    return Stored(package, completed(record.plan, task, trained))


def _measured(metrics: Mapping[str, Any], what: str) -> dict[str, float]:
    of_visitors = {name.removeprefix(KEPT): float(value) for name, value in metrics.items() if name.startswith(KEPT)}
    of_model = {n: float(v) for n, v in metrics.items() if n != EXAMPLES and not n.startswith(KEPT)}
    return of_visitors if what == VISITORS else of_model
