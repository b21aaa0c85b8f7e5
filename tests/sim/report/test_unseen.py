"""The sentence on hospitals that took no part, and its table: from the run's own folder, and no more than is known."""

import html

import pytest

from fedsmall.sim.report.facts import expectation, unseen_sentences
from fedsmall.sim.report.html import page
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build

SCENARIO = {
    "name": "unseen", "task": "breast_cancer", "model": "linear", "sites": 6, "samples_per_site": 8, "rounds": 8,
    "seeds": [0, 1], "evaluate_every": 4, "recipe": {"lr": 0.05},
    "method": [
        {"name": "FedAvg"},
        {"name": "FedAvg", "label": "routes", "validate": {"routes": 3}},
        {"name": "FedAvg", "label": "of patients", "validate": {"routes": 8}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "r"
    execute(build(SCENARIO), folder)
    return read(folder)


def test_the_sentence_says_what_to_expect_and_on_what_it_rests(run):
    metrics = [one.row["validation"]["metrics"] for one in run.done if one.label == "routes"]
    auc = 100 * sum(each["auc"]["value"] for each in metrics) / 2

    (said, _) = unseen_sentences(run)

    assert said.startswith(f"routes: at a hospital that took no part, expect ROC-AUC {auc:.1f}% (")
    assert said.endswith(
        "; 48 samples of 6 hospitals, each judged by models that never saw its hospital, mean over 2 seeds."
    )


@pytest.mark.thorough
def test_of_fewer_hospitals_than_routes_it_speaks_of_their_own_next_patients_and_of_no_other_hospital(run):
    (_, said) = unseen_sentences(run)
    shown = html.unescape(page([run], "t"))

    assert said.startswith("of patients: at these hospitals, for patients who took no part, expect ROC-AUC ")
    assert said.endswith(
        "; 48 samples of 6 hospitals, each judged by models that never saw the patient, mean over 2 seeds."
    )
    assert (
        "At these hospitals, for patients who took no part: every patient judged by models that never saw the" in shown
    )
    assert "At a hospital that took no part: every patient judged by models that never saw its hospital" in shown
    of_patients = shown.partition("At these hospitals")[2].partition("</table>")[0]
    assert "<td>of patients</td>" in of_patients
    assert "<td>routes</td>" not in of_patients


def test_without_an_interval_none_is_told():
    alone = {"value": 0.9, "low": None, "high": None}
    found = {"metrics": {"accuracy": alone, "loss": alone}, "hospitals": {}, "samples": 9, "sites": 1}

    said = expectation([found])

    assert said == (
        "at a hospital that took no part, expect accuracy 90.0%; 9 samples of 1 hospital, each judged by models that "
        "never saw its hospital."
    )
