"""The evidence for travelling groups: a method on a small set from end to end, and what pages say of what is kept."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from examples import travelling_groups
from examples.travelling_groups import KEPT, METHODS, METRICS, Cell, against_rivals, judged, measure, tables, wins
from sim.evidence.run import DOCS
from sim.runs.files import read_json


@pytest.fixture
def small(monkeypatch):
    """A set and a search that take seconds."""
    few = {"task": "breast_cancer", "model": "mlp", "model_options": {"hidden": [4]}, "sites": 6, "samples_per_site": 8}
    monkeypatch.setitem(travelling_groups.SETS, "small", few)
    for name, value in {"RATES": (0.1, 0.3), "CONTACTS": (2, 4), "SEEDS": 2, "MEMBERS": 3}.items():
        monkeypatch.setattr(travelling_groups, name, value)


@pytest.mark.parametrize("label", [label for label in METHODS if METHODS[label].get("groups", 1) <= 3])
def test_every_method_is_chosen_and_judged(small, label):
    few, many = measure("small", label)

    assert (few.budget, few.contacts, many.budget) == ("few", 2, "many")
    assert set(METRICS) <= set(many.values)
    assert all(len(values) == 2 and np.isfinite(values).all() for values in many.values.values())


def test_the_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    shares, y = softmax(rng.normal(size=(200, 2)), axis=1), rng.integers(2, size=200)

    found = judged(np.log(shares), y, 2)

    assert found["auc"] == pytest.approx(roc_auc_score(y, shares[:, 1]))
    assert found["nll"] == pytest.approx(log_loss(y, shares))
    assert found["brier"] == pytest.approx(2 * brier_score_loss(y, shares[:, 1]))


def test_the_page_holds_the_tables_of_what_is_kept_and_says_what_they_say():
    kept = [Cell(**cell) for cell in read_json(KEPT)]
    page = (DOCS / "findings.md").read_text()

    made = tables(kept)
    shown = [name for name in made if f"<!-- table {name} -->" in page]
    assert len(shown) == 5
    assert all(made[name] in page for name in shown)
    assert wins(kept, "many") == wins(kept, "few") == {}  # the bar is not met
    assert f"{sum(cell.at_the_edge for cell in kept)} of {len(kept)} lie at an edge" in page
    many = against_rivals(kept, "many")
    for data in ("cardiotocography", "PneumoniaMNIST", "digits", "digits, two classes a site"):
        for rival, metric in ((rival, metric) for rival in ("FedAvg", "Central") for metric in ("auc", "nll")):
            found, p = many[data, rival, metric]
            assert found.difference.mean > 0
            assert p <= 0.05
