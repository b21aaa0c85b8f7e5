"""Groups of models on their way, each at a learning rate of its own; who goes on as whom is decided by routes.

An experiment beside the product (:mod:`examples.population_of_rates`): where models are, and who is kept from which
site, is the product's journey, and with one rate for all the models are those of its engine.
"""

from itertools import islice

import numpy as np

from fedsmall.data.federation import Federation, Samples
from fedsmall.evaluation.outputs import answer
from fedsmall.evaluation.site_sums import add_sums, metric_sums, metrics_of_sums
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.training.stack import Rows, Tensors, group_means, stacked
from fedsmall.training.trainer import OneModelTrainer, Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import folds_of, groups_of, journey, route_of, starting


class Population:
    """The groups of a plan that averages at every communication round, group k training at ``rates[k]``.

    ``models`` are the groups' global models, {name: (groups, ...)}, ``routes`` their routes, (groups,), and ``sent``
    counts the models that a site has been sent or has sent.
    """

    def __init__(self, plan: Plan, federation: Federation, rates: np.ndarray) -> None:
        self.plan, self.federation, self.rates = plan, federation, np.array(rates, dtype=np.float64)
        sites, samples = len(federation.names), [len(each) for each in federation.train]
        start = starting(plan, sites, lambda site: initial_model(plan, federation.task, site))
        self.models: Tensors = stacked(start, list(start[0]))
        self._start = {name: tensor.clone() for name, tensor in self.models.items()}
        self._group = groups_of(plan.method, sites, len(rates))
        self._folds = folds_of(plan, samples)
        validation = plan.method.validation
        self.routes = route_of(np.arange(len(rates)), validation.routes if validation else 1)
        self._journey = journey(plan, sites, samples)
        self._trainers: dict[float, OneModelTrainer] = {}
        self.sent = 0.0

    def walk(self, comm_rounds: int) -> None:
        """Go on for so many communication rounds: every group trains at its sites, and is averaged."""
        for comm_round, at in islice(self._journey, comm_rounds):
            stack = self._at(self.rates[0]).stack_of({name: t[self._group] for name, t in self.models.items()})
            for lr in np.unique(self.rates):
                rows = np.flatnonzero(self.rates[self._group] == lr)
                part = stack.rows(rows)
                phase = Phase(at[rows], comm_round.t, comm_round.rounds, closes=True)
                self._at(lr).walk(part, [phase], TrainInput(losses=False))
                stack.put(rows, part)
            groups = len(self.rates)
            self.models = group_means({name: t.view(-1, groups, *t.shape[1:]) for name, t in stack.state.items()})
            self.sent += 2

    def losses(self) -> np.ndarray:
        """What each group loses on average at the sites of its route's fold, (groups,); at most as knowing nothing."""
        found = np.empty(len(self.rates))
        for route, held in enumerate(self._held()):
            for group in np.flatnonzero(self.routes == route):
                told = metric_sums(self.outputs(held.x, np.array([group]))[0], held.y, self.federation.task)
                found[group] = metrics_of_sums(told, self.federation.task)["loss"]
        self.sent += len(self.rates) / len(np.unique(self.routes))  # to every site, the groups of one route
        return np.minimum(found, np.log(self.federation.task.classes))

    def out_of_fold(self) -> dict[str, float]:
        """What the groups of each route are worth together at the sites of its fold, over all sites."""
        task = self.federation.task
        told = [
            metric_sums(answer(self.outputs(held.x, np.flatnonzero(self.routes == route)), task.loss), held.y, task)
            for route, held in enumerate(self._held())
        ]
        return metrics_of_sums(add_sums(told), task)

    def outputs(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """What some groups' models give for samples: (groups, samples, outputs)."""
        trainer = self._at(self.rates[0])
        return trainer.predict(trainer.stack_of({name: t[groups] for name, t in self.models.items()}), x)

    def go_on(self, sources: np.ndarray, rates: np.ndarray) -> None:
        """Group k goes on with the model of group sources[k] at rates[k]; with its first, where that is not finite."""
        if (self.routes[sources] != self.routes).any():
            raise ValueError("a model that goes to another route has trained at the sites that are to judge it")
        taken = {name: tensor[sources] for name, tensor in self.models.items()}
        broken = np.flatnonzero(~Rows(taken).finite())
        for name, tensor in taken.items():
            tensor[broken] = self._start[name][broken]
        self.models, self.rates = taken, np.array(rates, dtype=np.float64)

    def _held(self) -> list[Samples]:
        """For every route, all samples at the sites of its fold."""
        assert self._folds is not None
        train = self.federation.train
        folds = [np.flatnonzero(self._folds == route) for route in np.unique(self.routes)]
        return [
            Samples(np.concatenate([train[k].x for k in sites]), np.concatenate([train[k].y for k in sites]))
            for sites in folds
        ]

    def _at(self, lr: float) -> OneModelTrainer:
        if lr not in self._trainers:
            recipe = self.plan.recipe.model_copy(update={"lr": float(lr)})
            plan = self.plan.model_copy(update={"recipe": recipe})
            trainer = cohort_for(plan, self.federation.task, self.federation.names, self.federation.train)
            assert isinstance(trainer, OneModelTrainer)
            self._trainers[lr] = trainer
        return self._trainers[lr]


def halved(losses: np.ndarray, rates: np.ndarray, routes: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Where groups take their models from, and their rates, once only the best ``kept`` rates go on: (groups,) each.

    A losing group takes over the rate of which its route has least, then of which there is least, then the best; and
    the model of the best group of its route that has had it, where there is one.
    """
    effects = effects_of_rates(losses, rates, routes)
    best = sorted(effects, key=effects.__getitem__)[:kept]
    now, sources = rates.copy(), np.arange(len(rates))
    for group in np.flatnonzero(~np.isin(rates, best)):
        here = routes == routes[group]
        now[group] = min(best, key=lambda rate: ((now[here] == rate).sum(), (now == rate).sum()))
        winners = np.flatnonzero(here & (rates == now[group]))
        if len(winners):
            sources[group] = winners[np.argmin(losses[winners])]
    return sources, now


def effects_of_rates(losses: np.ndarray, rates: np.ndarray, routes: np.ndarray) -> dict[float, float]:
    """What each rate adds to the loss, by least squares; routes, which are judged at other folds, add something too."""
    known = np.unique(rates)
    design = np.concatenate([rates[:, None] == known, routes[:, None] == np.unique(routes)], axis=1).astype(float)
    found = np.linalg.lstsq(design, losses, rcond=None)[0]
    return {float(rate): float(effect) for rate, effect in zip(known, found, strict=False)}


def explored(
    losses: np.ndarray, rates: np.ndarray, routes: np.ndarray, rng: np.random.Generator, moved: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`halved`: on a route the worst become copies of the best ``moved``, at thrice or a third of their rate.

    Source: Jaderberg et al. 2017, "Population based training of neural networks"; judged by routes here.
    """
    now, sources = rates.copy(), np.arange(len(rates))
    for route in np.unique(routes):
        here = np.flatnonzero(routes == route)
        order = here[np.argsort(losses[here], kind="stable")]
        for winner, loser in zip(order[:moved], order[::-1], strict=False):
            sources[loser] = winner
            now[loser] = np.clip(rates[winner] * (3.0 if rng.integers(2) else 1 / 3), 0.01, 10.0)
    return sources, now
