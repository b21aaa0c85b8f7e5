"""What sites remember from one training to the next: a local rule's arrays, and moments that stay at home."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedsmall.plan import Plan
from fedsmall.training.local_rules import GRADIENT, NUMBERS, closed, rule_of
from fedsmall.training.optimizers import fresh_state
from fedsmall.training.stack import Rows, Tensors, index_of
from fedsmall.wire import Arrays


class SiteMemory:
    """The memory of all sites of a cohort, {name: (sites, ...)}, and how training reads and writes it.

    The names are those of :mod:`fedsmall.training.local_rules` ("reference/<parameter>", ..., "known", "rate"), and
    those of :mod:`fedsmall.training.optimizers` where the recipe's optimizer state stays at the site. Empty where
    nothing is remembered. ``saved`` is what :meth:`arrays` gave earlier; nothing, or an empty mapping, at the start of
    a run.
    """

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
        common: Sequence[bool] | np.ndarray | None,
        rule: Mapping[str, np.ndarray] | None,
    ) -> None:
        """Take note, before training, of the common models among the rows and of what the server sends for the rule."""
        if not self._rule.remembers:
            return
        rows = np.flatnonzero(np.zeros(len(sites), bool) if common is None else np.asarray(common))
        for name, tensor in parameters.items():
            self._put(f"reference/{name}", sites[rows], tensor[index_of(rows, tensor)])
        for word, value in (("known", 1.0), ("rate", 0.0)):
            self._put(word, sites[rows], self._held[word].new_full((len(rows),), value))
        for name, array in (rule or {}).items():
            self._put(name, sites, torch.from_numpy(np.array(array)).to(self._held[name]))

    @property
    def wants_gradient(self) -> bool:
        """Whether the rule asks for the gradient at the common model."""
        return GRADIENT in self._rule.remembers

    def keep_gradient(self, sites: np.ndarray, gradient: Tensors) -> None:
        """Remember the gradient at the common model that these sites have received."""
        self.keep(sites, {f"{GRADIENT}/{name}": tensor for name, tensor in gradient.items()})

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

    def count(self, sites: np.ndarray, rates: np.ndarray) -> None:
        """Add the sums of the learning rates of the steps that were taken, (rows,)."""
        if self._rule.remembers:
            rate = self._held["rate"]
            rate[index_of(sites, rate)] += torch.from_numpy(rates).to(rate)

    def close(self, sites: np.ndarray, parameters: Tensors) -> Tensors:
        """End the stretch since the last common model; returns what the rule sends to the server, a row per model."""
        if not self._rule.remembers:
            return {}
        remembered, sent = closed(parameters, self.variables(sites), self._method)
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
