"""Sums of what cannot be read, exact to the last bit; the paper's own formula reads what we encrypt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gmpy2")

import gmpy2

from fedsmall.errors import ReplyError
from fedsmall.extensions.columns.boosting import sum_bits
from fedsmall.extensions.columns.encrypted import (
    Adder,
    Layout,
    PrivateKey,
    PublicKey,
    check_modulus,
    pack,
    random_prime,
    unpack,
)

KEY = PrivateKey(256)
NUMBERS = st.integers(-(2**60), 2**60)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_the_product_of_ciphertexts_is_the_sum(numbers):
    assert KEY.decrypt(KEY.public.total(KEY.encrypt(one) for one in numbers)) == sum(numbers)


@given(NUMBERS)
def test_the_papers_own_formula_reads_what_we_encrypt(number):
    n, p, q = KEY.public.n, KEY._p, KEY._q
    exponent = gmpy2.lcm(p - 1, q - 1)

    read = (pow(KEY.encrypt(number), exponent, n**2) - 1) // n * gmpy2.invert(exponent, n) % n

    assert read == number % n
    assert KEY.decrypt(KEY.encrypt(number)) == number


def test_a_key_is_of_the_length_that_was_asked_for_and_another_each_time():
    keys = [PrivateKey(256) for _ in range(5)]

    assert {one.public.bits for one in keys} == {256}
    assert len({int(one.public.n) for one in keys}) == 5
    assert all(gmpy2.is_prime(one._p) and gmpy2.is_prime(one._q) for one in keys)


def test_equal_numbers_have_unequal_ciphertexts_and_stay_themselves():
    found = {int(KEY.encrypt(7)) for _ in range(50)}
    anew = KEY.public.rerandomise(KEY.encrypt(7))

    assert len(found) == 50
    assert KEY.decrypt(anew) == 7
    assert int(anew) not in found


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=4, max_size=4), min_size=1, max_size=9))
def test_sums_of_packed_numbers_are_the_numbers_sums(rows):
    width = (1000 * len(rows)).bit_length() + 2

    total = sum(pack(row, width) for row in rows)

    assert unpack(total, width, 4) == np.array(rows).sum(axis=0).tolist()


def test_one_bit_less_would_not_do():
    row, width = [-1000, 1000], (1000).bit_length()

    assert unpack(pack(row, width), width, 2) != row


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("numbers", [2, 6, 14])
def test_a_layout_gives_back_the_sums_of_each_split(numbers, packing):
    rng = np.random.default_rng(0)
    splits, width = rng.integers(-50, 50, (7, 3, numbers)), 12  # seven splits of three rows
    layout = Layout.of(numbers, width, KEY.public.bits, packing)

    chunks = []
    for k in range(layout.chunks):
        sums = [KEY.public.total(KEY.encrypt(layout.plaintexts(row)[k]) for row in rows.tolist()) for rows in splits]
        joined = [
            KEY.public.join(sums[j : j + layout.splits], width * layout.together)
            for j in range(0, len(sums), layout.splits)
        ]
        chunks.append([KEY.decrypt(one) for one in joined])

    np.testing.assert_array_equal(layout.sums(chunks, 7), splits.sum(axis=1))
    assert len(chunks[0]) == (7 if not packing else -(-7 // (254 // 12 // min(numbers, 21))))


def test_a_key_too_short_for_one_sum_is_refused():
    with pytest.raises(ReplyError, match="a key of 64 bits cannot hold sums of 80 bits"):
        Layout.of(2, 80, 64, True)


def test_a_width_has_room_for_the_largest_sum():
    assert 2 ** (sum_bits(1000, 1.0) - 1) > 1000 * 2**40


def test_a_histogram_has_the_sums_of_the_rows_of_each_bin():
    rng = np.random.default_rng(0)
    numbers = np.column_stack([rng.integers(0, 6, 90), (rng.random(90) < 0.1).astype(int), np.arange(90) % 3])
    values = rng.integers(-9, 9, 90).tolist()
    adder = Adder(KEY.public, {row: [KEY.encrypt(one)] for row, one in enumerate(values)}, numbers)
    rows = np.setdiff1d(np.arange(90), np.arange(0, 90, 3))  # none of them in the third column's first bin

    found = adder.histogram(rows)

    for column, bins in enumerate(found):
        expected = {number: sum(values[row] for row in rows if numbers[row, column] == number) for number in range(6)}
        present = set(numbers[rows, column].tolist())
        assert list(bins) == sorted(present)
        assert {number: KEY.decrypt(one) for number, (one,) in bins.items()} == {n: expected[n] for n in present}
    assert adder.histogram(np.arange(0)) == [{}, {}, {}]


def test_what_is_no_ciphertext_is_refused():
    public = PublicKey(int(KEY.public.n))
    too_large = np.full((1, public.bytes), 255, np.uint8)

    with pytest.raises(ReplyError, match="no ciphertext under this key"):
        public.from_bytes(too_large)
    with pytest.raises(ReplyError, match=rf"rows of {public.bytes} bytes"):
        public.from_bytes(np.zeros((1, 3), np.uint8))


LARGE = random_prime(128)


@pytest.mark.parametrize(
    ("modulus", "complaint"),
    [
        (1806, "a key of 11 bits; 256 are the least"),
        (0, "a key of 0 bits"),
        (2**300, "no product of two large primes"),
        (1806 * int(KEY.public.n), "no product of two large primes"),
        (int(random_prime(256)), "no product of two large primes"),
        (int(LARGE) ** 2, "no product of two large primes"),
    ],
    ids=["n = 1806", "nothing", "a power of two", "small factors", "a prime", "a square"],
)
def test_a_key_that_hides_no_sum_is_refused(modulus, complaint):
    with pytest.raises(ReplyError, match=complaint):
        check_modulus(modulus, 256)

    check_modulus(int(KEY.public.n), 256)


def test_under_1806_nothing_is_added_that_hides():
    """What the check is for."""
    assert {pow(r, 1806, 1806**2) for r in range(1, 1806) if gmpy2.gcd(r, 1806) == 1} == {1}
