"""Models by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.entry_points import extensions, load_extension, own_code, own_function
from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.models import networks
from fedsmall.models.graphs import g1, g2
from fedsmall.models.networks import forgive_small_batches, frozen_names, trainable_state
from fedsmall.models.own_models import Kind, is_shared, kind_of, kinds_of, plan_of_kind, shared_layers
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.wire import Arrays

TORCHVISION = "torchvision:"  # first word of the names of torchvision's networks
Builder = Callable[..., nn.Module]
MOST_UNITS = 10_000  # of all layers that an option lists, or layers: more would have a site's memory
IN_PYTHON = "python:"  # before the names of models that are objects of this process
_DRAWING = RLock()  # torch draws from one generator for all threads


def build_model(name: str, task: Task, options: dict[str, Any], rng: np.random.Generator) -> nn.Module:
    """The model called ``name`` for ``task``, in float32 and training mode, its parameters drawn from ``rng`` alone.

    Batch norms stand small batches. Raises PlanError for an unknown name or option, and where it cannot be built.
    """
    builder = _builder(name)
    _check_options(name, builder, options)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        try:
            with own_code(f"model {name!r}") if is_own(name) else nullcontext():
                model = builder(task, **options)
        except (TypeError, ValueError) as wrong:
            if is_own(name):
                raise
            raise PlanError(f"model {name!r} cannot be built for task {task.name!r}: {wrong}") from wrong
    if not isinstance(model, nn.Module):
        raise PlanError(f"model {name!r} returned {type(model).__name__}; it must return a torch module")
    trains = [parameter.requires_grad for parameter in model.parameters()]
    if not trains:
        raise PlanError(f"model {name!r} has no parameter, so there is nothing to train")
    if not any(trains):
        raise PlanError(f"every layer of model {name!r} is frozen; leave one free to train, at least the last")
    return forgive_small_batches(model)


def is_pretrained(name: str) -> bool:
    """Whether the model is a network of torchvision."""
    return name.startswith(TORCHVISION)


def is_own(name: str) -> bool:
    """Whether the model is a user's own function, "module:function"."""
    return ":" in name and not is_pretrained(name) and not name.startswith("fedsmall.")


def name_of(model: Any) -> str:
    """The name of a model in a plan: its own, or one under which this process knows an object from now on.

    ``model`` is a name, a module, which trains on from its own weights, or a function from a task to a module.
    """
    if isinstance(model, str):
        return model
    if not callable(model):
        raise PlanError(f"a model is a name, a torch module, or a function from a task to one; got {model!r}")
    called = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "model")
    name = f"{IN_PYTHON}{called}-{id(model):x}"  # the table holds it, so that no other object gets its id
    MODELS[name] = (lambda _: deepcopy(model)) if isinstance(model, nn.Module) else model
    return name


def build_network(plan: Plan, task: Task) -> nn.Module:
    """The initial global model as a module; what is frozen of it is what every place of the run holds."""
    return build_model(plan.model, task, plan.model_options, rng_for(plan.seed, "initial"))


def initial_model(plan: Plan, task: Task, site: str | None = None) -> Arrays:
    """The initial model of ``site``, or the global one (``None``), by the names and order of ``state_dict``.

    Without frozen layers. Float arrays have the plan's dtype; their numbers are the same in each.
    """
    is_independent = site is not None and plan.initial_models == "independent"
    rng = rng_for(plan.seed, "initial", str(site)) if is_independent else rng_for(plan.seed, "initial")
    model = build_model(plan.model, task, plan.model_options, rng)
    return _arrays_of(trainable_state(model), plan)


def frozen_arrays(plan: Plan, task: Task) -> Arrays:
    """What is frozen of the plan's model, at every place the same; empty where all of it trains."""
    model = build_network(plan, task)
    frozen = frozen_names(model)
    return _arrays_of({name: tensor for name, tensor in model.state_dict().items() if name in frozen}, plan)


def completed(plan: Plan, task: Task, trained: Mapping[str, np.ndarray]) -> Arrays:
    """A whole model, in the order of ``state_dict``, of what was trained, which may have a leading axis of models."""
    whole = _arrays_of(build_network(plan, task).state_dict(), plan)
    stacked = {array.ndim - whole[name].ndim for name, array in trained.items()} == {1}
    models = len(next(iter(trained.values()))) if stacked else None
    frozen = {name: array if models is None else np.stack([array] * models) for name, array in whole.items()}
    return {name: trained.get(name, array) for name, array in frozen.items()}


def _arrays_of(state: Mapping[str, Tensor], plan: Plan) -> Arrays:
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    return {
        name: array.astype(plan.dtype if np.issubdtype(array.dtype, np.floating) else array.dtype)
        for name, array in arrays.items()
    }


def _builder(name: str) -> Builder:
    if is_pretrained(name):
        from fedsmall.models.pretrained import torchvision_network  # torchvision takes seconds to import

        return partial(torchvision_network, name.removeprefix(TORCHVISION))
    if name in MODELS:
        return MODELS[name]
    if name.startswith(IN_PYTHON):
        raise PlanError(f"model {name!r} was given as an object in Python, and is not here: write module:function")
    if ":" in name:
        if not callable(builder := own_function("model", name)):
            raise PlanError(f"model {name!r} is not a function; it must take a task and return a torch module")
        return builder  # type: ignore[no-any-return]
    if name in (others := extensions("fedsmall.models")):
        return load_extension("fedsmall.models", name)  # type: ignore[no-any-return]
    raise PlanError(f"There is no model {name!r}. {nearest(name, [*MODELS, *others])} Your own is module:function.")


def _check_options(name: str, builder: Builder, options: dict[str, Any]) -> None:
    parameters = inspect.signature(builder).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = list(parameters)[1:]
    for option, value in options.items():
        if option not in known:
            hint = nearest(option, known) if known else "It has none."
            raise PlanError(f"model {name!r} has no option {option!r}. {hint}")
        units = sum(part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, int))
        if units > MOST_UNITS:
            raise PlanError(f"{option} of model {name!r} comes to {MOST_UNITS:,} at most; got {units:,}")


def try_model(plan: Plan, task: Task) -> None:
    """Raise PlanError where a model of one's own cannot take the task's samples, or gives other than its outputs."""
    if not is_own(plan.model):
        return
    model = build_network(plan, task).eval()
    what = f"model {plan.model!r}"
    with torch.no_grad(), own_code(f"{what}, given samples of shape {task.input_shape},"):
        outputs = model(torch.zeros(2, *task.input_shape))
    if not isinstance(outputs, torch.Tensor):
        raise PlanError(f"{what} gives {type(outputs).__name__} and not a tensor of outputs")
    if tuple(outputs.shape) != (2, task.outputs):
        raise PlanError(
            f"{what} gives outputs of shape {tuple(outputs.shape)} for 2 samples; this task wants (2, {task.outputs})"
        )


def shared_part(task: Task, *, sites: Sequence[str | Mapping[str, Any]], shared: Sequence[str]) -> nn.Module:
    """The layers of the first site's model that travel, as a model that computes nothing."""
    kind = kind_of(sites[0])
    rng = np.random.default_rng(int(torch.randint(2**62, ()).item()))
    model = build_model(kind.model, task, kind.options, rng)
    names = list(model.state_dict())
    for name in set(names).difference(_shared_names(shared, kind, names)):
        module, _, attribute = name.rpartition(".")
        delattr(model.get_submodule(module), attribute)
    return model


def agreed_part(plan: Plan, tasks: Sequence[Task]) -> Arrays:
    """The shared part's arrays, alike in the models of all sites, whose ``tasks`` are in the order of their names.

    Raises PlanError where ``shared`` matches nothing of a model, or an array has another shape at another site.
    """
    parts: list[tuple[Kind, Task, Arrays]] = []
    for kind, task in zip(kinds_of(plan), tasks, strict=True):
        if not any((kind, task) == known[:2] for known in parts):
            model = initial_model(plan_of_kind(plan, kind), task)
            names = _shared_names(shared_layers(plan), kind, list(model))
            parts.append((kind, task, {name: model[name] for name in names}))
    (first_kind, _, first), *others = parts
    for kind, _, part in others:
        for name in sorted(first.keys() | part.keys()):
            here, there = (arrays[name].shape if name in arrays else "nothing" for arrays in (first, part))
            if here != there:
                apart = f"is {here} in {first_kind.model!r} and {there} in {kind.model!r}"
                raise PlanError(f"Shared array {name!r} {apart}; share less.")
    return first


def _shared_names(shared: Sequence[str], kind: Kind, names: Sequence[str]) -> list[str]:
    found = [name for name in names if is_shared(name, shared)]
    if not found:
        arrays = ", ".join(names)
        raise PlanError(f"shared = {list(shared)} matches none of the arrays of {kind.model!r}, which are {arrays}.")
    return found


NAMED = (*networks.NETWORKS, g1, g2, *networks.CROPPED, shared_part)
MODELS: dict[str, Builder] = {build.__name__: build for build in NAMED}
