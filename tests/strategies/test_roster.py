"""Who is there, and waiting for those who are not yet."""

import pytest

from fedsmall.errors import PlanError
from sim.engines.inprocess import InProcessGrid
from strategies.roster import await_sites
from tests.strategies.toy import append_digit, toy_app


class OneByOne(InProcessGrid):
    """A grid to which another node connects each time it is asked."""

    asked = 0

    def get_node_ids(self):
        self.asked += 1
        return list(super().get_node_ids())[: self.asked]


def test_sites_that_come_one_after_the_other_are_waited_for():
    grid = OneByOne(toy_app(append_digit), 4)

    await_sites(grid, 4)

    assert grid.asked == 4


def test_sites_that_do_not_come_are_counted():
    grid = InProcessGrid(toy_app(append_digit), 2)

    with pytest.raises(PlanError, match=r"3 sites were to take part and 2 are connected after 0\.1 s"):
        await_sites(grid, 3, timeout_s=0.1)
