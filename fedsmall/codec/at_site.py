"""A site's memory for compressed models: the last global one, and the error feedback residual.

By name: under "common" the last global model, under "left" the residual of the last model that left, under "before"
that of the one before, and the rounds to which they belong. Where the server did not take a reply, the residual before
it counts again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsmall.codec.codes import CodecError
from fedsmall.codec.top import cut_one
from fedsmall.wire import BASE, COMMON, MADE, ROUND, TAKEN, Arrays, join, split

LEFT, BEFORE, ROUNDS_OF = "left", "before", "rounds"
Config = Mapping[str, Any]


def base_of(memory: Arrays, config: Config) -> Arrays | None:
    """The common model that an order builds on; None where it needs none. CodecError where it is not here."""
    base = int(config.get(BASE, -1))
    if base < 0:
        return None
    made, _ = _rounds(memory)
    if base != made:
        raise CodecError("it builds on a common model that this site does not have")
    return split(memory, COMMON)


def leave(model: Arrays, received: Arrays, memory: Arrays, config: Config, share: float) -> tuple[Arrays, Arrays]:
    """A trained model as it leaves, and what is remembered then; ``received`` is the model as it came in the order."""
    made, last = _rounds(memory)
    taken = int(config.get(TAKEN, 0)) >= last
    before = split(memory, LEFT if taken else BEFORE)
    sent, left = cut_one(model, received, before, share)
    common = split(memory, COMMON)
    if config.get(COMMON) and MADE in config:
        common, made = received, int(config[MADE])
    rounds = {ROUNDS_OF: {"all": np.array([made, int(config[ROUND])], dtype=np.int64)}}
    return sent, join(**{COMMON: common, LEFT: left, BEFORE: before}, **rounds)


def _rounds(memory: Arrays) -> tuple[int, int]:
    """The round of the global model that a site has, and of its last model that left; -1 for none."""
    made, last = memory.get(f"{ROUNDS_OF}/all", np.array([-1, -1]))
    return int(made), int(last)
