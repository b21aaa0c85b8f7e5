"""Runs of Algorithm 1 that use everything that touches a tensor, for whatever device is at hand."""

from typing import Any

from fedsmall.models.own_models import SHARED_PART
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.evaluation import CentralEvaluator, LocalJudges
from fedsmall.strategies.server.judging import Judging
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.training.trees import cohort_for
from tests.fedsmall.training.test_augmentation import image_plan
from tests.sim.engines import test_outcomes
from tests.sim.engines.harness import SETTINGS, federation_of, plan_for, plan_of
from tests.sim.engines.plans import IN_GROUPS, ORDINARY
from tests.sim.engines.test_mixed import OPTIONS, TASK

OWN_CODE = ("FedDC", "FedProx", "SCAFFOLD", "FedNova", "FedDyn", "FedDC+Radon", "RepTreeFL", "FedDC+Trees", "Central")
OUTCOMES = tuple(test_outcomes.KINDS)
OWN_CASES = ("moments that travel", "moments that start afresh", "independent starts", "clip and noise")
OWN_CASES += ("patients, moments that travel", "patients, some of the sites", "blur", "medians")
OWN_CASES += ("some of the sites, moments", "trees folded at the server", "trees that travel", "a tree in a chain")
MOVING = Recipe(optimizer="adam", lr=0.01, batch=3, local_epochs=1, weight_decay=0.01)
IMAGES = {"task": "digits", "sites": 3, "samples_per_site": 4, "rounds": 2}
UNEQUAL = {"task": "digits", "sites": 4, "samples_per_site": 6, "partition": {"sizes": "skewed"}, "rounds": 2}
RUNS: dict[str, tuple[Plan, str]] = {
    **{name: (plan_for(name, evaluate_every=4), "auto") for name in OWN_CODE},
    **{case: (ORDINARY[case], "auto") for case in OWN_CASES},
    "moments that stay": (plan_of("FedAvg", recipe=MOVING.model_copy(update={"optimizer_state": "stay"})), "auto"),
    "FedDyn with moments": (plan_of("FedDyn", {"aggregate_every": 3}, recipe=MOVING, evaluate_every=2), "auto"),
    "unequal sites": (plan_of(**UNEQUAL, recipe=MOVING), "auto"),
    "unequal sites, each whole": (plan_of(**UNEQUAL, recipe=Recipe(lr=0.05)), "auto"),
    "unequal sites, vmap": (plan_of(**UNEQUAL, recipe=MOVING), "vmap"),
    "unequal sites, loop": (plan_of(**UNEQUAL, recipe=MOVING), "loop"),
    "dropout": (plan_of(recipe=MOVING, model_options={"hidden": [6], "dropout": 0.5}), "auto"),
    "convolutions": (plan_of(**IMAGES, model="cnn", model_options={"norm": "batch"}, recipe=MOVING), "conv"),
    "convolutions, loop": (plan_of(**IMAGES, model="cnn", model_options={"norm": "batch"}, recipe=MOVING), "loop"),
    "BatchNorm": (plan_of(**IMAGES, model="resnet_small", model_options={"norm": "batch"}, recipe=MOVING), "conv"),
    **{f"outcomes: {kind}": (test_outcomes.plan_of(kind), "auto") for kind in OUTCOMES},
    "groups": (IN_GROUPS["averages now and then"], "auto"),
    "snapshots": (IN_GROUPS["snapshots"], "auto"),
    "routes": (plan_of("FedAvg", {"validate": {"routes": 3}, "aggregate_every": 3}, sites=10), "auto"),
    "classes that weigh": (plan_of(recipe=Recipe(lr=0.05, class_weights="balanced")), "auto"),
    "changed images": (image_plan(), "conv"),
    "changed images, loop": (image_plan(), "loop"),
    "models of their own": (
        plan_of(
            settings=SETTINGS["FedDC"] | {"aggregate_every": 2},
            task=TASK,
            sites=None,
            samples_per_site=None,
            model=SHARED_PART,
            model_options=OPTIONS,
            rounds=3,
            recipe=Recipe(lr=0.1, momentum=0.5, batch=5, local_epochs=1),
        ),
        "auto",
    ),
}

# Group normalisation takes its sums in another order for tensors that are wrapped.
WITHIN = {"changed images": 1e-12, "changed images, loop": 1e-12}


def run_on(device: Any, run: str) -> Outcome:
    """One of the runs, with its evaluations, by the batched engine on a device."""
    plan, path = RUNS[run]
    built = plan.has_own_models or (isinstance(plan.task, dict) and "source" in plan.task)
    federation = build_federation(plan) if built else federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train, path=path, device=device)
    assert trainer.device.type == getattr(device, "type", device)
    judges = (
        Judging(plan, federation.task, LocalJudges(plan, federation, trainer), lambda: {})
        if plan.has_own_models
        else CentralEvaluator(plan, federation, trainer)
    )
    return run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site), evaluator=judges)
