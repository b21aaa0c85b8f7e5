"""What trains models: the interface of every trainer, of one architecture or several, with trees or in processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsmall.codec import Known, SentModel
from fedsmall.data.federation import Task
from fedsmall.plan import Plan
from fedsmall.training.device import check_room
from fedsmall.training.optimizers import OPTIMIZERS, fresh_state
from fedsmall.training.stack import Stack, Tensors, stacked
from fedsmall.travel.journey import route_at
from fedsmall.travel.schedule import Action, schedule_for
from fedsmall.wire import Arrays, ModelState, Restorable


class Phase(NamedTuple):
    """A local phase: row k trains at ``sites[k]`` in rounds t - rounds + 1 .. t.

    ``arrived``: the models have just come, so moments that are not to travel start afresh. ``closes``: an aggregation
    follows, for which a local rule sends its arrays. ``leaves``: models leave the sites after it. ``route`` is theirs.
    """

    sites: np.ndarray
    t: int
    rounds: int
    arrived: bool = True
    closes: bool = False
    route: int = 0
    leaves: bool = True


def phase_at(plan: Plan, sites: Sequence[int] | np.ndarray, t: int, rounds: int) -> Phase:
    """The phase that a site's own program is ordered to walk: whether models travel before and after, its plan says."""
    federated, schedule = plan.method.is_federated, schedule_for(plan)
    before = t - rounds
    arrived = before == 0 or schedule.action(before) is not Action.TRAIN
    closes = t >= plan.rounds or schedule.action(t) is Action.AGGREGATE
    places = np.asarray(sites, dtype=np.int64)
    return Phase(places, t, rounds, federated and arrived, federated and closes, route_at(plan, t))


class Indices(NamedTuple):
    """The indices of a trainer's sites among all ``sites`` of the federation, in the order of names.

    ``secret``: chance on which privacy rests is the operating system's, as at a real site.
    """

    of_sites: tuple[int, ...]
    sites: int
    secret: bool = False

    @classmethod
    def of_all(cls, sites: int) -> "Indices":
        """Those of a trainer that holds the whole federation."""
        return cls(tuple(range(sites)), sites)


@dataclass(frozen=True)
class TrainInput:
    """The inputs of training besides the models.

    ``is_global`` flags the rows that are the last global model, untouched; ``rule`` is what the server sends for the
    local rule; ``memory`` is that of the training before. Without ``losses`` a trainer may leave losses out, as NaN.
    For remote sites there are also the global models as they are ``sent``, one a group, the ``group`` of every row,
    whether the row ``carries`` something beside, is ``fresh`` from another site, and what global models sites have.
    """

    is_global: Sequence[bool] | np.ndarray | None = None
    rule: Mapping[str, np.ndarray] = field(default_factory=dict)
    memory: Mapping[str, np.ndarray] = field(default_factory=dict)
    losses: bool = True
    sent: Sequence[SentModel] = ()
    group: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    known: Known = field(default_factory=Known)
    carries: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    fresh: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def flags(self, rows: int) -> np.ndarray:
        """``is_global`` as an array, (rows,)."""
        return np.zeros(rows, dtype=bool) if self.is_global is None else np.asarray(self.is_global, dtype=bool)


# Kinds of faults at sites elsewhere, and of the events that say so.
ABSENT = "absent"  # no program was there to be asked
SPOILT = "spoilt"  # numbers that are not finite came
FORGOT = "forgot"  # the site has no model to go on with, and is sent the last global one


class Fault(NamedTuple):
    """Work that cannot be used: a ``kind`` of event and the ``reason``; ``stays``: the site keeps what it was sent."""

    kind: str
    reason: str
    stays: bool = False


class Messages(NamedTuple):
    """What went to remote sites and came back: the bytes of orders, and of each row's answer, (rows,), 0 for none.

    ``carries`` flags answers with something beside the model, and ``models`` those with one, (rows,).
    """

    orders: int
    replies: np.ndarray
    carries: np.ndarray
    models: np.ndarray


class Summed(NamedTuple):
    """A sum of models of which none is known: of which ``sites``, with what each told, (sites,), and the ``total``."""

    sites: tuple[str, ...]
    examples: np.ndarray
    steps: np.ndarray
    total: np.ndarray | None


class Mean(NamedTuple):
    """The plain mean of models {name: (...)}, and the norm of each of them, (models,)."""

    model: Arrays
    norms: np.ndarray


# Takes the mean that a walk has come to; gives the next global model, or None where that walk must be looked at.
Take = Callable[[Mean], Arrays | None]


class TrainResult(NamedTuple):
    """What training gives besides the models.

    For each row: ``loss``, the mean over the steps of the last round; ``steps``, the optimizer steps of the last phase;
    ``examples``, the samples of the last site; ``rule``, what the local rule sends to the server, {"word/parameter":
    (rows, ...)}. ``memory`` is what the sites remember, {name: (sites of the trainer, ...)}. Of remote sites ``lost``
    are the rows without a usable reply, ``notes`` other events, (site, kind, reason), and ``messages`` the bytes on the
    way. ``mean`` is that of all rows where the trainer has made it, which saves an aggregation.
    """

    loss: np.ndarray
    steps: np.ndarray
    examples: np.ndarray
    rule: Arrays
    memory: Arrays
    lost: Mapping[int, Fault] = MappingProxyType({})
    notes: Sequence[tuple[str, str, str]] = ()
    messages: Messages | None = None
    mean: Mean | None = None


class Delivery(Restorable):
    """How models come to sites that are elsewhere, and back; for sites that are here there is nothing to do."""

    def accept(self, rows: Sequence[int]) -> None:
        """Learn that what came of these rows in the last walk is used; the others are put back as they were."""

    def publish(self, t: int, sent: Sequence[SentModel], rule: Arrays) -> None:
        """Learn what the aggregation after round ``t`` has made, as sites are ``sent`` it, and their local rule."""

    def sum_up(self, t: int, group: int, sites: Sequence[str]) -> Summed | None:
        """The secure sum of these sites' models of a group at the aggregation after round ``t``; None for others."""
        return None

    def fetch(self, stack: Stack, rows: Sequence[int]) -> tuple[list[int], int]:
        """Fetch the models of these rows which have stayed at their sites: the rows here now, and the bytes sent."""
        return list(rows), 0


class Trainer(Restorable, ABC):
    """Some sites of a federation, and all that their models need to be trained together.

    ``names`` are the sites', and ``samples`` how many each has. ``path`` says how gradients are computed, and
    ``unmet_need`` why not by the kernel, if that was asked for. Sites of a trainer that ``is_remote`` noise and
    compress what leaves them.
    """

    is_remote = False
    averages = False  # it can :meth:`average`
    delivery = Delivery()

    plan: Plan
    task: Task
    names: tuple[str, ...]
    samples: tuple[int, ...]
    path: str
    unmet_need = ""
    device: torch.device

    @abstractmethod
    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of tensors with a leading axis of models, which it takes for its own; without moments, zeros."""

    @abstractmethod
    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """Train in place through several communication rounds that only move models between sites, phase by phase.

        ``inputs.is_global`` and ``inputs.rule`` belong to the first phase.
        """

    def average(
        self, stack: Stack, model: Arrays, walks: Sequence[Sequence[Phase]], memory: Arrays, take: Take
    ) -> tuple[int, TrainResult | None]:
        """Walk from the global ``model`` to the next and on, as far as ``take`` has one of each mean.

        Nobody's own model is kept: ``stack`` stays. Returns how many ``walks`` were taken, and what the last gave.
        """
        return 0, None

    @abstractmethod
    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs, (samples, outputs), of a model at site number ``site``, in eval mode."""

    def take_events(self) -> list[dict[str, Any]]:
        """What was noted of sites since the last call; of sites that are here nothing is."""
        return []

    def seen(self, x: np.ndarray) -> np.ndarray:
        """Samples as what trains sees them: behind the frozen layers where a model begins with such."""
        return x

    def check_room(self, models: int, like: Arrays) -> None:
        """Raise PlanError, in one line, where so many models ``like`` this and their moments exceed the device."""
        moments = OPTIMIZERS[self.plan.recipe.optimizer].moments(self.plan.recipe)
        check_room(self.device, models, (1 + len(moments)) * sum(array.nbytes for array in like.values()))

    def put_together(
        self, names: Sequence[str], trained: Sequence[str], state: Tensors, carried: Tensors | None = None
    ) -> Stack:
        """A stack of the arrays ``names`` on the device, of which some are ``trained``; moments as :meth:`stack_of`."""
        held = {name: tensor.to(self.device) for name, tensor in state.items()}
        parameters = {name: held[name] for name in trained}
        stack = Stack(tuple(names), parameters, {name: held[name] for name in names if name not in parameters})
        if self.plan.recipe.optimizer_state != "stay":
            moments = {name: tensor.to(self.device) for name, tensor in (carried or {}).items()}
            stack.optimizer = fresh_state(parameters, self.plan.recipe) | moments
        return stack

    def stack(self, states: Sequence[ModelState]) -> Stack:
        """Models with their optimizer states as one stack on the device; moments that did not come start at zero."""
        models = [model_state.model for model_state in states]
        stack = self.stack_of(stacked(models, list(models[0])))
        for row, model_state in enumerate(states):
            for name, array in model_state.carried.items():
                stack.optimizer[name][row] = torch.from_numpy(np.array(array))
        return stack

    def train(self, stack: Stack, sites: Sequence[int] | np.ndarray, t: int, rounds: int, **inputs: Any) -> TrainResult:
        """Train in place: row k at site ``sites[k]`` (none twice) in rounds t - rounds + 1 .. t."""
        return self.walk(stack, [phase_at(self.plan, sites, t, rounds)], TrainInput(**inputs))


class OneModelTrainer(Trainer):
    """A trainer whose sites have one architecture, so that any model can be judged on any samples."""

    @abstractmethod
    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """The outputs of every model on the same samples, in eval mode: (models, samples, outputs)."""

    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs, (samples, outputs), which are the same at every site."""
        outputs: np.ndarray = self.predict(self.stack([ModelState(model)]), x)[0]
        return outputs


class WrappedTrainer(OneModelTrainer):
    """A trainer that has another train for its sites, and changes what goes in or comes out."""

    def __init__(self, plan: Plan, names: Sequence[str], samples: Sequence[int], within: OneModelTrainer) -> None:
        self.plan, self.task, self.names, self.samples = plan, within.task, tuple(names), tuple(samples)
        self.path, self.unmet_need, self.device, self._within = within.path, within.unmet_need, within.device, within

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As :meth:`Trainer.stack_of`."""
        return self._within.stack_of(state, carried)

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """As :meth:`OneModelTrainer.predict`."""
        return self._within.predict(stack, x)

    def seen(self, x: np.ndarray) -> np.ndarray:
        """As :meth:`Trainer.seen`."""
        return self._within.seen(x)
