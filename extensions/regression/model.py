"""A regression as a model: its coefficients, what its columns are made of, and what sites sum for the next step.

``additive`` puts hinges max(x - k, 0) at five quantiles beside each column, which are linear splines; ``random`` takes
random Fourier features, the same at all sites, of a Gaussian kernel as wide as the square root of half the columns.
Source: Eilers and Marx 1996 (penalised splines); Rahimi and Recht 2007 (random features).
"""

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.extensions.regression import terms
from fedsmall.extensions.regression.families import FAMILIES, coefficients, start
from fedsmall.extensions.regression.newton import Setup, begin, folds_for
from fedsmall.parts import Regression
from fedsmall.wire import Arrays

NAME = "regression"
COEFFICIENTS, THETA, SUMS, STATUS, COVARIANCE = "coefficients", "theta", "sums", "status", "covariance"
FAMILY, CHOSEN, CONVERGED, FREEDOM, LOSS = range(5)  # places of the status; no degrees of freedom are many
OF_LOSS = {"cross_entropy": "softmax", "mse": "linear", **{own: own for own in ("logistic", "ordinal", "hazard")}}
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
CELLS, REACH = 200, 4.0  # of the grid in which values are counted, and its ends in standard deviations
MOST_NUMBERS = 2**24  # that a site sums in an exchange: they grow with the square of the coefficients
ONE_OF_LOSS = 2.0**24  # of a log-likelihood in whole numbers
ONE = 2.0**40  # of parameters in whole numbers, which keep their precision in any plan's dtype


def family_of(task: Task, settings: Regression) -> str:
    """The likelihood of a task under these settings; PlanError for one that has none here."""
    if task.loss not in OF_LOSS or (task.kind == "numbers" and task.outputs != 1):
        known = "a regression predicts classes, grades, a number or times until an event, each by its own loss"
        raise PlanError(f"{known}; this task: {task.kind} by {task.loss}. Of several, make a scenario for each")
    if settings.cox:
        if task.loss != "hazard":
            raise PlanError(f"cox = true is for times until an event, and this task predicts {task.kind}")
        return "cox"
    if settings.counts:
        if task.loss != "mse":
            raise PlanError(f"counts = true is for numbers, and this task predicts {task.kind}")
        return "poisson"
    return "logistic" if task.loss == "cross_entropy" and task.classes == 2 else OF_LOSS[task.loss]


def setup_of(settings: Regression, family: str, columns: int, predictors: int, sites: int) -> Setup:
    """What is fitted by so many sites; ``columns`` counts the constant. PlanError for too many coefficients."""
    home = settings.intercept_penalty if settings.intercepts == "hospital" else None
    cv = settings.penalty == "cv" and not (settings.firth or settings.cox)
    penalties = PENALTIES if cv else (0.0 if settings.penalty == "cv" else float(settings.penalty),)
    folds = folds_for(sites)[0] if cv else 0
    setup = Setup(family, columns, predictors, penalties, folds, home, settings.firth, settings.robust)
    if setup.numbers > MOST_NUMBERS:
        many = f"{setup.free:,} coefficients, of which a site would sum {setup.numbers:,} numbers"
        raise PlanError(f"{many}: take fewer columns or classes, one penalty as a number, or RandomFeatureRidge")
    return setup


def regression(task: Task, *, sites: int, **settings: Any) -> nn.Module:
    """The model before the first exchange, for so many sites; ``settings`` are those of the method's table."""
    return RegressionModel(task, sites, Regression(**settings))


class RegressionModel(nn.Module):
    """Coefficients (K, p), their covariance (P, P), the columns' making, and theta and sums as whole numbers."""

    def __init__(self, task: Task, sites: int, settings: Regression) -> None:
        super().__init__()
        family, asked = family_of(task, settings), terms.terms_of(task, settings)
        features = len(asked.names)
        self.task, self.family = task, family
        predictors = 1 if family in ("linear", "logistic", "poisson") else task.outputs
        for name, array in terms.arrays_of(asked, settings).items():
            self.register_buffer(name, array)
        if settings.basis == "additive":
            self.register_buffer("knots", torch.zeros(features, len(QUANTILES)))
        if settings.basis == "random":
            self.register_buffer("directions", torch.randn(features, settings.features) * (2 / features) ** 0.5)
            self.register_buffer("phases", 2 * pi * torch.rand(settings.features))
        columns = 1 + {"linear": features, "additive": 6 * features, "random": settings.features}[settings.basis]
        setup = setup_of(settings, family, columns, predictors, sites)
        posterior = setup.free * (setup.free + 1) + sites * (setup.free + 1) + 1
        numbers = (
            posterior
            if settings.passes
            else max(setup.numbers, features * CELLS if settings.basis == "additive" else 0)
        )
        whole = np.rint(begin(setup).theta * ONE).astype(np.int64)
        first = coefficients(family, start(family, columns, predictors), columns, predictors)
        self.coefficients = nn.Parameter(torch.from_numpy(first).float())
        self.register_buffer(COVARIANCE, torch.zeros(setup.free, setup.free))
        self.register_buffer(THETA, torch.from_numpy(whole))
        self.register_buffer(SUMS, torch.zeros(numbers, dtype=torch.int64))
        self.register_buffer(STATUS, torch.tensor([list(FAMILIES).index(family), 0, 0, 0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        """(samples, outputs) of x (samples, features)."""
        eta = predictors_of({**dict(self.named_buffers()), COEFFICIENTS: self.coefficients}, x)
        return outputs_of(eta, self.task, self.family).to(self.coefficients.dtype)


def columns_of(arrays: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What is regressed on, (samples, p) in float64, the constant last."""
    x = terms_in(arrays, x.flatten(1).double())
    if "knots" in arrays:
        x = torch.cat([x, torch.relu(x[:, :, None] - arrays["knots"].double()).flatten(1)], dim=1)
    if "directions" in arrays:
        waves = torch.cos(x @ arrays["directions"].double() + arrays["phases"].double())
        x = waves * (2 / len(arrays["phases"])) ** 0.5
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def predictors_of(arrays: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The linear predictors, (samples, K), in float64."""
    eta = columns_of(arrays, x) @ arrays[COEFFICIENTS].double().T
    return eta + terms.offset_of(arrays["offset"], x.flatten(1).double()) if "offset" in arrays else eta


def outputs_of(eta: Tensor, task: Task, family: str) -> Tensor:
    """Linear predictors as a network's outputs; the first of two classes with an output each has 0."""
    if family == "poisson":
        mean, scale = task.unit or (0.0, 1.0)
        return (eta.clamp(max=50).exp() - mean) / scale
    if task.loss == "hazard":  # log-odds of the event in each interval, from the hazard's integral
        amount = eta.clamp(-30, 6).exp()
        return amount + torch.log(-torch.expm1(-amount))
    if task.loss == "ordinal":  # the steps between log-odds go through softplus
        gaps = (eta[:, :-1] - eta[:, 1:]).clamp(min=1e-6)
        return torch.cat([eta[:, :1], gaps + torch.log(-torch.expm1(-gaps))], dim=1)
    return eta if eta.shape[1] == task.outputs else torch.cat([torch.zeros_like(eta), eta], dim=1)


def terms_in(arrays: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The terms that a regression is on, (samples, terms), before hinges or waves are made of them."""
    return terms.columns_of(arrays["terms"], x) if "terms" in arrays else x


def cell_counts(x: np.ndarray) -> np.ndarray:
    """How many values of each column lie in each cell of the grid, (features * CELLS,) int64."""
    cell = np.searchsorted(_ends(), x.reshape(len(x), -1), side="right")
    return np.concatenate([np.bincount(column, minlength=CELLS) for column in cell.T]).astype(np.int64)


def knots_from(counts: np.ndarray) -> np.ndarray:
    """The knots at quantiles of values that are counted in cells, (features, 5): the middles of their cells."""
    share = np.cumsum(counts.reshape(-1, CELLS), axis=1) / np.maximum(counts.reshape(-1, CELLS).sum(axis=1), 1)[:, None]
    at = np.stack([(share < quantile - 1e-9).sum(axis=1) for quantile in QUANTILES], axis=1)
    ends = _ends()
    return np.asarray((ends[np.clip(at - 1, 0, CELLS - 2)] + ends[np.clip(at, 0, CELLS - 2)]) / 2)


def _ends() -> np.ndarray:
    return np.linspace(-REACH, REACH, CELLS - 1)


def theta_of(model: Arrays) -> np.ndarray:
    """Parameters of all models that are fitted, (models, P)."""
    return np.asarray(model[THETA] / ONE)
