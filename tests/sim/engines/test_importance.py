"""Permutation importance: scikit-learn's for the same model, and nothing for what says nothing."""

import numpy as np
import pytest
from pandas import DataFrame
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.inspection import permutation_importance

from fedsmall.sim.api import run
from fedsmall.sim.report.html import importance_sections
from tests import only_quick

RNG = np.random.default_rng(0)
TABLE = DataFrame(
    {
        "strong": RNG.normal(size=1000),
        "weak": RNG.normal(size=1000),
        "noise": RNG.normal(size=1000),
        "ward": RNG.choice(["a", "b=c", "d"], 1000),
    }
)
ODDS = 2 * TABLE.strong + 0.7 * TABLE.weak + 1.5 * (TABLE.ward == "d")
TABLE["ill"] = np.where(ODDS + RNG.logistic(size=1000) > 0.5, "yes", "no")
X = TABLE.drop(columns="ill")
SITES = {name: (X[k:400:3], TABLE.ill[k:400:3]) for k, name in enumerate(("bonn", "essen", "ulm"))}
DATA = {"sites": SITES, "test": (X[400:], TABLE.ill[400:]), "task": {"name": "arrays", "categorical": ["ward"]}}


class Ours(ClassifierMixin, BaseEstimator):
    """A result's model, as scikit-learn asks it."""

    def __init__(self, result=None):
        self.result, self.classes_ = result, np.array(["no", "yes"])

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return self.result.predict(x)[["p_no", "p_yes"]].to_numpy()


@pytest.mark.parametrize("method", only_quick(["FedDC"], ["FedDC", "FedAvg", "TravellingGroups"]))
def test_it_is_scikit_learns(method):
    methods = [{"name": method, **({"groups": 2} if method == "TravellingGroups" else {})}]
    result = run(**DATA, methods=methods, metric="auc", rounds=30, progress=False)

    (done,) = result.run.done
    found = done.row["importance"]

    assert list(found) == ["strong", "weak", "noise", "ward"]
    theirs = permutation_importance(
        Ours(result), X[400:], TABLE.ill[400:], scoring="roc_auc", n_repeats=10, random_state=0
    )
    for (mean, spread), mine in zip(found.values(), theirs.importances, strict=True):
        assert mean == pytest.approx(mine.mean(), abs=0.02)  # of other shuffles
        assert spread == pytest.approx(mine.std(), abs=0.015)
    assert found["strong"][0] > 0.2 > found["ward"][0] > 0.02 > abs(found["noise"][0])


def test_the_page_has_the_columns_from_most_to_least():
    result = run(**DATA, methods=["FedAvg"], rounds=10, progress=False)

    (section,) = importance_sections(result.run)

    assert section.table.rows[0][0] == "strong"
    assert len(section.table.rows) == 4


def test_of_images_and_without_a_global_model_there_is_none():
    assert "importance" not in run(task="digits", sites=3, methods=["FedAvg"], rounds=2, progress=False).run.done[0].row
    alone = run(**DATA, methods=["Standalone"], rounds=2, progress=False)
    assert "importance" not in alone.run.done[0].row
