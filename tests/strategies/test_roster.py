"""Who is there, and waiting for those who are not yet."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsmall.errors import PlanError, PolicyError
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.roster import Roster, await_sites
from fedsmall.wire import CONFIG, PLAN
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


def wayward_app(refusing):
    """An app whose nodes say their names, but for those of ``refusing``, a set that may change."""
    app = ClientApp()

    @app.query()
    def query(message, context):
        place = context.node_config["partition-id"]
        if place in refusing:
            raise PolicyError("not with us")
        return Message(RecordDict({CONFIG: ConfigRecord({"site": f"site-{place}"})}), reply_to=message)

    return app


def test_a_refusal_never_enrols_and_whoever_changes_their_mind_is_asked_again():
    refusing, roster = {1}, Roster()
    grid = InProcessGrid(wayward_app(refusing), 3)

    roster.call(grid, {})
    first, told = roster.sites, list(roster.refused.values())
    refusing.clear()
    roster.call(grid, {})

    assert first == ["site-0", "site-2"]
    assert len(told) == 1
    assert "not with us" in told[0]
    assert roster.sites == ["site-0", "site-1", "site-2"]
    assert not roster.refused


def plan_over(sites):
    return Plan(name="a", task="digits", sites=sites, rounds=2, method=Method(name="FedAvg"))


def test_a_simulation_begins_with_all_its_sites_or_says_who_cannot_take_part():
    grid = InProcessGrid(wayward_app({1}), 3)

    with pytest.raises(PlanError, match=r"Node 3 cannot take part: PolicyError: not with us"):
        GridTrainer(plan_over(3), grid)


def test_where_no_site_has_data_the_run_ends_with_the_reason(monkeypatch):
    def without(*_):
        raise FileNotFoundError("no table here")

    monkeypatch.setattr("fedsmall.clients.client_app.simulated_site", without)

    with pytest.raises(PlanError, match=r"^Node 2 cannot take part: FileNotFoundError: no table here$"):
        run_plan(plan_over(3), build_federation(plan_over(3)), "inprocess")


def test_an_own_app_goes_on_with_those_who_take_part_and_not_without_any():
    words = {PLAN: plan_over(3).model_dump_json()}

    assert GridTrainer(plan_over(3), InProcessGrid(wayward_app({1}), 3), words=words).names == ("site-0", "site-2")
    with pytest.raises(PlanError, match="Node 2 cannot take part"):
        GridTrainer(plan_over(3), InProcessGrid(wayward_app({0, 1, 2}), 3), words=words)
    with pytest.raises(PlanError, match="No site is connected"):
        GridTrainer(plan_over(3), InProcessGrid(wayward_app(set()), 0), words=words)
