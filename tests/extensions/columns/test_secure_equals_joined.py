"""Boosting over split columns is boosting on joined ones: the same trees, whatever is packed or left out."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from fedsmall.extensions.columns.boosting import with_splits
from fedsmall.extensions.columns.messages import hold_talk
from fedsmall.extensions.columns.plan import Boosting, Goss
from tests.extensions.columns.world import EVERYTHING, World, conduct, world

SETTINGS = {
    "SecureBoost": {},
    "packing": {"packing": True},
    "keys of an earlier release, which do nothing": {"subtraction": True, "sparse": True},
    "goss": {"goss": Goss(), **EVERYTHING},
    "mixed": {"trees": "mixed", **EVERYTHING},
    "layered": {"trees": "layered", "passive_levels": 1, **EVERYTHING},
    "one on a side": {"least_samples": 1, **EVERYTHING},
    "few on a side": {"least_samples": 3, "least_gain": 0.1, "bins": 9, **EVERYTHING},
}


def check(made: World, settings: Boosting) -> None:
    """Grown on some rows, the same forest; the same scores on these and on others."""
    patients = [made.active.table.identifiers[row] for row in made.active.matched]  # whose order is drawn anew
    rows = np.argsort(patients)[: len(made.y) * 4 // 5]

    made.fit(settings, rows)
    joined = made.joined(settings, rows)

    assert made.grown() == with_splits(joined.trees, joined.records)
    np.testing.assert_allclose(made.scores(), joined.scores(made.columns), rtol=0, atol=1e-9)


def owners(made: World) -> set[str]:
    return {node.owner for tree in made.active.trees for node in tree.nodes} - {""}


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    return x[::5], y[::5]


@pytest.mark.thorough
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_trees_are_those_of_joined_columns(cancer, name, parties):
    made = world(*cancer, parties)

    check(made, Boosting(rounds=2, **SETTINGS[name]))

    assert owners(made) - {made.active.name}  # else it would not matter that there are others


@pytest.mark.parametrize("name", ["SecureBoost", "packing"])
def test_no_cut_leaves_enough_on_both_sides(cancer, name):
    made = world(*cancer, 2)

    check(made, Boosting(rounds=2, **SETTINGS[name], least_samples=len(cancer[1]) // 2))

    assert [len(tree.nodes) for tree in made.active.trees] == [1, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("parties", [2, 3])
def test_on_all_of_breast_cancer(parties):
    x, y = load_breast_cancer(return_X_y=True)

    check(world(x, y, parties), Boosting(rounds=4, **EVERYTHING))


def tables_like_heart_disease() -> tuple[np.ndarray, np.ndarray]:
    """Made rows of the kind of that table: numbers, codes of few values, yes and no, and missing values."""
    rng = np.random.default_rng(1)
    numbers, codes, flags = (
        rng.normal(size=(120, 4)).round(1),
        rng.integers(0, 4, (120, 4)),
        rng.integers(0, 2, (120, 5)),
    )
    x = np.hstack([numbers, codes, flags])
    y = (numbers[:, 0] + codes[:, 1] + 2 * flags[:, 0] + rng.normal(size=120) > 3).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x, y


@pytest.mark.parametrize("parties", [2, 3])
def test_with_missing_values_and_codes(parties):
    check(world(*tables_like_heart_disease(), parties), Boosting(rounds=4, **EVERYTHING))


@pytest.mark.parametrize("parties", [2, 3])
def test_on_heart_disease(data_root, parties):
    file = data_root / "heart_disease" / "processed.cleveland.data"
    if not file.exists():
        pytest.skip("FEDSMALL_DATA has no heart_disease/")
    table = np.genfromtxt(file, delimiter=",", missing_values="?")

    check(world(table[:, :13], (table[:, 13] > 0).astype(float), parties), Boosting(rounds=4, **EVERYTHING))


@pytest.mark.thorough
@pytest.mark.parametrize("outputs", ["one", "many"])
@pytest.mark.parametrize("more", [{}, EVERYTHING, {**EVERYTHING, "goss": Goss()}], ids=["plain", "plus", "goss"])
def test_several_classes(outputs, more):
    x, y = load_wine(return_X_y=True)

    made = world(x[::2], y[::2].astype(float), 3, classes=3)
    check(made, Boosting(rounds=2, outputs=outputs, **more))

    assert len(made.active.trees) == (2 if outputs == "many" else 6)


def test_more_numbers_a_row_than_one_plaintext_holds():
    x, y = load_wine(return_X_y=True)
    made = world(x[::2], y[::2].astype(float), 2, classes=3, keep=True, key_bits=256)  # five sums, of a row's six

    check(made, Boosting(rounds=1, outputs="many", **EVERYTHING))

    gradients = next(one for one in made.post.heard["laboratory"] if one.kind == "gradients")
    assert set(gradients.arrays) == {"rows", "chunk0", "chunk1"}


@pytest.mark.parametrize("more", [{}, {**EVERYTHING, "goss": Goss(top=0.3, other=0.2)}], ids=["plain", "plus"])
def test_a_number(more):
    x, y = load_diabetes(return_X_y=True)

    check(world(x[:120], 100 * y[:120], 2, classes=0), Boosting(rounds=3, **more))


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3])
def test_at_the_full_length_of_the_key(parties):
    x, y = load_breast_cancer(return_X_y=True)

    check(world(x, y, parties, key_bits=2048), Boosting(rounds=2))


def test_led_by_who_carries_messages_the_forest_is_the_same():
    """At real sites the party with the labels cannot call on others: it is asked what to ask."""
    made = world(*tables_like_heart_disease(), 3, keep=True)
    settings = Boosting(rounds=2, seed=3, **EVERYTHING)

    told = hold_talk(conduct([made.active.name, *(one.name for one in made.passives)], settings, 0.25), made.post)

    led = made.grown()
    train, held_out = made.active.hold_out(3, 0.25)
    made.fit(settings, train)
    assert made.grown() == led
    assert told["common"] == 120
    assert told["worth"]["held_out"] == len(held_out) == 30
    assert sum(told["splits"].values()) == sum(len(one.records) for one in [made.active, *made.passives])
