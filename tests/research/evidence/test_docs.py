"""What docs/evidence holds is what today's scenarios would run: a profile that was changed is to be run again."""

import pytest

from fedsmall.research.evidence.items import items
from fedsmall.research.evidence.result import load
from tests import ROOT

MADE = [item for item in items().values() if (ROOT / "docs" / "evidence" / f"{item.name}.json").is_file()]


@pytest.mark.parametrize("item", MADE, ids=lambda item: item.name)
def test_what_was_run_is_what_the_scenario_says_today(item):
    result = load(ROOT / "docs" / "evidence" / f"{item.name}.json")
    if result.not_run:
        pytest.skip(result.not_run)
    scenarios = item.scenarios(result.profile)
    scenario = next(iter(scenarios.values()))
    plans = scenario.plans()

    assert {row.variant for row in result.rows} == set(scenarios)
    assert {row.label for row in result.of_methods} == {plan.method.label for plan in plans}
    assert (result.about["rounds"], result.about["seeds"]) == (scenario.rounds, len(scenario.seeds))
    assert {row.mean.n for row in result.rows} == {len({(plan.seed, plan.fold) for plan in plans})}
    assert scenario.sites in (None, result.about["sites"])
    assert any(row.trivial for row in result.rows)
