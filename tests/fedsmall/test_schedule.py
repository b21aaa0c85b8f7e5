from collections import Counter
from itertools import islice, permutations
from math import factorial, lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsmall.travel.schedule import Action, CommRound, RandomSchedule, Schedule, cut_at_evaluations
from tests.oracles import permutation

PERIODS = st.none() | st.integers(1, 7)
SCHEDULES = st.builds(Schedule, PERIODS, PERIODS) | st.builds(RandomSchedule, PERIODS, PERIODS, st.integers(0, 99))


def test_aggregation_wins_when_both_are_due():
    schedule = Schedule(permute_every=1, aggregate_every=3)

    actions = [schedule.action(t) for t in range(1, 7)]

    assert actions == 2 * [Action.PERMUTE, Action.PERMUTE, Action.AGGREGATE]


def test_rounds_with_nothing_due_are_no_comm_round():
    comm_rounds = list(Schedule(permute_every=4, aggregate_every=10).comm_rounds(11))

    assert comm_rounds == [
        CommRound(4, 4, Action.PERMUTE),
        CommRound(8, 4, Action.PERMUTE),
        CommRound(10, 2, Action.AGGREGATE),
        CommRound(11, 1, Action.AGGREGATE),
    ]


def test_a_comm_round_is_cut_where_models_are_evaluated_before_it():
    cut = list(cut_at_evaluations(Schedule(permute_every=4, aggregate_every=10).comm_rounds(11), 5))

    assert cut == [
        CommRound(4, 4, Action.PERMUTE),
        CommRound(5, 1, Action.TRAIN, leads_to=8),
        CommRound(8, 3, Action.PERMUTE),
        CommRound(10, 2, Action.AGGREGATE),
        CommRound(11, 1, Action.AGGREGATE),
    ]
    assert [comm_round.due for comm_round in cut] == [4, 8, 8, 10, 11]


def test_an_evaluation_gives_way_to_what_is_due():
    comm_rounds = cut_at_evaluations(Schedule(permute_every=2).comm_rounds(5), 2)

    assert [comm_round.action for comm_round in comm_rounds] == [Action.PERMUTE, Action.PERMUTE, Action.AGGREGATE]


@settings(deadline=None)
@given(SCHEDULES, st.integers(1, 60), st.none() | st.integers(1, 9))
def test_every_local_round_is_in_exactly_one_piece_of_a_comm_round(schedule, rounds, evaluate_every):
    comm_rounds = list(cut_at_evaluations(schedule.comm_rounds(rounds), evaluate_every))

    trained = [t for comm_round in comm_rounds for t in range(comm_round.t - comm_round.rounds + 1, comm_round.t + 1)]
    assert trained == list(range(1, rounds + 1))
    ends = {comm_round.t for comm_round in comm_rounds}
    assert ends.issuperset(range(evaluate_every, rounds, evaluate_every) if evaluate_every else ())


@settings(deadline=None)
@given(SCHEDULES, st.integers(1, 60), st.none() | st.integers(1, 9))
def test_comm_rounds_do_what_is_due_and_end_with_an_aggregation(schedule, rounds, evaluate_every):
    *comm_rounds, last = cut_at_evaluations(schedule.comm_rounds(rounds), evaluate_every)

    assert (last.t, last.action) == (rounds, Action.AGGREGATE)
    acted = {comm_round.t: comm_round.action for comm_round in comm_rounds if comm_round.travels}
    due = {t: schedule.action(t) for t in range(1, rounds)}
    assert acted == {t: action for t, action in due.items() if action is not Action.TRAIN}


@settings(deadline=None)
@given(SCHEDULES.filter(lambda schedule: schedule.permute_every or schedule.aggregate_every), st.integers(1, 20))
def test_a_run_without_an_end_has_the_comm_rounds_of_a_long_one(schedule, rounds):
    *before_the_end, _ = schedule.comm_rounds(rounds)

    assert list(islice(schedule.comm_rounds(), len(before_the_end))) == before_the_end


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 7))
def test_counts_are_those_of_the_periods(permute_every, aggregate_every):
    period = lcm(permute_every, aggregate_every)

    counts = Counter(Schedule(permute_every, aggregate_every).action(t) for t in range(1, period + 1))

    assert counts[Action.AGGREGATE] == period // aggregate_every
    assert counts[Action.PERMUTE] == period // permute_every - 1  # one tie a period


@pytest.mark.parametrize(("permute_every", "aggregate_every"), [(1, 10), (5, 10), (3, 2), (4, 6), (None, 5), (5, None)])
def test_the_random_schedule_has_the_same_expected_counts(permute_every, aggregate_every):
    rounds = 6000
    fixed = Counter(map(Schedule(permute_every, aggregate_every).action, range(1, rounds + 1)))

    drawn = Counter(map(RandomSchedule(permute_every, aggregate_every, seed=1).action, range(1, rounds + 1)))

    for action in Action:
        share = fixed[action] / rounds
        assert drawn[action] == pytest.approx(fixed[action], abs=4 * np.sqrt(rounds * share * (1 - share)))


def test_the_random_schedule_hides_the_aggregation_from_the_clock():
    aggregated = [RandomSchedule(1, 4, seed).action(4) is Action.AGGREGATE for seed in range(400)]

    assert np.mean(aggregated) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 400))


def test_any_round_of_the_random_schedule_can_be_replayed_alone():
    schedule = RandomSchedule(3, 5, seed=2)
    walked = [schedule.action(t) for t in range(1, 50)]

    assert [RandomSchedule(3, 5, seed=2).action(t) for t in reversed(range(1, 50))] == walked[::-1]


@pytest.mark.parametrize("period", [0, -3])
@pytest.mark.parametrize("schedule", [Schedule, RandomSchedule])
def test_periods_below_one_are_refused(schedule, period):
    with pytest.raises(
        ValueError, match=f"permute_every is a number of rounds, at least 1; got {period}; leave it out"
    ):
        schedule(permute_every=period)
    with pytest.raises(ValueError, match=f"aggregate_every is a number of rounds, at least 1; got {period}; leave it"):
        schedule(aggregate_every=period)


def test_a_run_of_no_rounds_is_refused_before_it_is_walked():
    with pytest.raises(ValueError, match="rounds is a number of rounds, at least 1; got 0"):
        Schedule(1, 2).comm_rounds(0)


def test_an_endless_run_that_never_meets_is_refused():
    with pytest.raises(ValueError, match="give permute_every, aggregate_every or the number of rounds"):
        Schedule().comm_rounds()


@settings(deadline=None)
@given(st.integers(0, 2**63), st.integers(1, 10**6), st.sets(st.text(max_size=3), max_size=9), st.randoms())
def test_a_permutation_sends_every_model_to_one_site_whoever_comes_first(seed, t, sites, random):
    shuffled = sorted(sites)
    random.shuffle(shuffled)

    routes = permutation(seed, t, shuffled)

    assert list(routes) == sorted(sites)
    assert set(routes.values()) == sites
    assert routes == permutation(seed, t, sorted(sites))


def test_permutations_are_uniform_fixed_points_and_all():
    sites = ["a", "b", "c", "d"]

    counts = Counter(tuple(permutation(seed, t, sites).values()) for seed in range(4) for t in range(1500))

    observed = [counts[order] for order in permutations(sites)]
    assert len(observed) == factorial(4)
    assert stats.chisquare(observed).pvalue > 1e-3
