"""The audit that a real site can do alone: is the released model surer of patients it was trained on than of others?"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsmall.clients.kept import FOLDER, NOT_KEPT, about_kept
from fedsmall.clients.runs import scaling_of
from fedsmall.clients.shelf import Shelf
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

    Raises PlanError where it keeps none, DataError where nobody is held out.
    """
    about, model = about_kept(folder), Shelf(folder / FOLDER).arrays(GLOBAL)
    if about is None or not model:
        raise PlanError(NOT_KEPT)
    if about.plan.method.is_ensemble:
        raise PlanError("the model of this run is an ensemble; this audit holds one model against patients")
    raw = load_site(about.plan, site, data)
    train, held = raw.samples(scaling_of(folder) if raw.scaled else None)
    if held is None or not len(held):
        raise DataError(f"{site} holds nobody out, so there is nobody to compare its training patients with")
    trained, held_out = (len(np.unique(_whose(part))) for part in (train, held))
    return SiteAudit(site, trained, held_out, compare(about.plan, raw.task, model, train, held))


def compare(plan: Plan, task: Task, model: Arrays, train: Samples, held_out: Samples) -> Estimate:
    """The chance that ``model`` is surer of a patient of ``train`` than of one of ``held_out``, by means of samples."""
    x, y = np.concatenate([train.x, held_out.x]), np.concatenate([train.y, held_out.y])
    sure = Confidence(plan, task, x, y)(stacked([model], list(model)), np.arange(len(x))[None])[0]
    return area(_by_patient(sure[: len(train)], train), _by_patient(sure[len(train) :], held_out))


def _by_patient(values: np.ndarray, part: Samples) -> np.ndarray:
    _, whose = np.unique(_whose(part), return_inverse=True)
    return np.asarray(np.bincount(whose, values) / np.bincount(whose))


def _whose(part: Samples) -> np.ndarray:
    return np.arange(len(part)) if part.patients is None else part.patients
