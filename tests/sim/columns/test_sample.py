"""What comes along to be tried runs as it is."""

import pytest

pytest.importorskip("gmpy2")

import pandas


@pytest.mark.thorough
def test_the_sample_is_two_tables_and_a_scenario_that_runs(fedsmall, tmp_path):
    assert fedsmall("columns", "sample")[0] == 0
    for name in ("hospital.csv", "laboratory.csv"):  # fewer patients are quicker
        table = pandas.read_csv(tmp_path / name)
        table[table["patient"] < "p0060"].to_csv(tmp_path / name, index=False)

    code, said, complained = fedsmall("run", "two_houses.toml", "--set", "boosting.rounds=1")

    assert (code, complained) == (0, "")
    assert (
        "SecureBoostPlus made the trees of joined columns (Central), every split and every leaf: 1 of 1 seeds." in said
    )


def test_the_sample_is_never_written_over_anything(fedsmall, tmp_path):
    (tmp_path / "laboratory.csv").write_text("mine")

    code, _, complained = fedsmall("columns", "sample", ".")

    assert code == 2
    assert "laboratory.csv is there already; it is not written over" in complained
    assert sorted(path.name for path in tmp_path.iterdir()) == ["laboratory.csv"]
