"""Models by name: what a task's samples go through, as ``torch.nn.Module``.

========================  =============================================================================
name                      model and its options
========================  =============================================================================
``linear``                one linear layer; logistic, hinge or softmax by the task's loss
``proportional``          one risk, and a level for each interval of time or step between grades; ``hidden`` (grades)
``mlp``                   linear layers with ReLU; ``hidden`` (widths), ``dropout``
``cnn``                   Conv32-GN-ReLU-pool-Conv64-GN-ReLU-pool-Linear; ``norm``, ``dropout``
``cnn3d``                 Conv3d-GN-ReLU-pool for each of ``widths``, means, Linear; ``norm``, ``dropout``
``resnet10``              one basic block a stage, 64-128-256-512; ``stem``, ``norm``
``resnet18``              two basic blocks a stage; ``stem`` "cifar" (default) or "imagenet", ``norm``
``resnet_small``          ``blocks`` (2) basic blocks a stage, 16-32-64, CIFAR stem; ``norm``
``resnet10_cropped``      the same without the taps that small images never reach; also ``resnet18_cropped``
``shared_part``           the layers that sites with models of their own have in common; ``sites``, ``shared``
``g1``, ``g2``            RepTreeFL's networks for brain graphs, 35 regions to 160 and to 268; ``widths``
``torchvision:NAME``      a network of torchvision; ``weights``, ``train`` (:mod:`fedsmall.models.pretrained`)
``module:function``       your own: ``function(task, **options) -> torch.nn.Module``
========================  =============================================================================

``norm`` is "group" by default, which a site of a few images bears, or "batch", as in the papers. A network of
torchvision keeps the normalisation that its weights were trained with; what is frozen of it keeps their statistics too.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.entry_points import extensions, load_extension
from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.methods import nearest
from fedsmall.models.earlier import NORM
from fedsmall.models.frozen import frozen_state, trainable_state
from fedsmall.models.graphs import g1, g2
from fedsmall.models.norms import forgive_small_batches
from fedsmall.models.resnets import ResNet, norm_layer
from fedsmall.own_code import own_code
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.wire import Arrays

TORCHVISION = "torchvision:"  # first word of the names of torchvision's networks
Builder = Callable[..., nn.Module]
HIDDEN = {"digits": (64, 32), "breast_cancer": (32, 16), "synthetic": (50, 20)}


def build_model(name: str, task: Task, options: dict[str, Any], rng: np.random.Generator) -> nn.Module:
    """The model called ``name`` for ``task``, in float32 and training mode, its parameters drawn from ``rng``.

    Torch's global generator is neither read nor moved. Batch normalisation is :mod:`fedsmall.models.norms`'s, also
    in a model of one's own.

    Raises PlanError for an unknown name or option, and for a model that cannot take the task's samples.
    """
    builder = _builder(name)
    _check_options(name, builder, options)
    with torch.random.fork_rng(devices=[]):
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
    parameters = list(model.parameters())
    if not parameters:
        raise PlanError(f"model {name!r} has no parameter, so there is nothing to train")
    if not any(parameter.requires_grad for parameter in parameters):
        raise PlanError(f"every layer of model {name!r} is frozen; leave one free to train, at least the last")
    return forgive_small_batches(model)


def is_pretrained(name: str) -> bool:
    """Whether the model is a network of torchvision."""
    return name.startswith(TORCHVISION)


def is_own(name: str) -> bool:
    """Whether the model is a user's own function, "module:function"."""
    return ":" in name and not is_pretrained(name) and not name.startswith("fedsmall.")


def common_model(plan: Plan, task: Task) -> nn.Module:
    """The common initial model as a module; what is frozen of it is what every place of the run holds."""
    return build_model(plan.model, task, plan.model_options, rng_for(plan.seed, "initial"))


def initial_model(plan: Plan, task: Task, site: str | None = None) -> Arrays:
    """What ``site`` starts with, or the common start (``None``), by the names and order of ``state_dict``.

    What is frozen is not in it (:mod:`fedsmall.models.frozen`): it is no site's own, and never travels. Float arrays
    have the plan's dtype; float32 and float64 plans start from the same numbers.
    """
    own = site is not None and plan.initial_models == "independent"
    rng = rng_for(plan.seed, "initial", str(site)) if own else rng_for(plan.seed, "initial")
    model = build_model(plan.model, task, plan.model_options, rng)
    return {name: _as_dtype(tensor.numpy(), plan.dtype) for name, tensor in trainable_state(model).items()}


def frozen_arrays(plan: Plan, task: Task) -> Arrays:
    """What is frozen of the plan's model, at every place the same; empty where all of it trains."""
    frozen = frozen_state(common_model(plan, task))
    return {name: _as_dtype(tensor.numpy(), plan.dtype) for name, tensor in frozen.items()}


def completed(plan: Plan, task: Task, trained: Mapping[str, np.ndarray]) -> Arrays:
    """A whole model from what of it was trained, in the order of ``state_dict``.

    Where several models answer together, ``trained`` has a leading axis of models, and so has the result.
    """
    whole = common_model(plan, task).state_dict()
    axes = {array.ndim - whole[name].ndim for name, array in trained.items()}
    models = len(next(iter(trained.values()))) if axes == {1} else None
    return {name: trained[name] if name in trained else _frozen(t, plan, models) for name, t in whole.items()}


def _frozen(tensor: Tensor, plan: Plan, models: int | None) -> np.ndarray:
    array = _as_dtype(tensor.numpy(), plan.dtype)
    return array if models is None else np.stack([array] * models)


def _as_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype if np.issubdtype(array.dtype, np.floating) else array.dtype)


def linear(task: Task) -> nn.Module:
    """One linear layer over all the numbers of a sample."""
    return nn.Sequential(*_flat(task), nn.Linear(_size(task), task.outputs))


def mlp(task: Task, *, hidden: Sequence[int] | None = None, dropout: float = 0.0) -> nn.Module:
    """Linear layers of widths ``hidden`` with ReLU, as one plain ``nn.Sequential``."""
    widths = HIDDEN.get(task.name, (64, 32)) if hidden is None else hidden
    if any(width < 1 for width in widths):
        raise ValueError(f"hidden is a number of units for each layer, at least 1; got {list(widths)}")
    layers, before = _flat(task), _size(task)
    for width in widths:
        layers += [nn.Linear(before, width), nn.ReLU(), *_dropout(dropout)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, task.outputs))


def cnn(task: Task, *, norm: str = NORM, dropout: float = 0.0) -> nn.Module:
    """The papers' small convolutional network, as one plain ``nn.Sequential``; images of at least 4 x 4."""
    channels, height, width = _image_shape(task)
    if min(height, width) < 4:
        raise ValueError(f"two poolings need images of at least 4 x 4; these are {height} x {width}")
    layers: list[nn.Module] = []
    for before, after in ((channels, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), norm_layer(norm)(after), nn.ReLU(), nn.MaxPool2d(2)]
    head = nn.Linear(64 * (height // 4) * (width // 4), task.outputs)
    return nn.Sequential(*layers, nn.Flatten(), *_dropout(dropout), head)


def resnet10(task: Task, *, stem: Any = "imagenet", norm: str = NORM) -> nn.Module:
    """One basic block a stage: 4,900,546 parameters for grey images and two classes (RepTreeFL's model)."""
    return ResNet(_image_shape(task)[0], task.outputs, blocks=1, stem=stem, norm=norm)


def resnet18(task: Task, *, stem: Any = "cifar", norm: str = NORM) -> nn.Module:
    """Two basic blocks a stage; ``stem="imagenet"`` is torchvision's network, weight for weight."""
    return ResNet(_image_shape(task)[0], task.outputs, blocks=2, stem=stem, norm=norm)


def resnet_small(task: Task, *, blocks: int = 2, norm: str = NORM) -> nn.Module:
    """Three stages of 16, 32 and 64 channels behind a 3 x 3 stem."""
    return ResNet(_image_shape(task)[0], task.outputs, (16, 32, 64), blocks, "cifar", norm)


MODELS: dict[str, Builder | str] = {  # as "module:function" where the module needs this one
    "linear": linear,
    "proportional": "fedsmall.models.proportional:proportional",
    "mlp": mlp,
    "cnn": cnn,
    "cnn3d": "fedsmall.models.volumes:cnn3d",
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet_small": resnet_small,
    "g1": g1,
    "g2": g2,
    "resnet10_cropped": "fedsmall.models.cropped:resnet10",
    "resnet18_cropped": "fedsmall.models.cropped:resnet18",
    "shared_part": "fedsmall.models.shared_part:shared_part",
}


def _builder(name: str) -> Builder:
    if is_pretrained(name):
        from fedsmall.models.pretrained import builder_of  # torchvision takes seconds to import

        return builder_of(name)  # type: ignore[no-any-return]
    if ":" in name:
        return _own_builder(name)
    if name not in MODELS:
        if name in (others := extensions("fedsmall.models")):
            return load_extension("fedsmall.models", name)  # type: ignore[no-any-return]
        known = nearest(name, [*MODELS, *others])
        raise PlanError(f"There is no model {name!r}. {known} Your own is module:function.")
    builder = MODELS[name]
    return _own_builder(builder) if isinstance(builder, str) else builder


def _own_builder(name: str) -> Builder:
    module, _, function = name.partition(":")
    try:
        builder = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as wrong:
        raise PlanError(f"model {name!r} was not found: {wrong}. It is written as module:function.") from wrong
    if not callable(builder):
        raise PlanError(f"model {name!r} is not a function; it must take a task and return a torch module")
    return builder  # type: ignore[no-any-return]


def _check_options(name: str, builder: Builder, options: dict[str, Any]) -> None:
    parameters = inspect.signature(builder).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = list(parameters)[1:]
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "It has none."
            raise PlanError(f"model {name!r} has no option {option!r}. {hint}")


def _image_shape(task: Task) -> tuple[int, int, int]:
    if len(task.input_shape) != 3:
        other = "cnn3d" if len(task.input_shape) == 4 else "linear or mlp"
        raise ValueError(f"it takes images, and a sample has shape {task.input_shape}; use {other}")
    channels, height, width = task.input_shape
    return channels, height, width


def _size(task: Task) -> int:
    return int(np.prod(task.input_shape))


def _flat(task: Task) -> list[nn.Module]:
    return [nn.Flatten()] if len(task.input_shape) > 1 else []


def _dropout(share: float) -> list[nn.Module]:
    return [nn.Dropout(share)] if share else []
