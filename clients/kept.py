"""The models that a site keeps of a run, as packages on its own disk: it can use them without the coordinator."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from clients.upkeep.at_rest import opened, seal
from fedsmall import __version__
from fedsmall.data.raw_site import RawSite
from fedsmall.data.standardise import Scaling
from fedsmall.errors import PlanError
from fedsmall.evaluation.ensembles import members_of
from fedsmall.models.own_models import has_own_models
from fedsmall.models.registry import completed, initial_model
from fedsmall.package.record import COMMON, TrainedOn, describe
from fedsmall.package.store import Stored, read, save
from fedsmall.plan import Plan
from fedsmall.schedule import contacts_of
from fedsmall.wire import EXAMPLES, KEPT, Arrays

FOLDER = "packages"  # in the folder of a run
STAYS = (
    "It was trained here last and holds what it learnt of patients here, before any noise was added for its way out: "
    "it stays at this site."
)


class Place(NamedTuple):
    """Where and for whom models are kept: the folder of a run, its name, the site's data, and how many sites it has."""

    folder: Path
    run: str
    raw: RawSite
    scaling: Scaling | None
    sites: int


def keep(at: Place, plan: Plan, whose: str, model: Arrays, said: Mapping[str, Any]) -> None:
    """Keep a model of ``plan``, the common one or the site's own, unless it is only a part of one.

    ``said`` is what the site answered about it. Of its data a package says how many sites there were: this site knows
    the counts of no other. Raises PlanError for arrays that are not the plan's model.
    """
    if has_own_models(plan):
        return
    measured = {name: float(value) for name, value in said.items() if name != EXAMPLES and not name.startswith(KEPT)}
    several = plan.method.is_ensemble and whose == COMMON
    _check(plan, at.raw, members_of(model, several))
    more = {
        "whose": whose,
        "performance": {f"held out at {at.raw.name}": measured} if measured else {},
        "notes": (f"Run {at.run}.", *([] if whose == COMMON else [STAYS])),
        "rounds": plan.rounds,
        "contacts": sum(contact.travels for contact in contacts_of(plan)),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"fedsmall": __version__, **{name: version(name) for name in ("torch", "numpy")}},
    }
    prepared = at.raw.preparation.with_scaling(at.scaling)
    members = len(next(iter(model.values()))) if several else None
    package = describe(plan, at.raw.task, prepared, TrainedOn(sites=at.sites), members, **more)
    save(_folder(at.folder, whose), package, completed(plan, at.raw.task, model), seal)


def kept(folder: Path, whose: str) -> Stored | None:
    """The model of a run that a site has kept, or None. ``folder`` is the run's."""
    path = _folder(folder, whose)
    return read(path, opened) if path.is_dir() else None


def _folder(folder: Path, whose: str) -> Path:
    return folder / FOLDER / ("common" if whose == COMMON else "own")


def _check(plan: Plan, raw: RawSite, members: list[Arrays]) -> None:
    expected = {name: array.shape for name, array in initial_model(plan, raw.task).items()}
    for member in members:
        if {name: array.shape for name, array in member.items()} != expected:
            raise PlanError("the model that came is not that of the plan")
