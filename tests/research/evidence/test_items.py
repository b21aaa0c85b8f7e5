import pytest

from fedsmall.errors import PlanError
from fedsmall.research.evidence.items import PAPERS, PROFILES, Item, chosen, items, published, published_by_hospital

ALL = list(items().values())


@pytest.mark.parametrize("profile", ["quick", "paper"])
@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_every_item_can_be_planned_in_every_profile(item, profile):
    for scenario in item.scenarios(profile).values():
        labels = [plan.method.label for plan in scenario.plans()]
        assert item.baseline in labels


@pytest.mark.parametrize("item", [item for item in ALL if item.experiment], ids=lambda item: item.name)
def test_every_published_number_belongs_to_a_method_of_the_item(item):
    scenario = next(iter(item.scenarios("paper").values()))
    labels = {plan.method.label for plan in scenario.plans()}

    rows = published(item.experiment)

    assert rows
    assert {label for label, _ in rows} <= labels
    assert all(0 < row.value < 1 for row in rows.values())


def test_every_scenario_of_the_papers_belongs_to_an_item():
    files = {path.name for path in PAPERS.glob("*.toml")}

    assert {item.file(profile) for item in ALL for profile in PROFILES} == files


def test_a_comparison_always_holds_fedavg_with_equal_communication_where_models_are_permuted():
    for item in ALL:
        plans = next(iter(item.scenarios("paper").values())).plans()
        if any(plan.method.name == "FedDC" for plan in plans) and item.name not in ("fig2", "daisy-periods"):
            assert any(not p.method.permute_every and p.method.aggregate_every == 1 for p in plans), item.name


def test_a_varied_key_gives_one_scenario_a_value():
    found = items()["growing-data"].scenarios("quick")

    assert {value: scenario.samples_per_site for value, scenario in found.items()} == {str(n): n for n in (2, 8, 24)}


def test_data_that_are_not_there_are_named(tmp_path):
    item = items()["table1-mri"]

    assert item.missing(None) == item.missing(tmp_path) == "brain_tumor_dataset"
    (tmp_path / "brain_tumor_dataset").mkdir()
    assert item.missing(tmp_path) == ""
    assert items()["fig4"].missing(None) == ""


def test_a_scenario_as_printed_needs_other_data_than_the_one_that_runs_here(tmp_path):
    item = items()["fig2"]
    (tmp_path / "susy").mkdir()

    assert item.missing(tmp_path, "quick") == ""
    assert item.missing(tmp_path, "paper") == "SUSY.csv or SUSY.csv.gz"
    (tmp_path / "SUSY.csv.gz").touch()
    assert item.missing(tmp_path, "paper") == ""


def test_what_was_run_as_printed_departs_in_nothing():
    assert items()["fig2"].as_run("quick").apart
    assert not items()["fig2"].as_run("paper").apart
    assert items()["reptreefl-table4"].as_run("paper").apart  # generated connectomes in every profile


@pytest.mark.parametrize(("table", "hospitals"), [(2, 3), (3, 3), (4, 4)])
def test_reptreefls_tables_have_a_column_a_hospital_and_their_means_are_those_published(table, hospitals):
    experiment = f"reptreefl-table{table}"
    metric = "mae" if table == 4 else "accuracy"

    by_label = published_by_hospital(experiment)[metric]

    for label, by_hospital in by_label.items():
        assert list(by_hospital) == [f"H{place}" for place in range(1, hospitals + 1)]
        mean = sum(by_hospital.values()) / hospitals
        assert published(experiment)[label, metric].value == pytest.approx(mean, abs=1e-4)


def test_all_and_one_and_an_unknown_item():
    assert chosen("all") == ALL
    assert chosen("fig4") == [items()["fig4"]]
    with pytest.raises(PlanError, match="'fig4'"):
        chosen("fig-4")


def test_an_unknown_profile_is_one_line():
    with pytest.raises(PlanError, match="There is no profile 'fast'"):
        ALL[0].scenarios("fast")


def test_an_item_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        ALL[0].title = "x"  # type: ignore[misc]
    assert isinstance(ALL[0], Item)
