"""What counts in an aggregation: every traveller that was trained since the last one, and no other."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.aggregation.combiners import Aggregate, Updates
from fedsmall.errors import ReplyError
from fedsmall.travel.schedule import Action, Schedule
from fedsmall.wire import Arrays
from strategies import Averaging, DaisyChain, FedDC
from strategies.slots import Slot
from tests.strategies.toy import ASKED, toy_grid, weights


class Counting(Aggregate):
    """Keeps what it was given, and starts every model's count of trainings at zero again."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Updates] = []

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        self.given.append(updates)
        return {"w": np.zeros(1)}


def one_more(site: str, w: np.ndarray, rounds: int) -> np.ndarray:
    return w + 1


@settings(deadline=None, max_examples=60)
@given(
    sites=st.integers(1, 6),
    fraction=st.sampled_from([1.0, 0.7, 0.4]),
    independent=st.booleans(),
    permute_every=st.sampled_from([None, 1, 2]),
    silence=st.sets(st.tuples(st.integers(0, 5), st.integers(1, 9))),
)
def test_exactly_the_travellers_that_were_trained_count(sites, fraction, independent, permute_every, silence):
    """A model's number is how often it was trained since the last aggregation, so nothing may be missing or added."""
    combiner, trainings = Counting(), 0
    chain = DaisyChain(combiner, Schedule(permute_every, 3), seed=5, fraction=fraction)
    grid = toy_grid(sites, one_more)
    travellers = max(1, round(fraction * sites))
    contacts = chain.plan_contacts(9)
    chain.meet(grid, weights(0.0), ASKED)
    if independent:
        chain.slots = {site: Slot(weights(0.0)) for site in chain.sites}
    for number, contact in enumerate(contacts, 1):
        orders = list(chain.configure_train(number, weights(0.0), ASKED, grid))
        asked = [site for site, node in chain.roster.nodes.items() if node in {o.metadata.dst_node_id for o in orders}]
        replies = [
            reply
            for reply, site in zip(grid.send_and_receive(orders), sorted(asked), strict=True)
            if (int(site[-1]), contact.t) not in silence
        ]
        if not replies:
            with pytest.raises(ReplyError):
                chain.aggregate_train(number, replies)
            return
        chain.aggregate_train(number, replies)
        trainings += len(replies)
        assert len(chain.slots) == travellers
        if contact.action is Action.AGGREGATE:
            counted = combiner.given[-1].stack["w"][:, 0]
            assert (counted > 0).all()
            assert counted.sum() == trainings
            trainings = 0


def test_a_trained_model_counts_where_it_waits_at_a_site_that_never_answers():
    silent = "site-2"
    chain = DaisyChain(Averaging(), Schedule(permute_every=1, aggregate_every=2), seed=1)
    grid = toy_grid(3, one_more)
    chain.plan_contacts(2)

    def contact(number: int) -> None:
        orders = list(chain.configure_train(number, weights(0.0), ASKED, grid))
        node = chain.roster.nodes[silent]
        chain.aggregate_train(number, [r for r in grid.send_and_receive(orders) if r.metadata.src_node_id != node])

    contact(1)
    chain.slots = {  # by hand: the traveller that site-0 trained now waits at the silent site
        "site-0": chain.slots[silent],
        "site-1": Slot(weights(10.0), report=chain.slots["site-1"].report),
        silent: Slot(weights(10.0), report=chain.slots["site-0"].report or chain.slots["site-1"].report),
    }
    chain.slots["site-0"] = Slot(weights(10.0), report=chain.slots["site-1"].report)
    contact(2)

    # two models were trained once more and one waits as it was: (11 + 11 + 10) / 3, not (11 + 11) / 2
    assert chain.common["w"].numpy()[0] == pytest.approx(32 / 3)


def test_independent_models_that_nobody_trained_do_not_count():
    chain = FedDC(permute_every=None, aggregate_every=1)
    grid = toy_grid(3, one_more)
    chain.plan_contacts(1)
    chain.meet(grid, weights(0.0), ASKED)
    chain.slots = {site: Slot(weights(100.0 * number)) for number, site in enumerate(chain.sites)}
    orders = list(chain.configure_train(1, weights(0.0), ASKED, grid))
    away = chain.roster.nodes["site-2"]

    chain.aggregate_train(1, [r for r in grid.send_and_receive(orders) if r.metadata.src_node_id != away])

    assert chain.common["w"].numpy()[0] == (1 + 101) / 2


@pytest.mark.parametrize("weighted", [False, True])
def test_a_strategy_by_its_name_stands_alone_under_flowers_own_loop(weighted):
    strategy = Averaging(weighted=weighted)

    result = strategy.start(toy_grid(3, one_more), weights(0.0), num_rounds=2, train_config=ConfigRecord())

    assert result.arrays["w"].numpy()[0] == 2.0
    assert strategy.aggregations == 2


def test_weights_are_the_samples_of_the_travellers_where_they_are_asked_for():
    def to_number(site: str, w: np.ndarray, rounds: int) -> np.ndarray:
        return w * 0 + int(site[-1])

    equal, weighed = (
        Averaging(weighted=weighted)
        .start(toy_grid(3, to_number), weights(0.0), num_rounds=1, train_config=ConfigRecord())
        .arrays["w"]
        .numpy()[0]
        for weighted in (False, True)
    )

    assert equal == pytest.approx(1.0)
    assert weighed == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)  # site k has k + 1 samples


def test_a_chain_around_a_named_strategy_takes_its_combiner_and_its_weights():
    chain = DaisyChain(Averaging("median", weighted=True), Schedule(1, 5))

    assert chain.combiner.aggregator == "median"
    assert chain.weighted
    assert chain.schedule == Schedule(1, 5)
