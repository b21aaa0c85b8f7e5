"""No two answers of a site are over patients that differ by a few: then those few would be known by subtraction."""

import numpy as np
import pytest

from fedsmall.clients.telling import Guard, rows_to_tell
from fedsmall.data.federation import Samples
from tests.clients.test_told_sums import guard_in

FLOOR = 8


def patients(first: int, last: int):
    """A table of patients by their numbers."""
    numbers = np.arange(first, last)
    return np.stack([numbers, numbers**2], axis=1).astype(np.float32), numbers % 2


def told(memory: Guard, x: np.ndarray, y: np.ndarray) -> list[int]:
    return sorted(x[rows_to_tell(memory, Samples(x, y), FLOOR), 0].astype(int).tolist())


@pytest.fixture
def memory(tmp_path):
    return guard_in(tmp_path)


def test_all_are_told_of_at_first_and_again(memory) -> None:
    assert told(memory, *patients(0, 20)) == list(range(20))
    assert told(memory, *patients(0, 20)) == list(range(20))


def test_a_few_more_are_not_counted_until_they_are_many(memory) -> None:
    told(memory, *patients(0, 20))

    assert told(memory, *patients(0, 23)) == list(range(20))
    assert told(memory, *patients(0, 20 + FLOOR)) == list(range(20 + FLOOR))


def test_where_a_few_are_gone_nothing_is_told(memory) -> None:
    told(memory, *patients(0, 20))

    assert told(memory, *patients(3, 20)) == []
    assert told(memory, *patients(0, 20)) == list(range(20))


def test_those_who_came_back_are_not_new(memory) -> None:
    told(memory, *patients(0, 20))
    told(memory, *patients(10, 40))

    assert told(memory, *patients(12, 42)) == []  # two are new, two are gone


def test_those_who_were_told_of_before_are_told_of_again_whatever_was_told_between(memory) -> None:
    told(memory, *patients(0, 20))
    told(memory, *patients(10, 40))

    assert told(memory, *patients(0, 20)) == list(range(20))
    assert told(memory, *patients(10, 40)) == list(range(10, 40))


def test_a_patient_who_stands_there_twice_is_one_more(memory) -> None:
    x, y = patients(0, 20)
    told(memory, x, y)

    twice = rows_to_tell(memory, Samples(np.concatenate([x, x[:1]]), np.append(y, y[0])), FLOOR)

    assert twice.tolist() == list(range(20))


def test_fewer_than_the_floor_are_never_told_of(memory) -> None:
    assert told(memory, *patients(0, FLOOR - 1)) == []
    assert not memory.path.exists()


def test_whose_outcome_was_corrected_is_another_patient(memory) -> None:
    x, y = patients(0, 20)
    told(memory, x, y)
    y = y.copy()
    y[3] = 1 - y[3]

    assert told(memory, x, y) == []


def test_the_memory_holds_digests_that_nobody_without_the_key_can_make(tmp_path) -> None:
    files = [guard_in(tmp_path / name) for name in ("one", "other")]
    for file in files:
        told(file, *patients(0, 20))

    one, other = (set(file.path.read_text().split('"')) - {"key", "seen", "last", "patients"} for file in files)
    assert not {word for word in one & other if len(word) > 8}


def test_any_two_answers_differ_by_many_or_by_none(memory) -> None:
    rng = np.random.default_rng(0)
    whole, answers = patients(0, 120), []
    for _ in range(60):
        here = np.sort(rng.choice(120, rng.integers(5, 60), replace=False))
        answers.append(set(told(memory, whole[0][here], whole[1][here])))

    known = [answer for answer in answers if answer]
    assert len(known) > 3
    for k, answer in enumerate(known[1:], start=1):
        before = set().union(*known[:k])
        assert answer in known[:k] or len(answer - before) >= FLOOR
