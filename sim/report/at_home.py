"""Alone or together: what each hospital has of joining, on its own held-out patients, paired over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import by_digits
from fedsmall.evaluation.statistics import ENOUGH, Comparison, interval, paired
from fedsmall.plan import Plan
from fedsmall.planning.tasks import federation_at
from fedsmall.sim.engines.at_home import ALONE, INTERCEPT, MOST_COLUMNS, OWN, TOGETHER, fit_alone
from fedsmall.sim.report.sections import Cells, Section
from fedsmall.sim.report.sentences import list_words, verb_for
from fedsmall.sim.report.tables import behind_difference, by_label
from fedsmall.sim.runs.folder import PlanRun, Run

if TYPE_CHECKING:
    from fedsmall.clients.telling import OwnEvaluation  # brings flwr

TITLE, PART = "Alone or together", "alone"
HEADS = ("method", "hospital", "alone", "together", "minus alone", "with its intercept", "minus alone")
CAPTION = (
    "Loss on each hospital's own held-out patients (lower is better), means over runs; differences with 95% intervals, "
    "seed by seed. Alone is {alone}. Its intercept is fitted by each hospital after the run, on its training patients, "
    'and never leaves it (intercepts = "hospital").'
)
RIDGE = "a ridge regression of the hospital's own training patients"
WORSE = "{label}: beyond noise {who} than alone ({alone}); with a hospital's own intercept {after}."
NOBODY = (
    "{label}: no hospital is shown to be worse off than alone ({alone}), with or without its own intercept; joining "
    "does least for {site}: {gap}, and {shifted} with its intercept."
)
HERE = (
    "On the {count} samples that this hospital holds out, a ridge regression of its own training samples has a {loss} "
    "of {alone}, and {label}, trained by all, one of {together}: {mean} ({low} to "
    "{high}, Student's t over patients); {verdict}. Nothing was sent for this."
)
FEW = "{label}: with fewer than {enough} seeds nobody can say which hospital is worse off than alone."


class Home(NamedTuple):
    """One hospital under one method: mean losses alone, together and with its intercept, and both minus alone."""

    label: str
    site: str
    alone: float
    together: float
    intercept: float
    joining: Comparison
    shifted: Comparison


def homes_of(run: Run) -> dict[str, list[Home]]:
    """The hospitals of each method that has one global model; none where they hold nobody out, or are many."""
    groups = by_label(run.done)
    own = _standalone(run)
    found = {
        label: [home for site in group[0].row["at_home"] if (home := _home(run, group, own, site))]
        for label, group in groups.items()
        if group[0].plan.method.is_federated and all(plan_run.row.get("at_home") for plan_run in group)
    }
    return {label: homes for label, homes in found.items() if homes}


def _standalone(run: Run) -> list[PlanRun]:
    groups = by_label(run.done).values()
    return next((group for group in groups if group[0].plan.method.family == "standalone"), [])


def _home(run: Run, group: Sequence[PlanRun], own: Sequence[PlanRun], site: str) -> Home | None:
    of_own = {plan_run.key: plan_run.row.get("at_home", {}).get(site, {}).get(OWN) for plan_run in own}
    rows = [(plan_run, plan_run.row["at_home"].get(site, {})) for plan_run in group]
    known = [(run_, row, of_own.get(run_.key) if own else row.get(ALONE)) for run_, row in rows if row]
    known = [entry for entry in known if entry[2] is not None]
    if not known:
        return None
    alone = [float(value or 0.0) for _, _, value in known]
    pairs = [(plan_run, plan_run) for plan_run, _, _ in known]
    shared = behind_difference(run, pairs, "loss", "plain", kept=False)
    method = group[0].plan.method
    joint = method.keeps_intercepts and not method.adds_intercepts  # a regression fits both, and has no other model
    names = (INTERCEPT if joint else TOGETHER, INTERCEPT)
    together, shifted = ([row[name] for _, row, _ in known] for name in names)
    joining, changed = (paired(values, alone, test="t", shared=shared) for values in (together, shifted))
    means = [sum(values) / len(known) for values in (alone, together, shifted)]
    return Home(group[0].label, site, means[0], means[1], means[2], joining, changed)


def sections(run: Run, labels: Sequence[str] | None = None) -> list[Section]:
    """The table with its sentences, of all methods or of some ``labels``; nothing where nobody holds patients out."""
    homes = {label: found for label, found in homes_of(run).items() if labels is None or label in labels}
    if not homes:
        return []
    rows = [_cells(home) for found in homes.values() for home in found]
    sentences = [sentence(label, found, _alone(run)) for label, found in homes.items()]
    return [Section(TITLE, PART, sentences, Cells(HEADS, rows, CAPTION.format(alone=_alone(run))))]


def sentence_at_site(plan: Plan, site: str, evaluation: "OwnEvaluation", path: Path) -> str:
    """What a real hospital has of joining: the global model against a regression of its own data, at ``path``.

    PlanError where these are not those of the run, or are no classes or numbers of few columns.
    """
    federation, (y, together) = federation_at(plan, site, path), (evaluation.y, evaluation.predictions)
    task, held, (mean, scale) = federation.task, federation.held_out[0], federation.task.unit or (0.0, 1.0)
    if task.kind not in ("classes", "numbers") or np.prod(task.input_shape) > MOST_COLUMNS:
        raise PlanError(f"leave --data out: it is for classes or a number, by at most {MOST_COLUMNS} columns")
    if held is None or len(held) != len(y) or not np.allclose(held.y * scale + mean, y, atol=1e-4):
        raise PlanError(f"{path} does not hold the samples that {site} held out in this run")
    alone, each = fit_alone(federation.train[0], held.x, task), (np.arange(len(y)), y)
    if task.kind == "numbers":
        loss, errors = "mean absolute error", [np.abs(a - y).mean(axis=1) for a in (alone * scale + mean, together)]
    else:
        loss, errors = "log loss", [-alone[each], -np.log(np.clip(together[each], 1e-12, None))]
    _, whose = np.unique(evaluation.beside.get("patients", each[0]), return_inverse=True)
    gap = interval(np.bincount(whose, errors[1] - errors[0]) / np.bincount(whose))
    verdict = "joining gains" if gap.high < 0 else "joining costs" if gap.low > 0 else "they cannot be told apart"
    told = {"alone": by_digits(errors[0].mean()), "together": by_digits(errors[1].mean())}
    told |= {name: by_digits(getattr(gap, name), sign="+") for name in ("mean", "low", "high")}
    return HERE.format(count=len(y), loss=loss, label=plan.method.label, verdict=verdict, **told)


def _alone(run: Run) -> str:
    own = _standalone(run)
    return own[0].label if own else RIDGE


def _cells(home: Home) -> list[str]:
    alone, together, intercept = (f"{value:.3f}" for value in (home.alone, home.together, home.intercept))
    return [home.label, home.site, alone, together, _gap(home.joining), intercept, _gap(home.shifted)]


def _gap(lead: Comparison) -> str:
    gap = lead.difference
    ends = "" if gap.low != gap.low else f" ({gap.low:+.3f} to {gap.high:+.3f})"
    return f"{gap.mean:+.3f}{ends}"


def sentence(label: str, homes: Sequence[Home], alone: str) -> str:
    """Who is worse off together than alone beyond noise, as one of all these comparisons, or that nobody is."""
    if min(home.joining.difference.n for home in homes) < ENOUGH:
        return FEW.format(label=label, enough=ENOUGH)
    worse = [home.site for home in homes if _is_worse(home.joining, 2 * len(homes))]
    still = [home.site for home in homes if _is_worse(home.shifted, 2 * len(homes))]
    if not worse and not still:
        most = max(homes, key=lambda home: home.joining.difference.mean)
        gaps = {"gap": _gap(most.joining), "shifted": _gap(most.shifted)}
        return NOBODY.format(label=label, alone=alone, site=most.site, **gaps)
    who = f"{list_words(worse)} {verb_for(worse)} worse off" if worse else "nobody is worse off"
    after = f"{list_words(still)} {verb_for(still)}" if still else "nobody is"
    return WORSE.format(label=label, who=who, alone=alone, after=after)


def _is_worse(lead: Comparison, comparisons: int) -> bool:
    return lead.decides(comparisons) and lead.difference.mean > 0
