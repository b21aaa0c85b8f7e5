"""What a run says of the privacy that its methods promise: on the terminal, in the report, and in its record."""

import json

import numpy as np
import pytest

from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.patient_level import epsilon_of, protection_of
from fedsmall.sim.report.facts import promises
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build

METHODS = [
    {"name": "FedAvg", "label": "open", "aggregate_every": 2},
    {"name": "FedDC", "label": "by noise", "privacy": {"level": "patient", "clip": 1.0, "noise": 3.0, "lot": 8}},
    {"name": "FedDC", "label": "by epsilon", "privacy": {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 8}},
    {"name": "FedDC", "label": "hidden", "aggregate_every": 3, "privacy": {"sealed": True, "secure": True, "blur": 1}},
    {"name": "FedAvg", "label": "summed", "privacy": {"secure": True}},
    {"name": "FedAvg", "label": "site", "aggregate_every": 2, "privacy": {"clip": 1.0, "noise": 9.0}},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    table = {
        "name": "promises",
        "task": "breast_cancer",
        "model_options": {"hidden": [4]},
        "sites": 3,
        "partition": {"sizes": [20, 40, 80]},
        "rounds": 6,
        "method": METHODS,
    }
    return execute(build(table), tmp_path_factory.mktemp("run") / "r")


@pytest.mark.thorough
def test_a_run_reports_the_range_of_its_sites_own_epsilons(run):
    plan = run.plans[1]
    held = [len(samples) for samples in build_federation(plan).train]
    epsilons = [epsilon_of([protection_of(plan, np.ones(n), place, 3).charge(6)], 1e-5) for place, n in enumerate(held)]

    (by_noise,) = [text for text in promises(run) if text.startswith("by noise")]

    assert min(epsilons) < max(epsilons)
    assert f"epsilon = {min(epsilons):.3g} to {max(epsilons):.3g}, by the site, at delta = 1e-05" in by_noise
    row = json.loads((run.folder / "summary.json").read_text())[1]
    assert row["privacy"] == {"epsilon_least": min(epsilons), "epsilon": max(epsilons), "delta": 1e-5}


@pytest.mark.thorough
def test_an_epsilon_that_was_asked_for_is_kept_by_every_site(run):
    spent = run.done[2].row["privacy"]

    assert 2.99 < spent["epsilon_least"] <= spent["epsilon"] <= 3


def test_a_page_with_a_regression_counts_the_numbers_of_the_networks_and_names_its_sums_and_the_noise(tmp_path):
    blurred = {"name": "FedDC", "privacy": {"blur": 1}}
    table = {"name": "t", "task": "breast_cancer", "model": "linear", "sites": 4, "rounds": 3}
    run = execute(build({**table, "method": [{"name": "Ridge"}, blurred, {"name": "FedAvg"}]}), tmp_path / "run")

    page = write_report(tmp_path / "run", [run], "t").read_text()

    assert "a site sends its trained model (62 numbers, 248 B), under Ridge sums over its rows, the number" in page
    assert "<b>Measures</b>: Noise without a guarantee is on what leaves under FedDC (blur);" in page
