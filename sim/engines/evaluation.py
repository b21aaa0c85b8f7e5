"""What the models of a simulation are worth: the global one, and the sites' own, each judged on the same samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
from scipy.special import expit

from fedsmall.clients.site_data import site_in
from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.data.outcomes import survival_of
from fedsmall.data.preparation import Columns, Preparation
from fedsmall.data.subgroups import KEPT_AS
from fedsmall.evaluation.intercepts import fit_intercept
from fedsmall.evaluation.metrics import LOWER_IS_BETTER, OTHER_NAMES, evaluate, evaluate_many
from fedsmall.evaluation.outputs import answer, probabilities
from fedsmall.evaluation.outputs import spread as members_spread
from fedsmall.evaluation.site_sums import by_folds, metric_sums
from fedsmall.evaluation.stopping import reported_shapes
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.at_home import AtHome, Losses
from fedsmall.strategies.server.judging import Answer, Answers, Question, spread
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.training.stack import Stack, tensors_of
from fedsmall.training.trainer import OneModelTrainer, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import RoundResult
from fedsmall.wire import Arrays, first_of, stack_of_one

MOST_SITES = 1000  # whose own models are judged: their mean is within a thirtieth of their spread of that of all
SHUFFLES, SHUFFLED_SAMPLES, MOST_COLUMNS = 10, 2000, 200  # a table of more columns is not shuffled
AT_ONCE = 2**24  # numbers of outputs: all at once would be more than any machine holds
ON_THE_WAY = ("kappa", "accuracy", "subset_accuracy", "mae", "c_index", "loss")

Predict = Callable[[Arrays, np.ndarray], np.ndarray]  # (models, samples, outputs) of models and samples
Unseen = tuple[np.ndarray, np.ndarray]  # probabilities of the positive class, and who is of it, (samples,) each


@dataclass
class LastRound:
    """What is kept by round of a run's last or best round.

    ``outputs`` (samples, outputs) are the one model's on the common test set, ``unseen`` its probabilities of samples
    that were kept back, and who of them was positive. Where ``wanted``, ``own`` are by site the models that trained
    last; that of all pooled data is "central". ``at_home`` are losses on each site's own held-out samples.
    """

    wanted: bool = False
    outputs: dict[int, np.ndarray] = field(default_factory=dict)
    unseen: dict[int, Unseen | None] = field(default_factory=dict)
    own: dict[int, dict[str, Arrays]] = field(default_factory=dict)
    at_home: dict[int, Losses] = field(default_factory=dict)
    lowest: float = np.inf
    best: int = 0

    def narrow(self, evaluation: Evaluation) -> None:
        """Forget all but the best round, and this one where nothing has told yet which is the best."""
        if evaluation.stop and (not self.best or evaluation.stop["loss"] < self.lowest):
            self.lowest, self.best = evaluation.stop["loss"], evaluation.t
        kept = self.best or evaluation.t
        for by_round in (self.outputs, self.unseen, self.own, self.at_home):
            for t in set(by_round) - {kept}:
                del by_round[t]


@final
@dataclass
class CentralEvaluator:
    """Evaluates models where all test samples are at hand, K at once; the last round's results go into ``last``."""

    plan: Plan
    federation: Federation
    trainer: OneModelTrainer
    last: LastRound = field(default_factory=LastRound)

    def __call__(self, result: RoundResult) -> Evaluation:
        """Evaluate the global model, if there is one, and what the sites have trained."""
        t, models, is_central = result.comm_round.t, result.models(), self.plan.method.is_central
        global_model = first_of(models) if is_central else result.global_model
        task, may_be_last = self.federation.task, t == self.plan.rounds or self.plan.may_end_early
        if may_be_last and (self.last.wanted or is_central):
            for row, site in enumerate(result.sites):
                own = {name: np.array(array[row]) for name, array in models.items()}
                self.last.own.setdefault(t, {})[site] = own
        # on the way the sites' own models are judged by what a curve shows, at the end by all
        if not may_be_last:
            shown = {*ON_THE_WAY, OTHER_NAMES.get(self.plan.metric or "", self.plan.metric)}
            task = replace(task, metrics=tuple(name for name in task.metrics if name in shown))
        of_global_model = self._judge_global_model(t, global_model, may_be_last) if global_model is not None else None
        names, models = by_lot(self.plan.seed, result.sites, models)
        are_judged = self.plan.method.has_local_models

        def of_sites(samples: Samples) -> dict[str, Any]:
            return spread(evaluate_in_parts(self._predict, models, samples, task)) if are_judged else {}

        extra: dict[str, Any] = {}
        for name, samples in self.federation.extra:
            of_extra = self._judge(global_model, samples) if global_model is not None else None
            extra[name] = {"common": of_extra, "sites": of_sites(samples)}
        if is_central:
            return Evaluation(t, of_global_model, {}, extra)
        test = self.federation.test
        apart = self._spread_of(global_model, test) if global_model is not None and self.plan.method.is_ensemble else {}
        if may_be_last:
            self.last.at_home[t] = self._at_homes(global_model, result)
        homes = zip(self.federation.names, self.federation.held_out, strict=False)
        held = [(site, part) for site, part in homes if part is not None and len(part)]
        if global_model is not None and held:
            extra["held_out"] = {site: self._judge(global_model, part, site) for site, part in held}
        local = of_sites(test) | {"names": names} if are_judged else {}
        return Evaluation(t, of_global_model, local, extra, apart)

    def _at_homes(self, global_model: Arrays | None, result: RoundResult) -> Losses:
        """The losses at each hospital of the global model, or of those that were trained alone."""
        at_home = AtHome.of(self.federation)
        if global_model is not None:
            keeps = self.plan.method.keeps_intercepts
            return at_home.global_model(lambda x, site: self._answer(global_model, x, site), keeps)
        if self.plan.method.is_federated or not at_home.homes:
            return {}
        models = result.models()
        trained = {
            site: {name: array[[row]] for name, array in models.items()} for row, site in enumerate(result.sites)
        }
        homes = ((site, held.x) for site, (_, held) in at_home.homes.items() if site in trained)
        return at_home.own({site: self._predict(trained[site], x)[0] for site, x in homes})

    def _spread_of(self, members: Arrays, samples: Samples) -> dict[str, float]:
        """The mean over the samples of how far members differ."""
        deviation, information = members_spread(self._predict(members, samples.x), self.federation.task.loss)
        means = {"deviation": float(deviation.mean()), "information": float(information.mean())}
        return {name: value for name, value in means.items() if not np.isnan(value)}

    def _judge_global_model(self, t: int, model: Arrays, may_be_last: bool) -> dict[str, float]:
        outputs = self._on_test(model)
        if may_be_last:
            self.last.outputs[t], self.last.unseen[t] = outputs, self._on_kept_back(model)
        return self._worth(outputs, self.federation.test)

    def _on_kept_back(self, model: Arrays) -> Unseen | None:
        """What the model says of the samples kept back from training; None without, or without two classes."""
        kept_back, task = self.federation.kept_back, self.federation.task
        if task.classes != 2 or task.kind != "classes" or not kept_back:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # of absurd samples at a site there are none
            at_sites = zip(self.federation.names, kept_back, strict=True)
            outputs = np.concatenate([self._answer(model, samples.x, site) for site, samples in at_sites])
        if not np.isfinite(outputs).all():
            return None
        p = probabilities(outputs, task.loss)[:, 1]
        return p, np.concatenate([samples.y for samples in kept_back]) == 1

    def _worth(self, outputs: np.ndarray, samples: Samples) -> dict[str, float]:
        metrics = evaluate(outputs, samples.y, self.federation.task)
        return {name: value for name, value in metrics.items() if not np.isnan(value)}

    def _judge(self, model: Arrays, samples: Samples, site: str | None = None) -> dict[str, float]:
        return self._worth(self._answer(model, samples.x, site), samples)

    def _on_test(self, model: Arrays) -> np.ndarray:
        """Outputs on the test set, of each sample as the site that held it out has the model, where sites add to it."""
        homes = zip(self.federation.names, self.federation.held_out, strict=False)
        held = [(site, part.x) for site, part in homes if part is not None and len(part)]
        if not self.plan.method.keeps_intercepts or sum(len(x) for _, x in held) != len(self.federation.test):
            return self._answer(model, self.federation.test.x)
        return np.concatenate([self._answer(model, x, site) for site, x in held])

    def _answer(self, model: Arrays, x: np.ndarray, site: str | None = None) -> np.ndarray:
        """Outputs, (samples, outputs), of one model or of an ensemble, at a ``site`` with what it adds of its own."""
        method, task = self.plan.method, self.federation.task
        if site is not None and method.adds_intercepts:
            train = self.federation.train[self.federation.names.index(site)]
            shift = fit_intercept(self._answer(model, train.x), train.y, task.loss)
            return np.asarray(self._answer(model, x) + shift)
        if site is not None and method.keeps_intercepts:
            return self.trainer.predict_at(self.federation.names.index(site), model, x, {})
        return _answer(self.plan, self.federation.task, self._predict(members_of(self.plan, model), x))

    def _predict(self, models: Arrays, x: np.ndarray) -> np.ndarray:
        """Outputs, (models, samples, outputs), of stacked models."""
        return self.trainer.predict(self.trainer.stack_of(tensors_of(models)), x)


def members_of(plan: Plan, model: Arrays) -> Arrays:
    """The models that answer together, {name: (members, ...)}, of what a plan has made."""
    return model if plan.method.is_ensemble else stack_of_one(model)


def _answer(plan: Plan, task: Task, outputs: np.ndarray) -> np.ndarray:
    return answer(outputs, task.loss, plan.method.together)


def predictions_of(outputs: np.ndarray, federation: Federation) -> Arrays:
    """The predictions of ``outputs`` (samples, outputs) on the common test set, beside the truth, as a run keeps them.

    "labels" and "probabilities" (samples, classes), or "predictions" in the target's unit; "sites" is each sample's
    site, where the sites held the test set out, "patients" the number of its patient, and "groups/sex" its subgroup.
    """
    predictions = arrays_of(outputs, federation.test.y, federation.task)
    held_out = zip(federation.names, federation.held_out, strict=False)
    counts = {site: len(held) for site, held in held_out if held is not None}
    if sum(counts.values()) == len(outputs):
        predictions["sites"] = np.repeat(list(counts), list(counts.values()))
    groups = {f"{KEPT_AS}{column}": names for column, names in federation.test.groups.items()}
    return predictions | federation.test.of_patients | groups


def arrays_of(outputs: np.ndarray, y: np.ndarray, task: Task) -> Arrays:
    """Predictions and labels: numbers in their own unit, and times and events of survival curves."""
    if task.kind == "times":
        cuts = np.tile(np.array(task.cuts), (len(y), 1))
        return {"survival": survival_of(outputs), "cuts": cuts, "labels": y[:, 2:4].astype(np.float64)}
    if task.kind == "classes":
        return {"probabilities": probabilities(outputs, task.loss), "labels": y}
    if task.kind == "labels":
        return {"label_probabilities": expit(outputs), "labels": y.astype(np.int64)}
    if task.unit is None:
        return {"predictions": outputs, "labels": y}
    mean, scale = task.unit
    return {"predictions": outputs * scale + mean, "labels": y.astype(np.float64) * scale + mean}


@final
@dataclass
class LocalJudges:
    """What sites would answer where all samples are at hand: on what each holds out, and on what models never saw."""

    plan: Plan
    federation: Federation
    trainer: Trainer

    def __call__(self, question: Question) -> Answers:
        """The answers to a question, by site in order."""
        return self._never_seen(question) if question.unseen else self._held_out(question)

    def _held_out(self, question: Question) -> Answers:
        answers: Answers = {}
        for site, model in sorted(question.models.items()):
            number = self.federation.names.index(site)
            home = site_in(self.federation, self.plan, number)
            if home.held_out is not None and len(home.held_out):
                outputs = self.trainer.predict_at(number, model, home.held_out.x, question.memory)
                metrics = evaluate(outputs, home.held_out.y, home.task)
                answers[site] = Answer(len(home.held_out), {name: float(value) for name, value in metrics.items()})
        return answers

    def _never_seen(self, question: Question) -> Answers:
        if not isinstance(self.trainer, OneModelTrainer):
            return {}
        method, task, names = self.plan.method, self.federation.task, self.federation.names
        shapes = reported_shapes(self.plan, task)
        unseen = self.federation.train if method.routes else self.federation.kept_back
        samples_of = dict(zip(names, unseen, strict=False))
        distinct = {id(model): model for model in question.models.values()}
        stacks_of = {key: self._stacks(self.trainer, model, question.counts) for key, model in distinct.items()}
        answers: Answers = {}
        for site, model in sorted(question.models.items()):
            samples, ask = samples_of[site], partial(self._predict, self.trainer, stacks_of[id(model)])
            if len(samples) < method.floor:
                continue
            folds = folds_of_samples(self.plan, site, samples) if question.counts else None
            outputs = ask(0, samples.x) if folds is None else by_folds(folds, samples.x, ask)
            sums = metric_sums(outputs, samples.y, task)
            answers[site] = Answer(sums={name: sums[name] for name in shapes})
        return answers

    def _stacks(self, trainer: OneModelTrainer, model: Arrays, counts: Sequence[int]) -> list[Stack]:
        """The members of an ensemble as a stack; one stack per route, where there are several."""
        members, ends = members_of(self.plan, model), np.cumsum(counts).tolist() if counts else [None]
        return [
            trainer.stack_of(tensors_of({name: array[start:end] for name, array in members.items()}))
            for start, end in pairwise([0, *ends])
        ]

    def _predict(self, trainer: OneModelTrainer, stacks: Sequence[Stack], route: int, x: np.ndarray) -> np.ndarray:
        return _answer(self.plan, self.federation.task, trainer.predict(stacks[route], x))


def by_lot(seed: int, sites: tuple[str, ...], models: Arrays) -> tuple[list[str], Arrays]:
    """The sites whose models are judged, in order, and these: all, or :data:`MOST_SITES`, in every round the same."""
    if len(sites) <= MOST_SITES:
        return list(sites), models
    rows = np.sort(rng_for(seed, "judged").choice(len(sites), MOST_SITES, replace=False))
    return [sites[row] for row in rows], {name: array[rows] for name, array in models.items()}


def evaluate_in_parts(predict: Predict, models: Arrays, samples: Samples, task: Task) -> dict[str, np.ndarray]:
    """Every metric of each model on the samples, (models,) by name, as :func:`evaluate_many` gives them."""
    count = len(next(iter(models.values())))
    few = max(1, AT_ONCE // max(1, len(samples) * task.outputs) // 64) * 64  # that are predicted together anyway
    cuts = [{name: array[start : start + few] for name, array in models.items()} for start in range(0, count, few)]
    parts = [evaluate_many(predict(cut, samples.x), samples.y, task) for cut in cuts]
    sizes = [len(next(iter(cut.values()))) for cut in cuts]
    return {
        name: np.concatenate([p.get(name, np.full(size, np.nan)) for p, size in zip(parts, sizes, strict=True)])
        for name in task.metrics
        if any(name in part for part in parts)
    }


def importance_of(
    plan: Plan, model: Arrays | None, preparation: Preparation | None, federation: Federation
) -> dict[str, list[float]]:
    """By column of a table how much worse the global model's metric is with it shuffled: mean, and standard deviation.

    The values of a category are shuffled together. Empty where there is no global model, no table or no test sample.
    Source: Breiman 2001, "Random forests", section 10.
    """
    task, form = federation.task, getattr(preparation, "form", None)
    if not isinstance(form, Columns) or len(form.columns) > MOST_COLUMNS or not len(federation.test):
        return {}
    if model is None or plan.has_own_models:
        return {}
    trainer = cohort_for(plan, task, federation.names, federation.train)
    if not isinstance(trainer, OneModelTrainer):
        return {}
    rng = rng_for(plan.seed, "importance")
    some = rng.permutation(len(federation.test))[:SHUFFLED_SAMPLES]
    x, y = federation.test.x[some], federation.test.y[some]
    trained: Arrays = {name: model[name] for name in initial_model(plan, task)}
    stack = trainer.stack_of(tensors_of(members_of(plan, trained)))
    metric = OTHER_NAMES.get(plan.metric or "accuracy", plan.metric or "accuracy")
    judged, sign = replace(task, metrics=(metric,)), 1 if metric in LOWER_IS_BETTER else -1

    def score(of: np.ndarray) -> np.ndarray:
        outputs = answer(trainer.predict(stack, of.reshape(-1, *x.shape[1:])), task.loss, plan.method.together)
        values = evaluate_many(outputs.reshape(len(of), len(x), -1), y, judged)
        return values.get(metric, np.full(len(of), np.nan))

    whole, begin, found = score(x[None])[0], 0, {}
    for column in form.columns:
        at = slice(begin, begin + len(form.categories.get(column, [column])))
        begin = at.stop
        shuffled = np.repeat(x[None], SHUFFLES, axis=0)
        rows = np.stack([rng.permutation(len(x)) for _ in range(SHUFFLES)])
        shuffled[:, :, at] = x[rows][:, :, at]
        losses = sign * (score(shuffled) - whole)
        if np.isfinite(losses).all():
            found[column] = [float(losses.mean()), float(losses.std(ddof=1))]
    return found
