import math
from fractions import Fraction
from secrets import token_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall.errors import ReplyError
from fedsmall.exact import LARGEST, MODULUS, WORDS, add_words, exact_sum, from_words, to_words
from fedsmall.sealing.masks import SEED, masked, pair_signs
from tests.fedsmall.sealing.test_masks import Sites

numbers = st.floats(-1e80, 1e80, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-40)
several = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=7)


@given(several)
def test_words_add_up_to_the_sum_that_fractions_give(rows):
    vectors = [to_words(np.array(row)) for row in rows]
    exact = [float(sum(map(Fraction, column))) for column in zip(*rows, strict=True)]

    assert from_words(add_words(vectors)).tolist() == exact
    assert exact_sum([np.array(row) for row in rows]).tolist() == exact


@given(several, st.randoms())
def test_no_order_gives_another_sum(rows, random):
    arrays = [np.array(row) for row in rows]
    shuffled = random.sample(arrays, len(arrays))

    assert exact_sum(arrays).tolist() == exact_sum(shuffled).tolist()


def test_a_plain_sum_depends_on_the_order():
    values = [np.array(v) for v in (1e16, 1.0, -1e16)]

    assert sum(values) != sum([values[0], values[2], values[1]])
    assert float(exact_sum(values)) == 1.0


@given(several)
def test_masks_leave_no_trace_in_a_wide_sum(rows):
    vectors = np.stack([to_words(np.array(row)) for row in rows])
    sites = Sites(vectors, wide=True)

    opened = sites.opened([])

    assert from_words(opened).tolist() == from_words(add_words([*vectors])).tolist()


def test_adding_word_by_word_would_lose_what_is_carried():
    ones = to_words(np.array([-1.0])), to_words(np.array([1.0]))

    assert from_words(add_words(ones)).tolist() == [0.0]
    assert from_words(ones[0] + ones[1]).tolist() != [0.0]


def test_a_mask_covers_every_bit_of_a_wide_number():
    """Of 200 masked zeros every bit is sometimes 0 and sometimes 1."""
    pairs = pair_signs("a", {"b": token_bytes(SEED)})
    words = masked(to_words(np.zeros(200)), token_bytes(SEED), pairs, wide=True).reshape(200, WORDS)
    bits = np.unpackbits(words.view(np.uint8), axis=1)

    assert (bits.mean(axis=0) > 0.2).all()
    assert (bits.mean(axis=0) < 0.8).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * LARGEST])
def test_what_has_no_room_is_refused(value):
    with pytest.raises(ReplyError, match="a number to be summed is not finite, or above 2e"):
        to_words(np.array([1.0, value]))


def test_a_million_of_the_largest_have_room():
    assert 2 * 10**6 * int(LARGEST) << 192 < MODULUS


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sums_keep_their_shape(shape, count):
    assert exact_sum([np.ones(shape)] * count).tolist() == np.full(shape, float(count)).tolist()


def test_what_is_no_number_stays_none():
    assert np.isnan(exact_sum([np.array([math.inf]), np.array([-math.inf]), np.array([1.0])])).all()
    assert exact_sum([np.array(1e308)] * 3) == math.inf
