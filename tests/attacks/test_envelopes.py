"""Envelopes that were changed, exchanged or made up on their way: none opens, and the line says whose it was to be."""

import tracemalloc

import numpy as np
import pytest

from fedsmall.sealing.envelopes import OVERHEAD, SEED, SIGNATURE, Announcement, EnvelopeError, Mailbox, announce, signed
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import ENVELOPE, KEY, MODEL_ENVELOPE, MOMENTS
from fedsmall.wire import join
from tests.attacks.world import NAMES

RUN, THREAD, CONTENT = "trial 0123", "ab" * 32, b"patients" * 40
IDENTITIES = {site: bytes([k]) * 32 for k, site in enumerate(NAMES)}
KEYS = {site: bytes([16 + k]) * SEED for k, site in enumerate(NAMES)}
BOX = SIGNATURE
PLACES = {
    "signature": 3,
    "signature's end": BOX - 1,
    "ML-KEM": BOX + 500,
    "X25519": BOX + 1088 + 4,
    "X25519's last bit": BOX + 1088 + 31,
    "body": BOX + 1120 + 7,
    "tag": -1,
}
A, B, C = NAMES[:3]


def announce_of(site: str, run: str = RUN) -> Announcement:
    return announce(site, run, IDENTITIES[site], KEYS[site], "00" * 32)


def post(site: str, run: str = RUN, plan: str = "p") -> Mailbox:
    others = {name: announce_of(name, run) for name in NAMES}
    return Mailbox(site, run, IDENTITIES[site], KEYS[site], others, plan)


ENVELOPES = post(A).write(MODEL_ENVELOPE, 4, B, THREAD, CONTENT)


def line(kind: str = MODEL_ENVELOPE, t: int = 4, sender: str = A) -> str:
    return (
        f"the {kind} message of round {t}, said to be from {sender}, does not open: it was changed, is of another run, "
        "round or receiver, or the two sites received different things"
    )


def refused(
    receiver: Mailbox, envelope: bytes, kind: str = MODEL_ENVELOPE, t: int = 4, sender: str = A, thread=THREAD
) -> None:
    with pytest.raises(EnvelopeError) as told:
        receiver.open(kind, t, sender, thread, envelope)
    assert str(told.value) == line(kind, t, sender)


def flipped(envelope: bytes, place: int, by: int = 0x80) -> bytes:
    changed = bytearray(envelope)
    changed[place] ^= by
    return bytes(changed)


def test_the_envelope_opens_as_it_was_written():
    assert post(B).open(MODEL_ENVELOPE, 4, A, THREAD, ENVELOPES) == CONTENT
    assert len(ENVELOPES) == len(CONTENT) + OVERHEAD


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by", [0x01, 0x80])
def test_a_flipped_bit_is_refused(place, by):
    refused(post(B), flipped(ENVELOPES, PLACES[place], by))


@pytest.mark.parametrize("place", [name for name in PLACES if not name.startswith("signature")])
@pytest.mark.parametrize("by", [0x01, 0x80])
def test_a_flipped_bit_under_the_senders_own_signature_is_refused(place, by):
    writer, changed = post(A), flipped(ENVELOPES, PLACES[place], by)
    info = writer._bound(MODEL_ENVELOPE, 4, A, B, THREAD)

    refused(post(B), writer._identity.sign(signed(info, changed[BOX:])) + changed[BOX:])


@pytest.mark.parametrize("length", [0, 1, SIGNATURE - 1, SIGNATURE, SIGNATURE + 1, OVERHEAD - 1, OVERHEAD, -1])
def test_a_envelope_that_was_cut_is_refused(length):
    refused(post(B), ENVELOPES[:length])


def test_a_envelope_with_something_behind_it_is_refused():
    refused(post(B), ENVELOPES + b"\0")


def test_a_envelope_opens_for_its_own_receiver_alone():
    refused(post(C), ENVELOPES)


def test_a_envelope_opens_in_its_own_round_alone():
    refused(post(B), ENVELOPES, t=5)


def test_a_envelope_opens_as_its_own_senders_alone():
    refused(post(B), ENVELOPES, sender=C)
    with pytest.raises(EnvelopeError, match="an encrypted message from 'site-zzz', who is not in this run"):
        post(B).open(MODEL_ENVELOPE, 4, "site-zzz", THREAD, ENVELOPES)


@pytest.mark.parametrize(
    "kinds", [(MODEL_ENVELOPE, MOMENTS), (KEY, MOMENTS), (MODEL_ENVELOPE, KEY), (MOMENTS, MODEL_ENVELOPE)]
)
def test_a_envelope_opens_as_its_own_kind_alone(kinds):
    refused(post(B), post(A).write(kinds[0], 4, B, THREAD, CONTENT), kinds[1])


def test_a_envelope_opens_in_its_own_run_and_plan_alone():
    refused(post(B, run="trial 0124"), ENVELOPES)
    refused(post(B, plan="q"), ENVELOPES)


def test_a_envelope_opens_for_who_was_told_the_same_alone():
    refused(post(B), ENVELOPES, thread="ac" * 32)


def test_a_envelope_signed_by_somebody_else_is_refused():
    info = post(A)._bound(MODEL_ENVELOPE, 4, A, B, THREAD)

    refused(post(B), post(C)._identity.sign(signed(info, ENVELOPES[BOX:])) + ENVELOPES[BOX:])


# -- the same at a site ------------------------------------------------------------------------------------------------


def with_envelope(order, envelope: bytes):
    return order._replace(arrays=join(arrays={ENVELOPE: np.frombuffer(envelope, np.uint8)}))


def test_a_site_goes_on_with_the_common_model_where_a_envelope_was_changed(world):
    order = world.once("train", t=2)
    envelope, by = order.arrays["arrays/letter"].tobytes(), order.told.by

    world.does_not_use(with_envelope(order, flipped(envelope, 2000)), line(MODEL_ENVELOPE, 1, by.site))
    world.does_not_use(with_envelope(order, b""), line(MODEL_ENVELOPE, 1, by.site))


@pytest.mark.thorough
def test_a_envelope_of_64_mib_costs_no_more_than_its_size(world):
    order, much = world.once("train", t=2), 64 << 20
    large = with_envelope(order, bytes(much))
    tracemalloc.start()

    world.does_not_use(large, line(MODEL_ENVELOPE, 1, order.told.by.site))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * much


def test_an_order_for_another_site_brings_it_nothing(world):
    order = world.once("train", "site-000", t=2)
    by = order.told.by

    world.does_not_use(
        order, f"a message of {by.site} from round 1 is not of the model that comes here now", to="site-001"
    )


def test_a_envelope_at_a_later_round_is_not_of_the_traveller_that_comes(world):
    early, late = world.once("train", t=2), world.once("train", t=5)
    by = early.told.by.model_dump()
    replayed = late._replace(arrays=early.arrays).but_told(by=by)

    world.does_not_use(replayed, f"a message of {by['site']} from round 1 is not of the model that comes here now")


def test_a_envelope_said_to_be_newer_than_it_is_does_not_open(world):
    early, late = world.once("train", t=2), world.once("train", "site-000", t=5)
    replayed = late._replace(arrays=early.arrays)

    world.does_not_use(replayed, line(MODEL_ENVELOPE, 4, late.told.by.site))


def test_a_envelope_said_to_be_from_another_is_not_of_the_traveller_that_comes(world):
    order = world.once("train", t=2)
    other = next(name for name in NAMES if name not in (order.site, order.told.by.site))

    world.does_not_use(
        order.but_told(by={"site": other, "t": 1}),
        f"a message of {other} from round 1 is not of the model that comes here now",
    )
    world.refuses(
        order.but_told(by={"site": "site-zzz", "t": 1}),
        "by the plan site-zzz trains no model for the communication round of round 1",
    )


def test_moments_are_taken_for_no_traveller(world):
    order, moments = world.once("train", "site-000", t=5), world.once("train", "site-000", t=4)
    said = moments.arrays["carried/letter"].tobytes()

    world.does_not_use(with_envelope(order, said), line(MODEL_ENVELOPE, 4, order.told.by.site))


def test_moments_from_elsewhere_are_refused_with_their_order(world):
    order = world.once("train", t=4)
    beside, ways = order.told.beside, RoutingTable(order.plan, NAMES)
    other = next(h for h in world.heard if h.kind == "train" and h.config["round"] == 4 and h.site != order.site)
    exchanged = order._replace(arrays={**order.arrays, "carried/letter": other.arrays["carried/letter"]})

    assert ways.next_site(3, beside.site) == order.site
    world.refuses(exchanged, line(MOMENTS, 3, beside.site))
    world.refuses(order.but_told(beside=None), "the order brings no encrypted message where one was to come")
