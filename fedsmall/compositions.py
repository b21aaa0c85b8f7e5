"""Which parts of a method go together: found out when a run is planned, and said in one line."""

from fedsmall.errors import PlanError
from fedsmall.plan import Method, Plan, Recipe, Tree

CORRECTIONS = {"scaffold": "SCAFFOLD", "feddyn": "FedDyn", "fednova": "FedNova"}


def check_composition(plan: Plan) -> None:
    """Raise PlanError where two parts of the plan's method have no meaning together."""
    method = plan.method
    if method.tree is not None:
        _check_tree(method.tree, method, plan.recipe)
    for part in (method.rule, method.server):
        if part in CORRECTIONS:
            _check_correction(CORRECTIONS[part], method, plan.recipe)
    for part in ("scaffold", "feddyn"):
        if (method.rule == part) != (method.server == part):
            raise PlanError(
                f"{CORRECTIONS[part]} has a part at the sites and one at the server; set rule and server both to "
                f"{part!r}, or use the method of that name."
            )


def _check_correction(name: str, method: Method, recipe: Recipe) -> None:
    """A drift correction compares a site's model with the common one that it set out from."""
    if method.permute_every is not None:
        raise PlanError(
            f"{name} has no meaning with permute_every: it corrects the way of a site's model from the common one, and "
            "a model that moves on has come another way. Leave permute_every out, or use FedDC with the proximal rule."
        )
    if method.aggregator != "mean":
        raise PlanError(f"{name} is defined for the mean of the sites' updates, not for {method.aggregator!r}.")
    if name != "FedDyn" and recipe.optimizer != "sgd":
        raise PlanError(f"{name} counts gradient steps of SGD, and has no meaning with {recipe.optimizer!r}.")
    if name == "SCAFFOLD" and recipe.momentum > 0:
        raise PlanError("SCAFFOLD reads a site's mean gradient off its way, which momentum hides; set momentum = 0.")
    if name == "FedNova" and recipe.momentum > 0 and recipe.optimizer_state != "reset":
        raise PlanError('FedNova with momentum needs optimizer_state = "reset": its normaliser is for a fresh start.')


def _check_tree(tree: Tree, method: Method, recipe: Recipe) -> None:
    together = tree.travel == "trees" or tree.fold_at == "server"
    if together and any(isinstance(setting, tuple) for setting in (tree.fanout, tree.depth)):
        raise PlanError(
            "Trees that travel or are folded at the server have one fanout and one depth for all sites; give one value."
        )
    if tree.fold_at == "server" and method.permute_every is not None:
        raise PlanError(
            'fold_at = "server" has no meaning with permute_every: a model is folded before it moves on. Use "site".'
        )
    if tree.fold_at == "server" and method.server != "none":
        raise PlanError(
            f'fold_at = "server" folds for the aggregator, not for the server optimizer {method.server!r}; use "site".'
        )
    if tree.fold_at == "server" and tree.diversity == "kl":
        raise PlanError('diversity = "kl" needs the anchor\'s samples, which only the site has; use fold_at = "site".')
    if tree.travel == "trees" and recipe.optimizer_state == "stay":
        raise PlanError('travel = "trees" takes moments along; use optimizer_state = "travel" or "reset".')
    if method.rule in CORRECTIONS or method.server in CORRECTIONS:
        raise PlanError(
            f"Replica trees do not go with rule {method.rule!r} and server {method.server!r}: these correct the way of "
            "one model, and a folded anchor has several. Use the proximal rule, or no tree."
        )
