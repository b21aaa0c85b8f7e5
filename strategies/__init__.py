"""Flower strategies: daisy-chaining around any strategy, FedDC and the other methods by their names."""

from strategies.build import strategy_for
from strategies.daisy_chain import DaisyChain
from strategies.named import SCAFFOLD, Averaging, FedDC, FedDyn, FedNova, RadonMachine, RepTreeFL
from strategies.server.run_loop import Evaluation, Outcome, RunLoop

__all__ = [
    "SCAFFOLD",
    "Averaging",
    "DaisyChain",
    "Evaluation",
    "FedDC",
    "FedDyn",
    "FedNova",
    "Outcome",
    "RadonMachine",
    "RepTreeFL",
    "RunLoop",
    "strategy_for",
]
