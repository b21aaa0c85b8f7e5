"""Too many orders, too large ones, and too few samples of a class are refused before anything is done."""

import numpy as np
import pytest

from fedsmall.clients.policy import MIB, Pace, Policy, least_of_a_class
from fedsmall.errors import PolicyError
from fedsmall.planning.tasks import load_site
from tests.clients.test_data_process import AS_IT_IS, config, files, order, plan, scaled, station

__all__ = ["files", "station"]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_as_many_orders_a_minute_are_taken_as_the_policy_says_and_more_again_after_it():
    clock, policy = Clock(), Policy(most_orders_per_minute=2)
    pace = Pace(clock)
    pace.check(policy, {})
    clock.now += 30
    pace.check(policy, {})

    with pytest.raises(PolicyError, match="more than 2 orders came in a minute"):
        pace.check(policy, {})
    clock.now += 60
    pace.check(policy, {})


def test_an_order_of_the_largest_size_is_taken_and_one_byte_more_is_not():
    policy = Policy(most_order_mib=0.5)
    half = {"a": np.zeros(MIB // 4, np.uint8), "b": np.zeros(MIB // 4, np.uint8)}
    Pace().check(policy, half)

    with pytest.raises(PolicyError, match=r"holds 0\.5 MiB of arrays; the policy here takes 0\.5"):
        Pace().check(policy, half | {"c": np.zeros(1, np.uint8)})


def test_a_policy_that_says_nothing_takes_any_number_of_any_size():
    pace = Pace()
    for _ in range(1000):
        pace.check(Policy(), {"a": np.zeros(10 * MIB, np.uint8)})


def test_a_station_refuses_what_is_too_much_and_says_so_in_its_log(station):
    model = scaled(station)
    station.policy_file.write_text(AS_IT_IS + "most_order_mib = 0.0001\n")

    words, leaving = station.answer("train", order(1), model)

    assert "MiB of arrays; the policy here takes 0.0001" in words["error"]
    assert leaving == {}
    assert station.log.entries()[-1]["event"] == "refused"


def test_the_least_of_a_class_is_counted_of_what_the_site_trains_on(files):
    raw = load_site(plan(), "essen", files["essen"])
    counts = np.bincount(raw.train.y)

    assert least_of_a_class(raw) == counts.min()


def test_a_site_with_too_few_of_a_class_takes_no_part(station, files):
    rarest = least_of_a_class(load_site(plan(), "essen", files["essen"]))
    for least, refused in ((rarest, False), (rarest + 1, True)):
        station.policy_file.write_text(AS_IT_IS + f"least_per_class = {least}\n")

        words, _ = station.answer("roll", config(plan()), {})

        assert ("error" in words) is refused
    assert f"fewer than the {rarest + 1} samples of a class that its policy asks for" in words["error"]
