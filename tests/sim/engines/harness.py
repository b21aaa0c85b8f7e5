"""Plans and runs of Algorithm 1 for tests: on a stack, and with messages of which anything may be changed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.frames import header_and_block, join_pieces
from fedsmall.methods import METHODS, method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.evaluation import CentralEvaluator
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.records import array_records
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server import grid as run_grid
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.training.trees import cohort_for

ADAM = Recipe(optimizer="adam", lr=0.01, batch=2, local_epochs=1)
MOMENTUM = Recipe(lr=0.05, momentum=0.5)
RESET = ADAM.model_copy(update={"optimizer_state": "reset"})
PRIVATE = {"privacy": Privacy(clip=0.1, noise=2.0)}
PATIENTS = {"privacy": Privacy(level="patient", clip=0.5, epsilon=3.0, lot=4)}
SGD = Recipe(lr=0.05, local_steps=2)
BLUR = {"privacy": Privacy(blur=1.0)}
SETTINGS: dict[str, dict[str, Any]] = {
    "FedDC": {"permute_every": 1, "aggregate_every": 4},
    "FedAvg": {"aggregate_every": 1},
    "FedProx": {"aggregate_every": 3, "proximal_mu": 0.5},
}


def plan_of(name: str = "FedDC", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    settings = SETTINGS.get(name, {}) if settings is None else settings
    defaults = {
        "name": "test",
        "task": "breast_cancer",
        "sites": 5,
        "samples_per_site": 8,
        "rounds": 9,
        "dtype": "float64",
        "model_options": {"hidden": [6]},
        "method": method(name, **settings),
        "recipe": Recipe(**METHODS[name].recipe | {"lr": 0.05}),
    }
    plan = Plan(**(defaults | changes))
    return plan.with_model_of(plan.sites or 1)


def federation_of(plan: Plan) -> Federation:
    if isinstance(plan.task, dict):
        return table(plan)
    federation = build_federation(plan)
    return federation.pooled() if plan.method.family == "central" else federation


def table(plan: Plan, sites: int = 7, wild: tuple[int, ...] = (), scale: float = 1.7e308) -> Federation:
    """A table of three columns; at wild sites its numbers are so large that no model stays finite, or of that scale."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(sites):
        x, y = rng.standard_normal((8, 3)), np.arange(8) % 2
        samples.append(Samples(np.sign(x) * scale if number in wild else x, y))
    hinge = isinstance(plan.task, dict)
    task = Task("table", (3,), 2, "hinge" if hinge else "cross_entropy", ("accuracy", "loss"))
    names = tuple(f"site-{number}" for number in range(sites))
    return Federation(task, names, tuple(samples), Samples(rng.standard_normal((10, 3)), np.arange(10) % 2))


def batched(plan: Plan, federation: Federation | None = None) -> Outcome:
    federation = federation or federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    return run_rounds(
        plan,
        trainer,
        lambda site: initial_model(plan, federation.task, site),
        evaluator=CentralEvaluator(plan, federation, trainer),
    )


@dataclass
class ByMessages:
    """A run over a grid, of which anything may be changed before it begins."""

    plan: Plan
    grid: Any
    initial: Callable[[str | None], Any]
    evaluator: Any = None
    progress: Any = None
    stop: Any = None
    journal: Any = None
    in_pieces: bool = True
    roster: Roster = field(default_factory=Roster)

    @cached_property
    def sites(self) -> GridTrainer:
        """The sites, which have answered the handshake."""
        return GridTrainer(self.plan, self.grid, roster=self.roster)

    def run(self) -> Outcome:
        return run_rounds(
            self.plan,
            self.sites,
            self.initial,
            evaluator=self.evaluator,
            progress=self.progress,
            stop=self.stop,
            journal=self.journal,
            in_pieces=self.in_pieces,
        )


def loop_of(plan: Plan, federation: Federation | None = None, **more: Any) -> ByMessages:
    federation = federation or federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    give_federation(plan, federation)
    return ByMessages(
        plan,
        InProcessGrid(app, len(federation.names)),
        lambda site: initial_model(plan, federation.task, site),
        CentralEvaluator(plan, federation, trainer),
        **more,
    )


def assert_alike(one: Outcome, other: Outcome, atol: float = 1e-9) -> None:
    assert (one.model is None) == (other.model is None)
    for name, array in (one.model or {}).items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=atol)
    for counted in ("comm_rounds", "rounds", "bytes_sent", "client_updates", "privacy"):
        assert getattr(one, counted) == getattr(other, counted), counted
    assert [(e["t"], e["site"], e["kind"]) for e in one.events] == [
        (e["t"], e["site"], e["kind"]) for e in other.events
    ]
    assert len(one.evaluations) == len(other.evaluations)
    for mine, theirs in zip(one.evaluations, other.evaluations, strict=True):
        assert (mine.t, mine.sites.get("names")) == (theirs.t, theirs.sites.get("names"))
        assert mine.sites.get("loss_mean") == pytest.approx(theirs.sites.get("loss_mean"), abs=1e-8)
        assert (mine.common or {}) == pytest.approx(theirs.common or {}, abs=1e-8)


def assert_equal_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def plan_for(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """A plan that the method can run; a Radon point needs more sites than a model has parameters, in general position:
    two outputs of a softmax are not, and one of a hinge is.
    """
    if "Radon" in name:
        few = {"task": {"name": "table"}, "sites": None, "samples_per_site": None, "initial_models": "independent"}
        changes |= {**few, "model": "linear", "model_options": {}}
    return plan_of(name, settings, **changes)


class Weighed(InProcessGrid):
    """Weighs what is in every message that goes through: all arrays of its frame, the header of the block apart."""

    def __init__(self, sites: int) -> None:
        super().__init__(app, sites)
        self.arrays = self.frames = 0

    def send_and_receive(self, messages: Iterable[Message], **more: Any) -> list[Message]:
        orders = list(messages)
        for order in orders:
            self._weigh(order.content)
        replies = list(super().send_and_receive(orders, **more))
        for reply in replies:
            self._weigh(reply.content)
        return replies

    def _weigh(self, content: RecordDict) -> None:
        if not array_records(content):
            return  # the handshake
        packed, size = run_grid.pack(content)
        _, block = header_and_block(join_pieces(packed.config_records.values()))
        self.frames += size
        self.arrays += len(block) - 8 - int.from_bytes(block[:8], "little")  # safetensors: a length, JSON, numbers


class OftenSilent(InProcessGrid):
    """A third of the sites, drawn anew, do not answer an order to train."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        orders = list(messages)
        if any(order.metadata.message_type != "train" for order in orders):
            return super().send_and_receive(orders, timeout=timeout)
        self.asked = getattr(self, "asked", 0) + 1
        hears = np.random.default_rng(self.asked).random(len(orders)) > 1 / 3
        hears[self.asked % len(orders)] |= not hears.any()  # where nobody answers a run ends
        self.silences = getattr(self, "silences", 0) + int((~hears).sum())
        return super().send_and_receive([o for o, there in zip(orders, hears, strict=True) if there], timeout=timeout)


def run_in_pieces(plan: Plan, folder: Path) -> Outcome:
    """A run that is stopped after every round, and taken up by a new server; the sites are there all the time."""
    grid = loop_of(plan).grid
    for _ in range(60):
        loop = loop_of(plan, journal=FileJournal(folder), stop=lambda: True)
        loop.grid = grid
        outcome = loop.run()
        if not outcome.stopped:
            return outcome
    raise AssertionError("a run of so few rounds has ended by now")
