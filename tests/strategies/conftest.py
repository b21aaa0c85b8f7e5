import pytest


@pytest.fixture(autouse=True)
def all_are_there(monkeypatch):
    """The sites of a grid in this process do not come one after the other, so nobody need wait for more."""
    monkeypatch.setattr("fedsmall.strategies.roster.QUIET_S", 0.0)
