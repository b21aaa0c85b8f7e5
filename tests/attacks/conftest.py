"""What the attacks share: one run, walked once, and sites that were asked for their keys and no more."""

import os

import pytest

from tests.attacks.world import LARGE, World, averages, chain, who_met


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five sites after an honest chain in envelopes; whoever takes it leaves it as able to answer as it was.

    The system denies nobody a new file, so that modes are those that the programs give.
    """
    before = os.umask(0)
    try:
        policy = "most_readdressed = 2\nmost_read = 1000\n"
        return World.walked(tmp_path_factory.mktemp("world"), chain(), policy=policy)
    finally:
        os.umask(before)


@pytest.fixture(scope="session")
def met(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three sites that have announced their keys, and were told nobody's yet."""
    return who_met(tmp_path_factory.mktemp("met"))


@pytest.fixture(scope="session")
def unopened(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five sites whose first sum is masked and not opened; of so many numbers that chance makes no likeness."""
    return World.unopened(tmp_path_factory.mktemp("unopened"), averages(rounds=6, **LARGE))
