"""A hospital's say in runs over split columns: what its policy allows, and what its people are told beforehand."""

from fedsmall.clients.policy import Policy
from fedsmall.errors import PolicyError
from fedsmall.vertical.plan import ColumnPlan


def check_policy(policy: Policy, plan: ColumnPlan) -> None:
    """Raise PolicyError, in one line, unless this site takes part in such a run."""
    settings = plan.settings
    if not policy.columns:
        raise PolicyError("the policy here takes no part in runs over split columns (columns = false)")
    if policy.sealed and not plan.sealed:
        raise PolicyError(
            "the policy here lets parties speak to each other in letters only (sealed); the coordinator is to admit "
            "all sites with their identities"
        )
    if plan.of is not None:
        if policy.predict_from is None:
            raise PolicyError("the policy here names no patients about whom a forest may be asked (predict_from)")
        return
    if settings.least_samples < policy.least_side:
        raise PolicyError(
            f"a side of a split may hold {settings.least_samples} rows; the policy here asks for least_samples of at "
            f"least {policy.least_side} (least_side)"
        )
    if settings.rounds > policy.most_rounds:
        raise PolicyError(f"the plan has {settings.rounds} rounds; the policy here allows {policy.most_rounds}")


def described(plan: ColumnPlan, site: str) -> list[str]:
    """What a run is, and what of this site would leave for it, a line each."""
    settings = plan.settings
    if plan.of is not None:
        return _described_prediction(plan, site)
    told = "which of our patients the others have too; how many rows our table has"
    if site == plan.active:
        leaves = "gradients under encryption, of which the others learn which patients are alike in our label"
    else:
        leaves = (
            f"sums over {settings.least_samples} patients or more on each side of our cuts, and who goes left at those "
            "that are chosen: something of how patients are ordered in our columns; no value, no name of a column"
        )
    return [
        f"boosted trees over split columns, {settings.rounds} rounds of depth {settings.depth}",
        *_parties(plan),
        f"leaves: {told}",
        f"leaves: {leaves}",
    ]


def _parties(plan: ColumnPlan) -> list[str]:
    return [
        f"parties: {', '.join(plan.parties)}; {plan.active} has the labels",
        f"letters between parties: {'the server cannot open them' if plan.sealed else 'none; the server can read all'}",
    ]


def _described_prediction(plan: ColumnPlan, site: str) -> list[str]:
    assert plan.of is not None
    leaves = "which of these patients come to a split of others" if site == plan.active else "who goes left at ours"
    return [
        f"what the forest of the run {plan.of.run} says of the new patients that all parties have",
        *_parties(plan),
        "leaves: which of the new patients here (predict_from) the others have too; how many there are",
        f"leaves: {leaves}; what the forest says of them is {plan.active}'s alone",
    ]
