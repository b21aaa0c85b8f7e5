"""What the sites of a run agreed on before its first contact, kept in its folder: a resumed run has it from there."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsmall.data.standardise import Scaling
from fedsmall.strategies.server.journal import put

SCALING_FILE, WEIGHTS_FILE = "scaling.json", "class_weights.json"


def keep_scaling(folder: Path, scaling: Scaling) -> None:
    """Keep the scaling of all features."""
    put(folder / SCALING_FILE, json.dumps({name: values.tolist() for name, values in vars(scaling).items()}).encode())


def scaling_in(folder: Path) -> Scaling | None:
    """The scaling that was kept; None where there is none."""
    if not (path := folder / SCALING_FILE).exists():
        return None
    return Scaling(**{name: np.array(values) for name, values in json.loads(path.read_text()).items()})


def keep_weights(folder: Path, weights: Sequence[float]) -> None:
    """Keep the weight of every class."""
    put(folder / WEIGHTS_FILE, json.dumps(list(weights)).encode())


def weights_in(folder: Path) -> list[float] | None:
    """The class weights that were kept; None where there are none."""
    path = folder / WEIGHTS_FILE
    return list(json.loads(path.read_text())) if path.exists() else None
