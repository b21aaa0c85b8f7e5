"""The workloads of ``fedsmall bench``: small federations of random samples."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for

TABLE = Task("bench-table", (100,), 2)
LINEAR = Task("bench-linear", (18,), 2, loss="hinge")
TWO = "kernel, two threads"
SYNTHETIC_SAMPLES = 800  # of the task "synthetic", for training
IMAGES = Task("bench-images", (1, 28, 28), 2)


@dataclass(frozen=True)
class Workload:
    """A plan and its federation; ``rounds`` says how many rounds each contender runs in a measurement, by its name.

    ``check`` is the number of rounds after which all contenders' losses are compared.
    """

    key: str
    title: str
    plan: Plan
    task: Task
    sites: int
    samples: int
    rounds: dict[str, int]
    check: int
    targets: dict[str, float] = field(default_factory=dict)

    def federation(self) -> Federation:
        """The task's own samples where the plan says how many sites share them; else a random linear rule and noise.

        Only the former can be built anew by another process, as Ray's actors must.
        """
        if self.plan.sites is not None:
            return build_federation(self.plan)
        names = tuple(f"site-{number:05d}" for number in range(self.sites))
        rng = rng_for(self.plan.seed, "bench", self.key)
        rule = rng.normal(size=int(np.prod(self.task.input_shape)))
        train = tuple(_samples(self.task, self.samples, rule, rng) for _ in names)
        return Federation(self.task, names, train, _samples(self.task, 200, rule, rng))


def _samples(task: Task, count: int, rule: np.ndarray, rng: np.random.Generator) -> Samples:
    x = rng.normal(size=(count, rule.size))
    y = (x @ rule + rng.normal(size=count) > 0).astype(np.int64)
    return Samples(x.reshape(count, *task.input_shape).astype(np.float32), y)


def plan_of(key: str, model: str, rounds: int, aggregate_every: int, recipe: Recipe, aggregator: str = "mean") -> Plan:
    """FedDC with d = 1 on full batches."""
    options: dict[str, Any] = {"mlp": {"hidden": [50, 20]}, "linear": {}}.get(model, {"norm": "batch"})
    feddc = method("FedDC", permute_every=1, aggregate_every=aggregate_every, aggregator=aggregator)
    return Plan(
        name=f"bench-{key}",
        task="synthetic",
        model=model,
        model_options=options,
        rounds=rounds,
        method=feddc,
        recipe=recipe,
    )


def small_mlps(sites: int = 50, samples: int = 10, rounds: int = 2000) -> Workload:
    """Workload A, or one like it."""
    plan = plan_of("A", "mlp", rounds, 200, Recipe(lr=0.001))
    if sites * samples <= SYNTHETIC_SAMPLES:
        plan = plan.model_copy(update={"sites": sites, "samples_per_site": samples})
    return Workload(
        "A",
        f"{sites} sites x {samples} samples, MLP of 6,112 parameters, d = 1, b = 200, {rounds:,} rounds",
        plan,
        TABLE,
        sites,
        samples,
        {"cohort": rounds, "kernel": rounds, TWO: rounds, "bare loop": rounds, "vmap": 300, "JAX": rounds}
        | {"modules": 60, "one by one": 20, "Flower + Ray": 22},
        check=6,
        targets={"bare loop": 0.5, "modules": 15.0, "Flower + Ray": 300.0},
    )


def averaged_every_round() -> Workload:
    """Workload E: the one method that every framework has, on the data and the model of workload A."""
    work = small_mlps()
    rounds = {
        "cohort": 500,
        "kernel": 500,
        TWO: 500,
        "JAX": 500,
        "modules": 60,
        "FedLab": 20,
        "pfl-research": 20,
        "Flower + Ray": 22,
    }
    return replace(
        work,
        key="E",
        title="50 sites x 10 samples, MLP of 6,112 parameters, FedAvg, an average after every round",
        plan=work.plan.model_copy(update={"name": "bench-E", "method": method("FedAvg", aggregate_every=1)}),
        rounds=rounds,
        targets={},
    )


WORKLOADS = {
    "A": small_mlps(),
    "B": Workload(
        "B",
        "441 linear models, 2 samples each, d = 1, iterated Radon point every 50, 500 rounds",
        plan_of("B", "linear", 500, 50, Recipe(lr=0.05), "radon"),
        LINEAR,
        441,
        2,
        {"cohort": 500, "kernel": 500, "bare loop": 500, "vmap": 300, "modules": 20, "one by one": 2},
        check=2,
    ),
    "C": Workload(
        "C",
        "25 sites x 8 images 28 x 28, small CNN with BatchNorm, d = 1, b = 10",
        plan_of("C", "cnn", 10, 10, Recipe(lr=0.01)),
        IMAGES,
        25,
        8,
        {"cohort": 10, "kernel": 10, TWO: 10, "modules": 10},
        check=3,
        targets={"modules": 1.7},
    ),
    "D": Workload(
        "D",
        "12 residual networks (16-32-64), 20 images each, momentum, d = 1, b = 10",
        plan_of("D", "resnet_small", 10, 10, Recipe(lr=0.01, momentum=0.9)),
        IMAGES,
        12,
        20,
        {"cohort": 10, "kernel": 10, TWO: 10, "modules": 10},
        check=2,
        targets={"modules": 1.25},
    ),
    "E": averaged_every_round(),
}
