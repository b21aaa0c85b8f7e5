"""Where the chance comes from that patient-level privacy rests on: who is in a lot, and the noise.

A simulation draws it from named streams, so that a run can be repeated; a real site from its operating system, so that
nobody can draw it again. Both are asked for by site and round.
"""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedsmall.randomness import rng_for


class Chance(Protocol):
    """One site's draws in one round, in the order in which they are asked for."""

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in [0, 1), (count,)."""
        ...

    def fill_normal(self, out: Tensor) -> None:
        """Fill a contiguous vector of floats on the CPU with standard normal numbers."""
        ...


Source = Callable[[str, int], Chance]  # of a site's name and a round


class NamedChance:
    """Draws that the seed, the site and the round name: of a simulation."""

    def __init__(self, seed: int, site: str, t: int) -> None:
        rng = rng_for(seed, "lots and noise", site, t)
        # torch fills at twice numpy's speed, and noise is what a step under privacy costs; 32 bits of its seed count,
        # which is no matter where nothing is secret
        self._noise = torch.Generator().manual_seed(int(rng.integers(2**32)))
        self._lots = rng

    def uniform(self, count: int) -> np.ndarray:
        """As :meth:`Chance.uniform`."""
        return self._lots.random(count)

    def fill_normal(self, out: Tensor) -> None:
        """As :meth:`Chance.fill_normal`."""
        out.normal_(generator=self._noise)


class SystemChance:
    """Draws of the operating system's cryptographic generator: of a real site.

    A normal number is the sum of four, halved: the floats near one draw are few enough to betray what it was added to,
    which for four of them is past finding (Mironov 2012; Holohan & Braghin 2021, section 5).
    """

    def uniform(self, count: int) -> np.ndarray:
        """As :meth:`Chance.uniform`."""
        return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53

    def fill_normal(self, out: Tensor) -> None:
        """As :meth:`Chance.fill_normal`."""
        total = np.zeros(out.numel())
        for _ in range(4):
            total += ndtri(self.uniform(out.numel()) + 2.0**-54)  # never 0 nor 1
        out.copy_(torch.from_numpy(total / 2))


def named(seed: int) -> Source:
    """The source of a simulation."""
    return lambda site, t: NamedChance(seed, site, t)


def system(site: str, t: int) -> Chance:
    """The source of a real site: the same words never give the same numbers."""
    return SystemChance()
