"""A plan that cannot end well is refused before a site trains."""

import numpy as np

from fedsmall.aggregation.aggregate import check_aggregator
from fedsmall.aggregation.combiners import combiner_for
from fedsmall.aggregation.server_optimizers import CORRECTIONS
from fedsmall.codec.check_wire import check_wire
from fedsmall.errors import PlanError
from fedsmall.federation import Federation, Task
from fedsmall.models.own_models import SHARED_PART, check_own_models, has_own_models
from fedsmall.models.registry import initial_model, try_model
from fedsmall.models.shared_part import agreed_part
from fedsmall.parts import Recipe, Tree
from fedsmall.plan import Method, Plan
from fedsmall.privacy.hidden import check_hidden
from fedsmall.privacy.patient_level import check_noise, check_patient_level, is_patient_level
from fedsmall.privacy.site_level import check_private
from fedsmall.stopping import check_kept_back, check_stop, told_by_key
from fedsmall.training.augmentation import check_augment
from fedsmall.training.distillation import check_distil
from fedsmall.training.frozen_body import halves
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.travel.check_dynamic import check_dynamic
from fedsmall.travel.check_topology import check_region_names, check_topology
from fedsmall.travel.schedule import Action, contacts_of
from fedsmall.wire import is_buffer


def check_plan(plan: Plan, task: Task, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, if ``sites`` sites cannot run the plan on ``task``."""
    plan = among(plan, sites)
    method = plan.method
    if (extension := method.extension) is not None:
        extension.check(plan, task)
    check_own_models(plan, sites)
    check_told(plan)
    check_topology(plan, sites)
    check_dynamic(plan)
    check_wire(plan)
    check_stop(plan)
    _check_weights(plan, task)
    if plan.recipe.augment is not None:
        check_augment(plan, task, halves(plan, task).body is not None)
    _check_of_classes(plan, task)
    check_distil(plan, task.loss)
    if is_patient_level(plan):
        check_patient_level(plan, _buffers(plan, task))
    if method.family != "federated":
        if method.tree is not None:
            _check_tree(method.tree, method, plan.recipe)
        return
    check_composition(plan)
    check_hidden(plan, sites)
    combiner_for(plan)  # which knows its own settings
    numbers = parameter_count(plan, task)
    _check_groups(plan, sites)
    check_aggregator(method.aggregator, method.averaged(sites), numbers, method.weighted, method.aggregator_options)
    if method.privacy is not None:
        check_private(plan, leaving_contacts(plan), _buffers(plan, task))
    if method.server == "none" and method.server_options:
        raise PlanError(f"Method {method.label!r} has server_options, and no server optimizer that would read them.")
    if method.fraction < 1 and method.permute_every and round(method.fraction * sites) < 1:
        raise PlanError(f"A fraction of {method.fraction} of {sites} sites is no site at all. Raise the fraction.")


def _check_of_classes(plan: Plan, task: Task) -> None:
    """Raise PlanError for what has a meaning for classes alone that have no order."""
    if task.kind == "classes" and not task.ordered:
        return
    what, tree = "grades" if task.ordered else task.kind, plan.method.tree
    if plan.threshold is not None:
        raise PlanError(f"threshold says who is called positive, and this task predicts {what}. Leave it out.")
    if tree is not None and tree.diversity == "kl":
        raise PlanError(f'diversity = "kl" reads scores of classes, and this task predicts {what}. Use "l2".')


def _buffers(plan: Plan, task: Task) -> list[str]:
    return [name for name in initial_model(plan, task) if is_buffer(name)]


def check_run(plan: Plan, federation: Federation) -> None:
    """As :func:`check_plan`, for a simulation: here every site's targets and held-out samples are known as well."""
    try_model(plan, federation.task)
    check_plan(plan, federation.task, len(federation.names))
    check_region_names(plan, federation.names)
    if among(plan, len(federation.names)).method.by_samples:
        for site, own in zip(federation.names, federation.train, strict=True):
            folds_of_samples(plan, site, own)  # which says where a site has too few
    check_kept_back(plan, federation)
    check_noise(plan, dict(enumerate(map(len, federation.train))), len(federation.names))
    tasks = federation.tasks
    if has_own_models(plan):
        agreed_part(plan, tasks)
        for site, held_out in zip(federation.names, federation.held_out, strict=False):
            if not len(federation.test if held_out is None else held_out):
                raise PlanError(f"{site} holds out no sample, and no other site can judge its model; give it more.")
    elif len(lengths := sorted({task.outputs for task in tasks})) > 1:
        raise PlanError(
            f"Sites want targets of {lengths[0]} and of {lengths[-1]} numbers, which no one model has; give them "
            f"models of their own: model = {SHARED_PART!r}."
        )


def leaving_contacts(plan: Plan) -> int:
    """How many times models leave the sites in the whole run."""
    return len(contacts_of(plan))


def parameter_count(plan: Plan, task: Task) -> int:
    """How many float parameters the plan's model has for this task."""
    model = initial_model(plan, task)
    return sum(a.size for name, a in model.items() if np.issubdtype(a.dtype, np.floating) and not is_buffer(name))


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


def _check_weights(plan: Plan, task: Task) -> None:
    """Raise PlanError where class weights are not one for each class."""
    weights = plan.recipe.class_weights
    if weights is not None and task.kind != "classes":
        raise PlanError(f"class_weights are for classes, and this task predicts {task.kind}. Leave them out.")
    if isinstance(weights, tuple) and len(weights) != task.classes:
        raise PlanError(f"class_weights has {len(weights)} numbers and the task {task.classes} classes; give one each.")


def _check_groups(plan: Plan, sites: int) -> None:
    """Raise PlanError where groups of models, or a number of them, have no meaning."""
    method = plan.method
    if method.models is not None and method.models > sites:
        raise PlanError(
            f"{method.models} models cannot sit at {sites} sites, one at each. Give models = {sites} or less."
        )
    travelling = method.travelling(sites)
    if method.validation is not None and method.validation.routes > travelling and not method.by_samples:
        raise PlanError(
            f"{method.validation.routes} routes need a model each, and {travelling} travel. Give routes = {travelling} "
            "or less; two at least."
        )
    if method.group_count(sites) > travelling and not method.by_samples:
        raise PlanError(
            f"{travelling} models cannot make {method.groups} groups. Give at most {travelling} groups, or more models."
        )
    if method.is_ensemble and has_own_models(plan):
        raise PlanError("Groups and snapshots answer together, which models of the sites' own cannot. Use groups = 1.")
    if method.keep_last and has_own_models(plan):
        raise PlanError("Visitors answer together, which models of the sites' own cannot. Leave keep_last out.")
    if not method.grouped:
        return
    for part in (method.rule, method.server):
        if part in ("proximal", "scaffold", "feddyn"):
            raise PlanError(
                f"{part!r} holds a model near the one common model, and {method.label!r} has several: use groups = 1, "
                "without validate."
            )
    if method.by_samples:
        _check_turns_of_routes(plan, sites)


def _check_turns_of_routes(plan: Plan, sites: int) -> None:
    """Raise PlanError where not every route gets its turn: folds are of samples, and all sites train one route's."""
    assert plan.method.validation is not None
    why = f"Of {sites} sites {plan.method.validation.routes} routes take turns, one after every average"
    if plan.method.groups == "each":
        raise PlanError(f'{why}, and with groups = "each" no two models are averaged. Give a number, or groups = 1.')
    turns = sum(contact.action is Action.AGGREGATE for contact in contacts_of(plan))
    if turns < (groups := plan.method.group_count(sites)):
        raise PlanError(
            f"{why}, and this run averages {turns} times where {groups} are needed. Give a smaller aggregate_every, or "
            "more rounds."
        )


def check_told(plan: Plan) -> None:
    """Raise PlanError where sites would tell sums of patients whom a ledger is to protect."""
    privacy, key = plan.method.privacy, told_by_key(plan)
    if key is not None and privacy is not None and privacy.counted:
        whom = "the patients that they train on" if key == "validate" else "patients that they keep back"
        raise PlanError(
            f"{key} lets sites tell sums over {whom}, which no epsilon covers. Remove one "
            f"of {key} and privacy, or take privacy = {{blur = 1}}, which claims none."
        )


def _check_correction(name: str, method: Method, recipe: Recipe) -> None:
    """A drift correction compares a site's model with the common one that it set out from."""
    if method.permutes:
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
    if tree.fold_at == "server" and method.permutes:
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


def among(plan: Plan, sites: int) -> Plan:
    """The plan as so many sites follow it: with fewer sites than routes, folds are of samples; trees have a forest."""
    plan = plan.with_model_of(sites)
    validation = plan.method.validation
    if validation is None or validation.by_samples or sites >= validation.routes:
        return plan
    of_samples = validation.model_copy(update={"by_samples": True})
    return plan.model_copy(update={"method": plan.method.model_copy(update={"validation": of_samples})})
