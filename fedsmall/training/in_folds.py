"""Sites whose own samples are dealt to folds: a model of route k trains at every site on all but fold k of it.

What the model of a route may see of a site is a site of its own to a trainer within. Nobody outside sees more than the
sites: which of the two is meant is said by a leg's route (:class:`fedsmall.training.trainer.Leg`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedsmall.federation import Samples, Task
from fedsmall.plan import Plan
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Leg, OneModelTrainer, Signals, Trained
from fedsmall.travel.routes import folds_of_samples

Within = Callable[[Plan, Sequence[str], Sequence[Samples]], OneModelTrainer]


class SitesInFolds(OneModelTrainer):
    """Sites, each without one fold or another of its samples; used exactly as a trainer of the same sites.

    ``within`` makes the trainer of their parts. Raises PlanError where a site has too few samples
    (:func:`fedsmall.travel.routes.folds_of_samples`).
    """

    def __init__(
        self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], within: Within
    ) -> None:
        assert plan.method.validation is not None
        self.plan, self.task, self.names = plan, task, tuple(names)
        self.samples = tuple(len(each) for each in samples)
        self._routes = plan.method.validation.routes
        parts = [part for name, own in zip(names, samples, strict=True) for part in _parts(plan, name, own)]
        rows = [f"{name} without fold {route}" for name in names for route in range(self._routes)]
        self._inner = within(_with_trees_for(plan, self._routes), rows, parts)
        self.path, self.device = self._inner.path, self._inner.device
        self.reason = f"{self._inner.reason}; {self._routes} folds of each site's samples"

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As :meth:`Trainer.stack_of`."""
        return self._inner.stack_of(state, carried)

    def walk(self, stack: Stack, legs: Sequence[Leg], signals: Signals) -> Trained:
        """As :meth:`Trainer.walk`, on the samples that the models of the legs' routes may see."""
        there = [leg._replace(sites=leg.sites * self._routes + leg.route) for leg in legs]
        return self._inner.walk(stack, there, signals)

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """As :meth:`OneModelTrainer.predict`."""
        return self._inner.predict(stack, x)

    def seen(self, x: np.ndarray) -> np.ndarray:
        """As :meth:`Trainer.seen`."""
        return self._inner.seen(x)


def _parts(plan: Plan, site: str, own: Samples) -> list[Samples]:
    """A site's samples without each of its folds."""
    assert plan.method.validation is not None
    folds = folds_of_samples(plan, site, own)
    return [Samples(own.x[folds != route], own.y[folds != route]) for route in range(plan.method.validation.routes)]


def _with_trees_for(plan: Plan, routes: int) -> Plan:
    """The plan with a tree for every part, where each site has a tree of its own."""
    tree = plan.method.tree
    if tree is None:
        return plan
    settings = {name: value for name, value in vars(tree).items() if isinstance(value, tuple)}
    repeated = {name: tuple(np.repeat(value, routes).tolist()) for name, value in settings.items()}
    tree = tree.model_copy(update=repeated)
    return plan.model_copy(update={"method": plan.method.model_copy(update={"tree": tree})})
