"""FedDC by its name."""

from fedsmall.schedule import Schedule
from strategies.combine import Averaging
from strategies.daisy_chain import DaisyChain


def FedDC(
    permute_every: int | None = 1,
    aggregate_every: int | None = 10,
    aggregator: str = "mean",
    *,
    seed: int = 0,
    fraction: float = 1.0,
    weighted: bool = False,
) -> DaisyChain:
    """Federated daisy-chaining by its name: d = ``permute_every``, b = ``aggregate_every`` (Kamp et al. 2023)."""
    averaging = Averaging(aggregator, weighted=weighted, seed=seed)
    schedule = Schedule(permute_every, aggregate_every)
    return DaisyChain(averaging, schedule, seed=seed, fraction=fraction, weighted=weighted)
