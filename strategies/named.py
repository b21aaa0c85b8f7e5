"""Methods by their names, as Flower strategies: what stands alone is aggregated at every contact."""

from collections.abc import Mapping

from fedsmall.aggregation.combiners import Aggregate, Combiner, FoldTrees, ServerStep
from fedsmall.algorithm.gate import GATE
from fedsmall.parts import Tree
from fedsmall.strategies.daisy_chain import DaisyChain
from fedsmall.travel.schedule import Schedule


def FedDC(
    permute_every: int | None = 1,
    aggregate_every: int | None = 10,
    aggregator: str = "mean",
    *,
    seed: int = 0,
    fraction: float = 1.0,
    weighted: bool = False,
    gate: float = GATE,
) -> DaisyChain:
    """Federated daisy-chaining by its name: d = ``permute_every``, b = ``aggregate_every`` (Kamp et al. 2023)."""
    combiner, schedule = Aggregate(aggregator, seed=seed), Schedule(permute_every, aggregate_every)
    return DaisyChain(combiner, schedule, seed=seed, fraction=fraction, weighted=weighted, gate=gate)


def Averaging(
    aggregator: str = "mean", *, options: Mapping[str, float] | None = None, weighted: bool = False, seed: int = 0
) -> DaisyChain:
    """FedAvg with the aggregator as a part: unweighted by default, float64 inside, blind to arrival order.

    Other than Flower's FedAvg it keeps every dtype, carries integer buffers, and sets a bad reply aside instead of
    ending the run. Source: McMahan et al. 2017.
    """
    return _every_contact(Aggregate(aggregator, options, seed), seed=seed, weighted=weighted)


def RadonMachine(*, seed: int = 0) -> DaisyChain:
    """Aggregation by the iterated Radon point (Kamp et al. 2017): one absurd model cannot move it far."""
    return _every_contact(Aggregate("radon", seed=seed), seed=seed)


def SCAFFOLD(*, lr: float = 1.0) -> DaisyChain:
    """Control variates correct the drift of local training (Karimireddy et al. 2020, Algorithm 1, option II).

    The sites send their controls, as fedsmall's own clients do under a plan of this method; no other strategy here that
    has a half at the sites starts without such a plan either.
    """
    return _every_contact(ServerStep("scaffold", options={"lr": lr}))


def FedNova(*, momentum: float = 0.0) -> DaisyChain:
    """Updates normalised by the local steps taken, weighed by samples (Wang et al. 2020); sites' ``momentum``."""
    return _every_contact(ServerStep("fednova", options={"momentum": momentum}), weighted=True)


def FedDyn(*, alpha: float = 0.01) -> DaisyChain:
    """A dynamic regulariser aligns local and common optima (Acar et al. 2021); ``alpha`` is the sites' too."""
    return _every_contact(ServerStep("feddyn", options={"alpha": alpha}))


def RepTreeFL(tree: Tree | None = None, aggregator: str = "mean", *, seed: int = 0) -> DaisyChain:
    """Sites train trees of replicas, and the server averages the anchors (Ghilea & Rekik, Algorithm 1).

    With ``tree.fold_at = "site"`` one model leaves a site; with "server" the replicas' models come beside the anchor's,
    and folding them here gives the same common model to the bit.
    """
    anchors = Aggregate(aggregator, seed=seed)
    anchors.half_of = FoldTrees.half_of
    return _every_contact(FoldTrees(tree, anchors) if tree and tree.fold_at == "server" else anchors, seed=seed)


def _every_contact(combiner: Combiner, *, seed: int = 0, weighted: bool = False) -> DaisyChain:
    return DaisyChain(combiner, Schedule(aggregate_every=1), seed=seed, weighted=weighted)
