"""What an ensemble is worth as one model: the ordinary loop once more, on its answers to the sites' own rows."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from fedsmall.evaluation.metrics import evaluate
from fedsmall.federation import Federation
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.sim.engines.cohort import run_cohort
from fedsmall.training.distillation import distillation
from fedsmall.training.trainer import OneModelTrainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import Arrays, stack_of_one


class Distilled(NamedTuple):
    """One model made of several, what it is worth on the common test set, and what its way cost."""

    model: Arrays
    metrics: dict[str, float]
    rounds: int
    bytes_sent: int


def distilled(plan: Plan, federation: Federation, members: Arrays | None, kept: Mapping[str, Arrays]) -> Distilled:
    """The model that sites distil of an ensemble's ``members``; where there are none, each site of what it ``kept``.

    Trained by the batched engine whatever the run was on: it is the same federated averaging everywhere.
    """
    teachers = cohort_for(plan, federation.task, federation.names, federation.train)
    assert isinstance(teachers, OneModelTrainer)

    def teacher(site: str, x: np.ndarray) -> np.ndarray | None:
        models = members if members is not None else kept.get(site)
        return None if models is None else _outputs(teachers, models, x)

    student, answers = distillation(plan, federation, teacher)
    trainer = cohort_for(student, answers.task, answers.names, answers.train)
    outcome = run_cohort(student, trainer, lambda site: initial_model(student, answers.task, site))
    assert outcome.model is not None
    outputs = _outputs(teachers, stack_of_one(outcome.model), federation.test.x)[0]
    metrics = evaluate(outputs, federation.test.y, federation.task)
    told = {name: float(value) for name, value in metrics.items() if not np.isnan(value)}
    return Distilled(outcome.model, told, outcome.rounds, outcome.bytes_sent)


def _outputs(trainer: OneModelTrainer, models: Arrays, x: np.ndarray) -> np.ndarray:
    state = {name: torch.from_numpy(np.array(array)) for name, array in models.items()}
    return trainer.predict(trainer.stack_of(state), x)
