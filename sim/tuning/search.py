"""`fedsmall tune`: one learning rate for every method, chosen on training sites only, with the search written down.

The sites are cut into folds; the models of some are judged on the samples of the others (with few sites, or where a
method needs them all, on a share of every site's own). Or models travel by routes (:mod:`fedsmall.travel.journey`):
then every method is judged on all sites by models that never saw them, and how long to train is chosen too. Every
method gets the same rates, seeds and folds. Seeds are added until a choice made on resampled runs would lose less than
``REGRET`` on average, for every method: a noisy choice of the learning rate makes false differences between methods,
larger than any true one.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pydantic import ValidationError

from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.metrics import LOWER_IS_BETTER, default_metric, known_metric
from fedsmall.evaluation.statistics import Interval, interval
from fedsmall.methods import check_known, nearest
from fedsmall.parts import Validation
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan, check_run
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import DEFAULT_ENGINE, run_plan
from fedsmall.sim.report.figures import STYLE, WHITE, course_line, draw, empty
from fedsmall.sim.report.sentences import metric_name
from fedsmall.sim.report.style import looks
from fedsmall.sim.report.tables import scale_of
from fedsmall.sim.runs.files import write_csv
from fedsmall.sim.runs.scenario import Scenario, assign, build
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.training.device import check_device

FOLDS_OF_SITES, ROUTES = "folds", "routes"
FIRST_SEED = 1000  # of a search, so that it shares none with the runs that are reported
LOOKS = 20  # evaluations of a run that is judged by routes, about


def judged_by(scenario: Scenario, by: str | None = None) -> str:
    """How a search judges, by "folds" or "routes" (the default where a method is validated so); else PlanError."""
    if by not in (None, FOLDS_OF_SITES, ROUTES):
        raise PlanError(f"a search judges by folds or by routes, not by {by!r}")
    return by or (ROUTES if any(plan.method.routes for plan in plans_of(scenario)) else FOLDS_OF_SITES)


def plans_of(scenario: Scenario, seed: int | None = None) -> list[Plan]:
    """The plans of a scenario's methods with one seed, by default its first."""
    return [scenario.plan(k, scenario.seeds[0] if seed is None else seed) for k in range(len(scenario.method))]


def is_tried(plan: Plan) -> bool:
    """Whether a search tries settings of a plan: a regression chooses its own penalty within the run."""
    return plan.method.regression is None


def table_of(scenario: Scenario) -> dict[str, Any]:
    """The table of a scenario, without what is as it is by default."""
    table: dict[str, Any] = scenario.model_dump(mode="python", exclude_defaults=True)
    return {**table, "method": [dict(entry) for entry in table["method"]]}


def measure_of(scenario: Scenario, by: str | None, metric: str | None = None, data_root: Path | None = None) -> str:
    """The search's metric: ``metric``, or the scenario's, or by routes the loss, or the task's own. Else PlanError."""
    named = metric or scenario.metric
    if named is None and judged_by(scenario, by) == ROUTES:
        return "loss"
    federation = build_federation(scenario.plan(0, FIRST_SEED), data_root)
    if named is not None:
        return known_metric(named, federation.task.loss)
    return default_metric([samples.y for samples in federation.train], federation.task)


def unit_of(metric: str, federation: Federation) -> float:
    """How large the error of a model that says nothing is: of numbers about their spread, and one elsewhere."""
    task = federation.task
    if task.kind != "numbers" or metric == "r2":
        return 1.0
    spread = float(np.std(np.concatenate([samples.y.ravel() for samples in federation.train]))) or 1.0
    if metric in ("mae", "rmse"):
        return spread * (task.unit[1] if task.unit else 1.0)
    return spread**2 if task.loss == "mse" else spread


def by_routes(plan: Plan, federation: Federation) -> Plan | None:
    """The plan with its models on routes, judged on the way; None where they cannot travel so.

    By default five routes, or as many as there are groups, and no more than models.
    """
    method, sites = plan.method, len(federation.names)
    if not method.routes and method.travelling(sites) < 2:
        return None
    routes = method.groups if isinstance(method.groups, int) and method.groups > 1 else 5
    given = method.validation or Validation(routes=max(2, min(routes, method.travelling(sites))))
    parts = method.model_dump() | {"validation": given}
    try:
        routed = plan.model_copy(update={"stop": None, "method": Method(**parts)})
        check_run(routed, federation)
    except (ValidationError, PlanError):
        return None
    between = method.aggregate_every or plan.rounds
    every = between * max(1, round(plan.rounds / between / LOOKS))
    return routed.model_copy(update={"evaluate_every": every})


FOLDS = 4
WORST = 20.0  # a loss above it, or that is no number, counts as this; of numbers, so many times their spread
REGRET = 0.005


@dataclass(frozen=True)
class Try:
    """One run of a search on training sites: ``rounds`` is when it was best, where it was judged on the way."""

    label: str
    lr: float
    seed: int
    fold: int
    score: float
    rounds: int = 0


@dataclass(frozen=True)
class RateChoice:
    """The rate chosen for a method; ``regret`` is what a choice on resampled runs would lose on average.

    ``rounds`` is the median of its runs' best rounds, 0 where they were judged at their end.
    """

    label: str
    lr: float
    regret: float
    scores: dict[float, Interval]
    rounds: int = 0

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the smallest or largest that was tried, so that a better one may lie beyond."""
        return self.lr in (min(self.scores), max(self.scores)) and len(self.scores) > 1


def spaced_rates(low: float, high: float, count: int, seed: int | None = None) -> tuple[float, ...]:
    """Learning rates from ``low`` to ``high``, evenly spaced in their logarithm; with a ``seed``, drawn at random."""
    if not 0 < low <= high:
        raise PlanError(f"learning rates go from a positive one to a larger one; got {low:g} to {high:g}")
    if seed is None:
        rates = np.geomspace(low, high, count)
    else:
        rates = np.exp(np.sort(rng_for(seed, "rates").uniform(np.log(low), np.log(high), count)))
    return tuple(float(f"{rate:.3g}") for rate in rates)


def search(
    scenario: Scenario,
    rates: Sequence[float],
    *,
    metric: str | None = None,
    by: str | None = None,
    engine: str | None = None,
    device: str | None = None,
    data_root: Path | None = None,
    least_seeds: int = 2,
    most_seeds: int = 6,
    on_seed: Any = None,
) -> list[Try]:
    """All tries of a search over ``rates`` for every method of the scenario, seed by seed until the choices are stable.

    By the global model's ``metric``, or the sites' mean, a loss negated. ``on_seed(seed, tries)`` ends each seed.
    """
    by = judged_by(scenario, by)
    if not rates:
        raise PlanError("a search needs learning rates to try, as in --rates 0.01,0.03,0.1")
    if scenario.plan(0, scenario.seeds[0]).has_own_models:
        raise PlanError("a search judges sites on common samples, and these have models of their own; set recipe.lr")
    if not any(map(is_tried, plans_of(scenario))):
        raise PlanError("a search tries recipe.lr, and no method here has one: regressions choose their own penalty")
    device, metric = device or scenario.device, metric or measure_of(scenario, by, data_root=data_root)
    scenario = scenario.model_copy(update={"metric": metric})  # so that runs reckon it
    check_device(device, scenario.dtype)
    judge = partial(_best, by=by, metric=metric, engine=engine or DEFAULT_ENGINE, device=device)
    tries: list[Try] = []
    for seed in range(FIRST_SEED, FIRST_SEED + most_seeds):
        for fold, plan, federation in _plans(scenario, seed, data_root, by):
            boosting = plan.method.boosting  # trees keep their own rate: their depth and number are searched (grid)
            for lr in rates if boosting is None else (boosting.learning_rate,):
                update = {} if boosting is not None else {"recipe": plan.recipe.model_copy(update={"lr": lr})}
                rated = plan.model_copy(update=update)
                tries.append(Try(plan.method.label, lr, seed, fold, *judge(rated, federation)))
        if on_seed is not None:
            on_seed(seed, tries)
        stable = REGRET * unit_of(metric, federation)
        if seed + 1 >= FIRST_SEED + least_seeds and all(choice.regret < stable for choice in choose(tries).values()):
            break
    return tries


def choose(tries: Sequence[Try], metric: str | None = None) -> dict[str, RateChoice]:
    """The rate of each method: the best mean score, or a smaller rate with a shortfall within a standard error.

    With ``metric``, scores are in its own sign, in intervals within its range.
    """
    by_label: dict[str, list[Try]] = {}
    for tried in tries:
        by_label.setdefault(tried.label, []).append(tried)
    return {label: _choice(label, of_method, metric) for label, of_method in by_label.items()}


def inner(federation: Federation, fold: int, folds: int, rng: np.random.Generator, of_sites: bool = True) -> Federation:
    """The federation on which a search trains, its test samples drawn from the training samples alone.

    With at least two sites a fold, whole sites are left out; else every site keeps back its share of samples.
    """
    sites, train = len(federation.names), federation.train
    if of_sites and sites >= 2 * folds:
        out = set(np.array_split(rng.permutation(sites), folds)[fold].tolist())
        return federation.leave_out([np.arange(len(own) * (k in out)) for k, own in enumerate(train)])
    shares = [np.array_split(rng.permutation(len(own)), folds)[fold][: len(own) * (len(own) > 1)] for own in train]
    return federation.leave_out(shares)  # a site of one sample keeps it


def save(path: Path, tries: Mapping[str, Sequence[Try]]) -> None:
    """Write the tries of a search, by variant, as CSV."""
    rows = [
        {"variant": variant, **asdict(tried), "lr": f"{tried.lr:g}", "score": f"{tried.score:.6f}"}
        for variant, some in tries.items()
        for tried in some
    ]
    write_csv(path, ["variant", *(field.name for field in fields(Try))], rows)


def load(path: Path) -> dict[str, list[Try]]:
    """The tries in a file that :func:`save` wrote, by variant."""
    tries: dict[str, list[Try]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = (float(row["lr"]), int(row["seed"]), int(row["fold"]), float(row["score"]))
            made = Try(row["label"], *numbers, int(row.get("rounds") or 0))
            tries.setdefault(row["variant"], []).append(made)
    return tries


def with_rates(scenario: Scenario, rates: Mapping[str, float]) -> Scenario:
    """The scenario with each method's own learning rate, by label; methods that are not named keep theirs."""
    table = table_of(scenario)
    for index, plan in enumerate(plans_of(scenario)):
        if (label := plan.method.label) in rates and plan.method.trains_networks:
            table = assign(table, f"method.{index}.recipe.lr={rates[label]!r}")
    return build(table)


def _plans(scenario: Scenario, seed: int, data_root: Path | None, by: str) -> Iterator[tuple[int, Plan, Federation]]:
    """Every method's plan with every fold of one seed's federation, or with all of it by routes."""
    # a search sees all rounds, and no site keeps anything back to end it early
    plans = [plan.model_copy(update={"stop": None}) for plan in plans_of(scenario, seed) if is_tried(plan)]
    federation = build_federation(plans[0], data_root)
    routed = [by_routes(plan, federation) if by == ROUTES else None for plan in plans]
    for plan in filter(None, routed):
        yield 0, plan, federation
    others = [plan for plan, other in zip(plans, routed, strict=True) if other is None]
    sites, of_sites = len(federation.names), True
    try:
        for plan in others:
            check_plan(plan, federation.task, max(sites - -(-sites // FOLDS), 1))
    except PlanError:  # a method that takes all sites, as Radon points may
        of_sites = False
    for fold in range(FOLDS):
        part = inner(federation, fold, FOLDS, rng_for(seed, "inner folds"), of_sites)
        for plan in others:
            yield fold, plan.model_copy(update={"evaluate_every": None, "sites": len(part.names)}), part


def _best(plan: Plan, federation: Federation, by: str, metric: str, engine: str, device: str) -> tuple[float, int]:
    """The best score of a plan by routes and its round, else at its end; where no model stays finite the worst."""
    unit = unit_of(metric, federation)
    try:
        evaluations = run_plan(plan, federation, engine, options={"device": device}).evaluations
    except ReplyError:
        return signed(np.nan, metric, unit), 0
    if by != ROUTES or not plan.method.routes:
        return signed(_score(evaluations[-1], metric), metric, unit), 0
    by_round = {evaluation.t: evaluation.validation["metrics"] for evaluation in evaluations if evaluation.validation}
    known = list(next(iter(by_round.values()), {}))
    if metric not in known:
        raise PlanError(f"Nothing out of fold has a metric {metric!r}. {nearest(metric, known) if known else ''}")
    scores = {t: signed(metrics[metric]["value"], metric, unit) for t, metrics in by_round.items() if metric in metrics}
    best = max(scores, key=lambda t: (scores[t], -t))
    return scores[best], best


def signed(score: float, metric: str, unit: float) -> float:
    """A score of which more is better, and finite: a run that diverges is among the worst."""
    least = -WORST * unit if metric in (*LOWER_IS_BETTER, "r2") else {"kappa": -1.0}.get(metric, 0.0)
    score = -score if metric in LOWER_IS_BETTER else score
    return max(score, least) if np.isfinite(score) else least


def _score(last: Evaluation, metric: str) -> float:
    known = last.common if last.common is not None else [name.removesuffix("_mean") for name in last.sites]
    check_known(metric, known, f"This task, or a fold with too few samples, has no metric {metric!r}")
    return float(last.common[metric] if last.common is not None else last.sites[f"{metric}_mean"])


def _choice(label: str, tries: Sequence[Try], metric: str | None) -> RateChoice:
    rates = sorted({t.lr for t in tries})
    table = np.array([[t.score for t in tries if t.lr == rate] for rate in rates])  # (rates, runs)
    signed_table, scale = -table if metric in LOWER_IS_BETTER else table, scale_of(metric) if metric else "plain"
    scores = {rate: interval(row, scale=scale) for rate, row in zip(rates, signed_table, strict=True)}
    lr = rates[best_row(table)]
    rounds = int(np.median([t.rounds for t in tries if t.lr == lr]))
    return RateChoice(label, lr, _regret(table), scores, rounds)


def best_row(table: np.ndarray) -> int:
    """The row to take, of (rows, runs): the first that is not shown to be worse than the best, by a standard error."""
    best = int(np.argmax(table.mean(axis=1)))
    shortfall, runs = table[best] - table[: best + 1], table.shape[1]  # (those before the best and it, runs)
    error = shortfall.std(axis=1, ddof=1) / np.sqrt(runs) if runs > 1 else np.zeros(len(shortfall))
    return int(np.flatnonzero(shortfall.mean(axis=1) <= error)[0])


def _regret(table: np.ndarray, draws: int = 200) -> float:
    """The mean loss of choices on resampled runs against the best mean of all runs."""
    rng, means, runs = np.random.default_rng(0), table.mean(axis=1), table.shape[1]  # its own: one regret of given runs
    if runs < 2:
        return float("inf")
    picked = [best_row(table[:, rng.integers(0, runs, runs)]) for _ in range(draws)]
    return max(float(means.max() - np.mean(means[picked])), 0.0)


def draw_rates(choices: Mapping[str, RateChoice], methods: Sequence[Method], metric: str = "score") -> Figure:
    """Validation score against the learning rate, one curve a method, the chosen rate ringed."""
    worth = f"{metric_name(metric)}, left-out training sites"
    drawn, lines = looks(methods), []
    figure, axes = empty("learning rate (ringed: chosen)", worth, STYLE | WHITE, (6.8, 3.3))
    axes.set_xscale("log")
    for label, choice in choices.items():
        lines.append(course_line(list(choice.scores.items()), drawn[label], label))
        ring: dict[str, Any] = {"mfc": "none", "mec": drawn[label].colour, "ms": 11, "mew": 1.5}
        axes.plot(choice.lr, choice.scores[choice.lr].mean, "o", **ring)
    return draw((figure, axes), lines)
