"""What the audit does not attack is named with its reason, and says nothing of anybody's safety."""

import pytest

from fedsmall.extensions.audit.attack import CHANGED, OF_SUMS, POOLED, SEVERAL, audit_scenario, plans_of
from fedsmall.sim.runs.progress import Watcher
from fedsmall.sim.runs.scenario import build

TASK = {"name": "small", "task": "digits", "sites": 4, "samples_per_site": 6, "rounds": 2, "seeds": [0]}


@pytest.mark.parametrize(
    ("method", "recipe", "reason"),
    [
        ({"name": "Central"}, {}, POOLED),
        ({"name": "TravellingGroups", "groups": 2}, {}, SEVERAL),
        ({"name": "FedAvg", "ema": 0.9}, {}, SEVERAL),
        ({"name": "FedXGBBagging", "aggregate_every": 1}, {}, OF_SUMS),
        ({"name": "FedDC"}, {"augment": ["shift"]}, CHANGED),
    ],
    ids=["central", "groups", "moving-average", "trees", "changed-images"],
)
def test_what_is_not_attacked_is_named_with_its_reason(method, recipe, reason):
    scenario = build(
        {
            **TASK,
            "task": "breast_cancer" if reason is OF_SUMS else "digits",
            "model": "mlp" if reason is OF_SUMS else "cnn",
            "recipe": {"lr": 0.1, **recipe},
            "method": [method | {"aggregate_every": 2} if method["name"] == "FedDC" else method],
        }
    )
    plans = plans_of(scenario, None)

    done = audit_scenario(scenario, plans, 2, 1, None, Watcher())

    assert done.left_out == {plans[0].method.label: reason}
    assert not done.findings
