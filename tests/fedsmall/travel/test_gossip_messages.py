"""Where there is no server nothing is lost and nothing doubled: messages, travellers in hand or under way, sums."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.algorithm.gossip import ACKNOWLEDGED, MODEL_SENT, SHARE, UNDER_WAY, Mail, Places, PushSum
from fedsmall.parts import Topology
from fedsmall.travel.schedule import bijection

TOPOLOGIES = st.builds(
    Topology,
    by=st.sampled_from(["gossip", "ring"]),
    loss=st.sampled_from([0.0, 0.2, 0.6]),
    delay=st.integers(0, 3),
    tries=st.integers(1, 3),
)


def model(values: np.ndarray, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {
        "w": torch.tensor(values, dtype=dtype).reshape(-1, 1),
        "batches": torch.ones(len(values), dtype=torch.int64),
    }


@given(loss=st.sampled_from([0.0, 0.3, 0.8]), delay=st.integers(0, 4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_letter_is_handed_over_once_to_whom_it_was_sent(loss: float, delay: int, seed: int) -> None:
    mail, came = Mail(seed, loss, delay), []
    for start in (0, 10, 20):
        mail.post(np.arange(10) % 3, start + np.arange(10), kind=MODEL_SENT)
        came += [mail.exchange()]
    came += [mail.exchange() for _ in range(200 * (1 + delay))]

    what, receivers = (np.concatenate([getattr(each, name) for each in came]) for name in ("what", "receiver"))

    assert sorted(what) == list(range(30))
    assert (receivers == what % 10 % 3).all()
    assert not mail._open.size, "and in the end nobody waits for an answer"
    assert not mail._had.size, "nor remembers anything"


def test_over_sound_lines_every_letter_is_sent_once_and_over_others_as_often_as_it_takes() -> None:
    sound, lossy = Mail(0), Mail(0, loss=0.2)
    for mail in (sound, lossy):
        mail.post(np.zeros(2000, dtype=int), np.arange(2000), kind=SHARE)
        for _ in range(60):
            mail.exchange()

    assert sound.sent.tolist() == [0, 2000]
    assert sound.acknowledged == ACKNOWLEDGED * 2000
    # until one of its three acknowledgements comes back: 1 / (0.8 * (1 - 0.2 ** 3))
    assert lossy.sent[SHARE] / 2000 == pytest.approx(1.26, abs=0.05)


def test_a_lost_acknowledgement_doubles_nothing() -> None:
    doubled = 0
    for seed in range(40):
        mail = Mail(seed, loss=0.7)
        mail.post(np.array([1]), np.array([7]), kind=MODEL_SENT)
        handed_over = sum(len(mail.exchange().what) for _ in range(80))
        doubled += mail.acknowledged > ACKNOWLEDGED
        assert handed_over == 1

    assert doubled > 5, "it did come more than once, so this is no empty promise"


def test_what_is_withdrawn_is_not_handed_over_however_late_it_comes() -> None:
    mail = Mail(0, delay=3)
    mail.post(np.zeros(50, dtype=int), np.arange(50), kind=SHARE)
    before = len(mail.exchange().what)
    mail.withdraw(SHARE)

    assert 0 < before < 50
    assert not sum(len(mail.exchange().what) for _ in range(20))


@given(topology=TOPOLOGIES, sites=st.integers(1, 9), models=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_model_is_lost_and_none_is_at_two_sites(topology: Topology, sites: int, models: int, seed: int) -> None:
    places = Places(topology, seed, sites, np.arange(min(models, sites)))
    for t in range(1, 30):
        rows = places.training()
        assert len(set(places.at[rows])) == len(rows), "one trains at a site"
        assert (places.at[rows] != UNDER_WAY).all()
        places.send_on(rows, t)
        for _ in range(topology.tries):
            arrived, _ = places.exchange()
            assert len(set(arrived)) == len(arrived)
        under_way = places.mail._open[2][~places.mail._had[places.mail._open[0] - places.mail._oldest]]
        assert sorted(under_way) == np.flatnonzero(places.at == UNDER_WAY).tolist(), (
            "its sender has it, and nobody else"
        )
    for _ in range(400):
        places.exchange()

    assert (places.at != UNDER_WAY).all(), "and all come in the end"


def test_over_sound_lines_travellers_go_as_a_server_would_send_them_or_round() -> None:
    gossip, ring = (Places(Topology(by=by), 3, 5, np.arange(5)) for by in ("gossip", "ring"))
    for places in (gossip, ring):
        places.send_on(places.training(), t=4)
        places.exchange()

    assert gossip.at.tolist() == bijection(3, 4, 5).tolist()
    assert ring.at.tolist() == [1, 2, 3, 4, 0]


def test_who_comes_late_trains_after_who_was_there() -> None:
    places = Places(Topology(by="ring"), 0, 3, np.array([0, 0, 2]))

    assert places.training().tolist() == [0, 2]

    places.send_on(np.array([0, 2]), t=1)
    places.exchange()

    assert places.at.tolist() == [1, 0, 0]
    assert places.training().tolist() == [0, 1], "what waited goes first"


@given(topology=TOPOLOGIES, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_sums_and_weights_in_hand_and_under_way_stay_what_they_were(topology: Topology, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=8), rng.integers(1, 5, 8).astype(float)
    places, sums = Places(topology, seed, 8, np.arange(8)), PushSum(8, model(values))
    sums.join(np.arange(8), model(values), weights)
    for exchange in range(12):
        receivers, shares = sums.halve(places.next_sites(1, exchange))
        places.mail.post(receivers, shares, SHARE)
        _, came = places.exchange()
        sums.take(came.receiver, came.what)
    under_way = places.mail._open[2][~places.mail._had[places.mail._open[0] - places.mail._oldest]]
    mass = [
        (float(each.sums["w"][n - each.first]), each.weights[n - each.first])
        for each in sums._shares
        for n in under_way
        if each.first <= n < each.first + len(each.weights)
    ]

    assert len(mass) == len(under_way)
    held = sums.weights.sum() + sum(weight for _, weight in mass)
    total = float(sums.sums["w"].sum()) + sum(value for value, _ in mass)
    assert held == pytest.approx(weights.sum(), abs=1e-12)
    assert total == pytest.approx((values * weights).sum(), abs=1e-12)


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_gossip_comes_near_the_mean_and_halves_the_square_distance_with_every_exchange(loss: float) -> None:
    values, distances = np.arange(64.0), []
    for exchanges in (4, 8):
        far = []
        for seed in range(30):
            places, sums = Places(Topology(by="gossip", loss=loss), seed, 64, np.arange(64)), PushSum(64, model(values))
            sums.join(np.arange(64), model(values), np.ones(64))
            for exchange in range(exchanges):
                receivers, shares = sums.halve(places.next_sites(1, exchange))
                places.mail.post(receivers, shares, SHARE)
                _, came = places.exchange()
                sums.take(came.receiver, came.what)
            sites, means = sums.means()
            assert len(sites) == 64
            far.append(((means["w"].numpy() - values.mean()) ** 2).mean() / values.var())
        distances.append(np.mean(far))

    expected = 1 / 2**4
    assert distances[1] < 1.6 * distances[0] * (expected if loss == 0 else 2 * expected)
    assert distances[0] == pytest.approx(expected, rel=0.3) if loss == 0 else distances[0] < 3 * expected


def test_a_share_travels_in_the_models_own_numbers_and_what_rounding_leaves_stays() -> None:
    values = np.array([1 / 3, 0.0])
    sums = PushSum(2, model(values, torch.float32))
    sums.join(np.arange(2), model(values, torch.float32), np.array([1.0, 1.0]))
    receivers, numbers = sums.halve(np.array([1, 0]))

    assert sums._shares[0].sums["w"].dtype == torch.float32

    sums.take(receivers, numbers)

    assert float(sums.sums["w"].sum()) == float(np.float32(1 / 3))
    assert "batches" not in sums.means()[1], "counters have no mean"
