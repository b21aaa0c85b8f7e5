"""Small worlds that the tests of the audit share."""

from fedsmall.plan import Plan
from fedsmall.sim.runs.scenario import build

SMALL = {
    "name": "small",
    "task": "breast_cancer",
    "model": "mlp",
    "model_options": {"hidden": [8]},
    "sites": 4,
    "samples_per_site": 3,
    "rounds": 7,
    "recipe": {"lr": 0.05},
}


def plan_of(method: str = "FedDC", settings: dict | None = None, **keys) -> Plan:
    """A plan over a small world."""
    return build({**SMALL, **keys, "method": [{"name": method, **(settings or {})}]}).plans()[0]
