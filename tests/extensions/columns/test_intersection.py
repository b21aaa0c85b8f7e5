"""Parties find the patients that all have, and what they are sent says of no others."""

import time

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.errors import DataError, ReplyError
from fedsmall.extensions.columns.conducting import match_parties
from fedsmall.extensions.columns.intersection import BYTES, A, Blinding, P, check_matching, hash_to_curve
from fedsmall.extensions.columns.messages import Message, Post, hold_talk
from fedsmall.extensions.columns.party import Party, Table

NAMES = ("a", "b", "c", "d")
ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504  # x of a point of that order


def party(name: str, numbers: list[int]) -> Party:
    return Party(name, Table(tuple(f"record {one}" for one in numbers), (), np.array(numbers, float)[:, None]))


def matched(*lists: list[int], keep: bool = False) -> tuple[list[Party], Post, int]:
    parties = [party(name, numbers) for name, numbers in zip(NAMES, lists, strict=False)]
    post = Post({one.name: one for one in parties}, keep=keep)
    return parties, post, hold_talk(match_parties([one.name for one in parties]), post)


@pytest.mark.parametrize(
    "lists",
    [
        ([1, 2, 3, 4], [9, 3, 2]),
        ([5, 1, 2, 3], [3, 8, 5, 2], [2, 3, 7, 5, 6]),
        ([1, 2, 3], [3, 2], [2, 1], [0, 2, 4]),
        ([1, 2], [3, 4]),
        ([1, 2], []),
    ],
)
def test_all_have_the_common_patients_in_one_order(lists):
    parties, _, count = matched(*lists)

    rows = [one.values[:, 0].tolist() for one in parties]
    assert sorted(rows[0]) == sorted(set.intersection(*map(set, lists)))
    assert all(one == rows[0] for one in rows)
    assert count == len(rows[0])


def test_no_party_hears_the_same_point_twice_or_one_it_could_make():
    """Two lists under the same numbers, or a hash as it is, and it could look for a patient of its own."""
    _, post, _ = matched([1, 2, 3, 4], [3, 4, 5], [4, 3, 6], keep=True)

    plain = {hash_to_curve(f"record {one}") for one in range(10)}
    for name, heard in post.heard.items():
        if name not in NAMES:
            continue  # the coordinator, who has no identifiers
        points = [row.tobytes() for one in heard if one.kind == "blind again" for row in one.arrays["points"]]
        assert len(points) >= 6  # those of both others
        assert len(set(points)) == len(points)
        assert not set(points) & plain


def test_points_of_one_patient_under_two_numbers_have_nothing_in_common():
    ids = [f"record {one}" for one in range(50)]

    first, second = Blinding(ids), Blinding(ids)

    assert not {row.tobytes() for row in first.points()} & {row.tobytes() for row in second.points()}


def test_the_order_in_which_points_are_said_is_theirs():
    points = [row.tobytes() for row in Blinding([f"record {one}" for one in range(50)]).points()]

    assert points == sorted(points)


def test_every_identifier_is_hashed_to_the_curve_and_none_to_its_twist():
    """Which of the two a point lies on survives blinding: one bit of each identifier, were it not always the same."""
    for k in range(200):
        u = int.from_bytes(hash_to_curve(f"record {k}"), "little")
        assert pow(u**3 + A * u**2 + u, (P - 1) // 2, P) == 1


@pytest.mark.parametrize(
    "point", [0, 1, P - 1, P, P + 1, 325606250916557431795983626356110631294008115727848805560023387167927233504]
)
def test_points_of_small_order_are_refused(point):
    """They would come back as zero under any number, and whoever sends one could tell that it was not mixed up."""
    sent = np.frombuffer(point.to_bytes(BYTES, "little"), np.uint8)[None]

    with pytest.raises(ReplyError, match="a point of small order"):
        Blinding(["a"]).blind_again(sent)


def test_what_are_no_points_is_refused():
    with pytest.raises(ReplyError, match="rows of 32 bytes"):
        Blinding(["a"]).blind_again(np.zeros((3, 31), np.uint8))


def test_a_party_that_drops_a_point_is_found_out():
    parties = {name: party(name, [1, 2, 3]) for name in "ab"}
    post = Post(parties)

    def carry(messages: list[Message]) -> list[Message]:
        replies = post(messages)
        if messages[0].kind == "blind again":
            replies[0].arrays["points"] = replies[0].arrays["points"][:-1]
        return replies

    with pytest.raises(ReplyError, match="another number of identifiers than it was sent"):
        hold_talk(match_parties(["a", "b"]), carry)


def test_two_rows_of_one_patient_are_refused_without_naming_the_patient():
    with pytest.raises(DataError, match=r"^2 of 4 identifiers stand in several rows; a patient has one row$"):
        Blinding(["x", "x", "x", "y"])


@pytest.mark.parametrize("word", ["salted_hash", "hash", "sha256"])
def test_salted_hashes_are_refused_with_the_reason(word):
    with pytest.raises(DataError, match="can hash every record number that there is"):
        check_matching(word)


def test_other_ways_of_matching_are_unknown():
    with pytest.raises(DataError, match='match = "bloom" is unknown'):
        check_matching("bloom")
    check_matching("ecdh")


def test_places_that_are_none_are_refused():
    one = party("a", [1, 2])
    one.answer(Message("coordinator", "a", "blind", {"parties": ["a", "b"]}))

    with pytest.raises(ReplyError, match="no numbers of 2 rows"):
        one.answer(Message("coordinator", "a", "matched", {}, {"places": np.array([2])}))


@pytest.mark.slow
def test_ten_thousand_patients_are_matched_within_a_minute():
    start = time.process_time()

    _, _, count = matched(list(range(10_000)), list(range(5_000, 15_000)))

    assert count == 5_000
    assert time.process_time() - start < 60
