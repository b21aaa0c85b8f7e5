"""Boosting over split columns, as its parties could look at it: what one was sent, read with everything that it has.

What cannot be read is shown beside what can: the same attack on a weaker scheme succeeds.
"""

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from fedsmall.errors import ReplyError
from fedsmall.extensions.columns import encrypted
from fedsmall.extensions.columns.encrypted import PublicKey
from fedsmall.extensions.columns.messages import Message
from fedsmall.extensions.columns.plan import Boosting
from tests.extensions.columns.world import EVERYTHING, World, world

LAB = "laboratory"
ROWS = 120


def patients(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four columns, of which the last two (the laboratory's) say most about the label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 4))
    return x, (x[:, 2] + x[:, 3] + 0.5 * x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0).astype(float)


def grown(x: np.ndarray, y: np.ndarray, settings: Boosting) -> World:
    made = world(x, y, keep=True, match=False)
    made.fit(settings)
    return made


def sent(made: World, kind: str, to: str = LAB) -> list[Message]:
    return [one for one in made.post.heard[to] if one.kind == kind]


def guessed(features: np.ndarray, y: np.ndarray) -> float:
    """How often an attacker who knows the labels of some rows is right about the others."""
    return float((cross_val_predict(LogisticRegression(max_iter=500), features, y, cv=5) == y).mean())


def bits(ciphertexts: np.ndarray) -> np.ndarray:
    return np.unpackbits(ciphertexts, axis=1).astype(float)  # (rows, bits)


# What a passive party is sent ---------------------------------------------------------------------------------------


def test_a_passive_party_is_sent_ciphertexts_nodes_and_choices_and_nothing_else():
    made = grown(*patients(), Boosting(least_samples=1, rounds=2, **EVERYTHING))

    said = {one.kind: (sorted(one.words), sorted(one.arrays)) for one in made.post.heard[LAB]}

    assert said == {
        "begin": (["key", "settings"], ["rows"]),
        "gradients": (["numbers", "tree", "width"], ["chunk0", "rows"]),
        "sums": (["nodes", "tree"], ["at"]),
        "split": (["splits", "tree"], []),
    }


def test_until_the_first_split_nothing_depends_on_the_labels_but_ciphertexts():
    x, y = patients()
    other = np.random.default_rng(1).permutation(y)

    first, second = (
        [
            one
            for one in grown(x, labels, Boosting(least_samples=1, rounds=1)).post.heard[LAB]
            if one.kind in ("begin", "gradients")
        ]
        for labels in (y, other)
    )

    for one, two in zip(first, second, strict=True):
        assert {k: v for k, v in one.words.items() if k != "key"} == {k: v for k, v in two.words.items() if k != "key"}
        np.testing.assert_array_equal(one.arrays["rows"], two.arrays["rows"])
        assert {name: array.shape for name, array in one.arrays.items()} == {
            name: array.shape for name, array in two.arrays.items()
        }


@pytest.mark.parametrize(
    "settings",
    [Boosting(least_samples=1, rounds=2), Boosting(least_samples=1, rounds=2, **EVERYTHING)],
    ids=["plain", "plus"],
)
def test_no_ciphertext_is_sent_twice_though_the_first_tree_has_two_gradients_only(settings):
    made = grown(*patients(), settings)

    every = [
        row.tobytes()
        for one in sent(made, "gradients")
        for name, a in one.arrays.items()
        if name != "rows"
        for row in a
    ]

    assert len(every) == 2 * ROWS * (1 if settings.packing else 2)
    assert len(set(every)) == len(every)


def test_an_attacker_who_knows_four_fifths_of_the_labels_reads_none_from_ciphertexts():
    x, y = patients()
    made = grown(x, y, Boosting(least_samples=1, rounds=1))
    seen = sent(made, "gradients")[0].arrays

    found = guessed(np.hstack([bits(seen["chunk0"]), bits(seen["chunk1"])]), y)

    assert abs(found - 0.5) < 4 * 0.5 / np.sqrt(ROWS)  # four standard deviations of a guess


def test_the_same_attacker_reads_all_where_encryption_is_without_chance():
    x, y = patients()
    made = world(x, y, keep=True, match=False)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encrypted.secrets, "randbelow", lambda most: 12345)
        made.fit(Boosting(least_samples=1, rounds=1, depth=1))

    assert guessed(bits(sent(made, "gradients")[0].arrays["chunk0"]), y) == 1


def test_which_rows_are_together_at_a_node_does_tell_of_labels():
    """No fault of this code: a tree is made so. docs/columns.md says it."""
    x, y = patients()
    made = grown(x, y, Boosting(least_samples=1, rounds=1, depth=2, **EVERYTHING))

    nodes = sent(made, "sums")[-1].arrays["at"]

    shares = [y[nodes == node].mean() for node in np.unique(nodes[nodes >= 0])]
    right = sum(
        max(share, 1 - share) * (nodes == node).sum() for share, node in zip(shares, np.unique(nodes), strict=True)
    )
    assert right / ROWS > 0.75 > max(y.mean(), 1 - y.mean()) + 0.1


def test_of_mixed_trees_a_passive_party_is_told_of_its_own_splits_alone():
    x, y = patients()
    made = grown(x, y, Boosting(least_samples=1, rounds=2, trees="mixed", **EVERYTHING))

    own = {node.record for tree in made.active.trees for node in tree.nodes if node.owner == LAB}

    assert {one.words["tree"] for one in sent(made, "sums")} == {1}
    assert own == set(range(len(made.passives[0].records)))
    assert not any(node.owner == LAB for node in made.active.trees[0].nodes)


# What the active party is sent --------------------------------------------------------------------------------------


def monotone(x: np.ndarray) -> np.ndarray:
    """Other values in the laboratory's columns, in the same order."""
    return np.column_stack([x[:, :2], np.exp(x[:, 2]) * 1000, x[:, 3] ** 3 - 5])


@pytest.mark.parametrize(
    "settings",
    [Boosting(least_samples=1, rounds=2), Boosting(least_samples=1, rounds=2, **EVERYTHING)],
    ids=["plain", "plus"],
)
def test_the_active_party_learns_nothing_of_values_but_their_order(settings):
    x, y = patients()

    first, second = grown(x, y, settings), grown(monotone(x), y, settings)

    assert first.active.trees == second.active.trees
    assert readable(first) == readable(second)
    assert first.passives[0].records != second.passives[0].records


def readable(made: World) -> list[object]:
    """All that the active party was sent, with every sum decrypted."""
    key = made.active.data.key
    found: list[object] = []
    for one in made.post.heard["hospital"]:
        for name, array in sorted(one.arrays.items()):
            if name.startswith("chunk"):
                found.append([key.decrypt(c) for c in key.public.from_bytes(array)])
            else:
                found.append((one.kind, name, array.tolist()))
        found.append(dict(one.words))
    return found


def test_where_a_sum_stands_says_nothing_of_its_column_or_cut():
    x, y = patients()
    made = grown(x, y, Boosting(least_samples=1, rounds=8, depth=1))

    chosen = [one.words["splits"][0][1] for one in sent(made, "split")]
    cuts = [one.cut for one in made.passives[0].records]

    assert abs(spearmanr(chosen, cuts).statistic) < 0.9
    assert chosen != sorted(chosen)


def test_a_sum_as_it_was_added_would_tell_whose_gradients_are_in_it(monkeypatch):
    """The active party made the ciphertexts, so it knows their product; hence sums leave as other ciphertexts."""
    x, y = patients()

    open_sums, hidden = (found_members(x, y, monkeypatch, hide) for hide in (False, True))

    assert open_sums >= 1
    assert hidden == 0


def found_members(x: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch, hide: bool) -> int:
    """How many sums of the root are one or two rows' own ciphertexts, multiplied."""
    with monkeypatch.context() as patched:
        if not hide:
            patched.setattr(PublicKey, "rerandomise", lambda key, one: one)
        made = grown(x, y, Boosting(least_samples=1, rounds=1, depth=1, bins=100))
    public = made.active.data.key.public
    own = public.from_bytes(sent(made, "gradients")[0].arrays["chunk0"])
    sums = public.from_bytes(sent(made, "sums", "hospital")[0].arrays["chunk0"])
    pairs = {int(one) for one in own} | {int(a * b % public.square) for a in own for b in own}
    return sum(int(one) in pairs for one in sums)


@pytest.mark.thorough
def test_who_is_lowest_in_a_column_can_be_read_from_a_sum_of_one_row_unless_sides_are_larger():
    """What the method reveals: in later trees most gradients differ, and a sum of one row is one of them."""
    x, y = patients()
    lowest = {int(x[:, k].argmin()) for k in (2, 3)}

    few, many = (single_rows(grown(x, y, Boosting(rounds=6, bins=200, least_samples=least))) for least in (1, 5))

    assert lowest <= few
    assert len(few) < ROWS / 4
    assert not many & lowest


def single_rows(made: World) -> set[int]:
    """Rows whose gradient in the last tree is, as it stands, a sum left of a candidate at the root."""
    key = made.active.data.key
    last = len(made.active.trees) - 1
    asked = [one.words["tree"] for one in sent(made, "sums")]
    root = sent(made, "sums", "hospital")[asked.index(last)].arrays["chunk0"]
    sums = {key.decrypt(one) for one in key.public.from_bytes(root)}
    own = [key.decrypt(one) for one in key.public.from_bytes(sent(made, "gradients")[last].arrays["chunk0"])]
    return {row for row, number in enumerate(own) if number in sums}


# Requests that an honest party would not make -----------------------------------------------------------------------


def test_a_second_split_of_one_node_is_refused():
    """Each answer is the order of a column cut in two; one was chosen, the others stay unsaid."""
    made = grown(*patients(), Boosting(least_samples=1, rounds=1, depth=1))
    again = Message("hospital", LAB, "split", {"tree": 0, "splits": [[0, 1]]})

    with pytest.raises(ReplyError, match="a candidate was chosen that this party did not offer"):
        made.passives[0].answer(again)


@pytest.mark.parametrize(
    ("kind", "words", "arrays", "reason"),
    [
        ("values", {}, {}, "does not answer 'values'"),
        ("sums", {"tree": 7, "nodes": []}, {}, "a tree that is not being grown here"),
        ("sides", {"records": [99]}, {"rows0": np.arange(2)}, "was asked for another"),
        ("sides", {"records": [0]}, {"rows0": np.array([ROWS])}, "no numbers of 120 rows"),
        ("sides", {"records": [0]}, {}, "lacks 'rows0'"),
        (
            "gradients",
            {"tree": 1, "numbers": 2, "width": 9999},
            {"rows": np.arange(2)},
            "cannot hold sums of 9999 bits",
        ),
    ],
)
def test_a_passive_party_refuses_what_is_no_question_of_the_method(kind, words, arrays, reason):
    made = grown(*patients(), Boosting(least_samples=1, rounds=1, depth=1))

    with pytest.raises(ReplyError, match=reason):
        made.passives[0].answer(Message("hospital", LAB, kind, words, arrays))
