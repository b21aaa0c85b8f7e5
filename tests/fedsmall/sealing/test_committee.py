"""A committee is as large as a bad draw is rare, and as many of it as it takes have its secrets."""

import itertools
import secrets
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.sealing.masks import (
    BAD_DRAW,
    PRIME,
    chance_of_bad_draw,
    committee_size,
    honest_in_sum,
    least_in_sum,
    recover,
    share,
    threshold,
)

RUN = 3 * 201  # sums of 200 rounds


def opened_or_shut(sites: int, decryptors: int) -> tuple[Fraction, Fraction]:
    """The shares of committees that a third of the sites opens twice, and that a silent tenth shuts, counted."""
    least, drawn = threshold(decryptors), list(itertools.combinations(range(sites), decryptors))
    colluding, silent = sites // 3, (sites + 9) // 10

    def opens_twice(committee: tuple[int, ...]) -> bool:
        traitors = sum(member < colluding for member in committee)
        honest = decryptors - traitors  # who answer for one of two sets each
        return any(traitors + one >= least and traitors + honest - one >= least for one in range(honest + 1))

    def is_shut(committee: tuple[int, ...]) -> bool:
        return sum(member >= silent for member in committee) < least

    return tuple(Fraction(sum(map(bad, drawn)), len(drawn)) for bad in (opens_twice, is_shut))  # type: ignore[return-value]


@pytest.mark.parametrize(("sites", "decryptors"), [(4, 4), (7, 5), (9, 4), (9, 6), (12, 5), (12, 8), (13, 6), (16, 7)])
def test_the_chance_of_a_bad_draw_is_that_of_counting_all_committees(sites, decryptors):
    opened, shut = opened_or_shut(sites, decryptors)

    assert chance_of_bad_draw(sites, decryptors) == opened + shut


@pytest.mark.parametrize(("sites", "decryptors"), [(40, 9), (60, 12), (150, 20)])
def test_the_chance_of_a_bad_draw_is_that_of_drawing_committees(sites, decryptors):
    rng, least, draws = np.random.default_rng(0), threshold(decryptors), 100_000
    colluding = rng.hypergeometric(sites // 3, sites - sites // 3, decryptors, draws) >= 2 * least - decryptors
    silent = rng.hypergeometric(-(-sites // 10), sites - -(-sites // 10), decryptors, draws) > decryptors - least

    chance = float(chance_of_bad_draw(sites, decryptors))
    drawn = colluding.mean() + silent.mean()
    assert drawn > 0.001
    assert abs(drawn - chance) < 5 * (drawn / draws) ** 0.5


@pytest.mark.parametrize("sites", [3, 4, 5, 6, 10, 15])
def test_few_sites_all_help_and_no_draw_is_bad(sites):
    assert committee_size(sites, RUN) == sites
    assert chance_of_bad_draw(sites, sites) == 0
    assert threshold(sites) < sites  # one may be silent


@pytest.mark.parametrize(("sites", "decryptors", "needed"), [(16, 12, 9), (40, 22, 18), (150, 78, 63)])
def test_of_many_sites_so_many_help_that_a_bad_draw_is_next_to_impossible(sites, decryptors, needed):
    assert (committee_size(sites, RUN), threshold(decryptors)) == (decryptors, needed)
    assert chance_of_bad_draw(sites, decryptors) * RUN < BAD_DRAW
    assert chance_of_bad_draw(sites, decryptors - 1) * RUN >= BAD_DRAW


@pytest.mark.thorough
@pytest.mark.parametrize("sums", [1, 10**6])
def test_every_federation_has_a_committee(sums):
    for sites in range(16, 200):
        assert chance_of_bad_draw(sites, committee_size(sites, sums)) * sums < BAD_DRAW


def test_the_colluding_third_is_never_all_but_one_of_a_sum():
    assert [least_in_sum(n) for n in (1, 3, 5, 6, 9, 15, 150)] == [3, 3, 3, 4, 5, 7, 52]
    assert all(least_in_sum(n) - n // 3 >= 2 for n in range(1, 300))
    assert all(least_in_sum(n) <= n for n in range(3, 300))


def test_a_noised_sum_has_all_sites_but_the_tenth_that_may_be_silent_and_most_of_it_is_honest():
    assert [least_in_sum(n, noised=True) for n in (1, 3, 5, 9, 10, 40, 200)] == [3, 3, 5, 9, 9, 36, 180]
    assert [honest_in_sum(n) for n in (3, 4, 5, 40)] == [2, 3, 4, 23]
    assert all(least_in_sum(n) <= least_in_sum(n, noised=True) <= n for n in range(3, 300))


def lagrange(points: dict[int, int]) -> int:
    """The value at 0 of the polynomial through the points, in rational numbers, and only then modulo the prime."""
    total = Fraction(0)
    for at, value in points.items():
        weight = Fraction(value)
        for other in points:
            weight *= Fraction(-other, at - other) if other != at else 1
        total += weight
    return total.numerator * pow(total.denominator, -1, PRIME) % PRIME


@given(st.integers(3, 20), st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=4), st.randoms())
@settings(max_examples=25, deadline=None)
def test_any_that_are_enough_have_the_secrets_as_lagrange_has_them(decryptors, numbers, random):
    wanted = [number.to_bytes(32, "big") for number in numbers]
    shares = share(wanted, decryptors, secrets.token_bytes(32))
    places = random.sample(range(1, decryptors + 1), threshold(decryptors))

    assert recover({at: shares[at - 1] for at in places}) == wanted
    for k, number in enumerate(numbers):
        points = {at: int.from_bytes(shares[at - 1][32 * k : 32 * k + 32], "big") for at in places}
        assert lagrange(points) == number


@pytest.mark.parametrize("decryptors", [3, 4, 7, 16])
def test_one_too_few_have_nothing(decryptors):
    """Whatever the secret, some polynomial of the degree goes through their shares: with any other one beside them."""
    wanted = [secrets.token_bytes(31).rjust(32, b"\0")]
    shares = share(wanted, decryptors, secrets.token_bytes(32))
    few = {at: int.from_bytes(shares[at - 1], "big") for at in range(1, threshold(decryptors))}

    told = {recover({**{at: shares[at - 1] for at in few}, decryptors: bytes([0] * 31 + [k])})[0] for k in range(50)}
    assert len(told) == 50
    assert wanted[0] not in told


def test_shares_are_the_same_for_the_same_key_and_no_others():
    wanted = [bytes(32), bytes(31) + b"\1"]

    assert share(wanted, 5, bytes(32)) == share(wanted, 5, bytes(32))
    assert not set(share(wanted, 5, bytes(32))) & set(share(wanted, 5, bytes(31) + b"\1"))
    both = share(wanted, 5, bytes(32))[0]
    assert (int.from_bytes(both[:32], "big") + 1) % PRIME != int.from_bytes(both[32:], "big")  # a polynomial each


@pytest.mark.parametrize("secret", [bytes(31), bytes(33), PRIME.to_bytes(32, "big"), b"\xff" * 32])
def test_what_is_no_number_of_the_field_is_not_shared(secret):
    with pytest.raises(ValueError, match=r"a secret has 32 bytes and is below 2\*\*255 - 19"):
        share([secret], 3, bytes(32))
