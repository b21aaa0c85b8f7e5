"""Envelopes are opened by whom they are for, as what they are, and by nobody as anything else."""

import hashlib
import os

import pytest
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric import ed25519

from fedsmall.sealing.envelopes import (
    OVERHEAD,
    SEED,
    SIGNATURE,
    SUITE,
    EnvelopeError,
    Mailbox,
    Transcript,
    after,
    announce,
    canon,
    digest_words,
    name_of,
    private,
    public,
    roll_digest,
    signed,
)

SITES = ("bonn", "essen", "ulm")
KEYS = {site: (os.urandom(32), os.urandom(SEED)) for site in SITES}
OTHERS = {site: announce(site, "run", *KEYS[site], f"drawn by {site}") for site in SITES}
IDENTITIES = {site: name_of(KEYS[site][0]) for site in SITES}
TELLING = ("traveller", 3, "bonn", "thread")


def post(site: str, run: str = "run", plan: str = "plan") -> Mailbox:
    return Mailbox(site, run, *KEYS[site], OTHERS, plan)


def envelope(content: bytes = b"a model", to: str = "essen") -> bytes:
    return post("bonn").write("traveller", 3, to, "thread", content)


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(100_000)])
def test_a_envelope_is_opened_by_whom_it_is_for(content):
    sealed = envelope(content)

    assert post("essen").open(*TELLING, sealed) == content
    assert len(sealed) == len(content) + OVERHEAD


def test_a_envelope_is_what_the_standard_says_it_is():
    """By HPKE's and Ed25519's own functions, without a line of ours but what an envelope is bound to."""
    sealed = envelope(b"a model")
    info = canon("fedsmall-letter-1", "traveller", "run", 3, "bonn", "essen", "thread", "plan")
    suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
    key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(IDENTITIES["bonn"]))

    box = sealed[SIGNATURE:]
    key.verify(sealed[:SIGNATURE], hashlib.sha256(len(info).to_bytes(8, "big") + info + box).digest())
    assert suite.decrypt(box, private(KEYS["essen"][1]), info) == b"a model"


def test_the_same_content_is_never_the_same_envelope():
    assert len({envelope() for _ in range(20)}) == 20


WRONG = {
    "another kind": ("seed", 3, "bonn", "thread"),
    "another round": ("traveller", 4, "bonn", "thread"),
    "another sender": ("traveller", 3, "ulm", "thread"),
    "another thread": ("traveller", 3, "bonn", "yarn"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_envelope_does_not_open_as(case):
    kind, t, sender, _ = WRONG[case]
    words = f"the {kind} message of round {t}, said to be from {sender}, does not open"

    with pytest.raises(EnvelopeError, match=words):
        post("essen").open(*WRONG[case], envelope())


@pytest.mark.parametrize("reader", [post("ulm"), post("essen", run="other"), post("essen", plan="other")])
def test_a_envelope_opens_at_no_other_site_in_no_other_run_and_under_no_other_plan(reader):
    with pytest.raises(EnvelopeError, match="does not open"):
        reader.open(*TELLING, envelope())


def test_a_envelope_of_a_stranger_is_refused_by_name():
    with pytest.raises(EnvelopeError, match="an encrypted message from 'kiel', who is not in this run"):
        post("essen").open("traveller", 3, "kiel", "thread", envelope())


def test_a_box_that_somebody_else_signed_does_not_open():
    """Whoever may seal to Essen, as everybody may, cannot say that it was Bonn."""
    info = canon("fedsmall-letter-1", "traveller", "run", 3, "bonn", "essen", "thread", "plan")
    box = SUITE.encrypt(b"poison", public(OTHERS["essen"].sealing), info)
    forged = ed25519.Ed25519PrivateKey.from_private_bytes(KEYS["ulm"][0]).sign(signed(info, box)) + box

    with pytest.raises(EnvelopeError, match="said to be from bonn, does not open"):
        post("essen").open(*TELLING, forged)


def test_an_announcement_is_of_a_known_identity_and_of_this_run():
    told = OTHERS["bonn"]
    told.check("run", IDENTITIES)

    with pytest.raises(EnvelopeError, match="what bonn announces is not signed by its identity for this run"):
        told.check("another run", IDENTITIES)
    with pytest.raises(EnvelopeError, match="bonn announces another identity than the one that is known here"):
        told.check("run", {**IDENTITIES, "bonn": IDENTITIES["ulm"]})
    swapped = told.model_copy(update={"sealing": OTHERS["ulm"].sealing})
    with pytest.raises(EnvelopeError, match="what bonn announces is not signed by its identity"):
        swapped.check("run", IDENTITIES)


def test_a_thread_holds_what_was_seen_in_the_order_in_which_it_was():
    begun = Transcript.start("run", "roll", OTHERS, {"bonn": "1", "essen": "2", "ulm": "3"})
    begun.at |= {5: after(begun.at[0], 5, ["one"])}
    begun.at |= {9: after(begun.at[5], 9, ["two"])}

    assert [begun.before(t) for t in (1, 5, 6, 9, 10)] == [begun.at[k] for k in (0, 0, 5, 5, 9)]
    assert after(begun.at[0], 5, ["two"]) != begun.at[5]
    assert after(begun.at[0], 6, ["one"]) != begun.at[5]


def test_keys_of_another_length_are_refused():
    with pytest.raises(ValueError, match="96 random bytes, not of 95"):
        private(bytes(95))
    with pytest.raises(ValueError, match="no sealing key"):
        public("00" * 100)


def test_the_roll_is_one_number_whatever_its_order_and_another_for_any_change():
    again = dict(reversed(IDENTITIES.items()))
    fewer = {site: IDENTITIES[site] for site in SITES[:2]}
    swapped = {**IDENTITIES, "bonn": IDENTITIES["ulm"], "ulm": IDENTITIES["bonn"]}

    assert roll_digest(again) == roll_digest(IDENTITIES)
    assert digest_words(again) == digest_words(IDENTITIES)
    assert len({digest_words(roll) for roll in (IDENTITIES, fewer, swapped)}) == 3
    assert [len(group) for group in digest_words(IDENTITIES).split()] == [5] * 12
