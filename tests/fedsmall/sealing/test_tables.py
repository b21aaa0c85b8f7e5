"""Sketches of tables: copies are found in any order, different hospitals never, and without the key nothing is told."""

import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from fedsmall.errors import PlanError
from fedsmall.sealing.tables import BITS, are_alike, check_tables, rows_of, sketch, sketches
from tests import only_quick

KEY = bytes(range(32))


def rows(first, last):
    return [f"patient {k}".encode() for k in range(first, last)]


def agreement(one, other):
    bits = [np.unpackbits(np.frombuffer(content, np.uint8)) for content in (one, other)]
    return float((bits[0] == bits[1]).mean())


@pytest.mark.parametrize("count", [1, 2, 3, 8, 1500])
def test_a_table_has_one_sketch_in_any_order_and_in_any_chunks(count):
    table = rows(0, count)

    assert sketch(table, KEY) == sketch(table[::-1], KEY) == sketch(table * 2, KEY)
    assert len(sketch(table, KEY)) == BITS // 8


@pytest.mark.parametrize("shared", [0, 100, 250, 500, 750, 900, 1000])
def test_two_sketches_agree_in_half_of_their_bits_and_half_of_what_the_tables_share(shared):
    """By the definition of MinHash: the least row of both is the same one with probability J."""
    jaccard = shared / (2000 - shared)

    agreements = [
        agreement(sketch(rows(0, 1000), key), sketch(rows(1000 - shared, 2000 - shared), key)) for key in keys(20)
    ]

    assert np.mean(agreements) == pytest.approx((1 + jaccard) / 2, abs=4 * 0.5 / np.sqrt(20 * BITS) + 1e-9)


def keys(count):
    rng = np.random.default_rng(3)
    return [rng.bytes(32) for _ in range(count)]


def found(one, other, trials=200):
    return np.mean([are_alike(sketch(one, key), sketch(other, key)) for key in keys(trials)])


@pytest.mark.parametrize("count", only_quick([8, 40], [8, 40, 300]))
def test_copies_and_halves_are_found_and_strangers_and_small_parts_are_not(count):
    table = rows(0, count)

    assert found(table, table[::-1]) == 1
    assert found(table, rows(0, count + 1)) == 1
    assert found(table, table[: count // 2]) >= 0.98
    assert found(table, table[: count // 8]) == 0
    assert found(table, rows(count, 2 * count)) == 0


def test_without_the_key_a_sketch_says_nothing_of_a_row():
    """Bits of tables with and without a row, under unknown keys, are as often 0 as 1 and as often the same."""
    shares, same = [], []
    for _ in range(300):
        one, other = (sketch(table, secrets.token_bytes(32)) for table in (rows(0, 4), rows(0, 3)))
        shares.append(np.unpackbits(np.frombuffer(one, np.uint8)).mean())
        same.append(agreement(one, other))

    for values in (shares, same):
        assert abs(np.mean(values) - 0.5) < 5 * 0.5 / np.sqrt(300 * BITS)
        assert np.std(values) == pytest.approx(0.5 / np.sqrt(BITS), rel=0.25)


def test_with_the_key_a_guess_could_be_tried_so_the_key_is_of_two_sites_alone():
    """The strength of the attack that the secret keeps away: of four patients the fourth is told from a stranger."""
    true, stranger = rows(0, 4), [*rows(0, 3), b"nobody"]

    assert agreement(sketch(true, KEY), sketch(rows(0, 4), KEY)) == 1
    assert agreement(sketch(true, KEY), sketch(stranger, KEY)) < 0.9


def told_of(tables, run="r id"):
    """What sites with these tables tell, {site: {other: sketch}}."""
    own = {site: X25519PrivateKey.generate() for site in tables}
    public = {site: key.public_key().public_bytes_raw().hex() for site, key in own.items()}
    return {site: sketches(rows_of([table]), own[site], site, run, public) for site, table in tables.items()}


def numbers(seed, count=60, columns=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, columns)), rng.integers(0, 2, count)


def test_the_server_names_the_two_and_no_others():
    x, y = numbers(0)
    order = np.random.default_rng(1).permutation(60)

    check_tables(told_of({"bonn": (x, y), "essen": numbers(2), "ulm": numbers(3)}))
    with pytest.raises(PlanError, match=r"^bonn and ulm hold the same patients: .* start a run without one of the"):
        check_tables(told_of({"bonn": (x, y), "essen": numbers(2), "ulm": (x[order], y[order])}))


def test_the_other_outcome_makes_another_row_and_a_missing_value_does_not():
    x, y = numbers(0)
    x[:, 2] = np.nan

    check_tables(told_of({"bonn": (x, y), "essen": (x, 1 - y)}))
    with pytest.raises(PlanError, match="bonn and essen hold the same patients"):
        check_tables(told_of({"bonn": (x, y), "essen": (x.copy(), y.copy())}))


@pytest.mark.parametrize("sites", [0, 1])
def test_of_fewer_than_two_sites_nothing_is_compared(sites):
    check_tables(told_of({"bonn": numbers(0)}) if sites else {})


@pytest.mark.parametrize("wrong", ["", "zz", "00", None, 3])
def test_a_sketch_that_cannot_be_read_is_refused(wrong):
    told = told_of({"bonn": numbers(0), "essen": numbers(1)})
    told["essen"]["bonn"] = wrong

    with pytest.raises(PlanError, match="bonn and essen: what they tell to compare their tables cannot be read"):
        check_tables(told)
    with pytest.raises(PlanError, match="cannot be read"):
        check_tables({"bonn": told["bonn"], "essen": {}})


@pytest.mark.parametrize("key", ["", "00", "zz" * 32, "00" * 32])
def test_keys_that_are_none_are_refused(key):
    with pytest.raises(PlanError, match="keys by which sites compare their tables"):
        sketches(rows_of([numbers(0)]), X25519PrivateKey.generate(), "bonn", "r", {"essen": key})


def test_every_two_sites_have_a_secret_of_their_own_in_every_run():
    table, own = rows_of([numbers(0)]), {site: X25519PrivateKey.generate() for site in "abc"}
    public = {site: key.public_key().public_bytes_raw().hex() for site, key in own.items()}

    first, second = (sketches(table, own["a"], "a", run, public) for run in ("r 1", "r 2"))

    assert set(first) == {"b", "c"}
    assert first["b"] == sketches(table, own["b"], "b", "r 1", public)["a"]
    assert len({first["b"], first["c"], second["b"], second["c"]}) == 4


def test_tables_that_say_too_little_are_never_alike_and_look_like_all_others():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (200, 3)).astype(float), rng.integers(0, 2, 200)

    told = told_of({"bonn": (x, y), "essen": (x, y)})

    check_tables(told)
    assert len(told["bonn"]["essen"]) == BITS // 4


def real_tables(data_root):
    tables = {}
    for path in sorted((data_root / "heart_disease").glob("*.data")):
        lines = [line.split(",") for line in path.read_text().splitlines() if line.strip()]
        values = np.array([[np.nan if cell == "?" else float(cell) for cell in line] for line in lines])
        tables[path.name] = (values[:, :-1], values[:, -1])
    return tables


def test_four_real_hospitals_are_not_taken_for_one_another_and_each_copy_is(data_root):
    tables = real_tables(data_root)
    assert len(tables) >= 4

    for _ in range(20):
        check_tables(told_of(tables))
    for name, table in tables.items():
        with pytest.raises(PlanError, match="hold the same patients"):
            check_tables(told_of({"a copy": table, name: table}))


def of_factors(rng, weights, count, levels, noise):
    values = rng.normal(size=(count, len(weights))) @ weights + noise * rng.normal(size=(count, weights.shape[1]))
    return np.round(values * levels) / levels if levels else (values > 0).astype(float)


@pytest.mark.thorough
def test_different_hospitals_are_never_refused_whatever_their_tables_are_like():
    """Parts of real tables, and tables of few factors (so that columns depend on each other), rounded or yes and no."""
    rng, refused, compared = np.random.default_rng(0), 0, 0
    pairs = []
    for load in (load_breast_cancer, load_digits, load_wine, load_diabetes):
        x, _ = load(return_X_y=True)
        for count in (4, 8, 12, 40, 80):
            orders = [rng.permutation(len(x)) for _ in range(100)]
            pairs += [(x[order[:count]], x[order[count : 2 * count]]) for order in orders]
    for columns in (3, 8, 13, 30):
        for factors in (1, 2, 5):
            weights = rng.normal(size=(factors, columns))
            for count in (4, 8, 10, 15, 20, 30, 100, 300):
                for levels in (0, 1, 2, 10):
                    for noise in (0, 0.01, 0.1, 0.5) * 4:
                        pairs.append(tuple(of_factors(rng, weights, count, levels, noise) for _ in range(2)))
    for xs in pairs:
        one, other = (rows_of([(x, np.zeros(len(x)))]) for x in xs)
        if one.is_telling and other.is_telling:
            key, compared = rng.bytes(32), compared + 1
            refused += are_alike(sketch(one.rows, key), sketch(other.rows, key))
            assert are_alike(sketch(one.rows, key), sketch(one.rows, key))

    assert refused == 0
    assert compared > len(pairs) / 3
