"""Flower strategies: daisy-chaining around any strategy, FedDC and the other methods by their names."""

from fedsmall.imports.finder import with_namesakes
from fedsmall.parts import Tree
from fedsmall.strategies.daisy_chain import DaisyChain
from fedsmall.strategies.named import SCAFFOLD, Averaging, FedDC, FedDyn, FedNova, RadonMachine, RepTreeFL

__all__ = ["SCAFFOLD", "Averaging", "DaisyChain", "FedDC", "FedDyn", "FedNova", "RadonMachine", "RepTreeFL", "Tree"]

__path__ = with_namesakes(__path__, __name__)
