"""What is predicted where it is no class: a number with a unit, the time until an event, or several labels at once."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, log_expit

from fedsmall.errors import PlanError
from fedsmall.parts import Frozen

Kind = Literal["classes", "numbers", "times", "labels"]
NUMBERS = ("mse", "l1", "huber")  # the losses of tasks that predict numbers
TIMES = ("hazard",)
LABELS = ("binary_cross_entropy",)
LEAST_LABELS = 2  # one is two classes
LEAST_GRADES = 3  # of two, the order says nothing
ORDINAL = "ordinal"  # the loss of classes that have an order, from the lowest to the highest
DEFAULT_LOSS = {"amount": "mse", "survival": "hazard", "findings": "binary_cross_entropy", "grades": ORDINAL}
HUBER = 1.0  # where "huber" turns from squares to distances, in standard deviations of the target (Huber 1964)


def kind_of(loss: str) -> Kind:
    """What a task with this loss predicts."""
    kinds: dict[Kind, tuple[str, ...]] = {"numbers": NUMBERS, "times": TIMES, "labels": LABELS}
    return next((kind for kind, losses in kinds.items() if loss in losses), "classes")


class Amount(Frozen):
    """A number, scaled to mean 0 and spread 1 by its public range ``stated``, or by ``unit``, on which sites agree."""

    kind: Literal["amount"] = "amount"
    name: str
    stated: tuple[float, float] | None = None
    unit: tuple[float, float] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that hold it."""
        return (self.name,)

    @property
    def agrees(self) -> bool:
        """Whether there is anything on which sites have to agree."""
        return self.stated is None

    def with_scaling(self, mean: float, scale: float) -> "Amount":
        """The same once the sites have agreed."""
        return self.model_copy(update={"unit": (mean, scale)})

    @property
    def known(self) -> dict[str, Any]:
        """What a task is told of it, once it is known."""
        return {} if self.agrees and self.unit is None else {"unit": self.mean_and_scale}

    @property
    def mean_and_scale(self) -> tuple[float, float]:
        """The value that is 0 in training, and the difference that is 1."""
        if self.stated is None:
            return self.unit or (0.0, 1.0)
        low, high = self.stated  # as features are scaled by their ranges
        return (low + high) / 2, (high - low) / 12**0.5

    def targets(self, y: np.ndarray) -> np.ndarray:
        """What a model is trained on, (samples, 1), of what was read, (samples, 1)."""
        mean, scale = self.mean_and_scale
        return np.asarray((y - mean) / scale)

    def interpret(self, outputs: np.ndarray) -> np.ndarray:
        """What a model's outputs, or targets, say in the outcome's own unit; of any shape, in float64."""
        mean, scale = self.mean_and_scale
        return np.asarray(np.asarray(outputs, dtype=np.float64) * scale + mean)


class Survival(Frozen):
    """The time until an event, or until nobody looked any more: columns ``name`` and ``event`` (1: it happened).

    A model gives the log-odds of the event in each interval of time, given that it has not happened before. ``stated``
    are the ends of the intervals; without them ``intervals`` of equal length reach to two standard deviations above the
    agreed mean, in two digits, so that nobody tells the longest time. Its likelihood is a sum over patients, and so
    over sites. Source: Gensheimer and Narasimhan 2019; Kvamme and Borgan 2021 (the logistic hazard).
    """

    kind: Literal["survival"] = "survival"
    name: str
    event: str
    intervals: Annotated[int, Field(ge=1)] = 10
    stated: tuple[float, ...] | None = None
    ends: tuple[float, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that hold it."""
        return (self.name, self.event)

    @property
    def cuts(self) -> tuple[float, ...]:
        """The ends of the intervals; 1, 2, 3 and so on before the sites have agreed."""
        return self.stated or self.ends or tuple(float(end + 1) for end in range(self.intervals))

    @property
    def agrees(self) -> bool:
        """Whether there is anything on which sites have to agree."""
        return self.stated is None

    @property
    def known(self) -> dict[str, Any]:
        """What a task is told of it, once it is known."""
        return {} if self.agrees and self.ends is None else {"cuts": self.cuts}

    def with_scaling(self, mean: float, scale: float) -> "Survival":
        """The same once the sites have agreed; PlanError where none may tell a sum of times."""
        if mean <= 0:
            raise PlanError(
                f"no site may tell a sum of {self.name!r}, so intervals cannot be agreed on; state them: cuts = [...]"
            )
        horizon = float(f"{mean + 2 * scale:.2g}")
        ends = np.linspace(0, horizon, self.intervals + 1)[1:]
        return self.model_copy(update={"ends": tuple(float(end) for end in ends)})

    def targets(self, y: np.ndarray) -> np.ndarray:
        """Targets, (samples, 4), of times and events, (samples, 2): intervals survived, event in the next, time, event.

        Who is lost within an interval counts in those before it alone; an event after the last has not happened yet.
        """
        cuts, time = np.array(self.cuts), y[:, 0]
        event = (y[:, 1] > 0) & (time <= cuts[-1])
        through = np.where(event, np.searchsorted(cuts, time), np.searchsorted(cuts, time, side="right"))
        return np.stack([through, event, time, y[:, 1] > 0], axis=1).astype(np.float64)

    def interpret(self, outputs: np.ndarray) -> np.ndarray:
        """The probability of having come through each interval, (..., intervals), of outputs of that shape."""
        return survival_of(outputs)


def survival_of(outputs: np.ndarray) -> np.ndarray:
    """From log-odds of the event in each interval to the probability of being through it: (..., intervals), float64."""
    return np.asarray(np.exp(np.cumsum(log_expit(-np.asarray(outputs, dtype=np.float64)), axis=-1)))


class Findings(Frozen):
    """Several labels for each sample, called ``names``: each is 1 or 0, whatever the others are."""

    agrees: ClassVar[bool] = False
    kind: Literal["findings"] = "findings"
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """All of them in one line."""
        return ", ".join(self.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that hold it."""
        return self.names

    @property
    def known(self) -> dict[str, Any]:
        """What a task is told of it."""
        return {"labels": self.names}

    def targets(self, y: np.ndarray) -> np.ndarray:
        """What a model is trained on, (samples, labels), as it was read."""
        return np.asarray(y, dtype=np.float64)

    def interpret(self, outputs: np.ndarray) -> np.ndarray:
        """The probability of each label, (..., labels), of log-odds of that shape."""
        return np.asarray(expit(np.asarray(outputs, dtype=np.float64)))


Outcome = Annotated[Amount | Survival | Findings, Field(discriminator="kind")]
