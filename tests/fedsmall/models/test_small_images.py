"""What docs/data.md names as a first recipe for images reaches a regression on pooled pixels."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedsmall.evaluation.baselines import pooled_logistic
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build

PAGE = Path(__file__).parents[3] / "docs" / "images.md"
WITHIN = 0.01


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", ["digits", {"medmnist": "pneumoniamnist"}], ids=str)
def test_the_first_recipe_for_images_is_as_good_as_a_regression_on_pooled_pixels(task, request):
    recipe = tomllib.loads(re.findall(r"```text\n(model = \"cnn\".*?)```", PAGE.read_text(), re.DOTALL)[0])
    table = {"name": "images", "task": task, "sites": 10, "samples_per_site": 8, "seeds": [0, 1], **recipe}
    scenario = build(table | {"method": [{"name": "FedDC"}], "metric": "auc"})
    root = None if task == "digits" else request.getfixturevalue("data_root")

    own = np.mean([plan_run.row["common"]["auc"] for plan_run in execute(scenario, data_root=root).done])

    pooled = [pooled_logistic(build_federation(plan, root))["common"]["auc"] for plan in scenario.plans()]
    assert own > np.mean(pooled) - WITHIN
