"""The evidence for travelling groups: a method on a small set from end to end, and what pages say of what is kept."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from examples import travelling_groups
from examples.travelling_groups import judged, kept, main, measure
from examples.travelling_groups_sets import CNN, METHODS, METRICS, MLP, RIVALS
from examples.travelling_groups_tables import against_rivals, of, tables, wins
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.files import read_json

OF_SIX = {"sites": 6, "samples_per_site": 8}
TABLE = {"task": "breast_cancer", "model": "mlp", "model_options": {"hidden": [4]}} | OF_SIX
SMALL = replace(MLP, sets={"small": TABLE}, rates=(0.1, 0.3), comm_rounds=(2, 4), seeds=2, central=3)
IMAGES = CNN.sets["PneumoniaMNIST"] | {"task": "digits"} | OF_SIX  # a stand-in: images of 8 x 8


@pytest.mark.thorough
@pytest.mark.parametrize("label", [label for label in METHODS if METHODS[label].get("groups", 1) <= 3])
def test_every_method_is_chosen_and_judged(label):
    few, many = measure(SMALL, "small", label)

    assert (few.budget, few.comm_rounds, many.budget) == ("few", 2, "many")
    assert set(METRICS) <= set(many.values)
    assert all(len(values) == 2 and np.isfinite(values).all() for values in many.values.values())


@pytest.mark.thorough
def test_a_convolutional_network_is_another_row_of_sets_and_a_run_goes_on_where_it_was(monkeypatch, tmp_path, capsys):
    methods = {label: METHODS[label] for label in ("FedAvg", "TravellingGroups, 2")}
    monkeypatch.setattr("examples.travelling_groups_sets.DOCS", tmp_path)
    monkeypatch.setattr("examples.travelling_groups_sets.METHODS", methods)
    monkeypatch.setattr(travelling_groups, "DOCS", tmp_path)
    sets = {"small": IMAGES, "larger": IMAGES | {"samples_per_site": 9}}
    small = replace(CNN, sets=sets, rates=(0.1,), comm_rounds=(1,), seeds=1)
    monkeypatch.setattr(travelling_groups, "CNN", small)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "page.md").write_text(f"<!-- table {small.word}-few-auc -->\n<!-- end -->\n")

    main(["--cnn", "small"])
    first = read_json(small.kept)
    main(["--cnn"])

    assert read_json(small.kept)[:4] == first
    assert [(cell["data"], cell["method"]) for cell in read_json(small.kept)[4::2]] == [("larger", m) for m in methods]
    assert capsys.readouterr().out.count("small: FedAvg") == 1
    assert "| FedAvg | " in (tmp_path / "page.md").read_text()


def test_what_is_tested_is_run_first():
    order = CNN.order()

    tested = {(data, label) for data in CNN.sets for label in CNN.tested(data)}
    assert set(order[: len(tested)]) == tested
    assert len(order) == len(set(order)) == 3 * len(METHODS)


def test_a_set_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--cnn", "cardiology"])

    assert ended.value.code == 2
    assert "there is no set 'cardiology'; there are digits" in capsys.readouterr().err


def test_the_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    shares, y = softmax(rng.normal(size=(200, 2)), axis=1), rng.integers(2, size=200)

    found = judged(np.log(shares), y, 2)

    assert found["auc"] == pytest.approx(roc_auc_score(y, shares[:, 1]))
    assert found["nll"] == pytest.approx(log_loss(y, shares))
    assert found["brier"] == pytest.approx(2 * brier_score_loss(y, shares[:, 1]))


@pytest.mark.thorough
def test_the_page_holds_the_tables_of_what_is_kept_and_says_what_they_say():
    cells = kept(MLP)
    page = (DOCS / "findings.md").read_text()

    made = tables(MLP, cells)
    shown = [name for name in made if f"<!-- table {name} -->" in page]
    assert len(shown) == 5
    assert all(made[name] in page for name in shown)
    assert wins(MLP, cells, "many") == wins(MLP, cells, "few") == {}  # the bar is not met
    assert f"{sum(cell.at_the_edge for cell in cells)} of {len(cells)} lie at an edge" in page
    many = against_rivals(MLP, cells, "many")
    for data in ("cardiotocography", "PneumoniaMNIST", "digits", "digits, two classes a site"):
        for rival, metric in ((rival, metric) for rival in ("FedAvg", "Central") for metric in ("auc", "nll")):
            found, p = many[data, rival, metric]
            assert found.difference.mean > 0
            assert p <= 0.05


@pytest.mark.thorough
def test_the_page_says_what_the_tables_of_the_convolutional_network_say():
    cells = kept(CNN)
    page = (DOCS / "findings.md").read_text()
    many, few = (
        {key: (one.difference.mean, p <= 0.05) for key, (one, p) in against_rivals(CNN, cells, budget).items()}
        for budget in ("many", "few")
    )
    digits, apart, xrays = CNN.sets
    free = "FedAvg, moving average"
    others = [rival for rival in RIVALS if rival != free]

    made = tables(CNN, cells)
    assert all(made[f"{CNN.word}-{name}"] in page for name in ("many", "few", "many-nll", "many-auc"))
    assert all(len(values) == 20 for cell in cells for values in cell.values.values())
    assert wins(CNN, cells, "many", tuple(CNN.sets)) == wins(CNN, cells, "few", tuple(CNN.sets)) == {}
    assert not any(many[digits, rival, metric][1] for rival in others for metric in ("auc", "nll"))
    assert all(sure and round(gain, 2) == -0.02 for gain, sure in (many[apart, rival, "nll"] for rival in others))
    assert all(many[data, free, "nll"][0] > 0 and many[data, free, "nll"][1] for data in (digits, apart))
    ahead = [key[1:] for key, (_, sure) in many.items() if key[0] == xrays and sure]
    assert ahead == [("FedAvg", "nll")]
    assert round(many[xrays, "FedAvg", "nll"][0], 2) == 0.07
    behind = [few[data, rival, "nll"] for data in (digits, apart) for rival in others]
    assert all(sure and -0.31 < gain < -0.18 for gain, sure in behind)
    short = [(cell.data, cell.method) for cell in cells if cell.budget == "many" and cell.comm_rounds != 100]
    assert short == [(apart, "Standalone ensemble")]
    of_xrays = {c.method: c for c in cells if (c.data, c.budget) == (xrays, "many")}
    nll = {method: float(np.mean(cell.values["nll"])) for method, cell in of_xrays.items()}
    assert sorted(nll, key=lambda method: nll[method])[:2] == ["TravellingEnsemble", "TravellingGroups, 10"]
    assert [round(nll[m], 2) for m in ("TravellingEnsemble", "TravellingGroups, 10", "Central ensemble")] == [
        0.41,
        0.42,
        0.43,
    ]
    assert max(nll, key=lambda method: nll[method]) == "TravellingModel"
    assert max(of_xrays, key=lambda method: np.mean(of_xrays[method].values["auc"])) == "TravellingModel"
    loss = {cell.method: np.mean(cell.values["nll"]) for cell in cells if (cell.data, cell.budget) == (digits, "many")}
    assert round(loss["FedAvg, 5 steps"], 2) == 0.13
    assert all(0.155 < loss[label] < 0.185 for label in CNN.tested(digits))
    lacking = sum(of(cells, "many", data, label) is None for data, label in CNN.order())
    assert f"Run: {len(CNN.order()) - lacking} of {len(CNN.order())}" in page
    assert f"{sum(cell.at_the_edge for cell in cells)} of {len(cells)} chosen rates" in page
