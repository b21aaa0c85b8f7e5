"""What regions agree on before their first round is what all their sites would have agreed on, to the bit."""

import numpy as np

from fedsmall.data.preparation import Sums, agree
from fedsmall.strategies.server.handshake import combine_sums


def test_regions_agree_on_the_scaling_of_all_sites_to_the_bit():
    rng = np.random.default_rng(0)
    sites = [
        Sums(np.full(40, 7.0), rng.normal(size=40) * 10.0 ** rng.integers(-9, 9, 40), rng.gamma(1e3, 1e5, size=40))
        for _ in range(9)
    ]

    told = [combine_sums(region) for region in (sites[:4], sites[4:])]
    parts = [
        Sums(*rows) for each in told for rows in zip(*(each[n] for n in ("count", "total", "squares")), strict=True)
    ]
    rounded = [Sums(*(each[name][0] for name in ("count", "total", "squares"))) for each in told]

    assert (agree(parts).mean == agree(sites).mean).all()
    assert (agree(parts).scale == agree(sites).scale).all()
    assert (agree(rounded).mean != agree(sites).mean).any(), "sums that are rounded by region differ"
