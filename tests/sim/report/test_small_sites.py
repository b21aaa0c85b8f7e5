"""Hospitals that cannot show a measure: of one class, of two rows, with nobody held out. Each run has its report."""

import numpy as np
import pytest

from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.evaluation.metrics import metrics_of
from fedsmall.sim.report.html import page, site_by_site
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario
from tests.sim.engines import test_outcomes as sources
from tests.sim.report.test_html import Nesting

KINDS = {
    "classes": ("linear", "cross_entropy"),
    "grades": ("proportional", "ordinal"),
    "numbers": ("linear", "mse"),
    "times": ("proportional", "hazard"),
    "labels": ("linear", "binary_cross_entropy"),
}
CHEAP = {("classes", "auc"), ("times", "c_index"), ("labels", "auc")}
CASES = [
    pytest.param(kind, metric, marks=() if (kind, metric) in CHEAP else pytest.mark.slow)
    for kind, (_, loss) in KINDS.items()
    for metric in metrics_of(loss)
]


def classes(root, seed):
    rows = sources.grades(root, seed).train[NOWHERE]
    return Pool({NOWHERE: Part(rows.x, rows.y // 2)}, ("no", "yes"), {}, sources.FEATURES, standardise=True)


def hospitals(kind: str):
    """The samples of a kind at five hospitals: two ordinary, one of a single outcome, of two rows, of one."""

    def source(root, seed):
        pool = classes(root, seed) if kind == "classes" else getattr(sources, kind)(root, seed)
        rows = pool.train[NOWHERE]
        bounds = {"ample": (0, 50), "enough": (50, 90), "one": (119, 120), "single": (90, 117), "two": (117, 119)}
        parts = {name: rows[np.arange(*ends)] for name, ends in bounds.items()}
        least = rows.y.min(axis=0) if kind != "times" else [12.0, 0.0]
        parts["single"] = Part(parts["single"].x, np.full_like(parts["single"].y, least))
        return Pool(parts, pool.class_names, {}, pool.feature_names, True, loss=pool.loss, outcome=pool.outcome)

    return source


of_classes, of_grades, of_numbers, of_times, of_labels = map(hospitals, KINDS)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "metric"), CASES)
def test_a_measure_that_a_hospital_cannot_show_is_said_to_be_not_estimable(kind, metric):
    scenario = Scenario(
        name="small",
        task={"source": f"{__name__}:of_{kind}"},
        model=KINDS[kind][0],
        metric=metric,
        rounds=2,
        seeds=[0, 1],
        method=[{"name": "Standalone"}, {"name": "FedAvg"}, {"name": "Central"}],
    )

    run = execute(scenario)
    html = page([run], kind)

    parser = Nesting()
    parser.feed(html)
    found = site_by_site(run, table(run).metric)["FedAvg"]
    assert table(run).metric == metric
    assert found["ample"] is not None
    assert ("<td>not estimable</td>" in html) == (None in found.values())  # of hospitals; a class may have small ones
    assert (None in found.values()) or metric not in ("auc", "c_index", "r2")
