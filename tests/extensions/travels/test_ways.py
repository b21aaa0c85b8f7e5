"""Where models were and what they have learnt from, held against runs: their models, and the journal of real sites."""

from dataclasses import replace

import numpy as np
import pytest

from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.extensions.travels.picture import FEW, MOST, Learnt, comm_rounds_shown, travels, travels_of
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.sim.runs.folder import PlanRun, read
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.training.trees import cohort_for
from fedsmall.travel.schedule import Action, comm_rounds_of
from tests.sim.consortium.real_run import plan_of as real_plan
from tests.sim.consortium.real_run import real_run
from tests.sim.engines.harness import federation_of, plan_of

CASES = {
    "a chain": plan_of("FedDC", {"permute_every": 1, "aggregate_every": 4}, rounds=7),
    "groups": plan_of("TravellingGroups", {"groups": 2}, rounds=5),
    "one model": plan_of("TravellingModel", rounds=7),
    "some of the sites": plan_of("FedDC", {"fraction": 0.4, "permute_every": 1, "aggregate_every": 4}, rounds=6),
}


def found(plan, federation):
    samples = tuple(map(len, federation.train))
    return travels_of(PlanRun(0, plan, {"rounds": plan.rounds}, [], []), federation.names, samples)


def left(plan, federation):
    """What every site sent: {name: (sites, ...)} by communication round, from the batched engine."""
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    start = initial_model(plan, federation.task, None)
    walk = daisy_chain(
        topology_for(plan, trainer, lambda _: start),
        comm_rounds_of(plan),
        lambda _: True,
    )
    return [(moment.sites, {name: array.copy() for name, array in moment.models().items()}) for moment in walk]


def changed(federation, site):
    """The same, with other labels at one site."""
    train = list(federation.train)
    train[site] = replace(train[site], y=(train[site].y + 1) % federation.task.classes)
    return replace(federation, train=tuple(train))


@pytest.mark.parametrize("case", CASES)
def test_a_model_has_learnt_from_just_those_sites_whose_labels_would_change_it(case):
    plan = CASES[case]
    federation = federation_of(plan)
    counted = not plan.method.by_samples  # else a model trains on a part of a site's samples
    samples = np.array([len(site) if counted else 1 for site in federation.train])

    told, before = found(plan, federation), left(plan, federation)
    others = [left(plan, changed(federation, site)) for site in range(len(samples))]

    assert len(told.stops) == plan.rounds
    for t, stop in enumerate(told.stops):
        sites, models = before[t]
        assert [federation.names[site] for site in sorted(stop.at)] == list(sites)
        differs = np.array(
            [
                [any((models[n][row] != other[t][1][n][row]).any() for n in models) for other in others]
                for row in range(len(sites))
            ]
        )
        order = np.argsort(stop.at)
        assert stop.trained[order] == pytest.approx(differs @ samples / samples.sum())
        assert stop.sites == pytest.approx(differs.sum(axis=1).mean())
        assert stop.samples == pytest.approx((differs @ samples).mean())


def test_the_way_over_real_sites_is_that_of_their_journal(tmp_path, monkeypatch):
    home = real_run(tmp_path, real_plan("method.0.aggregate_every=4"), monkeypatch)

    told = travels(read(home))

    cards = dict(FileJournal(home / "journal").cards(3))
    assert [stop.action for stop in told.stops] == [Action.PERMUTE] * 3 + [Action.AGGREGATE]
    for comm_round in (2, 3):
        here, there = told.stops[comm_round - 1].at, told.stops[comm_round].at
        trained_by = {told.names[to]: told.names[site] for site, to in zip(here, there, strict=True)}
        assert {site: by for site, (_, by, _) in cards[comm_round]["places"].items()} == trained_by
    assert told.names == ("bonn", "essen", "ulm")
    assert sum(told.samples) == sum(site["samples"] for site in read(home).done[0].row["real"]["sites"].values())


def test_a_silent_sites_visitor_goes_on_and_has_learnt_nothing_there():
    learnt = Learnt(method("FedDC"), 3, 3)

    learnt.train(np.array([0, 1, 2]), {1: "silent"})
    learnt.train(np.array([1, 2, 0]), {})

    assert learnt.seen.tolist() == [[True, True, False], [False, False, True], [True, False, True]]


def test_a_model_that_came_to_nothing_begins_again_with_what_the_average_knew():
    learnt = Learnt(method("FedDC"), 2, 4)
    learnt.train(np.array([0, 1]), {})
    learnt.average()

    learnt.train(np.array([2, 3]), {})
    learnt.train(np.array([3, 2]), {2: "replaced"})

    assert learnt.seen.tolist() == [[True, True, False, False], [True, True, True, True]]


def test_an_average_that_was_refused_leaves_what_was_common_before():
    learnt = Learnt(method("FedDC"), 2, 2)
    learnt.train(np.array([0, 1]), {})

    learnt.average(refused=True)

    assert not learnt.seen.any()


def test_an_average_takes_in_those_alone_that_were_trained():
    learnt = Learnt(method("FedDC"), 2, 2)
    learnt.train(np.array([0, 1]), {0: "absent"})

    learnt.average()

    assert learnt.seen.tolist() == [[False, True], [False, True]]


@pytest.mark.parametrize(
    ("comm_rounds", "average", "shown"),
    [(40, 10, range(12)), (5, 5, range(5)), (40, 2, range(8)), (60, 50, [*range(7), 47, 48, 49, 50, 51])],
)
def test_comm_rounds_are_shown_up_to_a_little_beyond_the_first_average(comm_rounds, average, shown):
    actions = [Action.AGGREGATE if t % average == 0 else Action.PERMUTE for t in range(1, comm_rounds + 1)]

    assert comm_rounds_shown(actions) == list(shown)
    assert len(comm_rounds_shown(actions)) <= FEW


def test_a_chain_without_an_average_is_shown_from_its_start():
    assert comm_rounds_shown([Action.PERMUTE] * 30) == list(range(FEW))


@pytest.mark.parametrize("name", ["FedAvg", "Standalone", "Central"])
def test_where_nothing_travels_there_is_no_way(name):
    plan = plan_of(name, rounds=4)

    assert not plan.method.moves
    assert found(plan, federation_of(plan)) is None


def test_one_site_is_no_way():
    plan = plan_of("FedDC", rounds=4)

    assert travels_of(PlanRun(0, plan, {"rounds": 4}, [], []), ("alone",), (4,)) is None


def test_the_ways_of_very_many_models_are_not_drawn():
    plan = plan_of("FedDC", rounds=4)

    for sites, drawn in ((MOST, True), (MOST + 1, False)):
        names = tuple(f"site {number:04}" for number in range(sites))
        assert (travels_of(PlanRun(0, plan, {"rounds": 4}, [], []), names, (4,) * sites) is not None) is drawn


def test_what_was_not_run_is_not_told():
    plan = CASES["a chain"]
    federation = federation_of(plan)
    one = PlanRun(0, plan, {"rounds": 3}, [], [])

    assert [stop.t for stop in travels_of(one, federation.names, ()).stops] == [1, 2, 3]
