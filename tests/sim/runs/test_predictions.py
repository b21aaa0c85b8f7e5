"""What a run's models said of the test samples is kept beside it, and is what it was judged by."""

import numpy as np
import pytest
from sklearn import metrics

from fedsmall.errors import PlanError
from fedsmall.sim.report.html import write_report
from fedsmall.sim.report.model import clinical
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import prediction_key, read
from fedsmall.sim.runs.merge import merge
from fedsmall.sim.runs.scenario import load
from tests.sim.runs.scenarios import SMALL, write


def test_the_saved_predictions_give_the_metrics_of_the_run_by_scikit_learn(small_run):
    run = read(small_run.folder)

    for one in run.done:
        told = run.predictions_of(one)
        if one.row["common"] is None:
            assert one.plan.method.family == "standalone"
            assert told == {}
            continue
        p, y = told["probabilities"], told["labels"]
        assert metrics.accuracy_score(y, p.argmax(axis=1)) == pytest.approx(one.row["common"]["accuracy"], abs=1e-12)
        assert metrics.roc_auc_score(y, p[:, 1]) == pytest.approx(one.row["common"]["auc"], abs=1e-12)
        assert metrics.log_loss(y, p) == pytest.approx(one.row["common"]["loss"], abs=1e-6)
        assert "sites" not in told  # the sites of this run were dealt, and hold nothing out


def test_they_are_found_by_method_and_seed_without_our_code(small_run):
    with np.load(small_run.folder / "predictions.npz", allow_pickle=False) as file:
        names = set(file)

    assert {"FedDC/0/probabilities", "FedDC/0/labels", "Central/1/probabilities"} <= names
    assert not any(name.startswith("Standalone/") for name in names)


@pytest.fixture
def hospitals(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "hospitals").mkdir()
    for name in ("bonn", "essen"):
        rows = [f"{x:.3f},{'ill' if x + 0.3 * rng.normal() > 0 else 'well'}" for x in rng.normal(size=24)]
        (tmp_path / "hospitals" / f"{name}.csv").write_text("\n".join(["marker,outcome", *rows]))
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["cohort", "inprocess"])
def test_of_patients_with_several_samples_intervals_are_over_patients(tmp_path, engine):
    rng, rows = np.random.default_rng(0), ["who,marker,outcome"]
    for patient, level in enumerate(rng.normal(size=90)):
        ill = "ill" if level + rng.normal() > 0 else "well"
        rows += [f"p{patient},{level + 0.02 * rng.normal():.3f},{ill}" for _ in range(1 + patient % 5)]
    (tmp_path / "visits.csv").write_text("\n".join(rows))
    task = (
        'name = "visits"\ntask = {csv = "visits.csv", label = "outcome", WHO}\nsites = 3\nmodel = "linear"\nrounds = 4'
    )
    found = {}
    for who in ('patient = "who"', 'drop = ["who"]'):
        text = f'{task.replace("WHO", who)}\ntest = 0.4\n[[method]]\nname = "FedAvg"\n'
        folder = tmp_path / who[:4]
        execute(load(write(tmp_path, text)), folder, engine=engine)
        run = read(folder)
        shown, page = clinical(run), write_report(folder, [run], "visits").read_text()
        at = table(run, "accuracy").rows[-1].common
        found[who[:4]] = run.predictions_of(run.done[0]), shown, page, at.width

    (told, shown, page, width), (_, alone, other, narrow) = found.values()
    patients = len(np.unique(told["patients"]))
    assert patients < 0.6 * len(told["labels"])
    assert f"The {len(told['labels'])} test samples are of {patients} patients" in page
    assert "test samples are of" not in other
    assert alone.predictions.whose is None
    assert width > 1.2 * narrow
    area = [next(each.of_samples for each in of.worth(1) if each.name == "ROC-AUC") for of in (shown, alone)]
    assert area[0].high - area[0].low > 1.2 * (area[1].high - area[1].low)


NATURAL = """
name = "natural"
task = {csv = "hospitals", label = "outcome"}
model = "linear"
rounds = 4
METHODS
"""


@pytest.mark.parametrize("engine", ["cohort", "inprocess"])
def test_each_sample_that_a_site_held_out_has_its_name_under_central_too(hospitals, engine):
    text = NATURAL.replace("METHODS", '[[method]]\nname = "FedAvg"\n[[method]]\nname = "Central"')
    run = execute(load(write(hospitals, text)), engine=engine)

    for one in run.done:
        told, held = run.predictions_of(one), one.row["extra"].get("held_out")
        assert {site: int((told["sites"] == site).sum()) for site in ("bonn", "essen")} == {"bonn": 6, "essen": 6}
        for site in held or ():
            here = told["sites"] == site
            hits = told["probabilities"][here].argmax(axis=1) == told["labels"][here]
            assert hits.mean() == pytest.approx(held[site]["accuracy"])


def test_folds_keep_theirs_apart_and_a_comparison_keeps_both_runs(tmp_path):
    text = SMALL.replace("seeds = [0, 1]", "seeds = [0]\nfolds = 2").replace("rounds = 6", "rounds = 2")
    first = execute(load(write(tmp_path, text)), tmp_path / "first")
    again = execute(load(write(tmp_path, text)), tmp_path / "again")

    merged = merge([first, again])[0]

    assert prediction_key(first.done[-1]) == "Central/0/fold1"
    told = [merged.predictions_of(one) for one in merged.done if one.label.startswith("Central (first)")]
    assert len(told) == 2
    for one, kept in zip(first.done[4::5], told, strict=True):
        assert np.array_equal(kept["labels"], first.predictions_of(one)["labels"])


def test_a_run_of_an_older_release_has_none_and_still_opens(small_run, tmp_path):
    import shutil

    old = tmp_path / "old"
    shutil.copytree(small_run.folder, old)
    (old / "predictions.npz").unlink()

    run = read(old)

    assert [one.row for one in run.done] == [one.row for one in small_run.done]
    assert run.predictions_of(run.done[0]) == {}


def test_predictions_that_are_damaged_are_told_in_one_line(small_run, tmp_path, fedsmall):
    import shutil

    shutil.copytree(small_run.folder, tmp_path / "old")
    (tmp_path / "old" / "predictions.npz").write_bytes(b"PK no zip")

    with pytest.raises(PlanError, match=r"predictions\.npz cannot be read"):
        read(tmp_path / "old")
    code, _, complained = fedsmall("report", tmp_path / "old")
    assert (code, complained.count("\n")) == (2, 1)
