"""Contenders on workloads, each in turn and several times over, at equal losses."""

import statistics
from collections.abc import Sequence

from fedsmall.methods import method
from sim.bench.contenders import CONTENDERS, pooled_loss
from sim.bench.timing import Measured, Timing
from sim.bench.workloads import WORKLOADS, Workload

CLOSE = 1e-4  # how near all contenders' losses must be for their times to be compared


def measure(work: Workload, repeats: int, device: str, without: Sequence[str] = ()) -> list[Measured]:
    """All contenders of a workload, interleaved, so that what slows the machine slows them alike.

    Raises ValueError where a contender's loss after ``work.check`` rounds is not that of the cohort engine.
    """
    names = [name for name in work.rounds if name not in without]
    federation = work.federation()
    results = {}
    for name in names:
        plan = work.plan.model_copy(update={"rounds": work.check})
        loss = pooled_loss(plan, federation, CONTENDERS[name](plan, federation, device).model)
        results[name] = Measured(work.key, name, loss)
        if abs(loss - results["cohort"].loss) > CLOSE:
            raise ValueError(
                f"workload {work.key}: after {work.check} rounds {name} has a loss of {loss:.6f}, the cohort engine "
                f"{results['cohort'].loss:.6f}; they do not do the same, so their times cannot be compared"
            )
    for _ in range(repeats):
        for name in names:
            plan = work.plan.model_copy(update={"rounds": work.rounds[name]})
            timing: Timing = CONTENDERS[name](plan, federation, device)
            results[name].rates.append(work.sites * plan.rounds / timing.seconds)
            results[name].processor_rates.append(work.sites * plan.rounds / timing.processor)
    return list(results.values())


def feddc_over_fedavg(repeats: int, device: str) -> float:
    """The time of workload A's rounds under FedDC over that under FedAvg of equal period, in the cohort engine."""
    work = WORKLOADS["A"]
    federation = work.federation()
    fedavg = work.plan.model_copy(update={"method": method("FedAvg", aggregate_every=200)})
    ratios = []
    for _ in range(repeats):
        pair = [CONTENDERS["cohort"](plan, federation, device).seconds for plan in (work.plan, fedavg)]
        ratios.append(pair[0] / pair[1])
    return statistics.median(ratios)
