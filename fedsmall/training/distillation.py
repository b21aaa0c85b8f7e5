"""One model out of several that answer together: sites train it on their answers to perturbed rows of their own.

Source: Hinton, Vinyals & Dean 2015, "Distilling the knowledge in a neural network"; the rows are mixed as in Zhang et
al. 2018, "mixup", inside a site.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import expit, softmax

from fedsmall.data.federation import Federation, Samples
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import answer
from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for

COPIES = 4  # mixed rows for every row of a site
NOISE = 0.1  # of a feature's standard deviation at the site
SOFT = {"cross_entropy": "soft_cross_entropy", "logistic": "soft_logistic"}

# (site, x) -> (members, samples, outputs); None for no teacher
Teacher = Callable[[str, np.ndarray], np.ndarray | None]


def check_distil(plan: Plan, loss: str) -> None:
    """Raise PlanError where a plan cannot end in one model that is distilled of several."""
    method = plan.method
    if not (method.is_ensemble or method.keep_last):
        raise PlanError("distil makes one model of several that answer together; give groups, snapshots or keep_last")
    if loss not in SOFT:
        raise PlanError(f"distil learns probabilities, and this task's loss is {loss!r}. Leave distil out.")


def distillation(plan: Plan, federation: Federation, teacher: Teacher) -> tuple[Plan, Federation]:
    """The plan, by federated averaging, and the federation of the sites that have a ``teacher``, with its answers."""
    rounds = plan.method.distil
    assert rounds is not None
    method = Method(name="FedAvg", aggregate_every=1, privacy=plan.method.privacy)
    loss, names, train = federation.task.loss, [], []
    for name, samples in zip(federation.names, federation.train, strict=True):
        x = perturb_rows(samples.x, rng_for(plan.seed, "distil", name))
        outputs = teacher(name, x)
        if outputs is not None:
            names.append(name)
            train.append(Samples(x, soft_answers(outputs, loss, plan.method.together).astype(x.dtype)))
    student = plan.model_copy(update={"method": method, "rounds": rounds, "initial_models": "common"})
    task = replace(federation.task, loss=SOFT[loss])
    return student, replace(federation, task=task, names=tuple(names), train=tuple(train), held_out=())


def perturb_rows(x: np.ndarray, rng: np.random.Generator, copies: int = COPIES, noise: float = NOISE) -> np.ndarray:
    """A site's rows, (samples, ...), and ``copies`` of each, mixed with another row and noised."""
    count = len(x) * copies
    share = rng.uniform(size=(count,) + (1,) * (x.ndim - 1))
    mixed = share * np.tile(x, (copies,) + (1,) * (x.ndim - 1)) + (1 - share) * x[rng.integers(len(x), size=count)]
    noised = mixed + noise * x.std(axis=0) * rng.standard_normal(mixed.shape)
    return np.concatenate([x, noised.astype(x.dtype)])


def soft_answers(outputs: np.ndarray, loss: str, together: str = "probability") -> np.ndarray:
    """The probabilities, (samples, classes), of members' ``outputs``; of one output that of the second class."""
    answers = answer(outputs, loss, together)
    return np.asarray(expit(answers) if loss == "logistic" else softmax(answers, axis=-1))
