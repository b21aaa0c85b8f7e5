"""A package of one's own for fedsmall: once it is installed, a scenario names what is in it.

pip install ./examples/own_package
fedsmall list methods    # FedWinsor is among them
fedsmall run examples/own_package/moons.toml
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import make_moons

from fedsmall.aggregation.aggregate import Aggregator
from fedsmall.algorithm.gossip import Peers, Places
from fedsmall.data.sources.pool import Part, Pool
from fedsmall.methods import MethodRow


def winsorized_mean(points: np.ndarray, share: float = 0.1) -> np.ndarray:
    """The mean, (parameters,), of ``points`` (models, parameters), the ``share`` at either end drawn in to the next."""
    low, high = np.quantile(points, [share, 1 - share], axis=0)
    return np.asarray(np.clip(points, low, high).mean(axis=0))


WINSORIZED = Aggregator(winsorized_mean, options=("share",), coordinatewise=True)
FED_WINSOR = MethodRow(
    "Average the sites' models, what is far out drawn in.",
    "Tukey 1962",
    {"aggregate_every": 1, "aggregator": "winsorized_mean", "aggregator_options": {"share": 0.2}},
)


def moons(root: Path | None, seed: int, *, samples: int = 400) -> Pool:
    """Two half moons that lie in each other, with noise."""
    x, y = make_moons(samples, noise=0.2, random_state=seed)
    return Pool(train={"": Part(x.astype(np.float32), y)}, class_names=("upper", "lower"))


class HypercubePlaces(Places):
    """In exchange k site i swaps halves with site i xor 2^k: of 2^n sites each has the exact mean after n exchanges."""

    def next_sites(self, t: int, exchange: int | None = None) -> np.ndarray:
        """To whom each site sends, (sites,); a model is handed on as by gossip."""
        if exchange is None:
            return super().next_sites(t)
        sites = np.arange(self.sites)
        partners = sites ^ (1 << exchange % max(1, (self.sites - 1).bit_length()))
        return np.where(partners < self.sites, partners, sites)


class Hypercube(Peers):
    """Sites without a server that average along the edges of a hypercube (recursive doubling)."""

    PLACES = HypercubePlaces
