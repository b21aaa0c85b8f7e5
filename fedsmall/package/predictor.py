"""Saved models that predict, in the shape that scikit-learn's tools expect of an estimator."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from fedsmall.errors import PlanError
from fedsmall.evaluation.probabilities import by_class, named_classes, probabilities
from fedsmall.evaluation.survival import mean_time
from fedsmall.package.network import network
from fedsmall.package.record import Package
from fedsmall.package.rows import Rows, read_rows
from fedsmall.package.store import Stored, read

if TYPE_CHECKING:
    from torch.nn import Module

CHUNK = 256  # rows that go through a network at a time


class Answers(NamedTuple):
    """What models say of rows: ``each`` (models, rows, classes or numbers), ``together`` (rows, ...), and the rows.

    Networks that answer together in one package are models of their own in ``each``. ``named`` (rows,) are the places
    of the classes that are named, empty for numbers.
    """

    each: np.ndarray
    together: np.ndarray
    named: np.ndarray
    rows: Rows

    @property
    def spread(self) -> np.ndarray:
        """How far the models are apart, (rows,): the standard deviation over them of what they say of the named class.

        For numbers it is the mean over the numbers; 0 for one model.
        """
        if len(self.each) < 2:
            return np.zeros(len(self.together))
        apart: np.ndarray = self.each.std(axis=0, ddof=1)
        of_each = apart[np.arange(len(apart)), self.named] if len(self.named) else apart.reshape(len(apart), -1)
        return np.asarray(of_each.reshape(len(apart), -1).mean(axis=1))


class _Trained(BaseEstimator):
    """What classifiers and regressors share: ``stored`` are packages of one task, which answer with their mean."""

    def __init__(self, stored: Sequence[Stored]) -> None:
        self.stored = stored

    @property
    def package(self) -> Package:
        """The record of the first package."""
        return self.stored[0].package

    def fit(self, x: Any = None, y: Any = None) -> "_Trained":
        """Refuse, with PlanError: what was trained over sites cannot be trained here; FrozenEstimator keeps it."""
        raise PlanError(
            "a saved model is trained already; wrap it in sklearn.frozen.FrozenEstimator to keep it as it is"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def answers(self, x: Any, array: str = "x", sheet: str | None = None) -> Answers:
        """What every model says of the rows ``x``: a table, an array, or the path of a file or folder.

        ``array`` names the array of an .npz, ``sheet`` the sheet of an Excel workbook where several hold something.

        Raises DataError for rows that cannot be used.
        """
        said, each, rows = [], [], None
        for (package, _), model in zip(self.stored, self._networks, strict=True):
            rows = read_rows(package.preparation, x, array, sheet)
            inputs = package.preparation.inputs(rows.x)
            members = [outputs_of(member, inputs) for member in model.members] if package.architecture.members else []
            said.append(outputs_of(model, inputs))
            each += members or said[-1:]
        assert rows is not None
        return self._answers(said, each, rows)

    @cached_property
    def _networks(self) -> list[Any]:
        return [network(package, weights) for package, weights in self.stored]

    def _answers(self, said: list[np.ndarray], each: list[np.ndarray], rows: Rows) -> Answers:
        raise NotImplementedError


class Classifier(ClassifierMixin, _Trained):
    """Saved models of classes. ``classes_`` are their names, or whole numbers where all names are such.

    They stand in order of the alphabet (or size), as scikit-learn's tools take for granted, whatever the order of the
    task's. The positive class is ``package.positive``, which scikit-learn wants to be told as ``pos_label``.
    """

    @property
    def classes_(self) -> np.ndarray:
        """The classes in the order of the columns of :meth:`predict_proba`."""
        return np.sort(self._names)

    @property
    def _names(self) -> np.ndarray:
        """The classes in the order of the task."""
        names = self.package.class_names
        return np.array([int(name) for name in names] if all(_whole(name) for name in names) else list(names))

    @property
    def n_features_in_(self) -> int:
        """How many columns, or numbers, a row has."""
        form = self.package.preparation.form
        return len(form.columns) if form.kind == "table" else int(np.prod(self.package.preparation.shape))

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probability of each class, (rows, classes); of several models it is their mean."""
        return np.asarray(self.answers(x).together[:, np.argsort(self._names)])

    def predict(self, x: Any) -> np.ndarray:
        """The class of each row: of two the positive one above its threshold, of more the likeliest."""
        return np.asarray(self._names[self.answers(x).named])

    def _answers(self, said: list[np.ndarray], each: list[np.ndarray], rows: Rows) -> Answers:
        loss = self.package.loss
        apart = probabilities(np.stack(each), loss)
        if len(said) == 1:
            named = named_classes(by_class(said[0], loss), self.package.threshold)
            return Answers(apart, probabilities(said[0], loss), named, rows)
        mean = probabilities(np.stack(said), loss).mean(axis=0)
        threshold = float(np.mean([one.package.threshold for one in self.stored]))
        named = (mean[:, 1] > threshold).astype(int) if mean.shape[1] == 2 else mean.argmax(axis=1)
        return Answers(apart, mean, named, rows)


class Regressor(RegressorMixin, _Trained):
    """Saved models of numbers."""

    def predict(self, x: Any) -> np.ndarray:
        """The numbers of each row, (rows, numbers), or (rows,) of a target; of several models they are their mean."""
        together = self.answers(x).together
        return together if self.package.target is None else together[:, 0]

    def _answers(self, said: list[np.ndarray], each: list[np.ndarray], rows: Rows) -> Answers:
        units = [one.package.said for one in self.stored for _ in range(one.package.architecture.members or 1)]
        apart = np.stack([unit(outputs) for unit, outputs in zip(units, each, strict=True)])
        mean = np.mean([one.package.said(outputs) for one, outputs in zip(self.stored, said, strict=True)], axis=0)
        return Answers(apart, mean, np.zeros(0, dtype=int), rows)


class Labeller(_Trained):
    """Saved models of several labels at once; ``labels_`` are their names, in the order of all columns here."""

    @property
    def labels_(self) -> np.ndarray:
        """The names of the labels."""
        return np.array(self.package.labels)

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probability of each label, (rows, labels); of several models it is their mean."""
        return self.answers(x).together

    def predict(self, x: Any) -> np.ndarray:
        """1 where a label's probability is above one half, else 0: (rows, labels)."""
        return np.asarray((self.predict_proba(x) > 0.5).astype(np.int64))

    def _answers(self, said: list[np.ndarray], each: list[np.ndarray], rows: Rows) -> Answers:
        mean = np.mean([self.package.said(outputs) for outputs in said], axis=0)
        return Answers(self.package.said(np.stack(each)), mean, np.zeros(0, dtype=int), rows)


class SurvivalModel(_Trained):
    """Saved models of times until an event; ``times_`` are the times at which curves are told."""

    @property
    def times_(self) -> np.ndarray:
        """The times of the columns of :meth:`predict_survival`, those of the first package."""
        return np.array(self.package.cuts)

    def predict_survival(self, x: Any) -> np.ndarray:
        """The probability that the event has not happened by each of ``times_``: (rows, times).

        Of several models it is their mean; curves are straight between the times of each.
        """
        return self.answers(x).together

    def predict(self, x: Any) -> np.ndarray:
        """The mean time without the event, up to the last of ``times_``: (rows,)."""
        return mean_time(self.predict_survival(x), self.times_)

    def _answers(self, said: list[np.ndarray], each: list[np.ndarray], rows: Rows) -> Answers:
        owners = [one.package for one in self.stored for _ in range(one.package.architecture.members or 1)]
        apart = np.stack([self._curves(package, outputs) for package, outputs in zip(owners, each, strict=True)])
        mean = [self._curves(one.package, outputs) for one, outputs in zip(self.stored, said, strict=True)]
        return Answers(apart, np.mean(mean, axis=0), np.zeros(0, dtype=int), rows)

    def _curves(self, package: Package, outputs: np.ndarray) -> np.ndarray:
        """The curves of a package at the times of the first."""
        own, curves = np.array([0.0, *package.cuts]), package.said(outputs)
        return np.stack([np.interp(self.times_, own, [1.0, *curve]) for curve in curves])


MODELS: dict[str, type[Classifier | Regressor | SurvivalModel | Labeller]] = {
    "classes": Classifier,
    "numbers": Regressor,
    "times": SurvivalModel,
    "labels": Labeller,
}


def load(path: Path | str) -> Classifier | Regressor | SurvivalModel | Labeller:
    """The model in a package, a folder or a .zip, ready to predict.

    Raises PlanError where there is none, or it is not whole.
    """
    return together([read(path)])


def together(stored: Sequence[Stored]) -> Classifier | Regressor | SurvivalModel | Labeller:
    """Several packages of one task as one model, which answers with their mean."""
    first = stored[0].package
    for package, _ in stored[1:]:
        same = (package.task, package.class_names, package.labels, package.loss, package.preparation.form.kind)
        if same != (first.task, first.class_names, first.labels, first.loss, first.preparation.form.kind):
            raise PlanError(f"{first.label} and {package.label} are of different tasks; they cannot answer together")
    return MODELS[first.kind](tuple(stored))


def outputs_of(model: "Module", x: np.ndarray) -> np.ndarray:
    """The outputs, (rows, outputs) in float64, of a network for what it takes."""
    import torch

    with torch.no_grad():
        parts = [model(torch.from_numpy(x[at : at + CHUNK])) for at in range(0, len(x), CHUNK)]
    return np.asarray(torch.cat(parts).numpy(), dtype=np.float64)


def _whole(name: str) -> bool:
    return name.lstrip("-").isdigit() and str(int(name)) == name
