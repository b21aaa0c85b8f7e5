"""What counts in an aggregation: every traveller that was trained since the last one, and no other."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.aggregation.combiners import Aggregate
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.errors import ReplyError
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies import Averaging, DaisyChain
from fedsmall.travel.schedule import Action, Schedule
from fedsmall.wire import CONFIG, ROUND, Arrays
from tests.strategies.toy import moments_of, toy_app, toy_grid, weights


class Counting(Aggregate):
    """Keeps what it was given, and starts every model's count of trainings at zero again."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Updates] = []

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        self.given.append(updates)
        return {"w": np.zeros(1)}


def one_more(site: str, w: np.ndarray, rounds: int) -> np.ndarray:
    return w + 1


class Silent(InProcessGrid):
    """Sites that do not answer, by their number and the round; ``answered`` counts the others' answers."""

    def __init__(self, app, sites, silence):
        super().__init__(app, sites)
        self.silence, self.answered = silence, 0

    def send_and_receive(self, messages, *, timeout=None):
        heard = []
        for order in messages:
            place, t = self.nodes.index(order.metadata.dst_node_id), order.content[CONFIG].get(ROUND)
            if (place, t) not in self.silence:
                heard.append(order)
        self.answered += sum(order.metadata.message_type == "train" for order in heard)
        return super().send_and_receive(heard)


@pytest.mark.thorough
@settings(deadline=None, max_examples=60)
@given(
    sites=st.integers(1, 6),
    fraction=st.sampled_from([1.0, 0.7, 0.4]),
    permute_every=st.sampled_from([None, 1, 2]),
    silence=st.sets(st.tuples(st.integers(0, 5), st.integers(1, 9))),
)
def test_exactly_the_models_that_were_trained_count(sites, fraction, permute_every, silence):
    """A model's number is how often it was trained since the last aggregation, so nothing may be missing or added."""
    combiner, before = Counting(), 0
    chain = DaisyChain(combiner, Schedule(permute_every, 3), seed=5, fraction=fraction, gate=False)
    grid = Silent(toy_app(one_more), sites, silence)
    try:
        for result in moments_of(chain, grid, weights(0.0), 9):
            if result.comm_round.action is Action.AGGREGATE:
                counted = combiner.given[-1].stack["w"][:, 0]
                assert (counted > 0).all()
                assert len(counted) <= max(1, round(fraction * sites))
                assert counted.sum() == grid.answered - before
                before = grid.answered
    except ReplyError:  # nobody has answered at a round
        assert len({place for place, _ in silence}) >= chain.method.travelling(sites)


def test_a_trained_model_counts_where_it_waits_at_a_site_that_does_not_answer():
    chain = DaisyChain(Averaging(), Schedule(permute_every=1, aggregate_every=2), seed=1)
    grid = Silent(toy_app(one_more), 3, {(2, 2)})

    *_, last = moments_of(chain, grid, weights(0.0), 2)

    # two models were trained twice and one waits as it was: (2 + 2 + 1) / 3, not (2 + 2) / 2
    assert last.global_model["w"][0] == pytest.approx(5 / 3)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_strategy_by_its_name_stands_alone_under_flowers_own_loop(weighted):
    strategy = Averaging(weighted=weighted)

    result = strategy.start(toy_grid(3, one_more), weights(0.0), num_rounds=2, train_config=ConfigRecord())

    assert result.arrays["w"].numpy()[0] == 2.0
    assert list(result.train_metrics_clientapp) == [1, 2]


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
    assert chain.method.weighted
    assert chain.schedule == Schedule(1, 5)
