"""What a plan with boosted trees is among so many sites, which slots of the forest are whose, and what is refused."""

from importlib.util import find_spec

from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.parts import Boosting
from fedsmall.plan import Method, Plan

FOREST = "forest"  # the model's name
OPEN = (
    "the cuts of a site's trees are values of its patients, and a leaf may be of a few of them; who can read "
    "whom from trees is not counted"
)


def boosting_of(plan: Plan) -> Boosting:
    """The settings of a plan that boosts."""
    assert plan.method.boosting is not None
    return plan.method.boosting


def joins(method: Method) -> bool:
    """Whether every site adds trees of its own to the common forest, which the server joins."""
    boosting = method.boosting
    return boosting is not None and not boosting.histogram and method.family == "federated" and method.models is None


def shows_cuts(method: Method) -> bool:
    """Whether trees that one site has grown on its own patients leave it."""
    return method.family == "federated" and method.boosting is not None and not method.boosting.histogram


def tree_rounds(plan: Plan) -> int:
    """How many times the run boosts: once a round, with histograms once in as many rounds as a tree has levels.

    The first round of these agrees on bins.
    """
    boosting = boosting_of(plan)
    most = (plan.rounds - 1) // boosting.depth if boosting.histogram else plan.rounds
    return most if boosting.trees is None else min(boosting.trees, most)


def with_forest(plan: Plan, sites: int) -> Plan:
    """The plan with the forest that it fills, among so many sites; itself where it has a network."""
    boosting = plan.method.boosting
    if boosting is None:
        return plan
    options = {"rounds": tree_rounds(plan), "sites": sites if joins(plan.method) else 1, "depth": boosting.depth}
    options |= {"bins": boosting.bins} if boosting.histogram else {}
    return plan.model_copy(update={"model": FOREST, "model_options": options})


def learning_rate(plan: Plan) -> float:
    """What a tree's leaves are multiplied by: of trees that sites add at once, each has its share of the rate."""
    boosting = boosting_of(plan)
    return boosting.learning_rate / (plan.model_options["sites"] if joins(plan.method) else 1)


def check_boosting(plan: Plan, task: Task) -> None:
    """Raise PlanError, in one line, for a task or a schedule that trees cannot have, or a library."""
    method, boosting = plan.method, plan.method.boosting
    if boosting is None:
        return
    label = f"Method {method.label!r} boosts trees"
    if task.loss not in ("cross_entropy", "logistic", "mse") or (task.kind == "numbers" and task.outputs != 1):
        raise PlanError(f"{label}, which learn classes, or one number under mse; the loss of this task is {task.loss}.")
    if len(task.input_shape) != 1:
        raise PlanError(f"{label}, which take tables; a sample of {task.name!r} has shape {task.input_shape}.")
    if boosting.histogram and (method.aggregate_every != 1 or method.fraction < 1 or method.models is not None):
        raise PlanError(f"{label} by sums over all sites in every round: take aggregate_every = 1 and all sites.")
    if not (boosting.histogram or method.aggregate_every == 1 or method.models == 1 or method.family != "federated"):
        raise PlanError(
            f"{label}: either sites' trees are joined every round, aggregate_every = 1, or one forest travels."
        )
    if tree_rounds(plan) < 1:
        raise PlanError(f"{label}: a tree takes {boosting.depth} rounds and the bins one; there are {plan.rounds}.")
    if not boosting.histogram and find_spec("xgboost") is None:
        raise PlanError(f"{label} with xgboost, which is not installed here: pip install 'fedsmall[boosting]'")
