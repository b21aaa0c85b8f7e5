"""A plan that cannot end well is refused before a site trains: features that do not go together, tasks and numbers."""

from fedsmall.aggregation.aggregate import check_aggregator
from fedsmall.aggregation.combiners import combiner_for
from fedsmall.aggregation.server_optimizers import CORRECTIONS, parameters_of
from fedsmall.aggregation.sums import check_hidden
from fedsmall.data.federation import Federation, Task
from fedsmall.data.sources.registry import check_own_files, read_task
from fedsmall.errors import PlanError
from fedsmall.evaluation.clinical import can_recalibrate
from fedsmall.evaluation.intercepts import check_intercepts
from fedsmall.evaluation.stopping import check_stop
from fedsmall.features import check_features, takes_noise
from fedsmall.models.own_models import check_own_models
from fedsmall.models.registry import agreed_part, initial_model, try_model
from fedsmall.parts import SHARED_PART
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import check_noise, check_patient_level, shares_of
from fedsmall.privacy.site_level import check_private
from fedsmall.replicas import measure
from fedsmall.training.augmentation import check_augment
from fedsmall.training.gradients.layers import halves
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.travel.journey import check_region_names, check_regions
from fedsmall.travel.schedule import Action, comm_rounds_of
from fedsmall.wire import is_buffer

APART = "; or start each region by itself, with `fedsmall start --region` and, above them, `--above`"


def check_plan(plan: Plan, task: Task, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, if ``sites`` sites cannot run the plan on ``task``."""
    plan = among(plan, sites)
    method = plan.method
    check_features(plan)
    if (extension := method.extension) is not None:
        extension.check(plan, task)
    if plan.has_own_models:
        check_own_models(plan, sites)
    if method.regions is not None:
        check_regions(plan, sites)
    if plan.stop is not None:
        check_stop(plan)
    if method.tree is not None:
        measure(method.tree.diversity)
    check_task(plan, task)
    if method.adds_intercepts:
        check_intercepts(task)
    if plan.recipe.augment is not None:
        check_augment(task, halves(plan, task).body is not None)
    if plan.privacy.is_patient_level:
        check_patient_level(plan, _buffers(plan, task))
    if not method.is_federated:
        return
    _check_parts(plan)
    if method.hidden:
        check_hidden(plan, sites)
    combiner_for(plan)  # which knows its own settings
    numbers = parameter_count(plan, task)
    _check_groups(plan, sites)
    check_aggregator(method.aggregator, method.averaged(sites), numbers, method.aggregator_options)
    if plan.privacy.at_comm_rounds:
        check_private(plan, leaving_comm_rounds(plan), _buffers(plan, task))
    if method.fraction < 1 and method.permute_every and round(method.fraction * sites) < 1:
        raise PlanError(f"A fraction of {method.fraction} of {sites} sites is no site at all. Raise the fraction.")


def check_real_sites(plan: Plan, *, apart: bool = False) -> None:
    """Raise PlanError where real sites could not follow the plan, or would refuse it; ``apart`` it may have regions."""
    method = plan.method
    if isinstance(plan.task, dict) and "source" not in plan.task:
        check_own_files(read_task(plan.task))
    if method.permutes and plan.privacy.open and plan.privacy.blur is None:
        cover = "{exposure = 1.0} under the method, or " if takes_noise(plan) else ""
        raise PlanError(
            f"{method.label} hands over models, and the next site could read whole patients from them: write privacy = "
            f"{cover}{{blur = 0}} where every site's policy allows that"
        )
    if plan.recalibrate:
        raise PlanError("recalibrate goes by single predictions, which no hospital sends. Leave it out here.")
    instead = 'topology = "server"' if method.topology is not None else "regions = 1"
    if not apart and not method.has_one_server:
        raise PlanError(
            f"{method.label!r} can be simulated; real sites have one server. "
            f"Take {instead}{APART if method.topology is None else ''}."
        )


def check_run(plan: Plan, federation: Federation) -> None:
    """As :func:`check_plan`, for a simulation: here every site's targets and held-out samples are known as well."""
    try_model(plan, federation.task)
    check_plan(plan, federation.task, len(federation.names))
    if plan.method.regions is not None:
        check_region_names(plan, federation.names)
    if among(plan, len(federation.names)).method.by_samples:
        for site, own in zip(federation.names, federation.train, strict=True):
            folds_of_samples(plan, site, own)  # which says where a site has too few
    if plan.kept_back and not any(map(len, federation.kept_back)):
        raise PlanError(
            f"hold_out = {plan.kept_back:g} of the few samples of a site is nobody, at any site. Ask for more: "
            "hold_out = 0.5 at most."
        )
    if plan.privacy.is_patient_level:
        check_noise(plan, dict(enumerate(map(shares_of, federation.train))), len(federation.names))
    tasks = federation.tasks
    if plan.has_own_models:
        agreed_part(plan, tasks)
        for site, held_out in zip(federation.names, federation.held_out, strict=False):
            if not len(federation.test if held_out is None else held_out):
                raise PlanError(f"{site} holds out no sample, and no other site can judge its model; give it more.")
    elif len(lengths := sorted({task.outputs for task in tasks})) > 1:
        raise PlanError(
            f"Sites want targets of {lengths[0]} and of {lengths[-1]} numbers, which no one model has; give them "
            f"models of their own: model = {SHARED_PART!r}."
        )


def leaving_comm_rounds(plan: Plan) -> int:
    """How many times models leave the sites in the whole run."""
    return len(comm_rounds_of(plan))


def parameter_count(plan: Plan, task: Task) -> int:
    """How many float parameters the plan's model has for this task."""
    model = initial_model(plan, task)
    return sum(model[name].size for name in parameters_of(model))


def check_task(plan: Plan, task: Task) -> None:
    """Raise PlanError where a plan asks what its task's kind of outcome has not."""
    weights, tree = plan.recipe.class_weights, plan.method.tree
    if weights is not None and task.kind != "classes":
        raise PlanError(f"class_weights are for classes, and this task predicts {task.kind}. Leave them out.")
    if isinstance(weights, tuple) and len(weights) != task.classes:
        raise PlanError(f"class_weights has {len(weights)} numbers and the task {task.classes} classes; give one each.")
    if plan.recalibrate and not can_recalibrate(plan, task.loss, task.classes):
        raise PlanError("recalibrate is for two classes' probabilities, without hospitals' intercepts. Leave it out.")
    if task.kind == "classes" and not task.ordered:
        return
    what = "grades" if task.ordered else task.kind
    if plan.threshold is not None:
        raise PlanError(f"threshold says who is called positive, and this task predicts {what}. Leave it out.")
    if tree is not None and tree.diversity == "kl":
        raise PlanError(f'diversity = "kl" reads scores of classes, and this task predicts {what}. Use "l2".')


def _buffers(plan: Plan, task: Task) -> list[str]:
    return [name for name in initial_model(plan, task) if is_buffer(name)]


def _check_parts(plan: Plan) -> None:
    method = plan.method
    for part in ("scaffold", "feddyn"):
        if (method.rule == part) != (method.server == part):
            raise PlanError(
                f"{CORRECTIONS[part]} has a part at the sites and one at the server; set rule and server both to "
                f"{part!r}, or use the method of that name."
            )
    if method.server == "none" and method.server_options:
        raise PlanError(f"Method {method.label!r} has server_options, and no server optimizer that would read them.")
    if method.divergence is not None and method.aggregate_every is None:
        raise PlanError("divergence is looked at every aggregate_every rounds; say how many.")


def _check_groups(plan: Plan, sites: int) -> None:
    method = plan.method
    if method.models is not None and method.models > sites:
        raise PlanError(
            f"{method.models} models cannot sit at {sites} sites, one at each. Give models = {sites} or less."
        )
    travelling = method.travelling(sites)
    if method.routes > travelling and not method.by_samples:
        raise PlanError(
            f"{method.routes} routes need a model each, and {travelling} travel. Give routes = {travelling} "
            "or less; two at least."
        )
    if method.group_count(sites) > travelling and not method.by_samples:
        raise PlanError(
            f"{travelling} models cannot make {method.groups} groups. Give at most {travelling} groups, or more models."
        )
    if not method.by_samples:
        return
    why = f"Of {sites} sites {method.routes} routes take turns, one after every average"
    if method.groups == "each":
        raise PlanError(f'{why}, and with groups = "each" no two models are averaged. Give a number, or groups = 1.')
    turns = sum(comm_round.action is Action.AGGREGATE for comm_round in comm_rounds_of(plan))
    if turns < (groups := method.group_count(sites)):
        raise PlanError(
            f"{why}, and this run averages {turns} times where {groups} are needed. Give a smaller aggregate_every, or "
            "more rounds."
        )


def among(plan: Plan, sites: int) -> Plan:
    """The plan as so many sites follow it: with fewer sites than routes, folds are of samples; trees have a forest."""
    plan = plan.with_model_of(sites)
    validation = plan.method.validation
    if validation is None or validation.by_samples or sites >= validation.routes:
        return plan
    of_samples = validation.model_copy(update={"by_samples": True})
    return plan.model_copy(update={"method": plan.method.model_copy(update={"validation": of_samples})})
