"""Flower strategies: daisy-chaining around any strategy, FedDC, the Radon machine, replica trees."""

from strategies.build import strategy_for
from strategies.combine import Averaging, RadonMachine
from strategies.daisy_chain import DaisyChain
from strategies.feddc import FedDC
from strategies.server.run_loop import Evaluation, Outcome, RunLoop

__all__ = [
    "Averaging",
    "DaisyChain",
    "Evaluation",
    "FedDC",
    "Outcome",
    "RadonMachine",
    "RunLoop",
    "strategy_for",
]
