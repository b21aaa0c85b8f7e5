"""What the models of a simulation are worth: the common one, and the sites' own, each judged on the same samples."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedsmall.federation import Federation, Samples, Task
from fedsmall.metrics import evaluate_many
from fedsmall.plan import Plan
from fedsmall.training.trees import OneModelCohort
from fedsmall.wire import Arrays, Traveller
from strategies.records import stacked
from strategies.server.run_loop import Evaluation

ON_THE_WAY = ("accuracy", "mae", "loss")


class CentralEvaluator:
    """Judges models where all test samples are at hand, as only a simulation can; K models go through at once."""

    def __init__(self, plan: Plan, federation: Federation, cohort: OneModelCohort) -> None:
        self.plan = plan
        self.federation = federation
        self.cohort = cohort

    def __call__(self, t: int, common: Arrays | None, models: Mapping[str, ArrayRecord]) -> Evaluation:
        """The evaluation after round ``t``; ``models`` are the sites' own, by name."""
        if self.plan.method.family == "central":
            return self._of_one(t, models)
        sites = sorted(models)
        stack = stacked([models[site] for site in sites])
        task = self.federation.task
        if t < self.plan.rounds:  # on the way the sites' own models are judged by what a curve shows, at the end by all
            task = replace(task, metrics=tuple(name for name in task.metrics if name in ON_THE_WAY))
        of_common, of_sites = self._judge(common, stack, self.federation.test, task)
        extra = {}
        for name, samples in self.federation.extra:
            extra[name] = dict(zip(("common", "sites"), self._judge(common, stack, samples, task), strict=True))
        of_sites["names"] = sites
        of_held_out = self._held_out(common, sites)
        return Evaluation(t, of_common, of_sites, extra | ({"held_out": of_held_out} if of_held_out else {}))

    def _of_one(self, t: int, models: Mapping[str, ArrayRecord]) -> Evaluation:
        stack = stacked(list(models.values()))
        model = {name: array[0] for name, array in stack.items()}
        of_model = self._metrics(model, self.federation.test)
        extra = {
            name: {"common": self._metrics(model, samples), "sites": {}} for name, samples in self.federation.extra
        }
        return Evaluation(t, of_model, {}, extra)

    def _judge(
        self, common: Arrays | None, stack: Arrays, samples: Samples, task: Task
    ) -> tuple[dict[str, float] | None, dict[str, Any]]:
        of_common = self._metrics(common, samples) if common is not None else None
        rows = len(next(iter(stack.values())))
        travellers = [Traveller({name: array[row] for name, array in stack.items()}) for row in range(rows)]
        outputs = self.cohort.predict(self.cohort.stack(travellers), samples.x)
        return of_common, _spread(evaluate_many(outputs, samples.y, task))

    def _metrics(self, model: Arrays, samples: Samples) -> dict[str, float]:
        outputs = self.cohort.predict(self.cohort.stack([Traveller(model)]), samples.x)
        found = {
            name: float(of_one) for name, (of_one,) in evaluate_many(outputs, samples.y, self.federation.task).items()
        }
        return {name: value for name, value in found.items() if not np.isnan(value)}

    def _held_out(self, common: Arrays | None, sites: list[str]) -> dict[str, Any]:
        """The common model on each site's own held-out samples, where sites have such."""
        if common is None or not any(self.federation.held_out):
            return {}
        return {
            site: self._metrics(common, held_out)
            for site, held_out in zip(self.federation.names, self.federation.held_out, strict=True)
            if held_out is not None and len(held_out)
        }


def _spread(each: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean and standard deviation (over sites) of every metric, and the single values; NaN where one site has none."""
    summary: dict[str, Any] = {}
    for name, values in each.items():
        summary[f"{name}_mean"] = float(values.mean())
        summary[f"{name}_sd"] = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    summary["per_site"] = {name: values.tolist() for name, values in each.items()}
    return summary
