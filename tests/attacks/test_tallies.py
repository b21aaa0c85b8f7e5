"""What sites tell in sums beside models: of features, and of what models are worth. A server that wants one site's."""

import numpy as np
import pytest

from fedsmall.planning.run_sheet import TELL
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.tallies import JUDGED, SUMS_BEFORE, UNSEEN
from fedsmall.sealing.terms import BEFORE, HELP, KEY, OF
from fedsmall.wire import KEEP, ROUND, join, split
from tests.attacks.test_envelopes import flipped, line
from tests.attacks.world import NAMES, Heard, World

A = "site-000"
COMMON = "the global model that came is not the one that all sites received"
OTHER_PLAN = "the plan is another than that that this run's sites received"
TALLIES = [(SUMS_BEFORE, 0), (JUDGED, 6)]
EVALUATE = "evaluate"


def question_of(world: World, of: str, decryptor: str | None = None) -> Heard:
    """What a decryptor of a tally was asked."""
    asked = (h for h in world.heard if h.kind == HELP and h.config.get(OF) == of)
    return next(h for h in asked if decryptor in (None, h.site))


def of_sites(question: Heard, *sites: str) -> Heard:
    envelopes = split(question.arrays, "seeds")
    return question._replace(arrays=join(seeds={site: envelopes[site] for site in sites}))


@pytest.mark.thorough
def test_nothing_that_sites_tell_leaves_in_the_clear(world):
    answers = [h for h in world.heard if h.kind in (EVALUATE, BEFORE, "roll")]

    assert {h.kind for h in answers} == {EVALUATE, BEFORE, "roll"}
    for told in answers:
        assert {name.partition("/")[0] for name in told.sent} == (set() if told.kind == "roll" else {"tally", "seeds"})
        assert told.header.get("metrics", {}) == {}


@pytest.mark.parametrize(("of", "t"), [pytest.param(*TALLIES[0], marks=pytest.mark.thorough), TALLIES[1]])
def test_no_tally_is_opened_without_one_site_after_that_of_all(world, of, t):
    question = question_of(world, of)
    other = f"this site has helped to open the sum of round {t} before, of other sites"
    for left in NAMES:
        world.refuses(of_sites(question, *(name for name in NAMES if name != left)), other)


@pytest.mark.parametrize(("of", "t"), TALLIES)
@pytest.mark.parametrize("few", [NAMES[:1], NAMES[:2]])
def test_no_tally_of_fewer_than_three_is_opened(world, of, t, few):
    world.refuses(
        of_sites(question_of(world, of), *few),
        f"this site helps to open no sum of fewer than 3 sites, and {len(few)} were given",
    )


def test_the_envelopes_of_one_tally_open_no_other(world):
    judged = question_of(world, JUDGED)
    ways = RoutingTable(world.plan, world.federation.names)
    both = next(name for name in ways.decryptors(6, JUDGED) if name in ways.decryptors(6))
    here, average = question_of(world, JUDGED, both), world.once(HELP, both, 6)

    assert average.config.get(OF, "") == ""
    world.refuses(here._replace(arrays=average.arrays), line(f"{JUDGED} {KEY}", 6, A))
    world.refuses(average._replace(arrays=here.arrays), line(KEY, 6, A))
    if judged.site in ways.decryptors(6, UNSEEN):
        world.refuses(judged.but(**{OF: UNSEEN}), line(f"{UNSEEN} {KEY}", 6, A))


def test_a_site_says_of_no_other_model_what_it_is_worth(world):
    order = world.once(EVALUATE, A)
    model = {name: array * np.float32(1.01) for name, array in order.arrays.items()}

    world.refuses(order._replace(arrays=model), COMMON)


def test_a_site_that_is_asked_twice_answers_the_same(world):
    order = world.once(EVALUATE, A)

    _, sent = world.ask(order)
    assert sent["tally/masked"].tolist() == order.sent["tally/masked"].tolist()


@pytest.mark.parametrize("t", [1, 5])
def test_a_site_judges_no_common_model_of_another_round(world, t):
    header, sent = world.ask(world.once(EVALUATE, A).but(**{ROUND: t}))

    assert "the order speaks of an average of round 6" in header["error"]
    assert sent == {}


def test_a_site_judges_after_no_round_that_the_plan_does_not_have(world):
    header, sent = world.ask(world.once(EVALUATE, A).but(**{ROUND: 7}))

    assert "the plan has no communication round after round 7" in header["error"]
    assert sent == {}


def test_a_model_that_is_to_be_kept_is_not_judged(world):
    header, sent = world.ask(world.once(EVALUATE, A).but(**{KEEP: True}))

    assert header["metrics"] == {}
    assert sent == {}


@pytest.mark.parametrize("kind", [EVALUATE, "validate"])
def test_nothing_is_told_in_the_clear_under_another_plan(world, kind):
    """Whatever else is wrong with such an order, no metric and no sum leaves."""
    method = world.plan.method.model_copy(update={"privacy": None})
    order = world.once(EVALUATE, A)._replace(kind=kind).but_plan(method=method)

    header, sent = world.ask(order)
    assert "error" in header
    assert sent == {}
    if kind == EVALUATE:
        assert header["error"] == f"{A}: {OTHER_PLAN}"


def test_a_handshake_that_asks_for_sums_in_the_clear_is_refused(world):
    world.refuses(
        world.once("roll", A).but(**{TELL: ["sums"]}),
        "this run's sums are hidden, and the handshake asks for them in the clear",
    )


def test_sums_that_no_site_knows_are_not_told(world):
    question = world.once(BEFORE, A)

    world.refuses(question.but(**{TELL: ["patients"]}), "this site was asked for sums that it does not know")


def test_other_sums_of_the_same_round_are_not_told(world):
    """With classes beside the features the summand would be another under the same streams."""
    balanced = world.plan.recipe.model_copy(update={"class_weights": "balanced"})
    header, sent = world.ask(world.once(BEFORE, A).but_plan(recipe=balanced).but(**{TELL: ["sums", "classes"]}))

    assert "the plan is another" in header["error"]
    assert sent == {}


def test_a_envelope_with_a_seed_that_was_changed_is_not_opened(world):
    question = question_of(world, JUDGED)
    envelopes = split(question.arrays, "seeds")
    envelopes["site-001"] = np.frombuffer(flipped(envelopes["site-001"].tobytes(), 900), np.uint8)

    world.refuses(question._replace(arrays=join(seeds=envelopes)), line(f"{JUDGED} {KEY}", 6, "site-001"))
