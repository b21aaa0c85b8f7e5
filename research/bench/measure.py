"""Contenders on workloads, each in turn and several times over, at equal losses."""

import statistics
from collections.abc import Sequence

from fedsmall.data.federation import Federation
from fedsmall.methods import method
from fedsmall.research.bench.contenders import CONTENDERS, RIVALS, pooled_loss
from fedsmall.research.bench.timing import Measured, Timing
from fedsmall.research.bench.workloads import WORKLOADS, Workload

CLOSE = 1e-4  # how near all contenders' losses must be for their times to be compared


def measure(work: Workload, repeats: int, device: str, without: Sequence[str] = ()) -> list[Measured]:
    """All contenders of a workload, interleaved, so that what slows the machine slows them alike.

    A rival that cannot be imported is said to be missing. Raises ValueError where a contender's loss after
    ``work.check`` rounds is not that of the cohort engine.
    """
    federation = work.federation()
    results = [_checked(work, name, federation, device) for name in work.rounds if name not in without]
    measured = [result for result in results if not result.missing]
    _same_loss(work, measured)
    for _ in range(repeats):
        for result in measured:
            timing = _run(work, result.contender, work.rounds[result.contender], federation, device)
            updates = work.sites * work.rounds[result.contender]
            result.rates.append(updates / timing.seconds)
            result.processor_rates.append(updates / timing.processor)
    return results


def _run(work: Workload, name: str, rounds: int, federation: Federation, device: str) -> Timing:
    return CONTENDERS[name](work.plan.model_copy(update={"rounds": rounds}), federation, device)


def _checked(work: Workload, name: str, federation: Federation, device: str) -> Measured:
    try:
        model = _run(work, name, work.check, federation, device).model
    except ImportError as error:
        if name not in RIVALS:
            raise
        return Measured(work.key, name, missing=str(error) or "it cannot be imported")
    return Measured(work.key, name, pooled_loss(work.plan, federation, model))


def _same_loss(work: Workload, measured: Sequence[Measured]) -> None:
    cohort = measured[0].loss
    for contender in measured:
        if abs(contender.loss - cohort) > CLOSE:
            raise ValueError(
                f"workload {work.key}: after {work.check} rounds {contender.contender} has a loss of "
                f"{contender.loss:.6f}, the cohort engine {cohort:.6f}; they do not do the same, "
                "so their times cannot be compared"
            )


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
