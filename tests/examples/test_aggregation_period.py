import pytest

from examples.aggregation_period import period_for, sweep
from fedsmall.planning.theory import advise
from fedsmall.sim.report.figures import save


def test_the_sweep_draws_the_federation_among_others(tmp_path):
    save(sweep(advise(3, 16, 2)), tmp_path / "period.svg")

    drawn = (tmp_path / "period.svg").read_text()
    assert all(words in drawn for words in ("m = 3, yours", "n = 16, yours", "m = 2000", "n = 256", "your bound"))


def test_its_period_is_that_of_the_plan():
    assert period_for(50, 32) == pytest.approx(advise(50, 32).bound)
    assert period_for(2, 2) is None
