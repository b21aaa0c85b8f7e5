"""The audit that a real site can do alone: is the released model surer of patients it was trained on than of others?"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from fedsmall.data.federation import Samples, Task
from fedsmall.data.preparation import Scaling
from fedsmall.errors import DataError, PlanError
from fedsmall.extensions.audit.findings import interval
from fedsmall.extensions.audit.membership import Estimate, area
from fedsmall.extensions.audit.sightings import Confidence
from fedsmall.models.registry import completed, initial_model
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
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


def audit_own_site(folder: Path, site: str, data: Path | None) -> list[str]:
    """What :func:`hold_against` finds, in plain words."""
    return hold_against(folder, site, data).lines()


def hold_against(folder: Path, site: str, data: Path | None) -> SiteAudit:
    """Hold the model of the finished run in ``folder`` against the site's own samples; nothing is written or sent.

    Raises PlanError where the folder holds no finished run of this site, DataError where nobody is held out.
    """
    try:
        sheet = RunSheet.model_validate_json((folder / "sheet.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise PlanError(f"{folder} holds no run over real sites: it has no sheet.json that can be read") from None
    plan = sheet.plan.with_model_of(len(sheet.sites))
    if site not in sheet.sites:
        raise PlanError(f"the run was not one of {site!r}; its sites are {', '.join(sheet.sites)}")
    if plan.has_own_models:
        raise PlanError("sites of this run have models of their own, of which only a part was released")
    if plan.method.is_ensemble:
        raise PlanError("the model of this run is an ensemble; this audit holds one model against patients")
    raw = load_site(plan, site, data)
    train, held = raw.samples(_scaling(folder) if raw.scaled else None)
    if held is None or not len(held):
        raise DataError(f"{site} holds nobody out, so there is nobody to compare its training patients with")
    return SiteAudit(site, len(train), len(held), compare(plan, raw.task, _model(folder, plan, raw.task), train, held))


def compare(plan: Plan, task: Task, model: Arrays, train: Samples, held_out: Samples) -> Estimate:
    """The chance that ``model`` is surer of a sample of ``train`` than of one of ``held_out``."""
    x, y = np.concatenate([train.x, held_out.x]), np.concatenate([train.y, held_out.y])
    sure = Confidence(plan, task, x, y)(stacked([model], list(model)), np.arange(len(x))[None])[0]
    return area(sure[: len(train)], sure[len(train) :])


def _scaling(folder: Path) -> Scaling:
    try:
        scaling = json.loads((folder / "scaling.json").read_text(encoding="utf-8"))
        return Scaling(**{name: np.array(scaling[name], dtype=np.float64) for name in ("mean", "scale")})
    except (OSError, ValueError, KeyError):
        raise PlanError(f"{folder} holds no scaling.json that can be read; ask the coordinator for the run's") from None


def _model(folder: Path, plan: Plan, task: Task) -> Arrays:
    try:
        model = load((folder / "model.safetensors").read_bytes())
    except (OSError, SafetensorError):
        raise PlanError(f"{folder} holds no model.safetensors that can be read; the run is not finished") from None
    expected = initial_model(plan, task)
    alike = all(name in model and model[name].shape == array.shape for name, array in expected.items())
    if not alike or not model.keys() <= completed(plan, task, expected).keys():
        raise PlanError(f"the model in {folder} is not that of the run's plan")
    return {name: model[name] for name in expected}
