"""What a run says of the privacy that its methods promise: on the terminal, in the report, and in its record."""

import io
import json

import pytest
from rich.console import Console

from fedsmall.privacy.patient_level import epsilon_of, protection_of
from fedsmall.sim.report.facts import leaves_a_site, promises
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from fedsmall.tasks import build_federation

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


def test_a_run_reports_the_range_of_its_sites_own_epsilons(run):
    plan = run.plans[1]
    held = [len(samples) for samples in build_federation(plan).train]
    epsilons = [epsilon_of([protection_of(plan, n, place, 3).charge(6)], 1e-5) for place, n in enumerate(held)]

    (by_noise,) = [text for text in promises(run) if text.startswith("by noise")]

    assert min(epsilons) < max(epsilons)
    assert f"epsilon = {min(epsilons):.3g} to {max(epsilons):.3g}, by the site, at delta = 1e-05" in by_noise
    row = json.loads((run.folder / "summary.json").read_text())[1]
    assert row["privacy"] == {"epsilon_least": min(epsilons), "epsilon": max(epsilons), "delta": 1e-5}


def test_an_epsilon_that_was_asked_for_is_kept_by_every_site(run):
    spent = run.done[2].row["privacy"]

    assert 2.99 < spent["epsilon_least"] <= spent["epsilon"] <= 3


def test_who_promises_nothing_is_not_said_to(run):
    assert {text.split(" promises")[0] for text in promises(run)} == {"by noise", "by epsilon", "site"}


def test_terminal_and_report_say_it_in_the_same_words(run):
    told = io.StringIO()
    print_run(Console(file=told, width=400), run)

    for sentence in promises(run):
        assert sentence in told.getvalue()
        assert sentence in leaves_a_site(run)


def test_what_a_site_sends_is_said_as_it_is(run):
    said = " ".join(leaves_a_site(run))

    assert "Noise is in every local step under by noise, by epsilon" in said
    assert "what leaves is clipped and noised under site" in said
    assert "other methods send the model as it was trained" in said


def test_which_models_the_server_sees_is_said_by_method(run):
    said = " ".join(leaves_a_site(run))

    assert "but for those handed on under hidden, which are sealed, and those averaged under hidden, summed," in said
    assert "the sum alone (experimental). In a simulation seals and masks are left out" in said
