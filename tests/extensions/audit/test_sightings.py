"""Who is said to hold which model is held against the models themselves."""

import numpy as np
import pytest
import torch

from fedsmall.extensions.audit.federations import side_by_side, world_of
from fedsmall.extensions.audit.sightings import OLDEST, SERVER, Confidence, Notes, Route
from fedsmall.models.registry import initial_model
from fedsmall.travel.schedule import Action
from tests.extensions.audit.worlds import plan_of

SITES = 5


@pytest.fixture(scope="module", params=[{"aggregate_every": 6}, {"aggregate_every": 4, "fraction": 0.6}])
def walk(request):
    plan = plan_of(settings=request.param, sites=SITES, rounds=13)
    world = world_of(plan)
    steps = [
        step._replace(
            **{part: {n: t.clone().numpy() for n, t in getattr(step, part).items()} for part in ("received", "sent")},
            global_models={name: tensor.numpy() for name, tensor in step.global_models.items()},
        )
        for step in side_by_side(plan, world, world.coins(0)[None])
    ]
    return plan, steps, Route(plan, SITES, tuple(range(SITES)))


def model_of(step, part, site):
    (row,) = np.flatnonzero(step.at == site)
    return np.concatenate([array[row].ravel() for array in getattr(step, part).values()])


def test_a_model_is_where_the_route_says(walk):
    _, steps, route = walk
    visits = [(traveller, v) for place in range(len(steps)) for traveller, v in route.visits(place)]

    assert len(visits) > 20
    for traveller, visit in visits:
        sent = model_of(steps[visit.place], "sent", steps[visit.place].at[traveller])
        if visit.age == 1:
            np.testing.assert_array_equal(sent, model_of(steps[visit.place], "sent", visit.site))
        if visit.to == SERVER:
            assert steps[visit.place].comm_round.action is Action.AGGREGATE
        else:
            np.testing.assert_array_equal(sent, model_of(steps[visit.place + 1], "received", visit.to))


def test_who_is_said_to_know_a_start_has_sent_that_very_model(walk):
    plan, steps, route = walk
    last = np.concatenate([a.ravel() for a in initial_model(plan, world_of(plan).task).values()])
    starts, senders = 0, 0
    for place, step in enumerate(steps):
        for _, visit in route.visits(place):
            if visit.age > 1:
                continue
            came = model_of(step, "received", visit.site)
            if visit.sender == SERVER:
                np.testing.assert_array_equal(came, last)
                starts += 1
            else:
                np.testing.assert_array_equal(came, model_of(steps[place - 1], "sent", visit.sender))
                assert not np.array_equal(came, last)
                senders += 1
        if step.global_models:
            last = np.concatenate([array[0].ravel() for array in step.global_models.values()])
    assert starts
    assert senders


def test_older_visits_are_those_of_the_same_model_before(walk):
    _, steps, route = walk
    older = 0
    for place in range(len(steps)):
        for traveller, visit in route.visits(place):
            then = visit.place - visit.age + 1
            for between in range(then, visit.place):
                here, there = steps[between].at[traveller], steps[between + 1].at[traveller]
                np.testing.assert_array_equal(
                    model_of(steps[between], "sent", here), model_of(steps[between + 1], "received", there)
                )
            assert steps[then].at[traveller] == visit.site
            assert visit.age <= OLDEST
            older += visit.age > 1
    assert older


def test_what_is_written_down_is_what_the_models_say(walk):
    plan, steps, route = walk
    world = world_of(plan)
    notes = Notes(plan, world, world.coins(0)[None], route, 0)
    for place, step in enumerate(side_by_side(plan, world, notes.members)):
        notes.take(place, step)
    seen = notes.result()
    candidates = np.arange(int(world.sizes.sum()))
    x, y = (np.concatenate([getattr(some, part) for some in world.candidates]) for part in "xy")
    sure = Confidence(plan, world.task, x, y)

    for place, step in enumerate(steps):
        for site in step.at:
            own = candidates[world.site_of == site]
            for part, noted in (("received", seen.before), ("sent", seen.after)):
                rows = np.flatnonzero(step.at == site)
                one = {name: torch.from_numpy(array[rows]) for name, array in getattr(step, part).items()}
                np.testing.assert_allclose(noted[0, place, own], sure(one, own[None])[0], atol=1e-5)
        away = ~np.isin(world.site_of, step.at)
        assert np.isnan(seen.after[0, place, away]).all()
        assert np.isnan(seen.before[0, place, away]).all()
