"""Evaluation: which model each site is to evaluate, and on what (:class:`Question`), and the evaluation of the answers.

Who answers :class:`Judging` is an argument: sites over a grid, all in a secure sum, or a simulation's samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from fedsmall.data.federation import Task
from fedsmall.evaluation.site_sums import expected_at_unseen, sums_to_json
from fedsmall.evaluation.stopping import TELLING, looks, loss_of
from fedsmall.plan import Plan
from fedsmall.sealing import tallies
from fedsmall.strategies.server.run_loop import Evaluation, Evaluator
from fedsmall.travel.journey import RoundResult, folds_of
from fedsmall.wire import Arrays


class Question(NamedTuple):
    """Models to be evaluated after round ``t``, by site, on what each has held out.

    ``unseen``: on samples that the models never saw, with routes the training samples, else those kept back for
    ``stop``. Where folds are of samples, the members of all routes come as one model, ``counts`` of each. ``memory`` is
    that of sites with layers of their own, in a simulation.
    """

    t: int
    models: Mapping[str, Arrays]
    unseen: bool = False
    counts: tuple[int, ...] = ()
    memory: Arrays = {}  # noqa: RUF012 (never changed)


@dataclass(frozen=True)
class Answer:
    """A site's ``metrics`` over so many held-out ``samples``, and ``sums`` (:mod:`fedsmall.evaluation.site_sums`).

    ``charged`` is the run's charge to the site's privacy budget, ``sites`` how many answer together.
    """

    samples: float = 0
    metrics: dict[str, float] = field(default_factory=dict)
    sums: Arrays = field(default_factory=dict)
    charged: dict[str, Any] = field(default_factory=dict)
    sites: int = 0

    def beside(self) -> dict[str, Any]:
        """What an evaluation keeps beside the metrics."""
        sums = {"sums": sums_to_json(self.sums)} if self.sums else {}
        known = {TELLING: self.sites, "charged": self.charged, "samples": self.samples}
        return {name: value for name, value in known.items() if value} | sums


Answers = dict[str, Answer]  # by site in order; who is silent or has no samples is left out
Judge = Callable[[Question], Answers]


@final
@dataclass
class Judging:
    """The evaluator of a run whose models a ``judge`` evaluates, or ``on_test`` on a shared test set.

    ``sites`` gives each site's number of training samples by name.
    """

    plan: Plan
    task: Task | None
    judge: Judge
    sites: Callable[[], Mapping[str, int]]
    on_test: Evaluator | None = None

    def __call__(self, result: RoundResult) -> Evaluation | None:
        """The evaluation after a result, by unseen samples too; None where nobody answers."""
        t, held_out = result.comm_round.t, self._own if self.plan.has_own_models else self._common
        evaluation = (self.on_test or held_out)(result)
        decides = t in self._looks
        if not decides and not result.of_routes():
            return evaluation
        question = self._never_seen(result)
        sums = {site: answer.sums for site, answer in self.judge(question).items()} if question.models else {}
        if not sums:
            return evaluation
        assert self.task is not None
        method = self.plan.method
        unseen = expected_at_unseen(sums, self.task, method.by_samples) if method.routes else {}
        stop = loss_of(sums) if decides else {}
        return replace(evaluation or Evaluation(t, None, {}), validation=unseen, stop=stop)

    @cached_property
    def _looks(self) -> frozenset[int]:
        return looks(self.plan)

    def _common(self, result: RoundResult) -> Evaluation | None:
        """The global model on each site's held-out samples; metrics weighed by their number."""
        if result.global_model is None:
            return None
        t = result.comm_round.t
        answers = self.judge(Question(t, dict.fromkeys(self.sites(), result.global_model)))
        reported = {site: beside for site, answer in sorted(answers.items()) if (beside := answer.beside())}
        judged = {site: answer for site, answer in answers.items() if answer.samples}
        if tallies.TOGETHER in judged:
            return Evaluation(t, judged[tallies.TOGETHER].metrics, {}, told=reported)
        if not judged:
            return Evaluation(t, None, {}, told=reported) if reported else None
        weights = np.array([float(answer.samples) for answer in judged.values()])
        metrics = [answer.metrics for answer in judged.values()]
        names = list(metrics[0])
        global_model = {
            name: float(np.average([of.get(name, np.nan) for of in metrics], weights=weights)) for name in names
        }
        held_out = {site: {n: a.metrics[n] for n in names if n in a.metrics} for site, a in judged.items()}
        return Evaluation(t, global_model, {}, {"held_out": held_out}, told=reported)

    def _own(self, result: RoundResult) -> Evaluation | None:
        """Each site's shared layers completed with its own; "held_out" has the global ones, completed alike."""
        t, memory = result.comm_round.t, result.memory
        metrics = self._metrics(Question(t, _rows(result), memory=memory))
        if not metrics:
            return None
        global_model = dict.fromkeys(metrics, result.global_model) if result.global_model is not None else {}
        held_out = self._metrics(Question(t, global_model, memory=memory)) if global_model else {}
        return Evaluation(t, None, spread_over_sites(metrics), {"held_out": held_out} if held_out else {})

    def _metrics(self, question: Question) -> dict[str, dict[str, float]]:
        return {site: answer.metrics for site, answer in self.judge(question).items() if answer.samples}

    def _never_seen(self, result: RoundResult) -> Question:
        """The model that each site evaluates on unseen samples: by routes, the global one, or its own."""
        sites, of_routes, counts = self.sites(), result.of_routes(), tuple[int, ...]()
        models: Mapping[str, Arrays] = {}
        if of_routes and self.plan.method.by_samples:
            counts = tuple(len(next(iter(members.values()))) for members in of_routes)
            everyone = {name: np.concatenate([members[name] for members in of_routes]) for name in of_routes[0]}
            models = dict.fromkeys(sites, everyone)
        elif of_routes:
            folds = folds_of(self.plan, list(sites.values()))
            assert folds is not None
            models = {site: of_routes[fold] for site, fold in zip(sites, folds.tolist(), strict=True)}
        elif self.plan.kept_back and result.global_model is not None:
            models = dict.fromkeys(sites, result.global_model)
        elif self.plan.kept_back and not self.plan.method.is_federated:
            models = _rows(result)
        return Question(result.comm_round.t, models, True, counts)


def spread_over_sites(by_site: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Mean and standard deviation over sites of each metric that all have, and the single values."""
    metrics_of = list(by_site.values())
    known = [name for name in metrics_of[0] if all(name in metrics for metrics in metrics_of)]
    return {"names": list(by_site)} | spread({name: [metrics[name] for metrics in metrics_of] for name in known})


def spread(values: Mapping[str, Sequence[float] | np.ndarray]) -> dict[str, Any]:
    """Mean and standard deviation of every metric over sites, and the single values; NaN where one site has none."""
    summary: dict[str, Any] = {}
    for name, over_sites in values.items():
        summary[f"{name}_mean"] = float(np.mean(over_sites))
        summary[f"{name}_sd"] = float(np.std(over_sites, ddof=1)) if len(over_sites) > 1 else 0.0
    return summary | {"per_site": {name: np.asarray(over_sites).tolist() for name, over_sites in values.items()}}


def _rows(result: RoundResult) -> dict[str, Arrays]:
    models = result.models()
    return {site: {name: array[row] for name, array in models.items()} for row, site in enumerate(result.sites)}
