"""The part of a run's page that statisticians read: coefficients with intervals, p-values and ratios."""

import numpy as np
from markupsafe import Markup

from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.inference import Table, contrasts, wald
from fedsmall.extensions.regression.trainer import settings_of, setup_for
from fedsmall.package.store import Stored
from fedsmall.sim.report.sections import Cells, Section, show
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run

RATIOS = {
    "logistic": "odds ratio",
    "softmax": "odds ratio",
    "ordinal": "odds ratio",
    "hazard": "hazard ratio",
    "poisson": "rate ratio",
}
CAPTION = (
    "{} (seed {}): penalty {:g}. By one standard deviation of a column; intervals are 95%, Wald's{}{}. Of columns that "
    "were chosen by these patients they are too short."
)
PENALISED = "; under a penalty those of the posterior for which it is the prior"
LEAST = 1e-4


def part(run: Run, name: str) -> Markup:
    """A table for each regression on columns as they are, of its first seed; nothing for others."""
    runs = [group[0] for group in by_label(run.done).values() if is_shown(run, group[0])]
    return show([Section("Coefficients" if not k else "", table=table(run, of)) for k, of in enumerate(runs)], name)


def is_shown(run: Run, plan_run: PlanRun) -> bool:
    """Whether a run is of a regression whose coefficients are those of columns, and is kept."""
    settings = plan_run.plan.method.regression
    noised = plan_run.plan.privacy.is_patient_level  # coefficients of least squares, of which no errors are known
    return settings is not None and settings.basis == "linear" and not noised and run.has_packages(plan_run)


def table(run: Run, plan_run: PlanRun) -> Cells:
    """The coefficients of one run."""
    stored, task = run.packages_of(plan_run)[0], run.about["task"]
    names = list(task.get("feature_names") or ()) or [
        f"column {k + 1}" for k in range(int(np.prod(task["input_shape"])))
    ]
    family, penalty, found = inference_of(stored, plan_run)
    classes = [f"{name}, " for name in task.get("class_names", ())[1:]] if family == "softmax" else [""]
    rows = [row(f"{of}{name}", found, k, family) for k, (of, name) in enumerate((c, n) for c in classes for n in names)]
    settings = settings_of(plan_run.plan)
    caption = CAPTION.format(
        plan_run.label,
        plan_run.plan.seed,
        penalty,
        ", robust by site" if settings.robust else ", Firth's" if settings.firth else "",
        PENALISED if penalty and not settings.robust else "",
    )
    heads = [
        "column",
        "coefficient",
        "standard error",
        "95% interval",
        "p",
        *([RATIOS[family]] if family in RATIOS else []),
    ]
    return Cells(heads, rows, caption)


def inference_of(stored: Stored, plan_run: PlanRun) -> tuple[str, float, Table]:
    """The family, the penalty and the table of slopes; of several classes, each against the first."""
    weights, plan = stored.weights, plan_run.plan.with_model_of(stored.package.trained_on.sites)
    setup, status = setup_for(plan, weights), weights[form.STATUS]
    theta = form.theta_of(weights)[int(status[form.CHOSEN]) * (setup.folds + 1)]
    covariance, slopes = weights[form.COVARIANCE].astype(np.float64), setup.columns - 1
    found = wald(theta, covariance, float(status[form.FREEDOM]) or np.inf)
    if setup.family == "softmax":
        against = np.eye(setup.predictors)[1:] - np.eye(setup.predictors)[0]
        which = np.kron(against, np.eye(setup.columns)[:-1])
        return setup.family, setup.penalties[int(status[form.CHOSEN])], contrasts(found, covariance, which)
    return setup.family, setup.penalties[int(status[form.CHOSEN])], Table(*(part[:slopes] for part in found))


def row(name: str, found: Table, k: int, family: str) -> list[str]:
    """One coefficient in words."""
    if found.undetermined[k]:
        return [name, "not determined: no values, or classes that it separates"]
    small = found.p[k] < LEAST
    cells = [name, f"{found.estimate[k]:.3f}", f"{found.error[k]:.3f}", f"{found.low[k]:.3f} to {found.high[k]:.3f}"]
    cells.append(f"< {LEAST:g}" if small else f"{found.p[k]:.4f}")
    ratio, low, high = (values[k] for values in found.ratios)
    return [*cells, *([f"{ratio:.3f} ({low:.3f} to {high:.3f})"] if family in RATIOS else [])]
