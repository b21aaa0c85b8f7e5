"""Sums that a server would have of fewer than all: decryptors open one, of one set of sites; the rest is noise."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message

from fedsmall.audit_log import digest_of
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import GROUP, HELP, KEY, SEALED
from fedsmall.strategies.records import to_arrays, to_record
from fedsmall.strategies.sealed_models import DecryptorError
from fedsmall.strategies.server.grid import QuorumError
from fedsmall.wire import CONFIG, MODEL, ROUND, join, split
from tests.attacks.test_envelopes import flipped, line, with_envelope
from tests.attacks.world import NAMES, Heard, World, averages
from tests.sim.sealing.federation import Change, Federation, run

OTHER_SET = "this site has helped to open the sum of round {} before, of other sites"
NOT_IN_IT = "a site was given that is not in the sum of round {}"
SEED_2 = line(KEY, 2, "site-001")
BLIND = "check_models = false\n"  # sites that look at no global model
TOO_LARGE = (
    "A number of '0.bias' is not finite, or above 715,827,883, the most that a secure sum holds here; scale the "
    "features, take a smaller lr, or leave weighted or secure out."
)
NOT_FINITE = "what was trained here may not be used: it holds a number that is not finite"


def decryptors(world: World, t: int) -> list[str]:
    return RoutingTable(world.plan, world.federation.names).decryptors(t)


def asked(world: World, t: int, decryptor: str) -> Heard:
    """What a decryptor was asked in the honest run."""
    return world.once(HELP, decryptor, t)


def of_sites(question: Heard, *sites: str, **envelopes: np.ndarray) -> Heard:
    """The question for the sum of these sites."""
    mine = split(question.arrays, "seeds")
    return question._replace(arrays=join(seeds={site: mine[site] for site in sites} | envelopes))


# -- sums that are not opened ------------------------------------------------------------------------------------------


def test_a_decryptor_tells_the_same_sum_again(world):
    question = asked(world, 3, decryptors(world, 3)[0])

    assert (world.ask(question)[1]["shares/shares"] == question.sent["shares/shares"]).all()


@pytest.mark.parametrize("t", [3, 6])
def test_no_sum_is_opened_without_one_site_after_that_of_all(world, t):
    for decryptor in decryptors(world, t):
        for left in NAMES:
            rest = [name for name in NAMES if name != left]
            world.refuses(of_sites(asked(world, t, decryptor), *rest), OTHER_SET.format(t))


@pytest.mark.parametrize("few", [NAMES[:1], NAMES[:2], ()])
def test_no_sum_of_fewer_than_three_is_opened(world, few):
    question = asked(world, 3, decryptors(world, 3)[0])

    world.refuses(
        of_sites(question, *few), f"this site helps to open no sum of fewer than 3 sites, and {len(few)} were given"
    )


def test_no_sum_with_a_made_up_site_is_opened(world):
    question = asked(world, 3, decryptors(world, 3)[0])
    envelope = split(question.arrays, "seeds")["site-002"]

    world.refuses(of_sites(question, *NAMES, **{"site-zzz": envelope}), NOT_IN_IT.format(3))
    world.refuses(of_sites(question, *NAMES[:2], **{"site-zzz": envelope}), NOT_IN_IT.format(3))


def test_no_site_is_twice_in_a_sum(world):
    question = asked(world, 3, decryptors(world, 3)[0])
    envelope = split(question.arrays, "seeds")["site-000"]

    world.refuses(of_sites(question, "site-000", "site-001", **{"site-002": envelope}), line(KEY, 3, "site-002"))


def test_no_seed_of_another_round_is_opened(world):
    here = next(name for name in decryptors(world, 3) if name in decryptors(world, 6))
    early, late = asked(world, 3, here), asked(world, 6, here)

    world.refuses(early._replace(arrays=late.arrays), line(KEY, 3, "site-000"))
    world.refuses(late._replace(arrays=early.arrays), line(KEY, 6, "site-000"))


def test_no_seed_for_another_decryptor_is_opened(world):
    first, second, *_ = decryptors(world, 3)

    world.refuses(asked(world, 3, first)._replace(arrays=asked(world, 3, second).arrays), line(KEY, 3, "site-000"))


def test_no_other_sum_has_the_seeds_of_one(world):
    question = asked(world, 3, decryptors(world, 3)[0])

    world.refuses(question.but(**{GROUP: 1}), NOT_IN_IT.format(3))


def test_no_second_summand_of_other_numbers_is_told(world):
    order = world.once("train", t=3)
    envelope = order.arrays["arrays/letter"].tobytes()

    world.refuses(
        with_envelope(order, flipped(envelope, 2000)),
        "this site has answered with other numbers for the sum of round 3 before",
    )


def test_seeds_that_were_sealed_after_other_common_models_are_not_opened(tmp_path, monkeypatch):
    """Pasquini et al. 2022: all but one site are given a model from which nothing is learned."""
    federation = Federation(tmp_path, 3, monkeypatch, BLIND, crafted(lambda a: a * 0, but="site-001"))

    with pytest.raises(DecryptorError) as told:
        run(federation, averages(3))

    line_of_one = f"0 of 3 decryptors answer, and it takes 2; site-000 does not help: site-000: {SEED_2}"
    assert str(told.value).startswith(f"the sum of round 2 stays closed, for {line_of_one}")
    assert all(reply.has_error() for _, order, reply in federation.passed if _of(order, HELP))


@pytest.mark.parametrize(
    ("number", "why"),
    [(1e9, TOO_LARGE), pytest.param(np.inf, NOT_FINITE, marks=pytest.mark.thorough), (np.nan, NOT_FINITE)],
)
def test_absurd_numbers_are_in_no_summand(tmp_path, monkeypatch, number, why):
    federation = Federation(tmp_path, 3, monkeypatch, BLIND, crafted(lambda a: np.full_like(a, number)))

    with pytest.raises(QuorumError, match="0 of 3 sites answered") as told:
        run(federation, averages(3))

    assert f"[site-002: {why}]" in str(told.value)


def crafted(make: Callable[[np.ndarray], np.ndarray], but: str = "") -> Change:
    """A server that gives all sites ``but`` one a global model of its own after the first average, and says so."""
    made: list[str] = []

    def change(site: str, order: Message) -> Message:
        if site == but or not (_of(order, "train") or _of(order, HELP)):
            return order
        if MODEL in order.content:
            model = {name: make(array) for name, array in to_arrays(order.content[MODEL]).items()}
            made[:] = [digest_of(model)]
            order.content[MODEL] = to_record(model)
        said = json.loads(str(order.content[CONFIG][SEALED]))
        said["average"]["global_models"] = made
        order.content[CONFIG][SEALED] = json.dumps(said)
        return order

    return change


def _of(order: Message, kind: str) -> bool:
    """Whether a message is of this kind, and of the second round."""
    return kind in order.metadata.message_type and order.content[CONFIG][ROUND] == 2
