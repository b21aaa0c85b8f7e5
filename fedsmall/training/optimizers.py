"""A local step: optimizers as elementwise updates, learning rates as functions of the round, and local rules.

Every array has a leading axis of models. An optimizer is a row of :data:`OPTIMIZERS`; its state is named as it travels:
"momentum/<parameter>", "exp_avg/<parameter>", "exp_avg_sq/<parameter>", and "step", the number of its updates.

A rule is what is added to the local gradient, and what a site remembers for it: a row of :data:`RULES`. Its arrays are
named by words: "reference", the last global model that the site received; "control" and "server", SCAFFOLD's c_i and c;
"history", FedDyn's h_i. A memory holds them as "<word>/<parameter>", and two numbers: "known", 1 once a global model
has been received, and "rate", the sum of the learning rates of the steps since. On the wire
(:data:`fedsmall.wire.RULE`) an order brings SCAFFOLD's "server", a reply its "control".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.training.device import widest_float
from fedsmall.training.stack import Rows, Tensors, index_of
from fedsmall.wire import Arrays


class Rate(NamedTuple):
    """The learning rate, and where an optimizer counts them the steps of each model, (models,), this one among them."""

    lr: float
    steps: Tensor | None


Update = Callable[[Tensor, Tensor, Tensors, Recipe, Rate], None]


class Optimizer(NamedTuple):
    """An update in place of (parameter, gradient, moments), and the names of its moments."""

    update: Update
    moments: Callable[[Recipe], tuple[str, ...]]
    counts: bool


def sgd(parameter: Tensor, gradient: Tensor, moments: Tensors, recipe: Recipe, rate: Rate) -> None:
    """Gradient descent with momentum and weight decay, as ``torch.optim.SGD`` (no dampening, no Nesterov)."""
    gradient = _decayed(parameter, gradient, recipe)
    if "momentum" in moments:
        gradient = moments["momentum"].mul_(recipe.momentum).add_(gradient)
    parameter.add_(gradient, alpha=-rate.lr)


def adam(parameter: Tensor, gradient: Tensor, moments: Tensors, recipe: Recipe, rate: Rate) -> None:
    """Adam (Kingma & Ba 2015, algorithm 1) with weight decay in the gradient, as ``torch.optim.Adam``."""
    assert rate.steps is not None
    gradient = _decayed(parameter, gradient, recipe)
    beta1, beta2 = recipe.betas
    mean, square = moments["exp_avg"], moments["exp_avg_sq"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    size = _column(rate.lr / (1 - beta1**rate.steps), parameter)
    spread = _column(torch.sqrt(1 - beta2**rate.steps), parameter)
    parameter.sub_(square.sqrt().div_(spread).add_(recipe.epsilon).reciprocal_().mul_(mean).mul_(size))


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(sgd, lambda recipe: ("momentum",) if recipe.momentum else (), counts=False),
    "adam": Optimizer(adam, lambda recipe: ("exp_avg", "exp_avg_sq"), counts=True),
}


def fresh_state(parameters: Tensors, recipe: Recipe) -> Tensors:
    """The optimizer state of models that have not been trained: zeros under the names that travel."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    moments = {
        f"{moment}/{name}": torch.zeros_like(tensor)
        for moment in optimizer.moments(recipe)
        for name, tensor in parameters.items()
    }
    if optimizer.counts:
        some = next(iter(parameters.values()))
        moments["step"] = torch.zeros(len(some), dtype=torch.int64, device=some.device)
    return moments


def step(parameters: Tensors, gradients: Tensors, state: Tensors, recipe: Recipe, lr: float) -> None:
    """One optimizer step of K models in place, with ``state`` as :func:`fresh_state` makes it."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    moments = optimizer.moments(recipe)
    steps = state["step"].add_(1).to(widest_float(state["step"].device)) if optimizer.counts else None
    for name, parameter in parameters.items():
        moments_of_one = {moment: state[f"{moment}/{name}"] for moment in moments}
        optimizer.update(parameter, gradients[name], moments_of_one, recipe, Rate(lr, steps))


def learning_rate(recipe: Recipe, t: int, rounds: int) -> float:
    """The learning rate of round t = 1 .. ``rounds``: constant, half a cosine down to zero, or steps by a factor."""
    if recipe.lr_schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * (t - 1) / rounds)) / 2
    if recipe.lr_schedule == "step":
        return recipe.lr * recipe.lr_decay ** ((t - 1) // recipe.lr_step_rounds)
    return recipe.lr


def _decayed(parameter: Tensor, gradient: Tensor, recipe: Recipe) -> Tensor:
    return gradient.add(parameter, alpha=recipe.weight_decay) if recipe.weight_decay else gradient


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))  # (models, 1, ...)


NUMBERS = ("known", "rate")
Variables = dict[str, Tensor]  # one parameter's arrays by word, and "known" and "rate", (models, 1, ...)
Pull = Callable[[Tensor, Tensor, Variables, Method], Tensor]
Close = Callable[[Tensor, Variables, Method], tuple[Variables, Variables]]


class Rule(NamedTuple):
    """(gradient, parameter) -> gradient; and at the end of an update, what is remembered and what is sent."""

    pull: Pull = lambda gradient, parameter, variables, method: gradient
    close: Close = lambda parameter, variables, method: ({}, {})
    remembers: tuple[str, ...] = ()


def proximal(gradient: Tensor, parameter: Tensor, variables: Variables, method: Method) -> Tensor:
    """FedProx (Li et al. 2020, eq. 2): the gradient of mu / 2 |w - reference|^2 is added."""
    return gradient + method.proximal_mu * variables["known"] * (parameter - variables["reference"])


def scaffold(gradient: Tensor, parameter: Tensor, variables: Variables, method: Method) -> Tensor:
    """SCAFFOLD (Karimireddy et al. 2020, algorithm 1, line 10): the client's drift c_i gives way to the server's c."""
    return gradient - variables["control"] + variables["server"]


def close_scaffold(parameter: Tensor, variables: Variables, method: Method) -> tuple[Variables, Variables]:
    """Option II of line 12, c_i+ = c_i - c + (x - y_i) / (K lr), with K lr the sum of the learning rates since x."""
    moved = (variables["reference"] - parameter) / variables["rate"].clamp_min(1e-30)
    delta = variables["known"] * (moved - variables["server"])
    return {"control": variables["control"] + delta}, {"control": delta}


def close_scaffold_by_gradient(parameter: Tensor, variables: Variables, method: Method) -> tuple[Variables, Variables]:
    """Option I of line 12, c_i+ = g_i(x), over the batches of the first round after x came (open in the paper)."""
    delta = variables["known"] * (variables["gradient"] - variables["control"])
    return {"control": variables["control"] + delta}, {"control": delta}


def feddyn(gradient: Tensor, parameter: Tensor, variables: Variables, method: Method) -> Tensor:
    """FedDyn (Acar et al. 2021, eq. 1): the gradient of -<h_i, w> + alpha / 2 |w - reference|^2 is added."""
    pull = method.feddyn_alpha * variables["known"] * (parameter - variables["reference"])
    return gradient - variables["history"] + pull


def close_feddyn(parameter: Tensor, variables: Variables, method: Method) -> tuple[Variables, Variables]:
    """The first-order condition: h_i+ = h_i - alpha (w_end - reference)."""
    pull = method.feddyn_alpha * variables["known"] * (parameter - variables["reference"])
    return {"history": variables["history"] - pull}, {}


GRADIENT = "gradient"  # the word for the gradient at the global model, where a rule remembers it

RULES: dict[str, Rule] = {
    "none": Rule(),
    "proximal": Rule(proximal, remembers=("reference",)),
    "scaffold": Rule(scaffold, close_scaffold, ("reference", "control", "server")),
    "scaffold, option I": Rule(scaffold, close_scaffold_by_gradient, ("reference", "control", "server", GRADIENT)),
    "feddyn": Rule(feddyn, close_feddyn, ("reference", "history")),
}


def rule_of(method: Method) -> Rule:
    """The local rule of a method."""
    first = method.rule == "scaffold" and method.scaffold_option == 1
    return RULES["scaffold, option I" if first else method.rule]


def add_rule(gradients: Tensors, parameters: Tensors, memory: Tensors, method: Method) -> Tensors:
    """The gradients with the method's rule added; ``memory`` has a row per model."""
    rule = rule_of(method)
    return {
        name: rule.pull(gradient, parameters[name], _variables(rule, memory, name, gradient), method)
        for name, gradient in gradients.items()
    }


def close_stretch(parameters: Tensors, memory: Tensors, method: Method) -> tuple[Tensors, Tensors]:
    """What the rule remembers of an update that ends, and what it sends: {"word/parameter": (models, ...)} each."""
    rule = rule_of(method)
    remembered: Tensors = {}
    sent: Tensors = {}
    for name, parameter in parameters.items():
        keep, send = rule.close(parameter, _variables(rule, memory, name, parameter), method)
        remembered |= {f"{word}/{name}": tensor for word, tensor in keep.items()}
        sent |= {f"{word}/{name}": tensor for word, tensor in send.items()}
    return remembered, sent


def _variables(rule: Rule, memory: Tensors, name: str, like: Tensor) -> Variables:
    variables = {word: memory[f"{word}/{name}"] for word in rule.remembers}
    numbers = {word: memory[word].reshape(-1, *[1] * (like.dim() - 1)) for word in NUMBERS}
    return variables | numbers


class SiteMemory:
    """What all sites remember, {name: (sites, ...)}, as training reads and writes it; ``saved`` are :meth:`arrays`."""

    def __init__(self, plan: Plan, parameters: Tensors, sites: int, saved: Mapping[str, np.ndarray] | None) -> None:
        self._method, self._rule = plan.method, rule_of(plan.method)
        some = next(iter(parameters.values()))
        stays = plan.recipe.optimizer_state == "stay"
        remembers = bool(self._rule.remembers) or stays
        like = {name: t[:1].expand(sites, *t.shape[1:]) for name, t in parameters.items() if remembers}
        self._held: Tensors = {
            f"{word}/{name}": torch.zeros_like(tensor, memory_format=torch.contiguous_format)
            for word in self._rule.remembers
            for name, tensor in like.items()
        }
        if self._rule.remembers:
            self._held |= {word: some.new_zeros(sites) for word in NUMBERS}
        self._moments = tuple(fresh_state(like, plan.recipe)) if stays else ()
        self._held |= fresh_state(like, plan.recipe) if stays else {}
        for name, array in (saved or {}).items():
            self._held[name].copy_(torch.from_numpy(np.array(array)))

    def receive(
        self,
        sites: np.ndarray,
        parameters: Tensors,
        is_global: Sequence[bool] | np.ndarray | None,
        rule: Mapping[str, np.ndarray] | None,
    ) -> None:
        """Take note, before training, of the global models among the rows and of what the server sends for the rule."""
        if not self._rule.remembers:
            return
        rows = np.flatnonzero(np.zeros(len(sites), bool) if is_global is None else np.asarray(is_global))
        for name, tensor in parameters.items():
            self._put(f"reference/{name}", sites[rows], tensor[index_of(rows, tensor)])
        for word, value in (("known", 1.0), ("rate", 0.0)):
            self._put(word, sites[rows], self._held[word].new_full((len(rows),), value))
        for name, array in (rule or {}).items():
            self._put(name, sites, torch.from_numpy(np.array(array)).to(self._held[name]))

    def variables(self, sites: np.ndarray) -> Tensors:
        """What the rule needs to know at these sites, a row for each; empty for no rule."""
        return self._rows(sites, [name for name in self._held if name not in self._moments])

    def moments(self, sites: np.ndarray) -> Tensors | None:
        """The optimizer state that stays at these sites, a row for each; None where none stays."""
        return self._rows(sites, self._moments) if self._moments else None

    def keep(self, sites: np.ndarray, tensors: Tensors) -> None:
        """Remember these tensors, a row for each of the sites: the optimizer state that stays, say."""
        for name, tensor in tensors.items():
            self._put(name, sites, tensor)

    def count(self, sites: np.ndarray, lr: float, steps: np.ndarray) -> None:
        """Add up the learning rates of a round at the rows' ``sites``; every site takes ``steps`` of them, (sites,)."""
        if self._rule.remembers:
            rate = self._held["rate"]
            rate[index_of(sites, rate)] += torch.from_numpy(lr * steps[sites]).to(rate)

    def close(self, sites: np.ndarray, parameters: Tensors) -> Tensors:
        """End the stretch since the last global model; returns what the rule sends to the server, a row per model."""
        if not self._rule.remembers:
            return {}
        remembered, sent = close_stretch(parameters, self.variables(sites), self._method)
        for name, tensor in remembered.items():
            self._put(name, sites, tensor)
        return sent

    def arrays(self) -> Arrays:
        """All that is remembered, {name: (sites, ...)}, as copies."""
        return {name: array.copy() for name, array in Rows(self._held).arrays().items()}

    def _rows(self, sites: np.ndarray, names: Sequence[str]) -> Tensors:
        return {name: self._held[name][index_of(sites, self._held[name])] for name in names}

    def _put(self, name: str, sites: np.ndarray, rows: Tensor) -> None:
        held = self._held[name]
        held[index_of(sites, held)] = rows
