"""What moves between a site and the server, as plain arrays by name, and the words of the wire."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
Arrays = dict[str, np.ndarray]

# Who takes part in a run must speak the same; raised whenever an older client or server would misread a message, or
# compute other numbers from it.
PROTOCOL = 4

# Names of the records in a message.
MODEL = "arrays"  # the model's state: parameters and buffers, named as in torch's state_dict
CARRIED = "carried"  # optimizer state that travels with the model, "momentum/0.weight" and the like
RULE = "rule"  # what a local rule needs from the server (an order) or sends to it (a reply): SCAFFOLD's controls
CONFIG = "config"
METRICS = "metrics"
OUT_OF_FOLD = "out-of-fold"  # sums over a site's samples, of models that never saw it
HELD_OUT = "held-out"  # sums over a site's held-out samples, of the global model at a run's end

VALIDATE = "validate"  # the action by which a site is asked for them, beside Flower's own

# Keys of an order's config.
PLAN = "plan"  # the plan as JSON
ROUND = "round"  # t: the last round this order asks for
ROUNDS = "rounds"  # local rounds to train now: t - ROUNDS + 1 .. t
IS_GLOBAL = "common"  # whether the model sent is the global one (proximal rules remember it)
BASE = "base"  # the round of the global model that the site has and the model sent is a difference from; -1 for in full
MADE = "made"  # of a global model that a site is to keep: the round after which it was made
TAKEN = "taken"  # the round of the site's last answer that was used, 0 for none
LEAVES = "leaves"  # whether what is trained leaves the site; False where a simulation only looks at it
MEMBERS = "members"  # how many of the models that came are of each route, where a site judges those of all
KEEP = "keep"  # of a model to be judged: it is the run's, though there were to be more rounds
ANSWER_BYTES = "answer-bytes"  # of a question whose answer is larger than itself: about how many
NAMES = "names"  # names of the arrays in a NumPyClient's list, in its order

SQUARES = "exp_avg_sq"  # in the names of arrays beside a model: Adam's mean of squares

# Codes of a refusal, beside Flower's own.
REFUSED = 2  # as an exception in a ClientApp
BROKEN = 101  # the site's log does not go on from what the site has signed
WAITS = 102  # the hospital has not said yes yet, or has paused: to be asked again

# Keys of a reply's metrics.
EXAMPLES = "num-examples"
LOSS = "train-loss"
STEPS = "steps"
BLURRED = "blurred"  # how much noise a site added of its own accord, for patients could be read from its update
CHARGED = "charged-"  # begins the names of what a run has been charged to a site's privacy budget


class Restorable:
    """A part of a run that may remember something, which a journal keeps; most remember nothing."""

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to go on after a restart, as arrays by name and a record for JSON."""
        return {}, {}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""


@dataclass
class ModelState:
    """A model on its way: its state, and the optimizer state that must go with it (may be empty)."""

    model: Arrays
    carried: Arrays = field(default_factory=dict)


_layout_of = lru_cache(512)(lambda head: np.lib.format.read_array_header_1_0(BytesIO(head)))


def read_npy(data: bytes) -> np.ndarray:
    """The array that is all of a .npy file, as Flower sends arrays. Raises ValueError or TypeError if it is none.

    As numpy.load, which parses the same head (shape and dtype) again for every array: ten times as long for small ones.
    """
    head = data[: 10 + int.from_bytes(data[8:10], "little")]
    shape, is_fortran, dtype = _layout_of(head[8:])
    if head[:8] != b"\x93NUMPY\x01\x00" or len(data) != len(head) + math.prod(shape) * dtype.itemsize:
        raise ValueError("no .npy file of version 1.0, or more or less than one")
    return np.ndarray(shape, dtype, data, len(head), order="F" if is_fortran else "C").copy(order="K")


def split_vector(vector: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """The arrays {name: (..., *shape)} of these ``shapes`` that stand one after the other in ``vector`` (..., numbers).

    The vector may have more numbers than these.
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
    pieces = np.split(vector, ends, axis=-1)
    return {n: piece.reshape((*vector.shape[:-1], *s)) for (n, s), piece in zip(shapes.items(), pieces, strict=False)}


def is_shaped_as(model: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether both have arrays of the same names, shapes and dtypes."""
    one, two = ({name: (a.shape, a.dtype) for name, a in arrays.items()} for arrays in (model, other))
    return one == two


def stack_of_one(model: Mapping[str, np.ndarray]) -> Arrays:
    """One model as a stack of models, {name: (1, ...)}."""
    return {name: np.asarray(array)[None] for name, array in model.items()}


def first_of(stack: Mapping[str, np.ndarray]) -> Arrays:
    """The first of a stack of models {name: (models, ...)}, {name: (...)}; of a stack of one, that one."""
    return {name: np.asarray(array[0]) for name, array in stack.items()}


def join(**parts: Mapping[str, T]) -> dict[str, T]:
    """Several sets of arrays as one, {"part/name": array}, for an interface that takes a single list."""
    return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def split(joined: Mapping[str, T], part: str) -> dict[str, T]:
    """One of the sets that :func:`join` has joined; empty where there was none of that name."""
    return parts(joined).get(part, {})


def parts(joined: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """All the sets that :func:`join` has joined, each in its own order; a set without arrays has left no trace."""
    sets: dict[str, dict[str, T]] = {}
    for key, array in joined.items():
        part, _, name = key.partition("/")
        sets.setdefault(part, {})[name] = array
    return sets


# Averages that may be left out (fedsmall.algorithm.dynamic).
BALANCE = "balance"  # the action by which a site is asked for the model that it has kept

# A key of an order's config. An order without a model says that the site goes on with its own.
REFERENCE = "reference"  # the round of the last model that all sites had, 0 for the first: by it bounds are kept

# Keys of a reply's metrics; one without a model has one of them.
WITHIN = "within"  # the model is within the bound, and stays
FORGOT = "forgot"  # the site has no model to go on with, or not the one that all had last
UNSOUND = "unsound"  # what was trained is not finite or too large; the model is what it was before
KNOWN = frozenset((WITHIN, FORGOT, UNSOUND))


def is_buffer(name: str) -> bool:
    """Whether a named array is a running statistic of BatchNorm, and no parameter."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
