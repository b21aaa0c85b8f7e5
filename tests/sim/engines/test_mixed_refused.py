"""What hospitals with models of their own cannot do is told before any of them trains."""

import re

import pytest
import tomli_w

from fedsmall.errors import PlanError
from fedsmall.models.own_models import SHARED_PART, check_own_models
from tests.sim.engines.test_mixed import LARGE, OPTIONS, SMALL, TASK, plan_of

WRONG = [
    ({"model_options.shared": ["tail"]}, r"shared = \['tail'\] matches none of the arrays of 'g1'"),
    ({"model_options.sites": [SMALL, LARGE]}, "names 2 models for 4 sites"),
    (
        {"model_options.sites": [SMALL, {**SMALL, "widths": [5, 6]}, LARGE, LARGE]},
        r"Shared array 'conv1.bias' is \(4,\)",
    ),
    ({"model_options.sites": [3, SMALL, LARGE, LARGE]}, "a site's model is a name, or a table"),
    ({"model_options.sites": [SMALL, SMALL, SMALL, LARGE]}, "model 'g1' cannot be built .* it predicts 15 entries"),
    ({"model_options": {"sites": [SMALL, SMALL, LARGE, LARGE]}}, "needs a list 'shared' in model_options"),
    ({"model_options": {}}, "needs a list 'sites' in model_options"),
    ({"model": "g1", "model_options": {"widths": [4, 6]}}, "targets of 15 and of 28 numbers.*models of their own"),
    ({"sites": 4}, "cannot go into one model"),
    ({"task": {**TASK, "subjects": 3}}, "3 subjects cannot be at 4 hospitals"),
    ({"task": {**TASK, "connectomes": "own.npz"}}, "a list of regions is for generated connectomes"),
    ({"task": {**TASK, "subjects": 4}}, "the sites are too small to hold anything out"),
    ({"task": {**TASK, "subjects": 5}}, "site-001 holds out no sample"),
    ({"method": [{"name": "Central"}]}, "needs a model at each site"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_what_cannot_be_run_is_one_line_before_any_site_trains(fedsmall, tmp_path, settings, message):
    table = {"name": "m", "task": TASK, "model": SHARED_PART, "model_options": dict(OPTIONS), "rounds": 1}
    table["method"] = [{"name": "FedAvg"}]
    for key, value in settings.items():
        if "." in key:
            table["model_options"][key.partition(".")[2]] = value
        else:
            table[key] = value
    (tmp_path / "m.toml").write_text(tomli_w.dumps(table))

    code, said, complained = fedsmall("run", "m.toml")

    assert code == 2
    assert said == ""
    assert re.search(message, " ".join(complained.split()))
    assert "Traceback" not in complained
    assert not (tmp_path / "runs").exists()


def test_a_number_of_real_sites_that_the_scenario_does_not_name_is_refused_before_they_are_asked():
    with pytest.raises(PlanError, match="names 4 models for 3 sites"):
        check_own_models(plan_of(), 3)
