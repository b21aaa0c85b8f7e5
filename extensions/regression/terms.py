"""What a regression is on: columns, products of two, and columns that are an offset or count patients.

A term is a column ("age"), of a category all its values, or a product ("age * sex") of columns as they are scaled, at
mean 0 and one standard deviation. An offset, "years" or "log(years)", has the coefficient 1, and a weight of 2 counts a
patient twice; both are columns that the task leaves ``unscaled``. Source: McCullagh and Nelder 1989, section 3.4.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmall.data.federation import Task
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import check_known
from fedsmall.parts import Regression

ALONE = -1  # the second column of a term that is one column
LEAST = 1e-12  # of what a logarithm is taken


class Terms(NamedTuple):
    """The ``names`` of terms, the two columns of each as numbers, and the numbers of those that are no term."""

    names: tuple[str, ...]
    columns: tuple[tuple[int, int], ...]
    offset: int | None
    is_logarithm: bool
    weights: int | None


def terms_of(task: Task, settings: Regression) -> Terms:
    """What ``settings`` ask for; PlanError for a column that is not there."""
    features = task.feature_names or tuple(f"column {k}" for k in range(1, int(np.prod(task.input_shape)) + 1))
    is_logarithm = settings.offset.startswith("log(") and settings.offset.endswith(")")
    aside = [settings.offset[4:-1] if is_logarithm else settings.offset, settings.weights]
    offset, weights = (_place(name, features) if name else None for name in aside)
    if settings.terms is None:
        places = [k for k in range(len(features)) if k not in (offset, weights)]
        found = {features[k]: (k, ALONE) for k in places}
    else:
        found = {name: pair for term in settings.terms for name, pair in _term(term, features)}
    return Terms(tuple(found), tuple(found.values()), offset, is_logarithm, weights)


def _term(term: str, features: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    first, star, second = (part.strip() for part in term.partition("*"))
    if not star or term in features:
        return [(features[k], (k, ALONE)) for k in _places(term, features)]
    pairs = product(_places(first, features), _places(second, features))
    return [(f"{features[i]} * {features[j]}", (i, j)) for i, j in pairs]


def _places(name: str, features: Sequence[str]) -> list[int]:
    """The features of a column: itself, or a feature for each value of a category."""
    found = [k for k, feature in enumerate(features) if feature == name or feature.startswith(f"{name}=")]
    if not found:
        check_known(name, features, f"regression names {name!r}, which is no column", PlanError)
    return found


def _place(name: str, features: Sequence[str]) -> int:
    (place, *others) = _places(name, features)
    if others:
        raise PlanError(f"an offset or weights are one column of numbers, and {name!r} is a category")
    return place


def arrays_of(terms: Terms, settings: Regression) -> dict[str, Tensor]:
    """What of it a model keeps, by name: nothing where it takes all columns as they are."""
    made = {}
    if settings.terms is not None or terms.weights is not None or terms.offset is not None:
        made["terms"] = torch.tensor(terms.columns, dtype=torch.int64)
    if terms.offset is not None:
        made["offset"] = torch.tensor([terms.offset, int(terms.is_logarithm)])
    return made


def columns_of(columns: Tensor, x: Tensor) -> Tensor:
    """The terms (samples, terms) of x (samples, features), for their ``columns`` (terms, 2)."""
    first, second = columns.T
    return x[:, first] * torch.where(second == ALONE, torch.ones_like(x[:, :1]), x[:, second.clamp(min=0)])


def offset_of(offset: Tensor, x: Tensor) -> Tensor:
    """The offset of each sample, (samples, 1)."""
    value = x[:, offset[:1]]
    return torch.where(offset[1] == 1, value.clamp(min=LEAST).log(), value)


def weights_of(terms: Terms, x: np.ndarray) -> np.ndarray:
    """How much each sample counts, (samples,); DataError for one below 0, or an offset that has no logarithm."""
    if terms.is_logarithm and (x[:, terms.offset] <= 0).any():
        raise DataError("regression.offset is a logarithm, and of a patient here the number is missing or not above 0")
    if terms.weights is None:
        return np.ones(len(x))
    if x[:, terms.weights].min(initial=0) < 0:
        raise DataError("regression.weights has a number below 0")
    return np.asarray(x[:, terms.weights], dtype=np.float64)
