"""Flower strategies: daisy-chaining around any strategy, FedDC and the other methods by their names."""

from fedsmall.parts import Tree
from fedsmall.strategies.daisy_chain import (
    SCAFFOLD,
    Averaging,
    DaisyChain,
    FedDC,
    FedDyn,
    FedNova,
    RadonMachine,
    RepTreeFL,
)

__all__ = ["SCAFFOLD", "Averaging", "DaisyChain", "FedDC", "FedDyn", "FedNova", "RadonMachine", "RepTreeFL", "Tree"]
