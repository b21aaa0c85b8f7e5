"""What patient-level privacy costs in time: a step that clips, and one that clips and adds noise, over a plain one."""

import statistics

import numpy as np
import torch

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.methods import method
from fedsmall.models.registry import build_model, initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.research.bench.timing import Clock
from fedsmall.training.cohort import Cohort
from fedsmall.training.gradients import LOSSES, Batch, MlpGradients, clipped
from fedsmall.training.gradients.layers import prepare_model
from fedsmall.wire import ModelState

TASK = Task("bench-privacy", (64,), 10)
SITES, LOT, ROUNDS = 50, 64, 12
PATIENTS = {"level": "patient", "clip": 1.0, "noise": 1.0, "lot": LOT}


def privacy_over_plain(repeats: int, device: str) -> tuple[float, float]:
    """The time of a clipped step, and of one with lots and noise, over that of a plain one; medians of runs in turn.

    50 sites of 64 samples, all in every step, and an MLP of 17,226 parameters; without the engine around the step.
    """
    rng = rng_for(0, "bench", "privacy")
    names = tuple(f"site-{number:02d}" for number in range(SITES))
    train = tuple(
        Samples(rng.normal(size=(LOT, 64)).astype(np.float32), rng.integers(0, 10, LOT)) for _ in range(SITES)
    )
    federation = Federation(TASK, names, train, train[0])
    plans = [plan_of(), plan_of(privacy=PATIENTS)]
    trainers = [Cohort(plan, TASK, names, federation.train, device=device) for plan in plans]
    steps = [[_step_seconds(clip, federation, device) for clip in (None, 1.0)] for _ in range(repeats)]
    rounds = [[_round_seconds(trainer, device) for trainer in trainers] for _ in range(repeats)]
    clip, noise = (statistics.median(other / plain for plain, other in pairs) for pairs in (steps, rounds))
    return clip, noise


def plan_of(**parts: object) -> Plan:
    """FedAvg at the end of a run, so that only local steps are measured."""
    fedavg = method("FedAvg", aggregate_every=ROUNDS, **parts)
    options = {"hidden": [128, 64]}
    return Plan(name="b", task="t", model_options=options, rounds=ROUNDS, recipe=Recipe(lr=0.01), method=fedavg)


def _round_seconds(trainer: Cohort, device: str) -> float:
    stack = trainer.stack([ModelState(initial_model(trainer.plan, TASK))] * SITES)
    clock = Clock(device)
    trainer.train(stack, range(SITES), ROUNDS, ROUNDS)
    return _spent(clock, device)


def _step_seconds(clip: float | None, federation: Federation, device: str) -> float:
    model = prepare_model(build_model("mlp", TASK, {"hidden": [128, 64]}, rng_for(0, "template")))
    way = MlpGradients(model, LOSSES[TASK.loss])
    descend = way.descend if clip is None else clipped(way, clip).descend  # type: ignore[attr-defined]
    parameters = {name: p.detach().expand(SITES, *p.shape).to(device).clone() for name, p in model.named_parameters()}
    x = torch.from_numpy(np.stack([samples.x for samples in federation.train])).to(device)
    y = torch.from_numpy(np.stack([samples.y for samples in federation.train])).to(device)
    clock = Clock(device)
    with torch.no_grad():
        for _ in range(ROUNDS):
            descend(parameters, Batch(x, y, None, {}), 0.01)
    return _spent(clock, device)


def _spent(clock: Clock, device: str) -> float:
    """Processor time, which other work disturbs least; where a device does the work, the time until it has done it."""
    wall, processor = clock.read()
    return processor if device == "cpu" else wall
