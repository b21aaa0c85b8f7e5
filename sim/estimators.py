"""Federated learning as scikit-learn's estimators: ``fit(X, y, groups=hospital)``, clone, search and cross-validation.

All rows that are given train; cross_val_score says what a model is worth. Rows go to hospitals by ``groups``, or lot.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedsmall.data.sources.arrays import is_table
from fedsmall.evaluation.survival import concordance
from fedsmall.randomness import rng_for


class _Federated(BaseEstimator):
    """What the estimators share."""

    def __init__(
        self,
        method: str | Mapping[str, Any] = "FedDC",
        *,
        model: Any = "linear",
        rounds: int = 100,
        recipe: Mapping[str, Any] | None = None,
        sites: int = 4,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.model, self.rounds, self.recipe = method, model, rounds, recipe
        self.sites, self.seed, self.settings = sites, seed, settings

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # as in a CSV, a missing value takes the agreed mean
        return tags

    def _fit(self, x: Any, outcomes: tuple[np.ndarray, ...], groups: Any, task: Mapping[str, Any]) -> Self:
        from fedsmall.package.predictor import predictor_of
        from fedsmall.package.store import Stored
        from fedsmall.sim.api import run

        table, names = self._table(x, reset=True), self._groups(outcomes[0], groups)
        check_consistent_length(table, outcomes[0], names)
        task = {"name": "arrays", "categorical": [c for c in table if table[c].dtype.kind not in "biuf"], **task}
        rows = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
        asked = {"rounds": self.rounds, "seeds": [self.seed], "model": self.model, **(self.settings or {})}
        made = run(
            sites={name: (table.iloc[at], *(y[at] for y in outcomes)) for name, at in rows.items()},
            test=(table, *outcomes),  # so that every row trains
            methods=[self.method],
            task=task,
            recipe={"lr": 0.1, **(self.recipe or {})},
            progress=False,
            **asked,
        )
        for failure in made.run.failed:
            raise ValueError(f"{failure['label']} failed: {failure['reason']}")
        for note in made.run.about["notes"]:
            if "not converged" in note:
                warnings.warn(note, ConvergenceWarning, stacklevel=3)
        # what the run says of its training rows is no performance
        stored = [Stored(p.model_copy(update={"performance": {}}), arrays) for p, arrays in made.predictor().stored]
        self.model_: Any = predictor_of(stored)
        self.sites_, self.n_iter_ = tuple(rows), int(made.summary[0]["rounds"])
        return self

    def _table(self, x: Any, reset: bool = False) -> Any:
        if not reset:
            check_is_fitted(self)
        if is_table(x):
            validate_data(self, x, reset=reset, skip_check_array=True)
            return x.reset_index(drop=True)
        x = validate_data(self, x, reset=reset, dtype="numeric", ensure_all_finite="allow-nan")
        return pandas.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])])

    def _groups(self, y: np.ndarray, groups: Any) -> np.ndarray:
        if groups is not None:
            if missing := pandas.Series(groups).isna().sum():
                raise ValueError(f"groups name no hospital in {missing} of {len(y)} rows")
            return np.asarray(groups).astype(str)
        # dealt class by class, so that every site has some of each
        order = rng_for(self.seed, "groups").permutation(len(y))
        order = order[np.argsort(y[order], kind="stable")]
        names = np.empty(len(y), dtype=object)
        names[order] = [f"site{place % max(1, min(self.sites, len(y) // 2)):03}" for place in range(len(y))]
        return names.astype(str)


class FederatedClassifier(ClassifierMixin, _Federated):
    """Classes, or probabilities of them, from a model that several hospitals train together.

    Parameters
    ----------
    method
        A name ("FedDC", "Ridge", ...), or a table of a method's keys.
    model
        A name, a torch module that trains on from its own weights, or a function from a task to one.
    rounds, recipe
        As in a scenario.
    sites
        Rows without ``groups`` are dealt to so many sites.
    seed
        Of all that is drawn.
    settings
        Further keys of a scenario.

    Attributes
    ----------
    model_
        The fitted predictor, with its ``package``.
    sites_
        The names of the hospitals.

    Examples
    --------
    >>> from fedsmall import FederatedClassifier
    >>> model = FederatedClassifier("Ridge", rounds=20).fit(x, y, groups=hospital)
    >>> model.predict(x[:3]).tolist()
    [0, 0, 1]
    >>> model.predict_proba(x).shape
    (120, 2)
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows ``X`` (samples, features), an array or a pandas table, with classes ``y`` (samples,).

        ``groups`` (samples,) is each row's hospital. ValueError for a single class.
        """
        y = _column(y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"classes of two kinds are needed; y holds 1 class: {self.classes_.tolist()}")
        # by their places, unless they are words, so that a package and its card call them as they are called
        codes = y.astype(str) if y.dtype.kind in "OUS" else codes
        self._places = {str(code): place for place, code in enumerate(dict.fromkeys(np.sort(codes)))}
        return self._fit(X, (codes,), groups, {"label": "y"})

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of ``classes_``, (samples, classes)."""
        table, model = self._table(X), self.model_
        names = [str(name) for name in model.classes_]
        return np.asarray(model.predict_proba(table)[:, np.argsort([self._places[name] for name in names])])

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row, as it was called in ``y``."""
        table = self._table(X)  # first: it says that nothing is fitted
        named = self.model_.predict(table)
        return np.asarray(self.classes_[[self._places[str(name)] for name in named]])


class FederatedRegressor(RegressorMixin, _Federated):
    """A number for each row, from a model that several hospitals train together.

    Parameters, and what is there once it is fitted, are those of :class:`FederatedClassifier`.

    Examples
    --------
    >>> from fedsmall import FederatedRegressor
    >>> model = FederatedRegressor("Ridge", rounds=20).fit(x, 2 * x[:, 0] + 1, groups=hospital)
    >>> round(model.score(x, 2 * x[:, 0] + 1), 2)
    1.0
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows ``X`` (samples, features) with numbers ``y`` (samples,); ``groups`` as of the classifier."""
        y = _column(y).astype(np.float64)
        if not np.isfinite(y).all():
            raise ValueError("y contains NaN or infinity")
        return self._fit(X, (y,), groups, {"target": "y", "loss": "mse"})

    def predict(self, X: Any) -> np.ndarray:
        """The number of each row, (samples,)."""
        table = self._table(X)
        return np.asarray(self.model_.predict(table))


class FederatedSurvival(_Federated):
    """A curve of survival for each row, from a model that several hospitals train together.

    Parameters, and what is there once it is fitted, are those of :class:`FederatedClassifier`.

    Examples
    --------
    >>> from fedsmall import FederatedSurvival
    >>> model = FederatedSurvival("Ridge", rounds=20).fit(x, np.c_[event, time], groups=hospital)
    >>> model.predict(x).shape
    (120,)
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows ``X`` (samples, features); ``y`` holds event and time.

        They are a structured array as scikit-survival's, or two columns, (samples, 2), the event (0 or 1) first.
        """
        event, time = _events(y)
        return self._fit(X, (time, event), groups, {})

    def predict(self, X: Any) -> np.ndarray:
        """The risk of each row, (samples,): minus the mean time without the event, up to the last of ``times_``."""
        table = self._table(X)
        return -np.asarray(self.model_.predict(table))

    def predict_survival(self, X: Any) -> Any:
        """The probability of no event by each of ``model_.times_``, as a table with a column for each."""
        table = self._table(X)
        return pandas.DataFrame(self.model_.predict_survival(table), columns=self.model_.times_)

    def score(self, X: Any, y: Any) -> float:
        """Harrell's concordance, .5 for chance."""
        event, time = _events(y)
        return float(concordance(self.predict_survival(X).to_numpy()[None], self.model_.times_, time, event)[0])


def _column(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    return np.asarray(column_or_1d(y, warn=True))


def _events(y: Any) -> tuple[np.ndarray, np.ndarray]:
    y = y.to_numpy() if is_table(y) else np.asarray(y)
    if y.dtype.names:
        y = np.stack([y[name].astype(np.float64) for name in y.dtype.names], axis=1)
    if y.ndim != 2 or y.shape[1] != 2 or not np.isin(y[:, 0], (0, 1)).all():
        raise ValueError(f"y holds the event (0 or 1) and the time of each row, (samples, 2); got shape {y.shape}")
    return y[:, 0].astype(np.int64), y[:, 1].astype(np.float64)
