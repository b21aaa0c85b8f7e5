"""The meta-analysis of hospitals' own fits on a run's page is that of statsmodels, beside the joint fit."""

import csv

import numpy as np
import pytest

from fedsmall.extensions.regression import forest
from fedsmall.extensions.regression.inference import wald
from fedsmall.extensions.regression.page import inference_of, one_by_one, part
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build

SCENARIO = {"name": "f", "task": "diabetes", "sites": 4, "samples_per_site": 60, "rounds": 30, "seeds": [1]}


def ridges(penalty: float) -> list[dict]:
    return [{"name": name, "regression": {"penalty": penalty}} for name in ("Ridge", "StandaloneRidge")]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_the_page_has_both_meta_analyses_of_statsmodels_and_a_forest_plot(tmp_path):
    combine = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    execute(build({**SCENARIO, "keep": "sites", "method": ridges(0.0)}), tmp_path / "run")
    run = read(tmp_path / "run")
    joint, alone = run.done

    (section,) = one_by_one(run, run.done)

    drawn = {figure.caption.partition(": ")[0]: csv.DictReader(figure.data.splitlines()) for figure in section.figures}
    lines = {(name, row["fit"]): row for name, rows in drawn.items() for row in rows}
    assert len(drawn) == forest.SHOWN
    own = [inference_of(stored, alone)[2] for stored in run.packages_of(alone)]
    of_all, pooled = inference_of(run.packages_of(joint)[0], joint)[2], forest.pool_fits(own)
    assert len(own) == 4
    different, unit = 0, run.packages_of(joint)[0].package.preparation.outcome.mean_and_scale[1]
    assert unit > 50  # of a number that runs from 25 to 346
    for k, row in enumerate(section.table.rows):
        estimate, variance = np.array([t.estimate[k] for t in own]), np.array([t.error[k] ** 2 for t in own])
        theirs = combine(estimate, variance, method_re="dl")
        found = (pooled.fixed.estimate[k], pooled.random.estimate[k], pooled.random.error[k], pooled.i2[k])
        fixed, spread = (theirs.mean_effect_fe, theirs.sd_eff_w_fe), theirs.tau2 > 0  # statsmodels lets it be negative
        random = (theirs.mean_effect_re, theirs.sd_eff_w_re) if spread else fixed
        assert np.allclose(found, (fixed[0], *random, max(theirs.i2, 0)), atol=1e-6)
        if row[0] in drawn:
            assert float(lines[row[0], "random effects"]["estimate"]) == pytest.approx(unit * random[0], abs=1e-3)
        different += spread
        assert row[1].startswith(f"{unit * of_all.estimate[k]:.4g} (")
    assert 0 < different < 10
    page = str(part(run, "f"))
    assert "<svg" in page
    assert "draws towards 0" not in page
    assert "site-003" in page


def test_hospitals_whose_classes_are_separated_are_left_out_and_the_page_says_so():
    kept = wald(np.array([0.5]), np.array([[0.04]]))
    far = wald(np.array([300.0]), np.array([[1e-9]]))

    section = forest.section(["age"], kept, {"a": kept, "b": far, "c": kept}, 0.0)

    assert "1 of 3 hospitals" in section.table.caption
    assert section.table.rows[0][2].startswith("0.500 (")
    assert forest.section(["age"], kept, {"a": kept, "b": far}, 0.0).sentences == [forest.APART]


def test_a_run_that_kept_no_hospitals_fits_has_no_meta_analysis(tmp_path):
    execute(build({**SCENARIO, "method": ridges(1.0)}), tmp_path / "run")
    run = read(tmp_path / "run")

    assert one_by_one(run, run.done) == []
