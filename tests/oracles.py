"""What several tests compare with."""

from collections.abc import Sequence

from fedsmall.travel.schedule import bijection


def permutation(seed: int, t: int, sites: Sequence[str]) -> dict[str, str]:
    """Where the models of sites go at communication round ``t``, by name."""
    names = sorted(sites)
    return {name: names[place] for name, place in zip(names, bijection(seed, t, len(names)), strict=True)}
