"""Orders of a sealed run that a server has written over: a site does nothing that they ask."""

import pytest

from fedsmall.audit_log import digest_of
from fedsmall.parts import Recipe
from fedsmall.planning.run_sheet import SITES
from fedsmall.sealing.routing import seed_of
from fedsmall.wire import LEAVES, ROUNDS
from tests.attacks.world import World
from tests.sim.sealing.federation import plan_of

OTHER_PLAN = "the plan is another than that that this run's sites received"
NOT_DRAWN = "the order's routes are not drawn from what all sites committed themselves to"
NOT_ITS_OWN = "what site-001 had drawn for the routes is not what it committed itself to"
OTHER_COMMON = "the order names other global models than this site received before"


def test_an_honest_order_is_answered_alike_though_the_run_is_over(world):
    order = world.once("train", t=3)

    header, sent = world.ask(order)

    assert header["metrics"] == order.header["metrics"]
    assert (sent["arrays/masked"] == order.sent["arrays/masked"]).all()


def test_a_nonce_that_was_not_committed_to_is_refused(world):
    order = world.once("train", t=3)
    nonces = order.told.nonces | {"site-001": "00" * 32}

    world.refuses(order.but_told(nonces=nonces), NOT_ITS_OWN)


def test_a_nonce_of_nobody_grinds_no_route(world):
    order = world.once("train", t=3)
    nonces = order.told.nonces | {"site-zzz": "00" * 32}
    ground = order.but_plan(route_seed=seed_of(nonces, order.plan.seed)).but_told(nonces=nonces)

    world.refuses(ground, "what was drawn for the routes is not of the sites of this run")


def test_routes_that_were_not_drawn_are_refused(world):
    order = world.once("train", t=3)

    world.refuses(order.but_plan(route_seed=order.plan.route_seed + 1), NOT_DRAWN)


def test_no_seed_is_chosen_once_all_is_revealed(world):
    order = world.once("train", t=3)

    world.refuses(order.but_plan(seed=1, route_seed=seed_of(order.told.nonces, 1)), OTHER_PLAN)
    world.refuses(world.once("scaling").but_plan(seed=1), OTHER_PLAN)


@pytest.mark.parametrize("changed", [{"rounds": 9}, {"recipe": Recipe(lr=9.0)}, {"model_options": {"hidden": [9]}}])
def test_a_plan_that_was_written_over_is_refused(world, changed):
    world.refuses(world.once("train", t=3).but_plan(**changed), OTHER_PLAN)


@pytest.mark.parametrize("changed", [{"aggregate_every": 2}, {"permute_every": None}, {"weighted": True}])
def test_a_method_that_was_written_over_is_refused(world, changed):
    order = world.once("train", t=3)

    world.refuses(order.but_plan(method=order.plan.method.model_copy(update=changed)), OTHER_PLAN)


MOMENTS = "secure without sealed needs moments that do not leave (they would go beside the model: optimizer_state = "
MOMENTS += '"reset"), and optimizer_state = "travel" takes it away: leave out one of them.'


@pytest.mark.parametrize(("privacy", "line"), [({"secure": False}, OTHER_PLAN), ({"sealed": False}, MOMENTS)])
def test_half_of_what_hides_is_not_left_out(world, privacy, line):
    order = world.once("train", t=3)
    less = order.plan.method.privacy.model_copy(update=privacy)

    world.refuses(order.but_plan(method=order.plan.method.model_copy(update={"privacy": less})), line)


def test_a_sealed_run_has_no_order_in_the_clear(world):
    order = world.once("train", t=1)
    method = order.plan.method.model_copy(update={"privacy": None})

    world.refuses(order.but_plan(method=method), OTHER_PLAN)


def test_an_order_of_another_run_finds_no_keys(world):
    order = world.once("train", t=3)

    line = "this site has had no handshake of this run, which fixes its plan and its sites"
    world.refuses(order.but_run("trial", "0124"), line)
    world.refuses(order.but_run("other", "0123"), line)
    assert world.ask(order)[1]


def test_the_end_of_a_runs_name_is_not_moved(world):
    world.refuses(
        world.once("roll").but_run("trial 01", "23"),
        "a run's name has letters, digits, dots, hyphens and underscores",
    )


def test_the_sites_of_an_order_are_those_with_which_the_run_began(world):
    order, line = world.once("train", t=3), "the order is for other sites than those with which this run began"

    world.refuses(order.but(**{SITES: order.config[SITES][:4]}), line)
    world.refuses(order.but(**{SITES: [*order.config[SITES], "site-zzz"]}), line)


def test_more_local_rounds_than_planned_are_not_trained(world):
    world.refuses(world.once("train", t=3).but(**{ROUNDS: 2}), "the order asks for 2 rounds, where the plan has 1")


def test_a_first_model_that_the_plan_does_not_give_is_not_trained(world):
    order = world.once("train", t=1)
    crafted = {name: array + 1 for name, array in order.arrays.items()}

    world.refuses(order._replace(arrays=crafted), "the global model that came is not the one that all sites received")


def test_a_common_model_of_which_others_were_not_told_is_not_trained(world):
    order = world.once("train", t=4)
    crafted = {k: a + 1 if k.startswith("arrays/") and a.dtype.kind == "f" else a for k, a in order.arrays.items()}
    said = digest_of({k.removeprefix("arrays/"): a for k, a in crafted.items() if k.startswith("arrays/")})
    average = order.told.average.model_dump()

    world.refuses(order._replace(arrays=crafted), "the global model that came is not the one that all sites received")
    world.refuses(order._replace(arrays=crafted).but_told(average=average | {"global_models": [said]}), OTHER_COMMON)
    world.refuses(order.but_told(average=average | {"before": "00" * 32}), OTHER_COMMON)


def test_an_average_that_the_plan_does_not_have_is_refused(world):
    order = world.once("train", t=4)
    average = order.told.average.model_dump()

    world.refuses(
        order.but_told(average=average | {"t": 2}), "the order speaks of an average of round 2, the plan of 3"
    )
    world.refuses(order.but_told(average=None), "the order speaks of an average of round 0, the plan of 3")


def test_noise_is_not_left_out_because_an_order_says_that_nothing_leaves(tmp_path):
    plan = plan_of("FedAvg", 3, {"blur": 1.0}, rounds=1, method={"aggregate_every": 1})
    order = (world := World.walked(tmp_path, plan, 3)).once("train")

    _, sent = world.ask(order.but(**{LEAVES: False}))

    assert all((sent[name] == array).all() for name, array in order.sent.items())
