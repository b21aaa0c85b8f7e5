"""What sites count for a first table, and what is read from it: by pooled rows, statsmodels, and what is never told."""

import numpy as np
import pytest

from fedsmall.extensions.describe import tables
from fedsmall.extensions.describe.tables import (
    CELLS,
    Patients,
    count,
    group_cells,
    kaplan_meier,
    quantiles,
    spread_cells,
    table_of,
)

NAMES = ("age", "smokes", "stage=1", "stage=2", "stage=3")


def patients(n: int, seed: int = 0, missing: float = 0.1) -> Patients:
    rng = np.random.default_rng(seed)
    stage = np.eye(3)[rng.choice(3, n, p=[0.7, 0.25, 0.05])]
    age = np.where(rng.random(n) < missing, np.nan, rng.lognormal(4, 0.3, n))
    x = np.column_stack([age, rng.random(n) < 0.3, stage]).astype(float)
    return Patients(x, rng.integers(0, 2, n), NAMES, ("healthy", "ill"), False)


def ends(of: list[Patients]) -> np.ndarray:
    x = np.concatenate([each.x for each in of])
    bend = np.sinh(3 * np.linspace(-1, 1, CELLS + 1)) / np.sinh(3)
    return np.nanmean(x, axis=0)[:, None] + 4 * np.nanstd(x, axis=0)[:, None] * bend


def test_sums_of_sites_have_the_means_spreads_and_shares_of_pooled_rows():
    sites = [patients(n, seed) for seed, n in enumerate((200, 80, 1))]
    lines = ends(sites)

    told = [count(site, lines, floor=1) for site in sites]

    sums = {name: sum(site[name] for site in told) for name in told[0]}
    x, group = (np.concatenate(parts) for parts in zip(*((s.x, s.group) for s in sites), strict=True))
    ill = x[group == 1]
    rows = dict((row[0], row[1:]) for row in table_of(NAMES, ("healthy", "ill"), sums, lines))
    assert rows["smokes"][2] == f"{ill[:, 1].sum():.0f} of {len(ill)} ({ill[:, 1].mean():.1%})"
    assert rows["age"][0].startswith(f"{np.nanmean(x[:, 0]):.0f} ± {np.nanstd(x[:, 0], ddof=1):.0f}; ")
    assert rows["age"][3] == f"{np.isnan(x[:, 0]).sum()} ({np.isnan(x[:, 0]).mean():.1%})"
    assert rows["rows"][:3] == tuple(str(n) for n in (len(x), len(x) - len(ill), len(ill)))
    assert sums["count"][:, 0].sum() + sums["missing"][:, 0].sum() == len(x)


def test_of_how_many_patients_some_are_missing_is_said_where_not_all_hospitals_may_tell():
    many, few = patients(60, 0, missing=0.5), patients(60, 1, missing=0.9)  # of age the second has a few in each group
    lines = ends([many, few])

    told = [count(site, lines, floor=8) for site in (many, few)]

    sums = {name: told[0][name] + told[1][name] for name in told[0]}
    rows = dict((row[0], row[1:]) for row in table_of(NAMES, ("healthy", "ill"), sums, lines))
    missing = np.isnan(many.x[:, 0])
    there = ~np.isnan(few.x[:, 0])
    assert all(0 < np.sum(there[few.group == g]) < 8 for g in (0, 1))
    assert rows["age"][3] == f"{missing.sum()} of 60 ({missing.mean():.1%})"
    assert rows["age"][0].endswith("]; of 60 rows alone")
    assert "alone" not in rows["smokes"][0]
    assert rows["smokes"][3] == "0 (0.0%)"


def test_what_is_told_of_one_class_alone_is_nothing_of_all():
    """46 of 80 among the dead, and of the others too few to tell, was said of all."""
    site = patients(60, missing=0)
    site.x[site.group == 1, 1] = np.arange((site.group == 1).sum()) < 3  # three of the ill smoke
    sums = count(site, ends([site]), floor=8)

    rows = dict((row[0], row[1:]) for row in table_of(NAMES, ("healthy", "ill"), sums, ends([site])))

    assert rows["smokes"][0] == rows["smokes"][2] == "too few to tell" != rows["smokes"][1]
    assert "±" in rows["age"][0]


@pytest.mark.parametrize("classes", [(0,), (1,)])
def test_of_a_hospital_with_one_class_all_is_that_class(classes):
    site = patients(60, missing=0)
    site.group[:] = classes[0]
    sums = count(site, ends([site]), floor=8)

    rows = dict((row[0], row[1:]) for row in table_of(NAMES, ("healthy", "ill"), sums, ends([site])))

    assert rows["age"][0] == rows["age"][1 + classes[0]] != "too few to tell"


@pytest.mark.parametrize("floor", [1, 5, 8])
def test_quartiles_of_skewed_values_are_near_the_pooled_ones_whatever_the_floor(floor):
    sites = [patients(150, seed, missing=0) for seed in range(4)]
    lines = ends(sites)

    cells = sum(count(site, lines, floor)["cells"][:, 0].sum(axis=0) for site in sites)

    age = np.concatenate([site.x[:, 0] for site in sites])
    assert quantiles(cells, lines[0]) == pytest.approx(np.quantile(age, tables.QUANTILES), abs=0.06 * age.std())


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 60, 300])
@pytest.mark.parametrize("floor", [2, 5, 8])
def test_no_number_that_is_told_nor_what_it_leaves_is_of_fewer_patients_than_the_floor(n, floor):
    for seed in range(5):
        site = patients(n, seed)

        told = count(site, ends([site, patients(500)]), floor)

        def large(numbers):
            return np.all((numbers == 0) | (numbers >= floor))

        assert all(large(told[name]) for name in ("count", "missing"))
        binary = slice(1, None)
        assert large(told["total"][:, binary])
        assert large((told["count"] - told["total"])[:, binary])
        for g in (
            0,
            1,
        ):  # of a category: what is left of those who have one, when its levels that are told are taken away
            known = told["sites"][g, 2:] > 0
            assert not known.any() or large(np.sum(site.group == g) - told["total"][g, 2:][known].sum())


def test_groups_of_values_keep_their_number_and_none_is_below_the_floor():
    values = np.random.default_rng(0).normal(size=53)
    lines = np.linspace(-4, 4, CELLS + 1)

    grouped = group_cells(values, lines, 5)

    assert grouped.sum() == 53
    assert grouped[grouped > 0].min() >= 5
    assert not group_cells(values[:4], lines, 5).any()
    np.testing.assert_array_equal(group_cells(values, lines, 1), np.histogram(values, lines)[0])


def test_rows_of_one_patient_count_as_one():
    site = patients(60, missing=0)
    lines = ends([site])

    told = count(site._replace(often=3), lines, floor=5)

    assert told["count"][told["count"] > 0].min() >= 15
    np.testing.assert_array_equal(told["cells"], count(site, lines, floor=15)["cells"])


def test_the_survival_curve_and_its_interval_are_those_of_statsmodels():
    survival = pytest.importorskip("statsmodels.duration.survfunc")
    rng = np.random.default_rng(0)
    time, event = rng.integers(1, 60, 150).astype(float), rng.random(150) < 0.6
    lines = np.arange(CELLS + 1) + 0.5  # a cell for each day, so that nothing is rounded
    counted = np.stack([np.histogram(time[event == of], lines)[0] for of in (True, False)]).astype(float)

    _, at_risk, share, low, high = kaplan_meier(counted, lines)

    known = survival.SurvfuncRight(time, event)
    places = known.surv_times.astype(int) - 1
    np.testing.assert_allclose(share[places], known.surv_prob, atol=1e-12)
    np.testing.assert_array_equal(at_risk[places], known.n_risk)
    spread = known.surv_prob_se / (known.surv_prob * np.abs(np.log(known.surv_prob)))
    for bound, sign in ((low, 1), (high, -1)):
        inside = known.surv_prob > 0
        expected = known.surv_prob ** np.exp(sign * tables.BOUND * spread)
        np.testing.assert_allclose(bound[places][inside], expected[inside], atol=1e-9)


def test_cells_that_are_spread_keep_their_number_and_tell_of_groups_and_nothing_else():
    values, lines = np.random.default_rng(0).exponential(20, 41), np.linspace(0, 200, CELLS + 1)
    middles = (lines[1:] + lines[:-1]) / 2
    grouped = group_cells(values, lines, 8)

    spread = spread_cells(values, lines, 8)

    assert spread.sum() == pytest.approx(41)
    assert spread @ middles / 41 == pytest.approx(values.mean(), rel=0.05)
    assert (spread > 0).sum() > 10 * (grouped > 0).sum()
    assert not spread_cells(values[:7], lines, 8).any()
    lone = spread_cells(values[:9], lines, 8, 3.0)
    assert (lone.sum(), (lone > 0).sum()) == (pytest.approx(9), 7)  # of one unit each, 3 to both sides of a middle
    site = Patients(np.array([values, values > 20]).T, np.zeros(41, int), ("months", "died"), ("all",), True)
    told = count(site, np.stack([lines, lines]), 8)
    np.testing.assert_array_equal(told["cells"][0, 0], spread)
    groups = np.array_split(np.sort(values), 5)
    alike = np.concatenate([np.full(len(of), middles[np.digitize(of.mean(), lines) - 1]) for of in groups])
    np.testing.assert_allclose(spread_cells(alike, lines, 8), spread)  # which only the groups' cells decide
    np.testing.assert_array_equal(told["events"][0], spread_cells(values[values > 20], lines, 8))


@pytest.mark.parametrize(("draw", "within"), [("normal", 0.15), ("lognormal", 0.3)])
@pytest.mark.parametrize(("sites", "each"), [(3, 20), (5, 30), (10, 25)])
def test_quartiles_of_small_hospitals_are_near_those_of_all_rows(draw, within, sites, each):
    rng, off = np.random.default_rng(0), {"told": [], "in their cells": []}
    for _ in range(40):
        rows = getattr(rng, draw)(1, 0.7, (sites, each))
        lines = rows.mean() + 4 * rows.std() * np.sinh(3 * np.linspace(-1, 1, CELLS + 1)) / np.sinh(3)
        of = [Patients(part[:, None], np.zeros(each, int), ("crp",), ("all",), False) for part in rows]
        cells = {"told": sum(count(site, lines[None], 8)["cells"][0, 0] for site in of)}
        cells["in their cells"] = sum(group_cells(part, lines, 8) for part in rows)
        truth = np.quantile(rows, tables.QUANTILES)
        for how, found in off.items():
            found.append((quantiles(cells[how], lines) - truth) / rows.std())
    told, grouped = (np.sqrt(np.mean(np.square(found), axis=0)).max() for found in off.values())

    assert told < within
    assert told < 0.75 * grouped


@pytest.mark.parametrize(
    ("sites", "each", "floor", "within"), [(3, 45, 8, 0.04), (5, 30, 5, 0.04), (10, 25, 8, 0.08), (10, 100, 8, 0.02)]
)
def test_a_curve_of_groups_is_near_that_of_all_patients(sites, each, floor, within):
    survival = pytest.importorskip("statsmodels.duration.survfunc").SurvfuncRight
    lines, asked, rng = np.linspace(0, 48, CELLS + 1), np.array([39, 79, 119]), np.random.default_rng(0)
    ways = {"told": spread_cells, "in their cells": group_cells}
    off = {name: [] for name in ways}
    for _ in range(40):
        time, lost = rng.exponential(25, (sites, each)), rng.uniform(5, 60, (sites, each))
        seen, event = np.minimum(time, lost), time <= lost
        exact = survival(seen.ravel(), event.ravel())
        truth = [exact.surv_prob[exact.surv_times <= lines[k + 1]][-1] for k in asked]
        for name, found in off.items():
            told = [
                [ways[name](t[e == of], lines, floor) for of in (True, False)] for t, e in zip(seen, event, strict=True)
            ]
            found.append(kaplan_meier(np.sum(told, axis=0), lines)[2][asked] - truth)
    spread, grouped = (float(np.sqrt(np.mean(np.square(found)))) for found in off.values())

    assert spread < within
    assert spread < (0.75 if each < 100 else 1) * grouped  # where each group is counted at its mean


def test_a_curve_ends_where_few_are_at_risk():
    rng, lines = np.random.default_rng(0), np.tile(np.linspace(0, 100, CELLS + 1), (2, 1))
    followed = np.column_stack([rng.exponential(20, 200), rng.random(200) < 0.6])
    sums = count(Patients(followed, np.zeros(200, int), ("months", "died"), ("all",), True), lines, 5)

    curve = tables.shown_curve(sums, lines)

    assert 0 < curve.shape[1] < CELLS
    assert curve[1].min() >= tables.AT_RISK
    assert tables.shown_curve({}, lines[:1]).size == 0


def test_columns_that_are_withheld_are_not_told():
    site = patients(100)

    told = count(site, ends([site]), 1, {"age"})

    assert all(not told[name][:, 0].any() for name in told)
    assert told["count"][:, 1].sum() == 100


def test_of_the_same_values_two_grids_tell_means_of_groups_and_never_a_single_value():
    values = np.random.default_rng(0).normal(size=40)
    fine, shifted = np.linspace(-4, 4, CELLS + 1), np.linspace(-4.003, 3.997, CELLS + 1)

    told = [group_cells(values, lines, 8) for lines in (fine, shifted)]

    means = np.sort(values).reshape(5, 8).mean(axis=1)
    for lines, counts in zip((fine, shifted), told, strict=True):
        np.testing.assert_array_equal(counts, 8 * np.histogram(means, lines)[0])
