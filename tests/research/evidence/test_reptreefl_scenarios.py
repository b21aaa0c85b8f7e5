"""The scenarios of RepTreeFL can be planned as they are written."""

import pytest

from fedsmall.features import check_features
from fedsmall.parts import Tree
from fedsmall.replicas import forest
from fedsmall.sim.runs.scenario import load
from tests import ROOT

PAPERS = ROOT / "sim" / "scenarios" / "papers"


@pytest.mark.parametrize("path", sorted(PAPERS.glob("reptreefl_*.toml")), ids=lambda path: path.stem)
def test_a_scenario_gives_plans_whose_parts_go_together(path):
    plans = load(path).plans()

    assert plans
    for plan in plans:
        check_features(plan)
        assert plan.name == path.stem


def test_table_two_is_the_papers():
    plans = load(PAPERS / "reptreefl_table2.toml").plans()

    assert len(plans) == 4 * 6
    assert {(p.sites, p.samples_per_site, p.rounds, p.folds) for p in plans} == {(3, 200, 10, 4)}
    assert {(p.recipe.lr, p.recipe.batch) for p in plans} == {(0.005, 20)}
    tree = next(p.method.tree for p in plans if p.method.label == "RepTreeFL")
    assert (tree.fanout, tree.depth, tree.drop) == (3, 1, 0.1)


def test_the_controls_train_on_the_same_folds_four_times_as_much():
    table, controls = (load(PAPERS / f"reptreefl_table2{part}.toml").plans() for part in ("", "_controls"))

    fixed = ("task", "model", "sites", "samples_per_site", "folds", "rounds")
    assert {tuple(str(getattr(p, key)) for key in fixed) for p in controls} == {
        tuple(str(getattr(p, key)) for key in fixed) for p in table
    }
    assert {p.seed for p in controls} == {p.seed for p in table}
    longer = next(p for p in controls if p.method.label == "FedAvg, 4x epochs")
    assert longer.recipe.local_epochs == 4 * table[0].recipe.local_epochs


def test_the_deepest_trees_of_figure_five_are_forty_models_a_site():
    assert sum(map(len, forest(Tree(fanout=3, depth=3), sites=3))) == 120
