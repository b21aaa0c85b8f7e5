import json
from dataclasses import replace

import numpy as np
import pytest

from fedsmall.evaluation.statistics import Interval, paired
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.figures import FIGURES
from fedsmall.research.evidence.items import Item, Vary, items
from fedsmall.research.evidence.page import page, summary
from fedsmall.research.evidence.result import load
from fedsmall.research.evidence.run import reproduce, rewrite

SMALL = ("seeds=[0,1,2]", "sites=4", "samples_per_site=6", "rounds=4", "evaluate_every=2", "recipe.lr=0.3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small item, reproduced for real; the page and the run folders beside it."""
    base = tmp_path_factory.mktemp("evidence")
    item = items()["gradients"].model_copy(update={"quick": SMALL, "experiment": "feddc-fig4"})
    result = reproduce(item, engine="inprocess", docs=base / "docs", out=base / "runs")
    return item, result, base


@pytest.mark.thorough
def test_rows_are_the_runs_own_numbers(made):
    _, result, base = made
    rows = json.loads((base / "runs" / "run" / "summary.json").read_text())

    for row in result.of_methods:
        expected = [one["common"]["accuracy"] for one in rows if one["label"] == row.label]
        assert row.values == expected
        assert row.mean.mean == pytest.approx(np.mean(expected))
        assert row.of == "common"


@pytest.mark.thorough
def test_differences_are_paired_with_the_baseline(made):
    item, result, _ = made
    rows = {row.label: row for row in result.rows}
    base = rows[item.baseline]

    assert base.against is None
    assert rows["FedDC"].against == paired(rows["FedDC"].values, base.values).difference
    assert all(row.p_value is None or row.p_value >= paired(row.values, base.values).p_value for row in result.rows)


@pytest.mark.thorough
def test_every_table_has_the_row_of_the_commonest_class(made):
    item, result, _ = made
    federation = build_federation(item.scenarios("quick")[""].plan(0, 0))
    commonest = np.bincount(np.concatenate([site.y for site in federation.train])).argmax()

    (row,) = (row for row in result.rows if row.trivial)

    assert row.label == "the majority class"
    assert row.values[0] == np.mean(federation.test.y == commonest)
    assert row.against is not None
    assert row.p_value is None  # it is no hypothesis of the table, and weakens no other's test
    assert "| the majority class |" in page([item], {item.name: result})


def test_a_verdict_from_few_seeds_or_without_spread_says_so(made):
    item, result, _ = made
    few = replace(result.of_methods[-1], verdict="differs", published=0.5, mean=Interval(0.8, 0.75, 0.85, 3))
    flat = replace(few, mean=Interval(0.8, 0.8, 0.8, 6))
    many = replace(few, mean=Interval(0.8, 0.75, 0.85, 6))

    text = page([item], {item.name: replace(result, rows=[few, flat, many])})

    verdicts = ("| differs (only 3 seeds) |", "| differs (no spread) |", "| differs |")
    assert [text.count(verdict) for verdict in verdicts] == [1, 1, 1]


def test_results_of_older_versions_are_still_read(made, tmp_path):
    item, result, base = made
    table = json.loads((base / "docs" / "evidence" / f"{item.name}.json").read_text())
    for row in table["rows"]:
        row["claim_why"] = "a column of older files"
        del row["trivial"]
    (tmp_path / "old.json").write_text(json.dumps(table))

    assert [row.label for row in load(tmp_path / "old.json").rows] == [row.label for row in result.rows]


def test_published_numbers_stand_beside_the_measured_ones(made):
    _, result, _ = made
    rows = {row.label: row for row in result.rows}

    assert rows["FedDC"].published == 0.89
    assert rows["FedDC"].verdict in ("agrees", "differs", "undecided")
    assert rows["FedSGD"].published is None


def test_a_result_is_read_back_as_it_was_written(made):
    item, result, base = made

    assert load(base / "docs" / "evidence" / f"{item.name}.json") == result


def test_the_common_models_curve_ends_at_the_row_and_is_not_that_of_the_sites(made):
    _, result, _ = made

    for row in result.of_methods:
        rounds, mean, low, high = result.curves[row.label]["common"]
        assert rounds[-1] == 4
        assert mean[-1] == pytest.approx(row.mean.mean)
        assert low[-1] <= mean[-1] <= high[-1]
    assert result.curves["FedDC"]["sites"][0] == [2, 4]
    assert result.curves["FedDC"]["common"][0] == [4]  # nothing was averaged before the end
    assert "sites" not in result.curves["Central"]


def test_the_page_names_command_engine_seeds_and_every_method(made):
    _, result, base = made

    text = rewrite(base / "docs").read_text()

    assert "fedsmall reproduce gradients --profile quick" in text
    assert "engine inprocess" in text
    assert "3 seeds" in text
    assert all(f"| {row.label} |" in text for row in result.rows)
    assert "(evidence/gradients.svg)" in text
    assert "not yet made" in text  # the other items are named as not made, never left out


def test_the_same_results_give_the_same_page_and_figure(made):
    item, result, base = made
    figure = base / "docs" / "evidence" / "gradients.svg"
    before = rewrite(base / "docs").read_text(), figure.read_text()
    from fedsmall.research.evidence.figures import draw

    draw(item, result, base / "docs" / "evidence")

    assert (rewrite(base / "docs").read_text(), figure.read_text()) == before


def test_tables_in_other_pages_are_made_anew_and_their_text_is_kept(made):
    base = made[2]
    path = base / "docs" / "methods.md"
    path.write_text("before\n<!-- table gradients -->\nold\n<!-- end -->\nafter <!-- table fig2 -->kept<!-- end -->\n")

    rewrite(base / "docs")

    text = path.read_text()
    assert text.startswith("before\n<!-- table gradients -->\n|")
    assert "| FedDC |" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter <!-- table fig2 -->kept<!-- end -->\n")
    path.unlink()


def test_an_item_without_its_data_is_recorded_as_not_run(tmp_path):
    result = reproduce(items()["table1-mri"], docs=tmp_path, data_root=tmp_path)

    assert result.not_run == "brain_tumor_dataset is not under the data root"
    assert "not run" in summary(items()["table1-mri"], result)
    assert "Not run: brain_tumor_dataset" in page([items()["table1-mri"]], {"table1-mri": result})


def test_a_claim_on_other_data_is_asked_for_its_sign_alone(made, tmp_path):
    from fedsmall.research.evidence.rows import rows_of
    from fedsmall.sim.runs.folder import read

    item, _, base = made
    apart = item.model_copy(update={"apart": "other data", "baseline": "FedAvg, equal communication"})

    rows = {row.label: row for row in rows_of(apart, {"": read(base / "runs" / "run")})}

    assert rows["FedDC"].claim in ("same sign", "opposite sign", "undecided")
    assert rows["FedDC"].claimed == pytest.approx(0.09)
    assert {row.verdict for row in rows.values() if row.published is not None} == {"not comparable"}


@pytest.mark.thorough
def test_a_varied_item_has_rows_for_each_value_and_privacy_has_its_epsilon(tmp_path):
    item = Item(
        name="fig3",
        scenario="feddc_fig3_privacy_digits.toml",
        title="t",
        baseline="FedDC, no noise",
        figure="growing",
        quick=("seeds=[0,1]", "sites=3", "rounds=4", "evaluate_every=4"),
        vary=Vary(key="samples_per_site", values=(2, 4)),
    )

    result = reproduce(item, engine="inprocess", docs=tmp_path / "docs", out=tmp_path / "runs")

    rows = {(row.variant, row.label): row for row in result.rows}
    assert {variant for variant, _ in rows} == {"2", "4"}
    assert rows["2", "FedDC, no noise"].epsilon is None
    assert rows["2", "FedDC, S=.2, sigma=1"].epsilon < rows["2", "FedDC, S=.2, sigma=.1"].epsilon
    text = page([item], {"fig3": result})
    assert "**samples_per_site = 4**" in text
    assert "no promise" in text


def test_a_table_that_is_printed_by_hospital_has_each_hospitals_number_beside_its_own(tmp_path):
    item = items()["gradients"].model_copy(
        update={
            "experiment": "reptreefl-table2",
            "of": "sites",
            "baseline": "FedAvg",
            "quick": ("seeds=[0,1]", "sites=3", "rounds=2", "method=[{name='FedAvg'}, {name='Standalone'}]"),
        }
    )

    result = reproduce(item, engine="inprocess", docs=tmp_path / "docs", out=tmp_path / "runs")

    rows = {row.label: row for row in result.rows}
    for label, by_hospital in result.hospitals.items():
        assert list(by_hospital) == ["H1", "H2", "H3"]
        of_runs = np.array([by_hospital[name]["accuracy"] for name in by_hospital])  # (hospitals, runs)
        assert of_runs.mean(axis=0) == pytest.approx(rows[label].values)
    text = page([item], {"gradients": result})
    assert "| accuracy | H1 | H2 | H3 |" in text
    assert ", published 94.2 |" in text  # FedAvg at H2
    assert load(tmp_path / "docs" / "evidence" / "gradients.json") == result


def test_every_kind_of_figure_belongs_to_an_item():
    assert {item.figure for item in items().values()} == set(FIGURES)
