"""A simulation of sites that have models of their own: each is judged where its private layers are."""

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord

from fedsmall.errors import PlanError
from fedsmall.federation import Federation
from fedsmall.metrics import evaluate
from fedsmall.mixed import SHARED_PART, MixedCohort
from fedsmall.models import initial_model
from fedsmall.plan import Plan
from fedsmall.travel import Arrays
from fedsmall.tree_cohort import mixed_cohort
from sim.cohort_grid import CohortGrid
from strategies.build import strategy_for
from strategies.records import to_arrays
from strategies.run_loop import Conductor, Evaluation, Outcome


class MixedEvaluator:
    """Judges every site's model on what that site has held out; there is no model that all sites could judge.

    An evaluation's ``sites`` are the sites' own models after their last training; ``extra["held_out"]`` has for each
    site the common shared part, completed with the site's own layers.
    """

    def __init__(self, federation: Federation, cohort: MixedCohort) -> None:
        self.federation, self.cohort = federation, cohort

    def __call__(self, t: int, common: Arrays | None, models: Mapping[str, ArrayRecord]) -> Evaluation:
        """The evaluation after round ``t``."""
        own = {site: self._metrics(site, to_arrays(record)) for site, record in sorted(models.items())}
        shared = {} if common is None else {site: self._metrics(site, common) for site in own}
        return Evaluation(t, None, _spread(own), {"held_out": shared} if shared else {})

    def _metrics(self, site: str, shared: Arrays) -> dict[str, float]:
        place = self.federation.names.index(site)
        held_out = self.federation.held_out[place]
        assert held_out is not None
        outputs = self.cohort.predict_at(place, shared, held_out.x)[0]
        return evaluate(outputs, held_out.y, self.cohort.task_at(place))


def run_mixed(plan: Plan, federation: Federation) -> Outcome:
    """Run a plan whose sites have models of their own, batched where they have equal ones.

    Raises PlanError where the plan's model is not the shared part of several, or a site has nothing held out.
    """
    if plan.model != SHARED_PART:
        raise PlanError(f"model = {plan.model!r} is one for all sites; sites with their own have {SHARED_PART!r}.")
    if not all(federation.held_out) or len(federation.held_out) < len(federation.names):
        raise PlanError("every site needs samples held out: with models of their own, none can judge for another.")
    cohort = mixed_cohort(plan, federation.task, federation.names, federation.train)
    return Conductor(
        strategy=strategy_for(plan),
        grid=CohortGrid(plan, federation, cohort),  # type: ignore[arg-type]  # it only trains and stacks
        plan=plan,
        initial=lambda site: initial_model(plan, federation.task, site),
        evaluator=MixedEvaluator(federation, cohort),
    ).run()


def _spread(own: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    """Mean and standard deviation over the sites of every metric, the single values, and the sites' names."""
    summary: dict[str, object] = {"names": list(own), "per_site": {}}
    per_site: dict[str, list[float]] = {}
    for metrics in own.values():
        for name, value in metrics.items():
            per_site.setdefault(name, []).append(value)
    for name, values in per_site.items():
        summary[f"{name}_mean"] = float(np.mean(values))
        summary[f"{name}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    summary["per_site"] = per_site
    return summary
