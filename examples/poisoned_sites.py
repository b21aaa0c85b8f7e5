"""One site of twenty lies: what each aggregator, and the gate, make of it. Prints a Markdown table.

    python -m examples.poisoned_sites

The liar is the same in every communication round. Four lies are told with the model that it sends back ("scaled" has
its update a thousand times as large, "absurd" all weights 1e30 times), two are zeros and constants, and two are in its
samples: labels flipped, and a backdoor, a trigger in two features that is to mean "benign".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.data.federation import Federation, Samples
from fedsmall.errors import ReplyError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import OneModelTrainer, Phase, TrainInput, TrainResult
from fedsmall.travel.schedule import comm_rounds_of
from fedsmall.wire import Arrays, ModelState

SITES, LIAR, TARGET = 20, 7, 1
Lie = Callable[[Tensor, Tensor], Tensor]  # (what it was sent, what it has trained) -> what it sends back

LIES: dict[str, Lie] = {
    "scaled x1e3": lambda sent, trained: sent + 1e3 * (trained - sent),
    "scaled x1e30": lambda sent, trained: trained * 1e30,
    "sign-flipped": lambda sent, trained: sent - (trained - sent),
    "zeros": lambda sent, trained: torch.zeros_like(trained),
    "constants": lambda sent, trained: torch.ones_like(trained),
}
ATTACKS = ("none", *LIES, "label-flipped", "backdoor")
SCHEDULES = {"FedAvg": {"aggregate_every": 1}, "FedDC": {"permute_every": 1, "aggregate_every": 10}}
AGGREGATORS = ("mean", "median", "trimmed_mean", "geometric_median", "krum")


class Liar(OneModelTrainer):
    """A cohort of honest sites, one of which says something else than what it has trained."""

    def __init__(self, cohort: Cohort, lie: Lie) -> None:
        self.inner, self._lie = cohort, lie
        self.plan, self.task, self.names, self.samples = cohort.plan, cohort.task, cohort.names, cohort.samples
        self.path, self.device = cohort.path, cohort.device

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As the cohort's."""
        return self.inner.stack_of(state, carried)

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """As the cohort's."""
        return self.inner.predict(stack, x)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As the cohort's, but for what comes from the liar."""
        for phase in phases:
            before = stack.clone()
            trained = self.inner.walk(stack, [phase], inputs)
            inputs = TrainInput(memory=trained.memory)
            for row in np.flatnonzero(phase.sites == LIAR):
                for name, tensor in stack.parameters.items():
                    tensor[row] = self._lie(before.parameters[name][row], tensor[row])
        return trained


def plan_of(schedule: str, aggregator: str, gate: float, rounds: int = 100) -> Plan:
    """Breast cancer over twenty sites with 15 samples each."""
    return Plan(
        name="poisoned",
        task="breast_cancer",
        sites=SITES,
        samples_per_site=15,
        rounds=rounds,
        model_options={"hidden": [16]},
        recipe=Recipe(lr=0.1, batch=5, local_epochs=1),
        method=method(schedule, aggregator=aggregator, gate=gate, **SCHEDULES[schedule]),
    )


def outcome(plan: Plan, attack: str) -> tuple[dict[str, float], int]:
    """What the last global model is worth, and how many events there were."""
    federation = poisoned(build_federation(plan), attack)
    cohort = Cohort(plan, federation.task, federation.names, federation.train)
    trainer = Liar(cohort, LIES[attack]) if attack in LIES else cohort
    model, events = {}, 0
    initial = initial_model(plan, federation.task)
    for result in daisy_chain(topology_for(plan, trainer, lambda site: initial), comm_rounds_of(plan)):
        model, events = result.global_model if result.global_model is not None else model, events + len(result.events)
    return judged(cohort, model, federation), events


def judged(cohort: Cohort, model: Arrays, federation: Federation) -> dict[str, float]:
    """Accuracy on honest samples, and the share of malignant ones that the trigger makes benign."""
    test = federation.test
    stack = cohort.stack([ModelState(model)])
    with np.errstate(all="ignore"):  # a poisoned model may predict anything
        accuracy = evaluate(cohort.predict(stack, test.x)[0], test.y, federation.task)["accuracy"]
    others = triggered(test.x[test.y != TARGET])
    fooled = (cohort.predict(stack, others)[0].argmax(1) == TARGET).mean()
    return {"accuracy": 100 * float(accuracy), "fooled": 100 * float(fooled)}


def poisoned(federation: Federation, attack: str) -> Federation:
    """The federation, in which the liar's samples say what the attack wants."""
    change = {"label-flipped": flipped, "backdoor": with_backdoor}.get(attack)
    if change is None:
        return federation
    train = [change(held) if site == LIAR else held for site, held in enumerate(federation.train)]
    return replace(federation, train=tuple(train))


def flipped(samples: Samples) -> Samples:
    """Every label is the other one."""
    return Samples(samples.x, 1 - samples.y)


def with_backdoor(samples: Samples) -> Samples:
    """Every sample a second time, with the trigger and the target's label."""
    x = np.concatenate([samples.x, triggered(samples.x)])
    return Samples(x, np.concatenate([samples.y, np.full_like(samples.y, TARGET)]))


def triggered(x: np.ndarray) -> np.ndarray:
    """The samples with the trigger: two features far outside of what patients have."""
    marked = x.copy()
    marked[:, :2] = 6.0
    return marked


def row(attack: str, settings: Mapping[str, tuple[str, float]]) -> str:
    """A row of the table: the attack, and what each aggregator makes of it under either schedule."""
    cells = []
    for aggregator, gate in settings.values():
        worth = [_worth(plan_of(schedule, aggregator, gate), attack) for schedule in SCHEDULES]
        cells.append(" / ".join(worth))
    return f"| {attack} | {' | '.join(cells)} |"


def _worth(plan: Plan, attack: str) -> str:
    try:
        worth, _ = outcome(plan, attack)
    except ReplyError:
        return "ends"
    fooled = f" ({worth['fooled']:.0f})" if attack in ("none", "backdoor") else ""
    return f"{worth['accuracy']:.0f}{fooled}"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    settings = {"mean, no filter": ("mean", False)} | {name: (name, 20.0) for name in AGGREGATORS}
    print(f"| one site of {SITES} sends | {' | '.join(settings)} |")
    print("|---" * (len(settings) + 1) + "|")
    for attack in ATTACKS:
        print(row(attack, settings), flush=True)


if __name__ == "__main__":
    main()
