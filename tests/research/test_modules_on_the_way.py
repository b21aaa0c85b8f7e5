"""From ``fedsmall run`` to the first aggregate a reader passes so many modules; the number may only fall."""

import pytest

from fedsmall.research.modules_on_the_way import modules_on_the_way

MOST = 55


@pytest.mark.thorough
def test_no_more_modules_are_on_the_way_to_the_first_aggregate(capsys):
    passed = modules_on_the_way()

    assert "fedsmall/aggregation/aggregate.py" in passed
    assert len(passed) <= MOST, sorted(passed)
