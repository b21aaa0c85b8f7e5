"""When a run ends early, and which of its models it keeps: by the loss on training samples that the model never saw.

These are each site's validation set, or, where models travel by routes, all samples of the sites that a model never
trained at. The lowest of several losses flatters a little; what the model is worth the test samples say. Source:
Prechelt 1998, "Early stopping - but when?", the class UP_s, with a model kept from the best evaluation.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.site_sums import add_sums, sum_shapes
from fedsmall.plan import Plan
from fedsmall.travel.schedule import Action, comm_rounds_of
from fedsmall.wire import Arrays

TELLING = "sites"  # of sums of several sites: how many these are
TOLD = ("count", "loss")  # of what a site tells out of fold, what a loss is made of
EXAMPLE = "stop = {patience = 3, hold_out = 0.2}"


class Judged(Protocol):
    """An evaluation, as far as it decides when a run ends."""

    @property
    def t(self) -> int:
        """After which round it was."""

    @property
    def stop(self) -> Mapping[str, float]:
        """What :func:`loss_of` gave, or nothing."""


def reported_shapes(plan: Plan, task: Task) -> dict[str, tuple[int, ...]]:
    """What a site tells at an evaluation of models that never saw its samples, by name, and its shape."""
    shapes = sum_shapes(task)
    return shapes if plan.method.routes else {name: shapes[name] for name in TOLD}


def loss_of(sums: Mapping[str, Arrays]) -> dict[str, float]:
    """The loss over all samples of which sites ``sums``, with how many there are at how many sites; empty if none."""
    if not sums:
        return {}
    whole = add_sums(sums[site] for site in sorted(sums))
    count = float(whole["count"])
    return {"loss": float(whole["loss"]) / count, "samples": count, "sites": float(whole.get(TELLING, len(sums)))}


def looks(plan: Plan) -> frozenset[int]:
    """The rounds after which a plan with ``stop`` is evaluated, on every engine; none without it.

    These are the averages, each the first at or after a round in which an evaluation is asked for, and the end.
    """
    every, rounds = plan.evaluate_every, plan.rounds
    if plan.stop is None or every is None:
        return frozenset()
    if not plan.method.is_federated:
        return frozenset([*range(every, rounds, every), rounds])
    averages = [comm_round.t for comm_round in comm_rounds_of(plan) if comm_round.action is Action.AGGREGATE]
    before = zip([0, *averages], averages, strict=False)
    return frozenset([rounds, *(t for last, t in before if t // every > last // every)])


def best_round(evaluations: Sequence[Judged]) -> int | None:
    """The round of the lowest loss, the earlier of equal ones; None before there is any."""
    return min(((judged.stop["loss"], judged.t) for judged in evaluations if judged.stop), default=(0.0, None))[1]


def has_run_dry(plan: Plan, evaluations: Sequence[Judged]) -> bool:
    """Whether the plan's patience is over: so many evaluations have not lowered the loss."""
    best = best_round(evaluations)
    if plan.stop is None or best is None:
        return False
    return sum(evaluation.t > best for evaluation in evaluations if evaluation.stop) >= plan.stop.patience


def check_stop(plan: Plan) -> None:
    """Raise PlanError where a plan asks to end early, and nothing would ever tell when."""
    stop, label = plan.stop, f"{plan.method.label!r}"
    assert stop is not None
    if stop.hold_out is None and not plan.method.routes:
        raise PlanError(
            f"stop has no samples to look at for {label}: say what share of its own every site holds out, {EXAMPLE}, "
            "or let models travel by routes (validate)."
        )
    if plan.evaluate_every is None:
        raise PlanError("stop compares evaluations, and the only one is at the end. Set evaluate_every = 10, say.")
    if len(looks(plan)) < 2:
        raise PlanError(
            f"stop compares the models of several evaluations, and {label} has one at its end alone: give it an "
            "aggregate_every and an evaluate_every below rounds, or stop = false in its table."
        )


def unseen_key(plan: Plan) -> str | None:
    """By what key of a scenario sites are asked to judge models that never saw some of their samples, or None."""
    return "validate" if plan.method.routes else "stop" if plan.kept_back else None
