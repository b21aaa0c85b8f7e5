"""What the attacks share: one run, walked once."""

import pytest

from tests.attacks.world import World, chain


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five sites after an honest chain in letters; whoever takes it leaves it as able to answer as it was."""
    return World.walked(tmp_path_factory.mktemp("world"), chain(), policy="most_readdressed = 2\nmost_read = 1000\n")
