"""Regions with a server each, and one above them, end where a simulation with the same regions does, to the bit."""

import pytest

from fedsmall.travel.handover import Handover, read
from tests.sim.regions.two_levels import TwoLevels, page_of, plan_of, same, simulated, tables

pytestmark = pytest.mark.slow

UNEVEN = {"north": ("bonn", "essen", "ulm"), "south": ("aachen", "trier")}
ALONE = {"north": ("bonn",), "south": ("aachen", "essen", "trier")}
CASES = {
    "FedDC": (UNEVEN, ()),
    "weighted": (UNEVEN, ("method.0.weighted=true",)),
    "FedAvg": (UNEVEN, ("method.0.name=FedAvg",)),
    "a region of one": (ALONE, ("method.0.weighted=true",)),
}


@pytest.mark.parametrize("case", CASES)
def test_two_levels_end_with_the_bits_of_the_simulation(case, tmp_path, monkeypatch):
    regions, settings = CASES[case]
    plan = plan_of(regions, *settings)
    levels = TwoLevels(tmp_path, regions, monkeypatch, tables(tmp_path, regions))
    for where in (*regions, "above"):
        levels.prepare(where, plan)

    outcomes = levels.end(levels.begin())

    assert levels.failed == {}
    expected, _ = simulated(tmp_path, plan)
    for where in (*regions, "above"):
        assert same(outcomes[where].model, expected.model), where
    assert outcomes["above"].bytes_sent == expected.bytes_between
    assert sum(outcomes[region].bytes_sent for region in regions) == expected.bytes_sent


class Falls:
    """A program that answers one order to train of round ``t`` with an error, as if its server had been killed then."""

    def __init__(self, program, t):
        self.program, self.t, self.fell = program, t, False

    def answer(self, kind, config, arrays):
        if kind == "train" and config["round"] == self.t and not self.fell:
            self.fell = True
            return {"error": "it fell"}, {}
        return self.program.answer(kind, config, arrays)


@pytest.fixture
def levels(tmp_path, monkeypatch):
    made = TwoLevels(tmp_path, UNEVEN, monkeypatch, tables(tmp_path, UNEVEN))
    for where in (*UNEVEN, "above"):
        made.prepare(where, plan_of(UNEVEN, every=2))
    return made


def test_a_region_whose_server_went_away_goes_on_to_the_same_bits(levels, tmp_path):
    for site in UNEVEN["north"]:
        levels.programs[site] = Falls(levels.programs[site], 3)

    begun = levels.begin()
    begun["north"].join(60)
    assert "it fell" in str(levels.failed.pop("north"))
    begun |= levels.begin("north")  # while the others wait
    outcomes = levels.end(begun)

    assert levels.failed == {}
    expected, _ = simulated(tmp_path, plan_of(UNEVEN, every=2))
    assert all(same(outcomes[where].model, expected.model) for where in (*UNEVEN, "above"))


def test_a_server_above_that_went_away_goes_on_to_the_same_bits(levels, tmp_path):
    levels.programs["south"] = Falls(levels.programs["south"], 4)

    begun = levels.begin()
    begun["above"].join(60)
    assert "it fell" in str(levels.failed.pop("above"))
    begun |= levels.begin("above")
    outcomes = levels.end(begun)

    assert levels.failed == {}
    expected, _ = simulated(tmp_path, plan_of(UNEVEN, every=2))
    assert all(same(outcomes[where].model, expected.model) for where in (*UNEVEN, "above"))


def test_a_region_with_another_plan_is_refused_with_what_differs(tmp_path, monkeypatch):
    levels = TwoLevels(tmp_path, UNEVEN, monkeypatch, tables(tmp_path, UNEVEN))
    for where, rate in (("north", 0.05), ("south", 0.1), ("above", 0.05)):
        levels.prepare(where, plan_of(UNEVEN, f"recipe.lr={rate}"))

    begun = levels.begin()
    begun["above"].join(60)

    line = "south: this region runs another plan than the server above: recipe.lr is 0.1 and 0.05"
    assert line in str(levels.failed["above"])
    levels.stop()
    levels.end(begun)
    assert "stopped" in str(levels.failed["north"]), "a region that waits ends where its run is stopped"


def test_what_goes_up_is_the_region_s_alone(levels, tmp_path):
    outcomes = levels.end(levels.begin())

    sent = [each for each in levels.log("above") if each["event"] == "order"]
    assert {each["site"] for each in sent} == set(UNEVEN)
    assert outcomes["above"].comm_rounds == 3
    for where in (*UNEVEN, "above"):
        assert "tides" in page_of(levels.home(where)).read_text()
    for region, sites in UNEVEN.items():
        words = read(Handover(levels.home(region) / "above").up(2)).words
        assert words["weight"] == len(sites)  # the mean is not weighted by samples
