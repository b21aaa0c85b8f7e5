"""What models of numbers are worth, many models at once: errors in the outcome's own unit, and the share explained.

scikit-learn's ``mean_absolute_error``, ``root_mean_squared_error`` and ``r2_score`` (tests hold them to it); of several
numbers to a sample, their means over the numbers, "rmse" over all at once.
"""

from collections.abc import Collection

import numpy as np

from fedsmall.data.outcomes import HUBER


def loss_of(name: str, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean loss of each model, in the scale of training: outputs (models, samples, numbers) -> (models,)."""
    apart = np.abs(outputs - y)
    if name == "mse":
        apart = apart**2
    elif name == "huber":
        apart = np.where(apart < HUBER, apart**2 / 2, HUBER * (apart - HUBER / 2))
    return np.asarray(apart.reshape(len(apart), -1).mean(axis=1))


def metrics_of(outputs: np.ndarray, y: np.ndarray, scale: float, asked: Collection[str]) -> dict[str, np.ndarray]:
    """Those of "mae", "rmse" and "r2" that are ``asked``, of each model: (models, samples, numbers) -> (models,) each.

    ``scale`` is how much of the outcome's unit is 1 in training. "r2" is NaN of fewer than two samples, and where all
    targets are equal.
    """
    apart = outputs - y
    found: dict[str, np.ndarray] = {}
    if "mae" in asked:
        found["mae"] = np.abs(apart).reshape(len(apart), -1).mean(axis=1) * scale
    if "rmse" in asked:
        found["rmse"] = np.sqrt((apart**2).reshape(len(apart), -1).mean(axis=1)) * scale
    if "r2" in asked:
        found["r2"] = _explained(apart, y)
    return found


def _explained(apart: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coefficient of determination, the mean over the numbers that vary: (models,)."""
    around = ((y - y.mean(axis=0)) ** 2).sum(axis=0)  # (numbers,)
    vary = around > 1e-12 * (y**2).sum(axis=0)
    if len(y) < 2 or not vary.any():
        return np.full(len(apart), np.nan)
    left = (apart**2).sum(axis=1)[:, vary]  # (models, numbers)
    return np.asarray((1 - left / around[vary]).mean(axis=1))


def mean_absolute_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """The mean distance of what was ``predicted`` (samples,) from what was ``true`` (samples,)."""
    return float(np.abs(predicted - true).mean())


def root_mean_squared_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """The root of the mean squared distance."""
    return float(np.sqrt(((predicted - true) ** 2).mean()))


def explained(predicted: np.ndarray, true: np.ndarray) -> float:
    """R2, the coefficient of determination; NaN where all that was true is equal."""
    return float(_explained((predicted - true)[None, :, None], true[:, None])[0])


def mean_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """By how much predictions are too large on average (calibration in the large)."""
    return float((predicted - true).mean())


def calibration_slope(predicted: np.ndarray, true: np.ndarray) -> float:
    """The slope of what was true over what was predicted: 1 where predictions spread as they should, NaN if equal.

    Source: Van Calster et al. 2019, "Calibration: the Achilles heel of predictive analytics", for numbers.
    """
    around = predicted - predicted.mean()
    spread = float((around**2).sum())
    return float((around * true).sum() / spread) if spread > 1e-12 * float((predicted**2).sum()) else float("nan")


STATISTICS = {  # what a report shows of one model
    "mean absolute error": mean_absolute_error,
    "root mean squared error": root_mean_squared_error,
    "R2": explained,
    "mean error (predicted minus true)": mean_error,
    "calibration slope": calibration_slope,
}
