import pytest

from examples import outcomes
from tests import ROOT


@pytest.mark.parametrize("name", outcomes.METRICS)
def test_the_tables_of_the_page_are_made_of_a_run(name):
    run = outcomes.run(
        name, ["rounds=2", "evaluate_every=2", "seeds=[0, 1]", "method=[{name='FedAvg'}, {name='Central'}]"]
    )

    rows = outcomes.rows(run, outcomes.METRICS[name])

    assert [row[0] for row in rows][1:] == ["FedAvg", "Central"]
    assert {len(row) for row in rows} == {1 + len(outcomes.METRICS[name])}
    assert outcomes.markdown(["method", "x"], [["FedAvg", "1"]]) == "| method | x |\n| --- | --- |\n| FedAvg | 1 |"


@pytest.mark.thorough
@pytest.mark.parametrize("name", outcomes.METRICS)
def test_the_page_has_the_tables_that_the_example_makes(name):
    page = (ROOT / "docs" / "survival.md").read_text(encoding="utf-8")

    made = outcomes.markdown([], outcomes.rows(outcomes.run(name), outcomes.METRICS[name])).splitlines()[2:]

    assert len(made) >= 7
    assert [row for row in made if row not in page] == []
