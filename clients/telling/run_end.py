"""A run's end at a site: sums of the common model that it may tell, and what stays here for the hospital's own page."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load, save
from scipy.special import expit

from fedsmall.clients.memory import put
from fedsmall.clients.policy import Policy
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.telling.told_patients import ToldPatients
from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.data.raw_site import RawSite
from fedsmall.evaluation.outputs import probabilities
from fedsmall.federation import Task
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import is_patient_level
from fedsmall.privacy.site_level import epsilon
from fedsmall.wire import CHARGED

OWN = "own_evaluation.safetensors"  # in the folder of a run


class OwnEvaluation(NamedTuple):
    """What the common model after round ``t`` says of the site's own held-out patients; it never leaves the site.

    ``said`` are probabilities (samples, classes), or for numbers predictions (samples, outputs); ``y`` what was so.
    """

    t: int
    said: np.ndarray
    y: np.ndarray


def may_be_last(plan: Plan, t: int) -> bool:
    """Whether a run may end with the model that is judged after round ``t``: at its end, or where it ends early."""
    return t == plan.rounds or plan.stop is not None


def tellable(raw: RawSite, plan: Plan, policy: Policy, memory: Path) -> np.ndarray | None:
    """The numbers of the held-out patients of whom sums may be told, (rows,); None where none ever are.

    Of nobody for fewer patients than the policy's floor, and where the sums would be those of the answer before but for
    a few (:class:`fedsmall.clients.telling.told_patients.ToldPatients`). None where the policy lets no sums be told,
    nobody is held out, and where sites have models of their own.
    """
    held = raw.held_out
    if held is None or not policy.judge or has_own_models(plan):
        return None
    return ToldPatients(memory).rows(held.x, held.y, policy.count_floor)


def charged(log: SiteLog, run: str, plan: Plan, policy: Policy) -> dict[str, float]:
    """What a run has been charged here, as the site may tell it: counts, and what follows from counts and the plan.

    The epsilon of patient-level privacy follows from how many patients there are, and stays here.
    """
    privacy = plan.method.privacy
    if privacy is None or not privacy.counted:
        return {}
    if is_patient_level(plan):
        steps = sum(each.steps for of, each in log.charges() if of == run)
        most, told = policy.most_epsilon, {"steps": float(steps)}
    else:
        releases = sum(entry["event"] == "spent" and entry.get("run") == run for entry in log.entries())
        spent = epsilon(privacy.noise, policy.delta, releases)
        most, told = policy.budget, {"releases": float(releases), "epsilon": spent, "delta": policy.delta}
    told |= {} if most is None else {"most": most}
    return {f"{CHARGED}{name}": value for name, value in told.items() if np.isfinite(value)}


def keep_evaluation(folder: Path, t: int, answered: np.ndarray, raw: RawSite, home: SiteData) -> None:
    """Keep what a model answered for the held-out patients beside the truth, on the site's own disk.

    Of classes and labels these are probabilities, of numbers they are in their own unit; of times until an event they
    are log-odds by interval, beside the targets of those.
    """
    if raw.held_out is None or home.held_out is None or not len(raw.held_out):
        return
    y = home.held_out.y if home.task.kind == "times" else raw.held_out.y
    held = save({"t": np.array(t), "said": _said(answered, home.task), "y": np.ascontiguousarray(y)})
    put(folder / OWN, seal(held))


def _said(answered: np.ndarray, task: Task) -> np.ndarray:
    if task.kind == "labels":
        return np.asarray(expit(np.asarray(answered, dtype=np.float64)))
    if task.kind == "classes":
        return probabilities(answered, task.loss)
    mean, scale = task.unit or (0.0, 1.0)
    return np.asarray(np.asarray(answered, dtype=np.float64) * scale + mean)


def own_evaluation(folder: Path) -> OwnEvaluation | None:
    """What :func:`keep_evaluation` has kept last; None where it has kept nothing."""
    if not (folder / OWN).exists():
        return None
    held = load(opened((folder / OWN).read_bytes()))
    return OwnEvaluation(int(held["t"]), held["said"], held["y"])
