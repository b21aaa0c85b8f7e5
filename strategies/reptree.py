"""RepTreeFL: sites train trees of replicas, and the server averages the anchors (Ghilea & Rekik, Algorithm 1)."""

from collections.abc import Mapping

from flwr.serverapp.strategy import FedAvg

from fedsmall.errors import ReplyError
from fedsmall.plan import Tree
from fedsmall.replicas.fold import fold_sent
from fedsmall.replicas.tree import ReplicaTree
from fedsmall.wire import Arrays
from strategies.combine import Averaging, Combiner, Updates


class RepTreeFL(FedAvg):
    """Folds every site's tree into its anchor, unless the site has done so, and combines the anchors.

    With ``tree.fold_at = "site"`` one model leaves a site and this is ``inner`` alone; with "server" the replicas'
    models come beside the anchor's, and folding them here gives the same common model to the bit. ``inner`` makes one
    model of the anchors: mean, geometric median, Radon point, or a server optimizer. Runs inside a :class:`DaisyChain`.
    """

    def __init__(self, tree: Tree | None = None, inner: Combiner | None = None) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.tree = tree or Tree()
        self.inner = inner or Averaging()

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The anchors, folded, made into one; raises ReplyError where a replica did not come with its anchor."""
        if self.tree.fold_at == "server":
            _check_replicas(self.tree, updates)
            folded = fold_sent(self.tree, updates.stack, updates.rule, updates.sites)
            updates = Updates(updates.sites, folded, updates.weights, updates.steps, {}, updates.sites_in_all)
        return self.inner.combine(common, updates, t)

    def order_rule(self) -> Arrays:
        """The inner strategy's; a site grows its tree from the model alone."""
        return self.inner.order_rule()

    def state(self) -> tuple[Arrays, dict[str, float]]:
        """The inner strategy's: a tree lives at its site, and what travels is in the slots."""
        return self.inner.state()

    def restore(self, arrays: Arrays, numbers: Mapping[str, float]) -> None:
        """Take up what :meth:`state` gave."""
        self.inner.restore(arrays, numbers)


def _check_replicas(tree: Tree, updates: Updates) -> None:
    fanout, depth = tree.fanout, tree.depth
    assert isinstance(fanout, int)  # check_composition has seen to it
    assert isinstance(depth, int)
    for node in ReplicaTree(fanout, depth).nodes[1:]:
        for name, array in updates.stack.items():
            came = updates.rule.get(f"{node}/{name}")
            if came is None or came.shape != array.shape:
                raise ReplyError(
                    f"The server is to fold trees of {len(ReplicaTree(fanout, depth))} models, and array {name!r} of "
                    f"replica {node} did not come with every anchor."
                )
