"""Three hospitals' OMOP databases, from a query to a report."""

import pytest

from examples.omop.sample import QUERY, SITES, write_sample
from fedsmall.data.table_files import read_table
from tests import ROOT


def test_the_query_gives_one_row_for_each_patient_of_the_cohort(tmp_path):
    write_sample(tmp_path / "omop", people=60)

    frames = [read_table(tmp_path / "omop" / f"{site}.sql") for site in SITES]

    for frame in frames:
        assert frame["person_id"].is_unique
        assert 20 < len(frame) < 60
        assert frame["age"].min() >= 19
        assert set(frame["admitted"]) == {0, 1}
    assert len({len(frame) for frame in frames}) > 1


def test_the_sample_is_the_same_for_a_seed_and_another_for_another(tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        write_sample(tmp_path / name, people=20, seed=seed)

    one, same, other = (read_table(tmp_path / name / "ulm.sql") for name in ("one", "same", "other"))

    assert one.equals(same)
    assert not one.equals(other)


@pytest.mark.thorough
def test_three_databases_become_a_report(fedsmall, tmp_path):
    write_sample(tmp_path / "omop")
    text = (ROOT / "examples" / "omop" / "readmission.toml").read_text()
    (tmp_path / "short.toml").write_text(text.replace("[0, 1, 2]", "[0]").replace("rounds = 60", "rounds = 20"))

    code, said, _ = fedsmall("run", "short.toml", "--out", "run", "--processes", "1")

    assert code == 0
    assert "logistic regression, pooled" in said
    assert "bonn" in (tmp_path / "run" / "report.html").read_text()
    assert QUERY.read_text() not in (tmp_path / "run" / "report.html").read_text()
