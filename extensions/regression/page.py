"""The part of a run's page that statisticians read: coefficients with intervals, p-values and ratios."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from markupsafe import Markup

from fedsmall.data.federation import task_from
from fedsmall.data.outcomes import Amount
from fedsmall.data.preparation import Columns, Scaling
from fedsmall.evaluation.metrics import by_digits
from fedsmall.extensions.regression import forest
from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.inference import Fitted, Table, likelihood_ratio, wald, without_free
from fedsmall.extensions.regression.terms import terms_of
from fedsmall.extensions.regression.trainer import settings_of, setup_for
from fedsmall.package.store import Stored
from fedsmall.sim.report.sections import Cells, Section, show
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run

RATIOS = {**dict.fromkeys(("logistic", "softmax", "ordinal"), "odds ratio"), "poisson": "rate ratio"}
RATIOS |= dict.fromkeys(("hazard", "cox"), "hazard ratio")
AGAIN = ', or with several samples of one (robust = "patients" is for these)'
ROBUST = {False: "", True: ", robust by site", "patients": ", robust by patient"}
CAPTION = (
    "{} (seed {}): penalty {:g}. By one standard deviation, in brackets, of a column or of its public range evenly "
    "filled, or for its values; intervals are 95%, Wald's{}{}. They are too short of columns chosen by these "
    "patients{}."
)
OF_RATIOS = (
    "Wilks' test of the added terms together, on the training samples of both: its chi-squared is twice the gain in "
    "log-likelihood (of a number with normal errors of an unknown variance)."
)
PENALISED = "; under a penalty those of the posterior for which it is the prior"
LEAST = 1e-4
CODED = 1e-9  # what a variance is off p (1 - p) where all values of a column are 0 or 1
NONE = 1e-4  # relative to what is compared: an error of rounding


def part(run: Run, name: str) -> Markup:
    """A table for each regression on columns as they are, of its first seed; nothing for others.

    Where hospitals' own fits were kept, their meta-analysis stands beside the first that is of all of them.
    """
    runs = [group[0] for group in by_label(run.done).values() if is_shown(run, group[0])]
    sections = [Section("Coefficients" if not k else "", table=table(run, of)) for k, of in enumerate(runs)]
    return show([*sections, *nested(run, runs), *one_by_one(run, runs)], name)


def nested(run: Run, runs: Sequence[PlanRun]) -> list[Section]:
    """A likelihood-ratio test of every two regressions without a penalty of which one has terms beyond the other's."""
    rows = []
    for small, large in permutations(runs, 2):
        if (added := terms_added(run, small, large)) is not None:
            fewer, more = (loss_of(run.packages_of(of)[0], of) for of in (small, large))
            if more.slopes == fewer.slopes:  # the added terms follow from the others
                continue
            statistic, p = likelihood_ratio(more, fewer)
            cells = [large.label, small.label, ", ".join(added), f"{statistic:.2f}", str(more.slopes - fewer.slopes)]
            rows.append([*cells, _p_value(p)])
    heads = ["model", "nested in it", "terms added", "chi-squared", "degrees of freedom", "p"]
    return [Section("Likelihood-ratio tests", table=Cells(heads, rows, OF_RATIOS))] if rows else []


def terms_added(run: Run, small: PlanRun, large: PlanRun) -> list[str] | None:
    """The terms that a regression has beyond another's that is nested in it; None where it is not, or has a penalty."""
    settings = [settings_of(of.plan) for of in (small, large)]
    apart = [of.model_copy(update={"terms": None}) for of in settings]
    alike = apart[0] == apart[1] and small.plan.recipe == large.plan.recipe
    if not alike or settings[0].penalty != 0 or settings[0].firth or not large.plan.method.is_federated:
        return None
    fewer, more = (terms_of(task_from(run.about["task"]), of).names for of in settings)
    return [name for name in more if name not in fewer] if set(fewer) < set(more) else None


def loss_of(stored: Stored, plan_run: PlanRun) -> Fitted:
    """What a likelihood-ratio test takes of a fit without a penalty."""
    family, *_, slopes = inference_of(stored, plan_run)
    status = stored.weights[form.STATUS]
    weight = float(status[form.FREEDOM]) + slopes + 1 if family == "linear" else None
    return Fitted(status[form.LOSS] / form.ONE_OF_LOSS, slopes, weight)


def one_by_one(run: Run, runs: Sequence[PlanRun]) -> list[Section]:
    """The meta-analysis of hospitals' own fits beside the joint one, where a run has kept both; else nothing."""
    joint = next((of for of in runs if of.plan.method.is_federated), None)
    alone = next((of for of in runs if of.plan.method.family == "standalone"), None)
    if joint is None or alone is None or settings_of(alone.plan).terms != settings_of(joint.plan).terms:
        return []
    if len(sites := run.packages_of(alone)) < forest.LEAST:
        return []
    family, _, of_all, _ = inference_of(run.packages_of(joint)[0], joint)
    own = {stored.package.whose: inference_of(stored, alone) for stored in sites}
    penalty = float(np.mean([of for _, of, *_ in own.values()]))
    names = names_of(run, joint, family)
    unit = unit_of(run.packages_of(joint)[0], family)
    return [forest.section(names, of_all, {site: found for site, (*_, found, _) in own.items()}, penalty, unit)]


def names_of(run: Run, plan_run: PlanRun, family: str) -> list[str]:
    """What each row is called: a term, or a value of a category; of several classes behind the class."""
    rows = rows_of(run.packages_of(plan_run)[0], plan_run)
    classes = [f"{name}, " for name in run.about["task"].get("class_names", ())[1:]] if family == "softmax" else [""]
    return [f"{of}{name}" for of in classes for name in rows]


def rows_of(stored: Stored, plan_run: PlanRun) -> dict[str, np.ndarray]:
    """Of which coefficients each row of the page is made, (terms,) by its name.

    A column is by one standard deviation, which its name says, and one of 0 and 1 by 1. A value of a category is held
    against the first or against none of those listed: coefficients of values that exclude each other say nothing alone.
    """
    names = terms_of(stored.package.learns, settings_of(plan_run.plan)).names
    terms = dict(zip(names, np.eye(len(names)), strict=True))
    prepared = stored.package.preparation
    if not isinstance(form := prepared.form, Columns):
        return terms
    scaling = prepared.scaling or Scaling(np.zeros(prepared.shape), np.ones(prepared.shape))
    mean, spread = (dict(zip(form.feature_names, of.tolist(), strict=True)) for of in (scaling.mean, scaling.scale))
    rows: dict[str, np.ndarray] = {}
    for term, made in terms.items():
        column, _, value = term.partition("=")
        alike = [f"{column}={other}" for other in form.categories.get(column, ())]
        if term not in spread:  # a product
            rows[term] = made
        elif not alike and abs(spread[term] ** 2 - mean[term] * (1 - mean[term])) < CODED:
            rows[f"{term}: 1 against 0"] = made / spread[term]
        elif not alike:
            rows[f"{term} (by {by_digits(spread[term], 3)})"] = made
        elif not terms.keys() >= set(alike) or 0 < sum(mean[other] for other in alike) < 1 - NONE:
            rows[f"{column}: {value} against others"] = made / spread[term]
        elif term != alike[0]:
            first = form.categories[column][0]
            rows[f"{column}: {value} against {first}"] = made / spread[term] - terms[alike[0]] / spread[alike[0]]
    return rows


def is_shown(run: Run, plan_run: PlanRun) -> bool:
    """Whether a run is of a regression whose coefficients are those of columns, and is kept."""
    settings = plan_run.plan.method.regression
    noised = plan_run.plan.privacy.is_patient_level  # coefficients of least squares, of which no errors are known
    return settings is not None and settings.basis == "linear" and not noised and run.has_packages(plan_run)


def table(run: Run, plan_run: PlanRun) -> Cells:
    """The coefficients of one run."""
    stored = run.packages_of(plan_run)[0]
    family, penalty, found, _ = inference_of(stored, plan_run)
    found = found.times(unit_of(stored, family))
    rows = [row(name, found, k, family) for k, name in enumerate(names_of(run, plan_run, family))]
    settings = settings_of(plan_run.plan)
    where = f", trained at {stored.package.whose} alone" * (not plan_run.plan.method.is_federated)
    caption = CAPTION.format(
        plan_run.label + where + f", of {stored.package.target} in its unit" * (family == "linear"),
        plan_run.plan.seed,
        penalty,
        ROBUST[settings.robust] or ", Firth's" * settings.firth,
        PENALISED if penalty and not settings.robust else "",
        "" if settings.robust else AGAIN,
    )
    heads = ["column", "coefficient", "standard error", "95% interval", "p", *filter(None, [RATIOS.get(family)])]
    return Cells(heads, rows, caption)


def unit_of(stored: Stored, family: str) -> float:
    """In which unit coefficients are shown: that of the number predicted, which is scaled where it is fitted."""
    outcome = stored.package.preparation.outcome
    return outcome.mean_and_scale[1] if family == "linear" and isinstance(outcome, Amount) else 1.0


def inference_of(stored: Stored, plan_run: PlanRun) -> tuple[str, float, Table, int]:
    """The family, the penalty, the table of slopes, of several classes each against the first, and their rank.

    Nothing is told of a slope of which samples determine a sum with others alone, as of columns that say the same.
    """
    weights, plan = stored.weights, plan_run.plan.with_model_of(stored.package.trained_on.sites)
    setup, status = setup_for(plan, weights), weights[form.STATUS]
    theta = form.theta_of(weights)[int(status[form.CHOSEN]) * (setup.folds + 1)]
    (covariance, free), slopes = without_free(weights[form.COVARIANCE].astype(np.float64)), setup.columns - 1
    is_softmax = setup.family == "softmax"
    which = np.zeros((len(rows := rows_of(stored, plan_run)), setup.columns if is_softmax else len(theta)))
    which[:, :slopes] = list(rows.values())
    if is_softmax:
        which = np.kron(np.eye(setup.predictors)[1:] - np.eye(setup.predictors)[0], which)
    size = np.maximum(np.abs(which).max(axis=1, keepdims=True), np.finfo(float).tiny)
    lost = which @ free @ free.T / size
    rank = np.linalg.matrix_rank(which / size - lost, NONE)
    which[np.abs(lost).max(axis=1) > NONE] = 0
    found = wald(which @ theta, which @ covariance @ which.T, float(status[form.FREEDOM]) or np.inf)
    return setup.family, setup.penalties[int(status[form.CHOSEN])], found, int(rank)


def row(name: str, found: Table, k: int, family: str) -> list[str]:
    """One coefficient in words."""
    if found.undetermined[k]:
        return [name, "not determined: no values, what other columns say, or classes that it separates"]
    estimate, error, low, high = (f"{of[k]:.3f}" if family in RATIOS else by_digits(of[k]) for of in found[:4])
    cells = [name, estimate, error, f"{low} to {high}", _p_value(found.p[k])]
    ratio, low, high = (values[k] for values in found.ratios)
    return [*cells, *([f"{ratio:.3f} ({low:.3f} to {high:.3f})"] if family in RATIOS else [])]


def _p_value(p: float) -> str:
    return f"< {LEAST:g}" if p < LEAST else f"{p:.4f}"
