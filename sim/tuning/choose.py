"""`fedsmall choose`: which class of model to take, before how to federate it; test samples are not read.

Folds of the training samples are left out in turn: whole hospitals, or patients of every hospital. On the rest each
candidate's settings are searched in two inner folds, by the loss, and the best is fitted anew and judged on the
fold. The pick follows from the folds' losses by :func:`decide`. Its own worth is nested: on each fold by the candidate
that the *other* folds pick. (Their models had that fold's patients among those they trained on, their losses not.)

Sums over sites fit pooled rows: such methods are fitted on one pooled site, which is quicker, and sent by each site.
Trees learn no grades, times or images, and additive ridge no images: of these there is no mean of three.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.federation import Federation, Task
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import scores_of
from fedsmall.evaluation.statistics import CHANCE, holm, paired
from fedsmall.parts import Regression
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_run
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.out_of_fold import leave_folds_out
from fedsmall.sim.engines.run import DEFAULT_ENGINE, run_plan
from fedsmall.sim.report.sentences import list_words
from fedsmall.sim.runs.scenario import OF_METHODS, Scenario, build
from fedsmall.sim.tuning.grid import DEPTHS, TREES
from fedsmall.sim.tuning.search import WORST, best_row
from fedsmall.wire import Arrays

NEW, SAME = "new-hospitals", "same-hospitals"
FOLDS, INNER = 10, 2
DECISIVE = 8  # folds: with fewer no exact sign flip is small enough among five comparisons
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
TREE_RATE = 0.1
STEPS = 30  # of Newton's method, at most
LEAST = 1e-12  # of a probability
MOST_COEFFICIENTS = 2000  # of a regression: its sums grow with their square
MEAN = "mean of three"
SCORES = {"cross_entropy": "auc", "logistic": "auc", "mse": "mae", "ordinal": "kappa", "hazard": "c_index"}

Settings = dict[str, Any]
Values = dict[str, np.ndarray]


class Candidate(NamedTuple):
    """A class of models: its method, and a table of settings for each try."""

    method: str
    settings: tuple[Settings, ...]


class Judged(NamedTuple):
    """Loss and score on those left out; what is said of them, of which a mean may be made; comm. rounds; bytes."""

    worth: dict[str, float]
    predictions: Arrays
    comm_rounds: int
    bytes_sent: float


class Verdict(NamedTuple):
    """What is taken, the reason in a sentence, and Holm's p of every other row against the best single candidate."""

    pick: str
    reason: str
    p_values: dict[str, float]


class Choice(NamedTuple):
    """The rows of the table, by name; the verdict; and the loss and ``score`` of the pick where it did not choose."""

    use: str
    folds: int
    score: str
    rows: dict[str, dict[str, Any]]
    verdict: Verdict
    nested: dict[str, float]


def candidates(rates: Sequence[float]) -> dict[str, Candidate]:
    """The classes of models, the simplest first, and what is searched of each."""
    ridge = tuple({"regression": {"penalty": penalty}} for penalty in PENALTIES)
    fixed = {"histogram": True, "learning_rate": TREE_RATE}
    trees = tuple({"boosting": {**fixed, "depth": d, "trees": n}} for d in DEPTHS for n in (TREES[0], TREES[-1]))
    return {
        "ridge": Candidate("Ridge", ridge),
        "additive ridge": Candidate("AdditiveRidge", ridge),
        "random features": Candidate("RandomFeatureRidge", ridge),
        "boosting": Candidate("FedHistogramXGB", trees),
        "network": Candidate("FedAvg", tuple({"recipe": {"lr": rate}} for rate in sorted(rates))),
    }


OF_MEAN = ("ridge", "additive ridge", "boosting")


def choose_class(
    scenario: Scenario,
    rates: Sequence[float],
    use: str | None = None,
    folds: int = FOLDS,
    data_root: Path | None = None,
    on_fold: Callable[[int, int], None] = lambda fold, folds: None,
) -> Choice:
    """The choice for a scenario, whose own methods do not matter; PlanError for what it cannot be made of."""
    plans = {name: _plans(scenario, candidate) for name, candidate in candidates(rates).items()}
    federation = build_federation(plans["ridge"][0], data_root)
    task = federation.task
    if task.loss not in SCORES:
        raise PlanError(f"a choice is for classes, grades, times or one number; the loss here is {task.loss}")
    is_image = len(task.input_shape) > 1
    many_slopes, features = task.outputs > 2 and task.loss == "cross_entropy", int(np.prod(task.input_shape))
    most = MOST_COEFFICIENTS / (task.outputs if many_slopes else 1)
    unfit = {"boosting": is_image or task.ordered or task.kind == "times"}
    unfit |= {"additive ridge": is_image or 6 * features > most}  # with five hinges
    unfit |= {"ridge": features > most, "random features": most < Regression().features}
    plans = {name: of for name, of in plans.items() if not unfit.get(name)}
    for of_candidate in plans.values():
        check_run(of_candidate[0], federation)
    use = use or (SAME if any(held is not None for held in federation.held_out) else NEW)
    if use not in (NEW, SAME):
        raise PlanError(f"--for takes {NEW} or {SAME}; got {use!r}")
    if use == NEW and len(federation.names) < 2 * INNER:
        raise PlanError(f"{NEW} takes four hospitals at least, as some are left out twice; take --for {SAME}")
    parts = left_out(federation, folds, use == NEW, rng_for(scenario.seeds[0], "choose"))
    found: list[dict[str, tuple[Judged, Settings]]] = []
    for fold, part in enumerate(parts):
        found.append({name: _tuned(of, part, use == NEW) for name, of in plans.items()})
        on_fold(fold + 1, len(parts))
    return _choice(use, federation, parts, found)


def decide(losses: Mapping[str, np.ndarray]) -> Verdict:
    """What to take by the losses of the same folds, (folds,) of each row, among them the ``MEAN``.

    The best, if told apart by exact sign flips after Holm; else the mean of three, or the simplest that is level.
    """
    means = {name: float(values.mean()) for name, values in losses.items()}
    best = min((name for name in losses if name != MEAN), key=means.__getitem__)
    others = [name for name in losses if name != best]
    p = dict(zip(others, holm([paired(losses[name], losses[best]).p_value for name in others]).tolist(), strict=True))
    level = [name for name in losses if name != MEAN and (name == best or p[name] >= CHANCE)]
    is_apart = MEAN in p and p[MEAN] < CHANCE
    if is_apart and means[MEAN] < means[best]:
        return Verdict(MEAN, f"the equal mean of {list_words(OF_MEAN)} is better than the best of them, {best}", p)
    if len(level) == 1:
        return Verdict(best, f"{best} has the lowest loss, and every other candidate is told apart from it", p)
    unclear = f"{list_words(level)} cannot be told apart"
    if is_apart or MEAN not in p:
        return Verdict(level[0], f"{unclear}, and {level[0]} is the simplest of them", p)
    return Verdict(MEAN, f"{unclear}, so the equal mean of {list_words(OF_MEAN)} is taken", p)


def left_out(federation: Federation, folds: int, by_sites: bool, rng: np.random.Generator) -> list[Federation]:
    """As :func:`leave_folds_out`, without what sites tell of their classes, and without validation sets."""
    return [replace(part, class_sums=(), kept_back=()) for part in leave_folds_out(federation, folds, by_sites, rng)]


def _plans(scenario: Scenario, candidate: Candidate) -> list[Plan]:
    """A plan for each of a candidate's settings, with the rounds that it takes."""
    table = scenario.model_dump(exclude_defaults=True, exclude={"folds", "evaluate_every", *OF_METHODS})
    plans = []
    for settings in candidate.settings:
        trees = settings.get("boosting")
        rounds = trees["depth"] * trees["trees"] + 1 if trees else scenario.rounds if "recipe" in settings else STEPS
        plans.append(build({**table, "rounds": rounds, "method": [{"name": candidate.method, **settings}]}).plans()[0])
    return plans


def _tuned(plans: Sequence[Plan], part: Federation, by_sites: bool) -> tuple[Judged, Settings]:
    """A candidate on one fold, with the settings that its inner folds take."""
    by_sites = by_sites and len(part.names) >= INNER
    inner = left_out(part, INNER, by_sites, rng_for(plans[0].seed, "choose, inner"))
    scores = [[-_fit(plan, fold).worth["loss"] for fold in inner] for plan in plans]
    plan = plans[best_row(np.array(scores))]
    return _fit(plan, part), _settings_of(plan)


def _settings_of(plan: Plan) -> Settings:
    method = plan.method
    if method.boosting is not None:
        return {"depth": method.boosting.depth, "trees": method.boosting.trees}
    return {"lr": plan.recipe.lr} if method.regression is None else {"penalty": method.regression.penalty}


def _fit(plan: Plan, part: Federation) -> Judged:
    """A plan's model on the samples left out; one that diverges says nothing of them."""
    fitted = part if plan.method.trains_networks else replace(part.pooled(), held_out=(None,))
    plan = plan.model_copy(update={"sites": len(fitted.names)})
    try:
        record = run_plan(plan, fitted, DEFAULT_ENGINE, options={"device": "cpu"})
    except ReplyError:
        return Judged(_worth({}, part.task), {}, plan.rounds, np.nan)
    sent = record.bytes_sent * len(part.names) / len(fitted.names)
    return Judged(_worth(record.evaluations[-1].common or {}, part.task), record.predictions, record.comm_rounds, sent)


def _worth(metrics: Mapping[str, float], task: Task) -> dict[str, float]:
    """The loss, at most ``WORST``, and the score, NaN where there is none, as where only one class is left out."""
    loss, score = (float(metrics.get(name, np.nan)) for name in ("loss", SCORES[task.loss]))
    return {"loss": loss if np.isfinite(loss) else WORST, "score": score}


def _mean_of(several: Sequence[Judged], part: Federation) -> Judged:
    """The equal mean of what several say of those left out, of classes or a number."""
    task, kind = part.task, "probabilities" if part.task.kind == "classes" else "predictions"
    costs = sum(of.comm_rounds for of in several), sum(of.bytes_sent for of in several)
    if not all(kind in of.predictions for of in several):
        return Judged(_worth({}, task), {}, *costs)
    answers, (mean, scale) = np.mean([of.predictions[kind] for of in several], axis=0), task.unit or (0.0, 1.0)
    of_classes = kind == "probabilities"
    outputs = scores_of(np.log(np.clip(answers, LEAST, 1.0)), task.outputs) if of_classes else (answers - mean) / scale
    return Judged(_worth(evaluate(outputs, part.test.y, task), task), {kind: answers}, *costs)


def _choice(
    use: str, whole: Federation, parts: Sequence[Federation], found: Sequence[Mapping[str, tuple[Judged, Settings]]]
) -> Choice:
    judged = [{name: fitted for name, (fitted, _) in of_fold.items()} for of_fold in found]
    if judged[0].keys() >= set(OF_MEAN):
        for of_fold, part in zip(judged, parts, strict=True):
            of_fold[MEAN] = _mean_of([of_fold[name] for name in OF_MEAN], part)
    losses, scores = (
        {name: np.array([of[name].worth[key] for of in judged]) for name in judged[0]} for key in ("loss", "score")
    )
    verdict, score = decide(losses), SCORES[whole.task.loss]
    rows: dict[str, dict[str, Any]] = {}
    for name in losses:
        sent = [of[name].bytes_sent * len(whole.names) / len(p.names) for of, p in zip(judged, parts, strict=True)]
        row = {"loss": losses[name].mean(), score: _mean(scores[name]), "bytes": np.nanmean(sent)}
        row |= {"exchanges": np.median([of[name].comm_rounds for of in judged]), "p": verdict.p_values.get(name)}
        rows[name] = {key: None if value is None else float(value) for key, value in row.items()}
        commonest = Counter(tuple(of[name][1].items()) for of in found if name in of).most_common(1)
        rows[name] |= {"settings": dict(commonest[0][0]) if commonest else {}}
    nested = nested_worth(losses, scores)
    return Choice(use, len(parts), score, rows, verdict, {"loss": nested[0], score: nested[1]})


def nested_worth(losses: Values, scores: Values) -> tuple[float, float]:
    """The pick's loss and score on folds that did not choose it: of each, what the others pick."""
    folds = len(next(iter(losses.values())))
    picks = [decide({name: np.delete(of, fold) for name, of in losses.items()}).pick for fold in range(folds)]
    of_folds = np.array([(losses[pick][fold], scores[pick][fold]) for fold, pick in enumerate(picks)])
    return float(of_folds[:, 0].mean()), _mean(of_folds[:, 1])


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
