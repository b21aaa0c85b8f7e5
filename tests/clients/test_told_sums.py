"""Sums that a site has told: nothing follows from telling the same ones again, whatever was told between."""

import numpy as np
import pytest

from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.telling import Guard, told_sums
from fedsmall.data.preparation import Sums

FLOOR = 3


def guard_in(home, file="told_sums.json"):
    """A guard of a site that writes in a folder, with its log."""
    return Guard(home / file, SiteLog(home, "essen"), "r")


def sums_of(x):
    return Sums(np.full(x.shape[1], float(len(x))), x.sum(axis=0), (x**2).sum(axis=0))


@pytest.fixture
def told(tmp_path):
    """What is told of a table with one feature, and for how many features as before."""

    def tell(values):
        x = np.asarray(values, dtype=float)[:, None]
        answer = told_sums(guard_in(tmp_path), sums_of(x), x, ("marker",), FLOOR)
        return answer[0].total.item(), answer[1]

    return tell


def test_sums_of_the_same_patients_are_told_again_whatever_was_told_between(told):
    first, second = [1, 2, 3, 4], [3, 4, 10, 20, 30]

    assert [told(first), told(second), told(first), told(second)] == [(10, 0), (67, 0), (10, 0), (67, 0)]


def test_a_part_of_what_was_told_is_not_told(told):
    assert told([1, 2, 3, 4, 5, 6]) == (21, 0)

    assert told([1, 2, 3]) == (21, 1)


def test_of_one_patient_more_the_last_sums_are_told(told):
    assert [told([1, 2, 3, 4]), told([10, 20, 30, 40])] == [(10, 0), (100, 0)]

    assert told([1, 2, 3, 4, 7]) == (100, 1)
    assert told([1, 2, 3, 4]) == (10, 0)
