"""Envelopes that a server says it could not deliver: they are sealed again for whom the plan has next, and no other."""

import pytest

from fedsmall.clients.key_store import FOLDER
from fedsmall.clients.runs import RUNS, own_folder
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import READDRESS, WRITTEN
from fedsmall.wire import ROUND
from tests.attacks.world import NAMES, Heard, World

A = "site-000"
NOT_HERE = f"a message of {A} from round 4 is not of the model that comes here now"


def question(world: World, written: int, t: int) -> Heard:
    """A server's question for the traveller that site A wrote after a round, to train for round ``t``."""
    order = world.once("train", A, t)
    return order._replace(kind=READDRESS, arrays={}).but(**{WRITTEN: written})


def test_a_traveller_goes_to_whom_the_plan_has_and_so_often_as_the_policy_lets(world):
    ways, gone = RoutingTable(world.plan, NAMES), []

    for written, t in ((4, 6), (4, 6), (4, 5), (5, 6), (2, 3)):
        to = ways.site_of(t, ways.model_at(written, A))
        asked = question(world, written, t).but(to="site-zzz", site="site-zzz")
        if (written, to) not in gone and len(gone) == 2:
            world.refuses(asked, "2 circulating models of this run were readdressed here, and no more will be")
            continue
        gone += [(written, to)] if (written, to) not in gone else []
        header, envelope = world.ask(asked)
        assert (header["config"], list(envelope)) == ({}, ["arrays/letter"])
        assert [line["reason"] for line in world.log(A) if line["event"] == "readdressed"][-1] == f"for {to}, round {t}"
    assert world.log(A)[-1]["event"] == "refused"


def test_a_traveller_sealed_anew_opens_for_whom_the_plan_has_alone(world):
    ways = RoutingTable(world.plan, NAMES)
    later = ways.site_of(6, ways.model_at(4, A))
    envelope = world.ask(question(world, 4, 6))[1]

    for site in NAMES:
        order = world.once("train", site, 6)._replace(arrays=envelope).but_told(by={"site": A, "t": 4})
        world.refuses(order, "this site has answered with other numbers for the sum of round 6 before")
        why = [line["reason"] for line in world.log(site)[-2:] if line["event"] == "not used"]
        assert why == ([] if site == later else [NOT_HERE])


@pytest.mark.parametrize(("written", "t"), [(1, 4), (2, 5), (3, 5), (5, 5), (6, 5), (4, 4), (0, 2), (-1, 2)])
def test_a_traveller_goes_on_within_its_own_round_of_the_chain(world, written, t):
    world.refuses(question(world, written, t), f"the circulating model of round {written} does not go on to round {t}")


def test_a_traveller_goes_nowhere_after_the_run(world):
    world.refuses(question(world, 5, 6).but(**{ROUND: 7}), "the plan has no communication round after round 7")


def test_a_traveller_that_is_not_kept_any_more_goes_nowhere(world):
    folder = own_folder(world.federation.folder / A / RUNS, "trial", "0123") / FOLDER
    kept = (folder / "sent" / "000000001.safetensors").rename(folder / "gone")

    world.refuses(question(world, 1, 2), "the circulating model of round 1 is not kept here any more")

    kept.rename(folder / "sent" / "000000001.safetensors")


def test_a_model_of_an_average_is_no_traveller(unopened):
    order = unopened.once("train", A, 1)

    unopened.refuses(
        order._replace(kind=READDRESS).but(**{WRITTEN: 1}), "the circulating model of round 1 does not go on to round 1"
    )
