"""The audit that a real site can do alone: is the released model surer of patients it was trained on than of others?"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsmall.audit_log import digest_of
from fedsmall.clients.kept import FOLDER, NOT_KEPT
from fedsmall.clients.runs import check_same_data, scaling_of
from fedsmall.clients.shelf import Shelf
from fedsmall.clients.site_request import read_agreed
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import DataError, PlanError
from fedsmall.extensions.audit.findings import interval
from fedsmall.extensions.audit.membership import Estimate, area
from fedsmall.extensions.audit.sightings import Confidence
from fedsmall.package.record import GLOBAL
from fedsmall.plan import Plan
from fedsmall.planning.tasks import load_site
from fedsmall.training.stack import stacked
from fedsmall.wire import Arrays

UNDECIDED = 0.5  # an interval wider than this says nothing


class SiteAudit(NamedTuple):
    """What a site found: ``auc`` is the chance that the model is surer of a training patient than of a held-out one."""

    site: str
    trained: int
    held_out: int
    auc: Estimate

    def lines(self) -> list[str]:
        """What it means, in plain words."""
        verdict = (
            "No difference was seen. That is no proof: an attacker who plays federations of his own "
            "(`fedsmall audit`) sees more than this one does."
        )
        if self.auc.width > UNDECIDED:
            verdict = (
                f"The interval is wider than {UNDECIDED:g}: with so few patients this cannot be decided. "
                "`fedsmall audit` with the same recipe gives a figure that can."
            )
        elif self.auc.low > 0.5:
            verdict = "Whoever has the model can tell better than by chance who of this site was in the data."
        trained = f"{self.site}: {self.trained} patients that the model was trained on, {self.held_out} held out"
        return [f"{trained}; AUC {interval(self.auc)}", verdict]


def hold_against(folder: Path, site: str, data: Path | None) -> SiteAudit:
    """Hold the global model that a site keeps in a run's ``folder`` against its own patients; nothing leaves it.

    Raises PlanError where it keeps none, DataError where nobody is held out, or the data are others now.
    """
    agreed, model = read_agreed(folder), Shelf(folder / FOLDER).arrays(GLOBAL)
    if agreed is None or not (model or agreed.plan.has_own_models):
        raise PlanError(NOT_KEPT)
    plan = agreed.plan.with_model_of(len(agreed.sites))
    if plan.has_own_models:
        raise PlanError("sites of this run have models of their own, of which only a part was released")
    if plan.method.is_ensemble:
        raise PlanError("the model of this run is an ensemble; this audit holds one model against patients")
    raw = load_site(plan, site, data)
    check_same_data(folder, digest_of({"x": raw.train.x, "y": raw.train.y}))
    train, held = raw.samples(scaling_of(folder) if raw.scaled else None)
    if held is None or not len(held):
        raise DataError(f"{site} holds nobody out, so there is nobody to compare its training patients with")
    trained, held_out = (sureness_by_patient(plan, raw.task, model, part) for part in (train, held))
    return SiteAudit(site, len(trained), len(held_out), area(trained, held_out))


def sureness_by_patient(plan: Plan, task: Task, model: Arrays, part: Samples) -> np.ndarray:
    """How sure ``model`` is of what each patient has, (patients,): the mean over the patient's samples."""
    sure = Confidence(plan, task, part.x, part.y)(stacked([model], list(model)), np.arange(len(part))[None])[0]
    whose = np.arange(len(part)) if part.patients is None else np.unique(part.patients, return_inverse=True)[1]
    return np.asarray(np.bincount(whose, sure) / np.bincount(whose))
