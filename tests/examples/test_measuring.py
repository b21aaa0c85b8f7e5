"""Examples that measure: what they print, at their smallest."""

import json

import pytest

from examples import measure_rounds, measure_sealing


@pytest.mark.thorough
def test_envelopes_and_secure_sums_are_measured_for_each_model(capsys, monkeypatch):
    monkeypatch.setattr(measure_sealing, "NUMBERS", {"two hundred": 200})

    measure_sealing.main([3])

    heads, _, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| 3 | two hundred | ")
    assert row.count("|") == heads.count("|")
    assert " | 1,200 | " in row  # bytes more a hop


@pytest.mark.thorough
def test_a_tree_over_split_columns_is_measured_and_is_that_of_joined_ones(capsys):
    pytest.importorskip("gmpy2")
    from examples import split_columns

    split_columns.main(["--rounds", "1", "--key-bits", "512"])  # which raises where trees differ

    said = capsys.readouterr().out
    assert "| SecureBoost | " in said
    assert "| three classes, one tree of many outputs | " in said
    assert said.count("\n| ") == 1 + len(split_columns.ROWS) + len(split_columns.CLASSES)


@pytest.mark.slow
@pytest.mark.needs("nginx")
def test_a_communication_round_of_real_sites_is_measured(capsys):
    measure_rounds.main(4, 2, ["resident"])

    name, _, row = capsys.readouterr().out.partition(" ")
    assert name == "resident"
    assert json.loads(row)["communication rounds"] == 3
