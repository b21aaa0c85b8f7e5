"""Saved models that predict, in the shape that scikit-learn's tools expect of an estimator."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.data.image_files import EACH, ENDINGS, images_in
from fedsmall.data.preparation import Columns, Pixels, Preparation
from fedsmall.data.sources.arrays import as_array, as_inputs, is_table, open_npz
from fedsmall.data.table_files import EXCEL, as_table, read_table
from fedsmall.errors import DataError, PlanError
from fedsmall.evaluation.intercepts import OF_LOSS
from fedsmall.evaluation.outputs import by_class, members_of, named_classes, probabilities
from fedsmall.evaluation.survival import mean_time
from fedsmall.files import list_some
from fedsmall.methods import nearest
from fedsmall.models.networks import Ensemble
from fedsmall.models.registry import build_model, is_pretrained
from fedsmall.package.record import Architecture, Package
from fedsmall.package.store import Stored, read
from fedsmall.randomness import rng_for

if TYPE_CHECKING:
    from pandas import DataFrame

LISTED = 6  # columns in an error message
CHUNK = 256  # rows that go through a network at a time


def network(package: Package, weights: Mapping[str, np.ndarray]) -> nn.Module:
    """The package's network with its ``weights``."""
    built = build(package.architecture, package.learns, weights, package.preparation.dtype)
    if package.recalibration is not None:
        intercept, slope = package.recalibration
        built = Shifted(built, _shift(package, intercept), slope)
    return Shifted(built, package.intercept) if package.intercept else built


def _shift(package: Package, log_odds: float) -> tuple[float, ...]:
    """What is added to the outputs of two classes so that the log-odds of the second grow by that."""
    return (log_odds,) if package.outputs == 1 else (-log_odds / 2, log_odds / 2)


class Shifted(nn.Module):
    """A network whose outputs, times a slope, are shifted by an intercept; each member of an ensemble by the same."""

    def __init__(self, network: nn.Module, intercept: Sequence[float], slope: float = 1.0) -> None:
        super().__init__()
        self.network, self.slope = network, slope
        self.register_buffer("intercept", torch.tensor(intercept, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, outputs)."""
        outputs: torch.Tensor = self.network(x).double() * self.slope + self.intercept
        return outputs

    @property
    def members(self) -> "list[Shifted]":
        """The members of an ensemble."""
        shift = self.get_buffer("intercept").tolist()
        network, slope = self.network, self.slope
        held = network.members if isinstance(network, Shifted) else network.get_submodule("members").children()
        return [Shifted(member, shift, slope) for member in held]


def with_prevalence(stored: Stored, prevalence: float) -> Stored:
    """The package for a hospital where the positive class is as frequent as that, between 0 and 1.

    The log-odds move by those of the prevalence less those among all training patients; an intercept that was there is
    replaced. PlanError where there are not two classes, or nobody knows their shares. Source: King and Zeng 2001.
    """
    package = stored.package
    if package.positive is None or package.loss not in OF_LOSS:
        raise PlanError("a prevalence is of two classes, and this model has others, or no probabilities")
    if not 0 < prevalence < 1:
        raise PlanError(f"a prevalence is above 0 and below 1; got {prevalence:g}")
    classes = package.trained_on.classes or {}
    share = classes.get(package.positive, 0) / max(1, sum(classes.values()))
    if not 0 < share < 1:
        raise PlanError("the package does not say how frequent the positive class was in training; predict without")
    shift = float(logit(prevalence) - logit(share))
    return stored._replace(package=package.model_copy(update={"intercept": _shift(package, shift)}))


def build(design: Architecture, task: Task, weights: Mapping[str, np.ndarray], dtype: str) -> nn.Module:
    """The network of that ``design`` with ``weights``, in eval mode; PlanError where they are not its own."""
    # the weights of a pretrained network come with the package, and its layers are done training
    built, options = [], {} if is_pretrained(design.model) else dict(design.options)
    for arrays in members_of(weights, design.members is not None):
        model = build_model(design.model, task, options, rng_for(0, "model"))  # its numbers are replaced
        if dtype == "float64":
            model = model.double()
        try:
            model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
        except RuntimeError:
            raise PlanError(f"the weights are not those of the model {design.model!r} with its options") from None
        built.append(model)
    return (Ensemble(built, task.loss, design.together) if design.members is not None else built[0]).eval()


class Rows(NamedTuple):
    """Rows as they were read: ``x`` (rows, *shape), a name and the notes of each, and the table where there was one."""

    x: np.ndarray
    names: list[str]
    notes: list[list[str]]
    table: "DataFrame | None" = None


def read_rows(preparation: Preparation, source: Any, array: str = "x", sheet: str | None = None) -> Rows:
    """The rows of ``source``: a file (``array`` of an .npz, ``sheet`` of a workbook), folder, pandas table, or array.

    No label is needed. DataError for what was not trained on.
    """
    is_path = isinstance(source, str | Path)
    _check_sheet(source, sheet)
    rows = _read_path(preparation, Path(source), array, sheet) if is_path else _read_data(preparation, source)
    if rows.x.shape[1:] != preparation.shape:
        raise DataError(f"samples have shape {rows.x.shape[1:]}, and the model takes {preparation.shape}")
    return rows._replace(notes=_notes(preparation, rows))


def _read_data(preparation: Preparation, source: Any) -> Rows:
    if isinstance(preparation.form, Columns):
        return _of_table(preparation.form, as_table(source) if is_table(source) else source)
    return _numbered(as_inputs(as_array(source)))


def _read_path(preparation: Preparation, path: Path, array: str, sheet: str | None) -> Rows:
    form = preparation.form
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.suffix == ".npz":
        with open_npz(path) as file:
            if array not in file:
                hint = nearest(array, list(file))
                raise DataError(f"the .npz holds no array {array!r}; say which with --array. {hint}")
            return _read_data(preparation, np.asarray(file[array]))
    if isinstance(form, Pixels):
        return _of_images(form, path)
    if isinstance(form, Columns) and path.is_file():
        return _of_table(form, read_frame(form, path, sheet))
    raise DataError(f"the model takes {_wanted(preparation)}; {path.name} is none")


def _check_sheet(source: Any, sheet: str | None) -> None:
    if sheet is not None and not (isinstance(source, str | Path) and Path(source).suffix.lower() in EXCEL):
        raise DataError("--sheet names a sheet of an Excel workbook (.xlsx, .xlsm), and these rows are in none")


def read_frame(form: Columns, path: Path, sheet: str | None = None) -> "DataFrame":
    """The cells of a table as text, its columns named as the model's are."""
    _check_sheet(path, sheet)
    frame = read_table(path, form.separator, form.decimal, sheet=sheet)
    if form.header and not set(form.columns) & set(frame.columns):
        frame = read_table(path, form.separator, form.decimal, names=form.header, sheet=sheet)
    return frame


def _wanted(preparation: Preparation) -> str:
    form = preparation.form
    if isinstance(form, Columns):
        return f"a table with the columns {list_some(form.columns, LISTED)}"
    if isinstance(form, Pixels) and form.volume:
        return "volumes (NIfTI), in a file or a folder"
    return "images, in a file or a folder" if isinstance(form, Pixels) else f"an .npz with samples {preparation.shape}"


def _of_table(form: Columns, source: Any) -> Rows:
    import pandas

    if not isinstance(source, pandas.DataFrame):
        source = as_array(source)
        if source.ndim != 2 or source.shape[1] != len(form.columns):
            raise DataError(f"an array of shape {source.shape} holds not the {len(form.columns)} columns of the model")
        source = pandas.DataFrame(source, columns=list(form.columns))
    frame = source.reset_index(drop=True)
    if not len(frame):
        raise DataError("the table has no row; there is nothing to predict")
    return _numbered(form.numbers(frame))._replace(table=frame)


def _of_images(form: Pixels, path: Path) -> Rows:
    inside = images_in(path) if path.is_dir() else [path]
    if not inside:
        raise DataError(f"the folder holds no image ({', '.join(ENDINGS)})")
    held = [(file, place, seen) for file in inside for place, seen in enumerate(form.fitting(file))]
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file, _, _ in held]
    if form.frames == EACH:
        names = [f"{name}:{place}" for name, (_, place, _) in zip(names, held, strict=True)]
    return Rows(form.arrays([(file.name, seen) for file, _, seen in held]), names, [])


def _numbered(x: np.ndarray) -> Rows:
    if not len(x):
        raise DataError("there is no row; there is nothing to predict")
    return Rows(x, [str(number + 1) for number in range(len(x))], [])


def _notes(preparation: Preparation, rows: Rows) -> list[list[str]]:
    notes: list[list[str]] = [[] for _ in rows.names]
    form = preparation.form
    if rows.x.dtype != np.uint8:
        for row, place in zip(*np.nonzero(preparation.unusual(rows.x).reshape(len(rows.x), -1)), strict=True):
            feature = form.feature_names[place] if isinstance(form, Columns) else f"number {place}"
            notes[row].append(f"{feature} is far outside the training data")
    if isinstance(form, Columns) and rows.table is not None:
        for column in form.categories:
            for row in np.flatnonzero(form.is_unlisted(rows.table[column], column)):
                notes[row].append(f"{column} is a category that the model does not know")
    return notes


def summary(notes: Sequence[Sequence[str]]) -> list[str]:
    """How many rows have each note, in a line each."""
    return [f"{note} in {count} of {len(notes)} rows" for note, count in Counter(chain(*notes)).items()]


class Answers(NamedTuple):
    """What models say of rows: ``each`` (models, rows, ...), ``together`` (rows, ...), named classes' places."""

    each: np.ndarray
    together: np.ndarray
    named: np.ndarray
    rows: Rows

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation over the models, (rows,), of what they say of the named class, or on average."""
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
        cure = "wrap it in sklearn.frozen.FrozenEstimator to keep it as it is"
        raise PlanError(f"a saved model is trained already; {cure}")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        package, seeds = self.package, ", ".join(dict.fromkeys(str(package.seed) for package, _ in self.stored))
        form = package.preparation.form
        what = f"{len(form.columns)} columns" if form.kind == "table" else f"samples {package.preparation.shape}"
        outcome = package.target or ", ".join(package.class_names or package.labels)
        return f"{type(self).__name__}({package.name}: {package.label}, seed {seeds}; {what} to {outcome})"

    def _html_repr(self) -> str:  # what scikit-learn shows in a notebook
        return f"<code>{escape(repr(self))}</code>"

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The columns that a row has, in their order; AttributeError where rows are no rows of a table."""
        form = self.package.preparation.form
        if not isinstance(form, Columns):
            raise AttributeError("a model of images or arrays has no feature_names_in_")
        return np.array(form.columns, dtype=object)

    def answers(self, x: Any, array: str = "x", sheet: str | None = None) -> Answers:
        """What every model says of the rows ``x``: a table, an array, or a path; options as of :func:`read_rows`."""
        of_packages, of_members, rows = [], [], None
        for (package, _), model in zip(self.stored, self._networks, strict=True):
            rows = read_rows(package.preparation, x, array, sheet)
            inputs = package.preparation.inputs(rows.x)
            of_packages.append(outputs_of(model, inputs))
            members = [outputs_of(member, inputs) for member in model.members] if package.architecture.members else []
            of_members += [self._say(package, outputs) for outputs in members or of_packages[-1:]]
        assert rows is not None
        each = [self._say(package, outputs) for (package, _), outputs in zip(self.stored, of_packages, strict=True)]
        mean = np.mean(each, axis=0)
        return Answers(np.stack(of_members), mean, self._named(mean, of_packages[0]), rows)

    @cached_property
    def _networks(self) -> list[Any]:
        return [network(package, weights) for package, weights in self.stored]

    def _say(self, package: Package, outputs: np.ndarray) -> np.ndarray:
        return package.interpret(outputs)

    def _named(self, mean: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        return np.zeros(0, dtype=int)


class Classifier(ClassifierMixin, _Trained):
    """Saved models of classes: ``classes_`` are names, or whole numbers where all are."""

    @property
    def classes_(self) -> np.ndarray:
        """The classes in the order of the columns of :meth:`predict_proba`."""
        return np.sort(self._names)

    @property
    def _names(self) -> np.ndarray:
        names = self.package.class_names
        whole = all(name.lstrip("-").isdigit() and str(int(name)) == name for name in names)
        return np.array([int(name) for name in names] if whole else list(names))

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

    def _say(self, package: Package, outputs: np.ndarray) -> np.ndarray:
        return probabilities(outputs, package.loss)

    def _named(self, mean: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        if len(self.stored) == 1:
            return named_classes(by_class(outputs, self.package.loss), self.package.threshold)
        threshold = float(np.mean([stored.package.threshold for stored in self.stored]))
        return (mean[:, 1] > threshold).astype(int) if mean.shape[1] == 2 else mean.argmax(axis=1)


class Regressor(RegressorMixin, _Trained):
    """Saved models of numbers."""

    def predict(self, x: Any) -> np.ndarray:
        """The numbers of each row, (rows, numbers), or (rows,) of a target; of several models they are their mean."""
        together = self.answers(x).together
        return together if self.package.target is None else together[:, 0]


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


class SurvivalModel(_Trained):
    """Saved models of times until an event; ``times_`` are the times at which curves are told."""

    @property
    def times_(self) -> np.ndarray:
        """The times of the columns of :meth:`predict_survival`, those of the first package."""
        return np.array(self.package.cuts)

    def predict_survival(self, x: Any) -> np.ndarray:
        """The probability of no event by each of ``times_``, (rows, times); the mean of several models."""
        return self.answers(x).together

    def predict(self, x: Any) -> np.ndarray:
        """The mean time without the event, up to the last of ``times_``: (rows,)."""
        return mean_time(self.predict_survival(x), self.times_)

    def _say(self, package: Package, outputs: np.ndarray) -> np.ndarray:
        ends, curves = np.array([0.0, *package.cuts]), package.interpret(outputs)
        return np.stack([np.interp(self.times_, ends, [1.0, *curve]) for curve in curves])


Predictor = Classifier | Regressor | SurvivalModel | Labeller
MODELS: dict[str, type[Predictor]] = {
    "classes": Classifier,
    "numbers": Regressor,
    "times": SurvivalModel,
    "labels": Labeller,
}


def load(path: Path | str) -> Predictor:
    """The model in a package, ready to predict.

    Parameters
    ----------
    path
        A folder, or a .zip.

    Returns
    -------
    Predictor
        A classifier, a regressor, a model of survival or of several labels, in the sense of scikit-learn.

    Raises
    ------
    PlanError
        Where there is no whole package.

    Examples
    --------
    >>> import fedsmall
    >>> result = fedsmall.run(task="breast_cancer", sites=4, rounds=20, methods=["Ridge"], progress=False)
    >>> model = fedsmall.load(result.save(folder / "model"))
    >>> model.predict(rows).tolist()
    ['malignant', 'malignant', 'benign']
    """
    return predictor_of([read(path)])


def predictor_of(stored: Sequence[Stored]) -> Predictor:
    """Several packages of one task as one model, which answers with their mean."""
    first = stored[0].package
    for package, _ in stored[1:]:
        same = (package.task, package.class_names, package.labels, package.loss, package.preparation.form.kind)
        if same != (first.task, first.class_names, first.labels, first.loss, first.preparation.form.kind):
            raise PlanError(f"{first.label} and {package.label} are of different tasks; they cannot be an ensemble")
    return MODELS[first.kind](tuple(stored))


def outputs_of(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The outputs, (rows, outputs) in float64, of a network for what it takes."""
    with torch.no_grad():
        parts = [model(torch.from_numpy(x[at : at + CHUNK])) for at in range(0, len(x), CHUNK)]
    return np.asarray(torch.cat(parts).numpy(), dtype=np.float64)
