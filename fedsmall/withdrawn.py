"""What scenarios of earlier releases could ask for and this one cannot: each is refused with what to write instead."""

from collections.abc import Mapping
from typing import Any

INSTEAD = {
    "FedTM": 'take "TravellingModel", which came out as well on most data',
    "ParallelFedAvg": 'take "TravellingGroups", which is as good and needs fewer contacts',
    "FedPAGE": 'take "SCAFFOLD" or "FedDC", which came out as well',
    "FedFa": 'take "FedAvg"; examples/own_method.py has it as parts of one\'s own',
    "phases": "leave it out: the whole run has one schedule",
    "turns": "leave it out; validate = {routes = 5, by_samples = true} has folds of samples",
    "matched_mean": 'take "mean" with initial_models = "common"; examples/matching.py has it as one\'s own',
    "int4": 'take "int8", or the largest changes alone, "top10%"',
}
METHODS = {"page": "FedPAGE", "fedfa": "FedFa"}  # by their rules and servers


def without_withdrawn(method: Any) -> Any:
    """The keys of a method without those that an earlier release wrote and that said nothing.

    Raises ValueError, in one line that says what to write instead, where one of them says something.
    """
    if not isinstance(method, Mapping):
        return method
    kept = dict(method)
    validation = next((key for key in ("validate", "validation") if kept.get(key)), None)
    if kept.get("turns") and validation and isinstance(kept[validation], Mapping):  # folds of samples, as of old
        kept[validation], kept["turns"] = {**kept[validation], "by_samples": True}, False
    for key in ("phases", "turns"):
        if kept.pop(key, None):
            raise ValueError(withdrawn(key))
    for key in ("rule", "server", "aggregator", "wire"):
        if isinstance(word := kept.get(key), str) and METHODS.get(word, word) in INSTEAD:
            raise ValueError(withdrawn(METHODS.get(word, word)))
    return kept


def withdrawn(word: str) -> str:
    """The line of refusal of a key, a method or a value."""
    return f"{word} was withdrawn: {INSTEAD[word]}"
