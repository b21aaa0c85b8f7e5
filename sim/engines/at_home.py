"""What a hospital has of joining: losses on its own held-out patients, alone, together, and with its intercept."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.evaluation.baselines import folds_of, log_likelihood
from fedsmall.evaluation.intercepts import OF_LOSS, fit_intercept
from fedsmall.evaluation.metrics import evaluate

MOST_SITES, MOST_COLUMNS = 12, 1000  # of more, nobody reads the rows, or a ridge takes longer than the run
ALONE, OWN, TOGETHER, INTERCEPT = "alone", "own", "together", "intercept"  # "own": a network that is trained alone

Say = Callable[[np.ndarray, str | None], np.ndarray]  # outputs for x; at a site, as that site has them
Losses = dict[str, dict[str, float]]  # by site and by one of the four


@final
@dataclass
class AtHome:
    """The hospitals of a federation of which each holds out patients of its own, and what models are worth there."""

    federation: Federation

    @classmethod
    def of(cls, federation: Federation) -> "AtHome":
        """That of a federation, which plans share that differ only in their method."""
        known: AtHome = vars(federation).setdefault("_at_home", cls(federation))
        return known

    @cached_property
    def _task(self) -> Task:
        return replace(self.federation.task, metrics=("loss",))

    @cached_property
    def homes(self) -> dict[str, tuple[Samples, Samples]]:
        """Training and held-out patients by hospital; none where there are many, or no intercept is fitted."""
        federation = self.federation
        if len(federation.names) > MOST_SITES or federation.task.loss not in OF_LOSS:
            return {}
        of_sites = zip(federation.names, federation.train, federation.held_out, strict=False)
        return {site: (train, held) for site, train, held in of_sites if held is not None and len(held)}

    @cached_property
    def alone(self) -> Losses:
        """The loss of each hospital's own ridge regression, where it is soon fitted."""
        task = self._task
        if task.kind not in ("classes", "numbers") or np.prod(task.input_shape) > MOST_COLUMNS:
            return {}
        fitted = ((site, fit_alone(train, held.x, task), held.y) for site, (train, held) in self.homes.items())
        return {site: {ALONE: _log_loss(predicted, y, task)} for site, predicted, y in fitted}

    def global_model(self, say: Say, keeps: bool) -> Losses:
        """The global model's losses: as it is, and with a hospital's intercept, which models that keep one have."""
        losses, task = {}, self._task
        for site, (train, held) in self.homes.items():
            plain = say(held.x, None)
            shift = 0.0 if keeps else fit_intercept(say(train.x, None), train.y, task.loss)
            shifted = say(held.x, site) if keeps else plain + shift
            made = {TOGETHER: plain, INTERCEPT: shifted}
            of_global_model = {name: evaluate(outputs, held.y, task)["loss"] for name, outputs in made.items()}
            losses[site] = self.alone.get(site, {}) | of_global_model
        return losses

    def own(self, outputs: Mapping[str, np.ndarray]) -> Losses:
        """The losses of models that hospitals trained alone, of their ``outputs`` for those whom each holds out."""
        return {
            site: {OWN: evaluate(outputs[site], held.y, self._task)["loss"]}
            for site, (_, held) in self.homes.items()
            if site in outputs
        }


def fit_alone(train: Samples, x: np.ndarray, task: Task) -> np.ndarray:
    """The outputs for ``x`` of the model that a hospital fits alone: a ridge regression, (samples, outputs) or classes.

    The penalty of classes is that of 1, 10 and 100 with the least loss in up to five folds, 1 where a class has fewer
    than two patients; that of a number is 1. A class that nobody has counts as one patient. Outputs are logarithms.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import check_cv

    rows, new, y = train.x.reshape(len(train), -1), x.reshape(len(x), -1), train.y
    if task.kind == "numbers":
        ridge = Ridge(alpha=1.0, solver="svd").fit(rows, y.reshape(len(train), -1))
        return np.asarray(ridge.predict(new)).reshape(len(x), -1)
    counts = np.bincount(y, minlength=task.classes)
    seen, folds = np.flatnonzero(counts), min(5, int(counts[counts > 0].min()))
    shares = np.zeros((len(x), task.classes))
    shares[:, seen] = 1.0
    if len(seen) > 1:
        parts = list(check_cv(folds_of(train, folds), y, classifier=True).split(rows, y)) if folds > 1 else []

        def fitted(strength: float, part: Any = slice(None)) -> LogisticRegression:
            return LogisticRegression(C=strength, max_iter=500).fit(rows[part], y[part])

        def likelihood(strength: float) -> float:  # scikit-learn's own search takes twice as long
            return sum(log_likelihood(fitted(strength, part), rows[out], y[out]) for part, out in parts)

        with warnings.catch_warnings(action="ignore"):  # a fit that stops early is as near as rounding lets it
            shares[:, seen] = fitted(max((1.0, 0.1, 0.01), key=likelihood)).predict_proba(new)
    missing = task.classes - len(seen)
    shares[:, counts == 0] = 1 / len(train)
    return np.asarray(np.log(np.clip(shares, 1e-12, None) * len(train) / (len(train) + missing)))


def _log_loss(predicted: np.ndarray, y: np.ndarray, task: Task) -> float:
    if task.kind == "numbers":
        return evaluate(predicted, y, task)["loss"]
    return float(-predicted[np.arange(len(y)), y].mean())
