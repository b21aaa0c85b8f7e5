"""What package.json holds: everything but the weights that is needed from a raw row to a probability."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsmall.data.federation import Federation, Task
from fedsmall.data.outcomes import Kind, kind_of
from fedsmall.data.preparation import Preparation
from fedsmall.data.raw_site import task_with
from fedsmall.errors import PlanError
from fedsmall.parts import Frozen, Options
from fedsmall.plan import Plan

GLOBAL, CENTRAL = "common", "central"  # whose a model is, beside the names of sites
OWN_INTERCEPT = (
    "It holds the intercept of the hospital that made this package: elsewhere it is wrong, and it tells how often the "
    "outcome is there."
)
NO_INTERCEPT = (
    "Each hospital of the run adds an intercept of its own, which stayed there; this is the model without any, which "
    "is that of a new hospital. With two classes `fedsmall predict --prevalence` gives that one."
)
FORMAT = 1  # of this record; a later one that an older release could not read gets another number


class Architecture(Frozen):
    """The network by name, and its options; ``members`` are on a leading axis of the weights."""

    model: str
    options: Options = Field(default_factory=dict, validate_default=True)
    members: int | None = None
    together: Literal["probability", "logit"] = "probability"


class TrainedOn(Frozen):
    """On what a model was trained, in counts: sites, samples, and samples of each class; None where not known."""

    sites: int
    samples: int | None = None
    classes: dict[str, int] | None = None


class Package(Frozen):
    """One model: ``whose`` is "common", "central", or a site that trained it last.

    ``positive`` is the class whose probability is thresholded, None unless there are two. ``performance`` has metrics
    by the name of the samples that they were measured on, ``limits`` are sentences. ``recalibration`` is an intercept
    and a slope for the log-odds of two classes. ``intercept`` is added then: a hospital's own, or by its prevalence.
    """

    format: int = FORMAT
    name: str
    task: str
    method: str
    label: str
    seed: int
    fold: int | None = None
    whose: str = GLOBAL
    architecture: Architecture
    preparation: Preparation
    loss: str
    class_names: tuple[str, ...] = ()
    outputs: int
    positive: str | None = None
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    threshold_from: str = "the default: the likelier class"
    trained_on: TrainedOn
    recalibration: tuple[float, float] | None = None
    intercept: tuple[float, ...] = ()
    performance: dict[str, dict[str, float]] = Field(default_factory=dict)
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rounds: int = 0
    contacts: int = 0
    created: str = ""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def learns(self) -> Task:
        """The task, as a network's function is given it."""
        form = self.preparation.form
        names = form.feature_names if form.kind == "table" else ()
        width = len(self.class_names) or self.outputs
        more: dict[str, Any] = {"class_names": self.class_names, "feature_names": names, "target": self.target}
        return task_with(Task(self.task, self.preparation.shape, width, self.loss, **more), self.preparation)

    @property
    def target(self) -> str | None:
        """The name of the number that is predicted, where it has one."""
        return self.preparation.outcome.name if self.preparation.outcome is not None else None

    @property
    def columns(self) -> tuple[str, ...]:
        """What the numbers of an answer are called in a table: of classes, labels, a number, or a curve's points."""
        if self.kind == "classes" or self.labels:
            return tuple(f"p_{name}" for name in self.class_names or self.labels)
        if self.kind == "times":
            return tuple(f"survival_{cut:g}" for cut in self.cuts)
        return (self.target,) if self.target else tuple(f"y{place}" for place in range(self.outputs))

    def interpret(self, outputs: np.ndarray) -> np.ndarray:
        """What outputs say of an outcome that is no class, in its own unit, (..., outputs) in float64."""
        outcome = self.preparation.outcome
        return np.asarray(outputs, dtype=np.float64) if outcome is None else outcome.interpret(outputs)

    @property
    def kind(self) -> Kind:
        """What is predicted: "classes", "numbers", "times" or "labels"."""
        return kind_of(self.loss)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels of which several may be there at once; none of other outcomes."""
        outcome = self.preparation.outcome
        return outcome.names if outcome is not None and outcome.kind == "findings" else ()

    @property
    def cuts(self) -> tuple[float, ...]:
        """The times at which a survival curve is told; none of other outcomes."""
        outcome = self.preparation.outcome
        return outcome.cuts if outcome is not None and outcome.kind == "survival" else ()


def describe(
    plan: Plan, task: Task, preparation: Preparation, trained_on: TrainedOn, members: int | None, **more: Any
) -> Package:
    """The package of a plan's model; PlanError where sites have models of their own, of which nobody else has all."""
    if plan.has_own_models:
        raise PlanError(
            "sites have models of their own here, of which only a part is common: that part predicts nothing"
        )
    two = task.kind == "classes" and len(task.class_names) == 2
    architecture = Architecture(
        model=plan.model, options=plan.model_options, members=members, together=plan.method.together
    )
    fields: dict[str, Any] = {
        "name": plan.name,
        "task": task.name,
        "method": plan.method.name,
        "label": plan.method.label,
        "seed": plan.seed,
        "fold": plan.fold if plan.folds else None,
        "loss": task.loss,
        "class_names": task.class_names,
        "outputs": task.outputs,
        "positive": task.class_names[1] if two else None,
        "architecture": architecture,
        "preparation": preparation,
        "trained_on": trained_on,
        "limits": limits_of(task, preparation),
    }
    if plan.method.keeps_intercepts and more.get("whose", GLOBAL) == GLOBAL:
        fields["limits"] += (OWN_INTERCEPT if more.get("intercept") else NO_INTERCEPT,)
    return Package(**fields | more)


def members_in(plan: Plan, whose: str, model: Mapping[str, np.ndarray]) -> int | None:
    """How many models answer together in what a run of ``plan`` keeps of ``whose``; None for a single one."""
    return len(next(iter(model.values()), ())) if whose == GLOBAL and plan.method.is_ensemble else None


def count_samples(federation: Federation) -> dict[str, TrainedOn]:
    """On what the models of a federation are trained, in counts, by whose they are."""
    task, train = federation.task, federation.train
    together = count_samples_at(task, [label for samples in train for label in samples.y.ravel()], len(train))
    of_all = together.model_copy(update={"samples": sum(map(len, train))})
    alone = {site: count_samples_at(task, local.y, 1) for site, local in zip(federation.names, train, strict=True)}
    return {GLOBAL: of_all, CENTRAL: of_all, **alone}


def count_samples_at(task: Task, y: Sequence[int] | np.ndarray, sites: int) -> TrainedOn:
    """The counts of samples with the targets ``y`` (samples, ...)."""
    if task.kind != "classes":
        return TrainedOn(sites=sites, samples=len(y))
    names = task.class_names or tuple(map(str, range(task.classes)))
    counts = np.bincount(np.asarray(y), minlength=len(names)).tolist()
    return TrainedOn(sites=sites, samples=len(y), classes=dict(zip(names, counts, strict=True)))


def limits_of(task: Task, preparation: Preparation) -> tuple[str, ...]:
    """What a user must know of how far such a model reaches."""
    sentences = [
        "It is a research model and no medical device: nobody has shown that its use helps a patient.",
        "It was trained on few patients of few sites; other populations, devices and times may differ from them.",
    ]
    form = preparation.form
    if form.kind == "table" and form.categories:
        rule = {"none": "counts as none of those that are listed", "refuse": "is refused"}[form.unlisted]
        sentences.append(f"A category that it was not trained with {rule}.")
    if form.kind == "table" and form.missing:
        middle = "the middle of its public range" if preparation.ranges else "the mean over the training sites"
        sentences.append(f"A missing value becomes {middle if preparation.ranges or preparation.scaled else '0'}.")
    if preparation.scaled or preparation.ranges:
        sentences.append("A value far outside those of training is used and noted; the prediction is then a guess.")
    if task.loss == "hinge":
        sentences.append("It was trained with the hinge loss: its probabilities rank samples, and are not calibrated.")
    elif task.kind in ("classes", "labels"):
        sentences.append("Its probabilities were not calibrated after training.")
    return tuple(sentences)
