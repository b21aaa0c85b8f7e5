"""Sites whose own samples are dealt to folds: a model of route k trains at every site on all but fold k of it.

To the trainer within, each such part of a site is a site.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedsmall.data.federation import Samples, Task
from fedsmall.data.splits import classes_of, kin_of, representatives
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.replicas import with_trees_of
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import OneModelTrainer, Phase, TrainInput, TrainResult, WrappedTrainer

Within = Callable[[Plan, Task, Sequence[str], Sequence[Samples]], OneModelTrainer]


class SitesInFolds(WrappedTrainer):
    """Sites without one fold or another of their samples, as a trainer of the sites; ``within`` makes the parts'.

    Where groups stay whole a site counts samples and steps as if none did: else these told how large groups are.
    """

    def __init__(
        self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], within: Within
    ) -> None:
        self._routes = plan.method.routes
        parts, places = [], [place for place in range(len(names)) for _ in range(self._routes)]
        self._told: list[tuple[int, int]] = []  # the samples of each part, and as many as it says
        for name, own in zip(names, samples, strict=True):
            folds, is_whole = folds_of_samples(plan, name, own), kin_of(own) is not None
            parts += [own[np.flatnonzero(folds != route)] for route in range(self._routes)]
            usual = max(1, len(own) - -(-len(own) // self._routes))
            self._told += [(len(part), usual if is_whole else len(part)) for part in parts[-self._routes :]]
        rows = [f"{name} without fold {route}" for name in names for route in range(self._routes)]
        inner = within(with_trees_of(plan, places, len(names)), task, rows, parts)
        super().__init__(plan, names, [*map(len, samples)], inner)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`, on the samples that the models of the phases' routes may see."""
        phases_of_parts = [phase._replace(sites=phase.sites * self._routes + phase.route) for phase in phases]
        trained = self._within.walk(stack, phases_of_parts, inputs)
        told = [self._told[part] for part in phases_of_parts[-1].sites]
        steps = {size: self.plan.recipe.count_steps(size) * phases[-1].rounds for of in told for size in of}
        counts = [as_if if n == size else n for (size, as_if), n in zip(told, trained.examples, strict=True)]
        taken = [steps[as_if] if n == steps[size] else n for (size, as_if), n in zip(told, trained.steps, strict=True)]
        return trained._replace(examples=np.array(counts), steps=np.array(taken))


def folds_of_samples(plan: Plan, site: str, samples: Samples) -> np.ndarray:
    """The fold of every sample of a site, (samples,), where folds are of samples.

    Folds differ by one sample at most, in all and of each class; which get one more is drawn, by the site. Equal
    samples, and a patient's, follow the first of them into one fold. PlanError where a site has one patient alone.
    """
    kin = kin_of(samples)
    groups = np.arange(len(samples)) if kin is None else kin
    first = representatives(groups)
    if len(first) < 2:
        whose = "one sample" if len(samples) < 2 else "samples of one patient, or equal ones,"
        raise PlanError(
            f"{site} has {whose} and folds of samples need two at least: every route leaves some out. Give it more."
        )
    routes, rng = plan.method.routes, rng_for(plan.seed, "folds of samples", site)
    shuffled = first[rng.permutation(len(first))]
    dealt = shuffled[np.argsort(classes_of(samples.y)[shuffled], kind="stable")]  # class by class, shuffled within
    of_group = np.empty(int(groups.max()) + 1, dtype=np.int64)
    of_group[groups[dealt]] = (np.arange(len(dealt)) + rng.integers(routes)) % routes
    return np.asarray(of_group[groups])
