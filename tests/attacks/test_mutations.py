"""Whatever comes: envelopes, announcements and orders of chance, by the thousand, are refused in one line each."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save

from fedsmall.clients.key_store import arrays_in
from fedsmall.sealing.envelopes import Announcement, EnvelopeError, name_of
from fedsmall.sealing.terms import MODEL_ENVELOPE, SEALED, Order, order_in
from tests.attacks.test_envelopes import ENVELOPES, IDENTITIES, RUN, THREAD, A, B, announce_of, post

lettersTRIED, CONTENTS_TRIED, WORDS_TRIED = 4_000, 8_000, 5_000


def mutated(what: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, taken away, put in or doubled, somewhere."""
    changed = bytearray(what)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 40))):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.choice((1, 2, 30, 3000))]
            case 2:
                changed[place:place] = rng.randbytes(rng.choice((1, 2, 30, 1200)))
            case 3:
                changed[place:place] = changed[: rng.randrange(200)]
            case _:
                changed[place : place + 1] = rng.choice((b"\0", b"\xff", b'"', b"{", b"9", b"\\", b"-", b"null", b"e"))
    return bytes(changed)


def outcome(call: Callable[..., Any], *given: Any) -> tuple[Any, str | None]:
    """What a call gives, or the line of its refusal; any other exception is a fault."""
    try:
        return call(*given), None
    except EnvelopeError as error:
        return None, str(error)


def alike(found: str) -> bool:
    return bool(found) and "\n" not in found and len(found) < 400


@pytest.mark.thorough
def test_envelopes_of_chance_do_not_open():
    rng, receiver = random.Random(1), post(B)

    for _ in range(lettersTRIED):
        envelope = mutated(ENVELOPES, rng)
        if envelope == ENVELOPES:
            continue
        with pytest.raises(EnvelopeError) as told:
            receiver.open(MODEL_ENVELOPE, 4, A, THREAD, envelope)
        assert alike(str(told.value))


def test_what_a_traitor_seals_is_a_model_or_refused():
    """Envelopes that open, of a site that seals what it likes."""
    rng, honest = random.Random(2), save({"arrays/0.weight": np.ones((8, 30), np.float32)})
    refused = 0

    for _ in range(CONTENTS_TRIED):
        arrays, why = outcome(arrays_in, mutated(honest, rng), A)
        assert why in (None, f"what {A} sealed cannot be read")
        assert all(isinstance(array, np.ndarray) and array.nbytes < 1 << 20 for array in (arrays or {}).values())
        refused += why is not None
    assert refused > CONTENTS_TRIED / 3


def test_announcements_of_chance_are_nobodys():
    rng, honest = random.Random(3), announce_of(B)
    identities = {site: name_of(key) for site, key in IDENTITIES.items()}
    text, taken = honest.model_dump_json().encode(), 0

    for _ in range(WORDS_TRIED):
        try:
            told = Announcement.model_validate_json(mutated(text, rng))
            if told == honest:
                continue
            taken += 1
            with pytest.raises(EnvelopeError) as refusal:
                told.check(RUN, identities)
            assert alike(str(refusal.value))
        except ValidationError:
            pass
    assert taken > 100


def test_orders_of_chance_are_orders_or_refused():
    rng = random.Random(4)
    average = {"t": 3, "before": THREAD, "global_models": [THREAD]}
    honest = Order.model_validate(
        {"nonces": {site: THREAD for site in IDENTITIES}, "average": average, "by": {"site": A, "t": 4}}
    )
    text = honest.model_dump_json(exclude_defaults=True).encode()

    for _ in range(WORDS_TRIED):
        words = mutated(text, rng).decode("utf-8", "surrogateescape")
        told, why = outcome(order_in, {SEALED: words})
        assert why == (None if told else "the order does not say what an order of a sealed run says")
    for words in (None, 3, b"", [], {}, "null", "[" * 100_000):
        with pytest.raises(EnvelopeError, match="does not say what an order"):
            order_in({SEALED: words})


@pytest.mark.parametrize("kind", ["train", "help", "readdress", "scaling", "roll"])
def test_questions_of_chance_are_answered_in_one_line(met, kind):
    """The station itself, of which each look costs more: words exchanged, left out, and of other types."""
    rng, first = random.Random(kind), met.once("roll")
    strange = [None, 0, -1, 1 << 70, 0.5, "", "x" * 300, [], [None], {}, "{}", True, "site-000", ["site-000"] * 4]
    keys = [*first.config, "round", "rounds", "sealed", "announced", "group", "written", "common", "names"]

    for _ in range(60):
        config = first.config | {rng.choice(keys): rng.choice(strange) for _ in range(rng.choice((1, 2, 4)))}
        arrays = rng.choice([{}, first.arrays, {"arrays/letter": np.zeros(9, np.uint8)}, {"seeds/a": np.zeros(3)}])
        header, sent = met.ask(first._replace(kind=kind, config=json.loads(json.dumps(config)), arrays=arrays))
        if "error" in header:
            assert alike(header["error"])
            assert not sent
        else:
            assert kind == "roll"
            assert all(name.startswith("sums/") for name in sent)
