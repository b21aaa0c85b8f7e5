"""Public ranges instead of sums over patients."""

import numpy as np
import pytest

from fedsmall.data.sources.pool import Part, Pool, preparation_of, within_ranges
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation

AGES = Pool(
    {"a": Part(np.array([[0.0, 1], [60, 0], [200, np.nan]]), np.array([0, 1, 0]))},
    ("n", "y"),
    {},
    ("age", "sex=f"),
    True,
)


def test_a_range_becomes_mean_0_and_spread_1_of_what_fills_it_and_values_outside_are_cut() -> None:
    prepared = preparation_of(within_ranges(AGES, {"age": [0, 120]}), "float64")

    x = prepared.inputs(AGES.train["a"].x)

    np.testing.assert_allclose(x[:, 0], [-np.sqrt(3), 0, np.sqrt(3)])
    np.testing.assert_allclose(x[:2, 1], [np.sqrt(3), -np.sqrt(3)])
    assert x[2, 1] == 0, "a missing value is the middle of its range"


def test_nothing_is_left_to_agree_on() -> None:
    assert not within_ranges(AGES, [0, 120]).standardise


@pytest.mark.parametrize(
    ("ranges", "line"),
    [
        ({}, "says nothing of age"),
        ({"age": [0, 120], "weight": [0, 1]}, "'weight', which is no feature"),
        ({"age": [120, 0]}, "range of age is"),
        ({"age": "old"}, "range of age is"),
        ([1], "range of ranges is"),
    ],
)
def test_ranges_that_are_none_are_refused_in_one_line(ranges: object, line: str) -> None:
    with pytest.raises(PlanError, match=line) as error:
        within_ranges(AGES, ranges)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_a_task_states_its_ranges() -> None:
    plan = Plan(
        name="p",
        task={"name": "breast_cancer", "ranges": [0.0, 5000.0]},
        sites=4,
        samples_per_site=5,
        method=method("FedAvg"),
    )

    federation = build_federation(plan)

    assert max(float(np.abs(s.x).max()) for s in federation.train) <= np.sqrt(3) + 1e-6
    assert all(np.isfinite(s.x).all() for s in (*federation.train, federation.test))
