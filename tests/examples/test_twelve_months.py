"""A year of a consortium: upgrades, reboots, lost lines, a backup, a revocation and an admission. Minutes, so slow."""

import json

import pytest

from examples import twelve_months

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(1800), pytest.mark.needs("nginx")]


def test_every_run_of_the_year_has_the_bits_of_its_simulation_and_nobody_typed_resume(capsys):
    assert twelve_months.main(8) == 0

    said = capsys.readouterr().out
    report = json.loads(said[said.rindex("\n{") :])
    assert report["finished with the bits of their simulation"] == report["runs"] == 11
    assert all(report["what else"].values())
    assert report["went on by themselves"] == ["february", "june", "november"]
