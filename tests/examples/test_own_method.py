"""A method of one's own, outside of fedsmall: its weights by hand, and that its parts do in a run what they say."""

import numpy as np
import pytest

from examples.own_method import FairMomentum, TellingSites, accuracies, fair_weights
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.training.cohort import Cohort

PLAN = Plan(
    name="t",
    task="breast_cancer",
    sites=5,
    samples_per_site=8,
    rounds=6,
    recipe=Recipe(lr=0.1, batch=4),
    method=method("FedAvg"),
)


def test_the_weights_are_those_of_the_formulas():
    found = fair_weights(np.array([0.25, 0.75]), np.array([3.0, 1.0]), 0.5)

    by_accuracy = np.array([2.0, -np.log2(0.75)])
    by_times = np.array([2.0, -np.log2(0.75)])
    assert found == pytest.approx((by_accuracy / by_accuracy.sum() + by_times / by_times.sum()) / 2)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_where_all_sites_tell_the_same_it_is_federated_averaging(alpha):
    federation = build_federation(PLAN)
    plain = dict(accuracies(PLAN, federation, Cohort(PLAN, federation.task, federation.names, federation.train)))

    class Same(TellingSites):
        def _accuracy(self, site, model):
            return 0.5

    found = dict(accuracies(PLAN, federation, Same(PLAN, federation), FairMomentum(alpha, beta=0.0)))

    assert found == plain


def test_the_sites_say_how_well_the_model_did_that_they_were_sent():
    federation = build_federation(PLAN)
    told = []

    class Heard(FairMomentum):
        def combine(self, global_model, updates, t):
            told.append(updates.rule["accuracy"])
            return super().combine(global_model, updates, t)

    found = dict(accuracies(PLAN, federation, TellingSites(PLAN, federation), Heard()))

    assert len(told) == len(found) == 6
    assert all(len(values) == 5 and (values * 8 == np.round(values * 8)).all() for values in told)
    assert told[-1].mean() > told[0].mean()
