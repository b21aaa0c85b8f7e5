"""Masks hide a summand, and go again without a trace."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.sealing.masks import SEED, masked, new_seeds, stream, total, unmasked

whole = st.integers(0, 2**64 - 1)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_what_helpers_tell_takes_the_masks_off_the_sum(sites, helpers, length, seed):
    rng = np.random.default_rng(seed)
    summands = [rng.integers(0, 2**64, length, dtype=np.uint64) for _ in range(sites)]
    seeds = [new_seeds(map(str, range(helpers))) for _ in summands]

    came = [masked(*each) for each in zip(summands, seeds, strict=True)]
    told = [total([each[str(helper)] for each in seeds], length) for helper in range(helpers)]

    exact = [sum(int(each[k]) for each in summands) % 2**64 for k in range(length)]
    assert unmasked(came, told).tolist() == exact


def test_a_stream_is_that_of_chacha20_and_as_long_as_it_must_be():
    seed = bytes(range(SEED))
    raw = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(80))

    assert stream(seed, 10).tobytes() == raw
    assert stream(seed, 4).tolist() == stream(seed, 10)[:4].tolist()
    assert stream(seed, 0).shape == (0,)


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a seed has 32 bytes, this one 31"):
        stream(bytes(31), 4)


def test_under_one_mask_that_is_not_known_a_summand_is_noise():
    """All but one helper's streams taken away: nothing of the numbers is left to see."""
    numbers = np.arange(100_000, dtype=np.uint64)
    seeds = new_seeds("abc")

    left = masked(numbers, seeds) - total([seeds["a"], seeds["b"]], len(numbers))

    centred = left.astype(np.float64) - 2.0**63
    assert abs(np.corrcoef(centred, numbers.astype(np.float64))[0, 1]) < 0.02
    assert not (left == numbers).any()


def test_no_two_seeds_are_alike():
    drawn = [seed for _ in range(50) for seed in new_seeds("abc").values()]

    assert len(set(drawn)) == 150


def test_masking_leaves_the_summand_as_it_was():
    numbers = np.arange(5, dtype=np.uint64)
    masked(numbers, new_seeds("ab"))
    unmasked([numbers, numbers], [numbers])

    assert numbers.tolist() == [0, 1, 2, 3, 4]
