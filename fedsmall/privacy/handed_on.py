"""Whether a site's model is sent to others as it is, or in an average over too few."""

from fedsmall.plan import Method


def hands_on(method: Method, sites: int, least: int = 2) -> bool:
    """Whether sites are sent models that fewer than ``least`` others made: travellers, or averages over so few."""
    averaged = min(method.averaged(sites), sites if method.divergence is None else 2)  # two may be balanced
    joined = method.boosting is not None and not method.boosting.histogram  # all see whose trees are whose
    return method.family == "federated" and (method.permute_every is not None or averaged < least or joined)
