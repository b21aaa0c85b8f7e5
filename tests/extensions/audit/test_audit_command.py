import json
from types import SimpleNamespace

import pytest
from markupsafe import escape

from fedsmall.extensions.audit.by_likelihood import Explained
from fedsmall.extensions.audit.findings import explanation, page, read, sentences
from tests.sim.runs.scenarios import SMALL, write

QUICK = ("--runs", "8", "--out", "out")


@pytest.fixture
def audited(fedsmall, tmp_path):
    return fedsmall("audit", write(tmp_path, SMALL), *QUICK)


@pytest.mark.thorough
def test_an_audit_prints_tables_and_sentences_and_leaves_a_record(audited, tmp_path):
    code, said, complained = audited

    assert (code, complained) == (0, "")
    assert "8 federations of 5 sites; 30 candidates" in said
    assert "another hospital, all it receives" in said
    assert "A hospital that writes down what it is sent" in said
    assert "Not attacked: Central: it pools all patients" in said
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert {row["method"] for row in record["findings"]} == {"Standalone", "FedAvg, b = 3", "FedAvg, b = 1", "FedDC"}
    assert 0 <= record["findings"][0]["auc"]["low"] <= record["findings"][0]["auc"]["value"] <= 1


@pytest.mark.thorough
def test_the_page_holds_every_finding_and_needs_nothing_else(audited, tmp_path):
    audit = read(tmp_path / "out")
    html = (tmp_path / "out" / "audit.html").read_text()

    assert html == page(audit)
    assert all(escape(line) in html for method in audit.methods for line in sentences(audit.of(method)))
    assert "<script" not in html
    assert str(tmp_path) not in html


@pytest.mark.thorough
def test_a_record_is_repeated_from_its_own_scenario(audited, fedsmall, tmp_path):
    fedsmall("audit", "out/scenario.toml", "--runs", "8", "--out", "again")

    assert read(tmp_path / "again").findings == read(tmp_path / "out").findings


@pytest.mark.thorough
def test_one_method_alone_can_be_attacked(fedsmall, tmp_path):
    code, said, _ = fedsmall("audit", write(tmp_path, SMALL), *QUICK, "--method", "FedDC", "--colluders", "2")

    assert code == 0
    assert "FedAvg" not in said
    assert "2 hospitals that put together what they are sent" in said


@pytest.mark.thorough
def test_several_models_that_answer_together_are_left_out_and_it_is_said(fedsmall, tmp_path):
    groups = SMALL.replace('name = "FedDC"', 'name = "TravellingGroups"\ngroups = 2')
    code, said, _ = fedsmall("audit", write(tmp_path, groups), *QUICK)

    assert code == 0
    assert "are not attacked yet" in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--method", "FedDD"), "no method of this scenario has the label 'FedDD'. Did you mean 'FedDC'?"),
        (("--runs", "7"), "7 is not in the range x>=8"),
        (("--colluders", "1"), "1 is not in the range x>=2"),
        (("--set", "model=nonsense"), "There is no model 'nonsense'"),
        (("--set", "samples_per_site=200"), "there are 427"),
    ],
)
def test_what_cannot_be_audited_is_told_in_one_line(fedsmall, tmp_path, arguments, told):
    code, _, complained = fedsmall("audit", write(tmp_path, SMALL), *arguments)

    assert code == 2
    assert told in complained
    assert complained.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_the_audit_of_a_run_is_a_section_of_its_report(fedsmall, tmp_path):
    fedsmall("run", write(tmp_path, SMALL), "--set", "seeds=[0]", "--engine", "inprocess", "--out", "run")
    before = (tmp_path / "run" / "report.html").read_text()

    code, said, _ = fedsmall("audit", "run", "--runs", "8", "--method", "FedDC")

    assert code == 0
    assert "Report: run/report.html" in said
    after = (tmp_path / "run" / "report.html").read_text()
    assert all(
        escape(line) in after and escape(line) not in before
        for line in sentences(read(tmp_path / "run" / "audit").findings)
    )
    fedsmall("report", "run")
    assert (tmp_path / "run" / "report.html").read_text() == after


def test_a_record_is_never_written_over(fedsmall, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "audit.json").write_text("{}")

    code, _, complained = fedsmall("audit", write(tmp_path, SMALL), *QUICK)

    assert code == 2
    assert "holds files already" in complained


def test_a_folder_without_an_audit_is_told_so(tmp_path):
    with pytest.raises(ValueError, match="holds no audit"):
        read(tmp_path)


@pytest.mark.parametrize("unit", [1.0, 3e-10, 4e5])
def test_what_a_likelihood_leaves_is_told_beside_what_the_true_records_leave_in_whatever_unit(unit):
    """Where no noise is added, there is none to reckon in: "3173402.890 of the noise" was said of 3% of the updates."""
    found = Explained(patients=40, close=0, error=0.61, named=25, misfit=2.5 * unit, at_truth=unit)

    line = explanation(SimpleNamespace(explained={"FedDC": found}), "FedDC")

    assert "it leaves 2.5 times as much unexplained as the true records do" in line
