"""RepTreeFL: sites train trees of replicas, and the server averages the anchors (Ghilea & Rekik, Algorithm 1)."""

from collections.abc import Mapping

from flwr.serverapp.strategy import FedAvg

from fedsmall.plan import Tree
from fedsmall.travel import Arrays
from fedsmall.tree_cohort import fold_sent
from strategies.combine import Averaging, Updates


class RepTreeFL(FedAvg):
    """Folds every site's tree into its anchor, unless the site has done so, and combines the anchors.

    With ``tree.fold_at = "site"`` one model leaves a site and this is the averaging alone; with "server" the replicas'
    models come beside the anchor's, and folding them here gives the same common model to the bit. Runs inside a
    :class:`DaisyChain`. ``averaging`` may be any aggregator: the geometric median or the Radon point of the anchors.
    """

    def __init__(self, tree: Tree | None = None, averaging: Averaging | None = None) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.tree = tree or Tree()
        self.averaging = averaging or Averaging()

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The anchors, folded, made into one."""
        if self.tree.fold_at == "server" and updates.rule:
            folded = fold_sent(self.tree, updates.stack, updates.rule, updates.sites)
            updates = Updates(updates.sites, folded, updates.weights, updates.steps, {}, updates.sites_in_all)
        return self.averaging.combine(common, updates, t)

    def order_rule(self) -> Arrays:
        """Nothing: a site grows its tree from the model that it is sent."""
        return {}

    def state(self) -> tuple[Arrays, dict[str, float]]:
        """Nothing: a tree lives at its site, and what travels is in the slots."""
        return {}, {}

    def restore(self, arrays: Arrays, numbers: Mapping[str, float]) -> None:
        """Nothing to take up."""
