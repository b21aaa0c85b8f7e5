"""When runs ended early, and which model they keep: a sentence for each method."""

from collections.abc import Sequence
from statistics import mean, median_low

from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run


def stop_sentences(run: Run) -> list[str]:
    """A sentence for each method whose plans could end early and have found a best round."""
    stopped = {label: [one for one in done if one.row.get("chosen")] for label, done in by_label(run.done).items()}
    return [f"{label} {ended(done)}" for label, done in stopped.items() if done]


def ended(done: Sequence[PlanRun]) -> str:
    """When the plans of a method ended, which round's model each keeps, and why that one."""
    plan, told = done[0].plan, [one.row["stop"] for one in done]
    assert plan.stop is not None
    ends, kept = [one.row["rounds"] for one in done], [one.row["chosen"] for one in done]
    seeds = "" if len(done) == 1 else f", median of {len(done)} runs"
    models = "models" if plan.method.family == "standalone" else "model"
    loss = f"{mean(each['loss'] for each in told):.3g}" + " on average" * (len(done) > 1)
    return (
        f"{_how(ends, plan.rounds)} (round {_of(ends)} of {plan.rounds}{seeds}) and keeps its {models} of round "
        f"{_of(kept)}: there the loss on {_of_whom(done[0], told)} was lowest, {loss}; its patience is "
        f"{plan.stop.patience} evaluation{'s' * (plan.stop.patience > 1)}. Test samples had no say."
    )


def _how(ends: Sequence[int], rounds: int) -> str:
    early = sum(end < rounds for end in ends)
    some = f"ended early in {early} of {len(ends)} runs"
    return "ended early" if early == len(ends) else some if early else "went to its end"


def _of_whom(one: PlanRun, told: Sequence[dict[str, float]]) -> str:
    samples, sites = (round(mean(each[name] for each in told)) for name in ("samples", "sites"))
    if one.plan.method.validation is not None:
        return f"{samples} training samples of {sites} hospitals, none of which the judged model had seen,"
    where = "" if one.plan.method.family == "central" else f" at {sites} site{'s' * (sites != 1)}"
    return f"the {samples} samples{where} that were kept back from training"


def _of(rounds: Sequence[int]) -> str:
    """The median round, and from when to when where they differ."""
    ends = f" ({min(rounds)} to {max(rounds)})" if min(rounds) < max(rounds) else ""
    return f"{median_low(rounds)}{ends}"
