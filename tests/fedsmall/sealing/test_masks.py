"""Masks hide a summand, and go again without a trace."""

import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.exact import WORDS
from fedsmall.sealing.masks import PRIME, SEED, masked, pair_signs, seed_from, share, stream, threshold, unmasked


class Sites:
    """Sites that mask ``summands`` (sites, numbers), and what they give to as many decryptors."""

    def __init__(self, summands: np.ndarray, wide: bool = False) -> None:
        self.names, self.wide = [f"{k:02d}" for k in range(len(summands))], wide
        roots = {frozenset((a, b)): secrets.token_bytes(32) for a in self.names for b in self.names if a < b}
        self.own = {name: seed_from(secrets.token_bytes(32), "own") for name in self.names}
        self.pairs = {
            a: {b: seed_from(roots[frozenset((a, b))], "sum", 1) for b in self.names if b != a} for a in self.names
        }
        signed = {name: pair_signs(name, self.pairs[name]) for name in self.names}
        self.sent = {
            name: masked(row, self.own[name], signed[name], wide)
            for name, row in zip(self.names, summands, strict=True)
        }

    def opened(self, left: list[str], silent: int = 0) -> np.ndarray:
        """The sum of all but those ``left`` out, without the answers of so many decryptors."""
        there = [name for name in self.names if name not in left]
        told = [seed for name in there for seed in (self.own[name], *(self.pairs[name][other] for other in left))]
        shares = dict(enumerate(share(told, len(self.names), secrets.token_bytes(32)), 1))
        answers = {at: shares[at] for at in list(shares)[silent:]}
        return unmasked({name: self.sent[name] for name in there}, left, answers, self.wide)


@given(st.integers(3, 9), st.integers(1, 40), st.integers(0, 3), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_what_decryptors_tell_takes_the_masks_off_the_sum(sites, length, left, wide, seed):
    rng = np.random.default_rng(seed)
    summands = rng.integers(0, 2**64, (sites, WORDS * length if wide else length), dtype=np.uint64)
    all_of_them = Sites(summands, wide)
    missing = sorted(rng.permutation(all_of_them.names)[: min(left, sites - 1)].tolist())
    rest = [row for name, row in zip(all_of_them.names, summands, strict=True) if name not in missing]

    total = all_of_them.opened(missing, silent=sites - threshold(sites))

    if wide:
        parts = range(0, 8 * summands.shape[1], 8 * WORDS)
        exact = [sum(int.from_bytes(row.tobytes()[k : k + 64], "little") for row in rest) % 2**512 for k in parts]
        assert b"".join(number.to_bytes(64, "little") for number in exact) == total.tobytes()
    else:
        assert total.tolist() == [sum(int(row[k]) for row in rest) % 2**64 for k in range(length)]


def test_a_stream_is_that_of_chacha20_and_as_long_as_it_must_be():
    seed = bytes(range(SEED))
    raw = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(80))

    assert stream(seed, 10).tobytes() == raw
    assert stream(seed, 4).tolist() == stream(seed, 10)[:4].tolist()
    assert stream(seed, 0).shape == (0,)


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a seed has 32 bytes, this one 31"):
        stream(bytes(31), 4)


def like(left: np.ndarray, numbers: np.ndarray) -> float:
    return abs(np.corrcoef(left.astype(np.float64) - 2.0**63, numbers.astype(np.float64))[0, 1])


def test_a_summand_is_noise_under_its_own_mask_and_under_that_with_one_other_site():
    numbers = np.tile(np.arange(100_000, dtype=np.uint64), (3, 1))
    sites = Sites(numbers)
    at, pairs = sites.sent["01"], sites.pairs["01"]

    without_own = at - stream(sites.own["01"], len(at))
    without_pairs = at - stream(pairs["02"], len(at)) + stream(pairs["00"], len(at))

    for left in (without_own - stream(pairs["02"], len(at)), without_own + stream(pairs["00"], len(at)), without_pairs):
        assert like(left, numbers[1]) < 0.02
        assert not (left == numbers[1]).any()
    assert like(without_pairs - stream(sites.own["01"], len(at)), numbers[1] << 40) > 0.999


def test_seeds_of_other_words_and_other_keys_are_others_and_below_the_prime():
    keys = [secrets.token_bytes(32) for _ in range(20)]
    made = {seed_from(key, *words) for key in keys for words in (("a", 1), ("a", "1"), ("a1",), ("a", 2, "b"))}

    assert len(made) == 80
    assert all(len(seed) == SEED and int.from_bytes(seed, "big") < PRIME for seed in made)


def test_masking_leaves_the_summand_as_it_was():
    numbers = np.arange(15, dtype=np.uint64).reshape(3, 5)
    sites = Sites(numbers)
    before = {name: row.tolist() for name, row in sites.sent.items()}

    assert sites.opened([]).tolist() == [15, 18, 21, 24, 27]
    assert numbers.ravel().tolist() == list(range(15))
    assert {name: row.tolist() for name, row in sites.sent.items()} == before
