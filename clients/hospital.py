"""The Flower NumPyClient of a hospital."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Scalar

from fedsmall import wire
from fedsmall.algorithm.dynamic import squared_distances
from fedsmall.audit_log import digest_of
from fedsmall.clients.key_store import fault_of
from fedsmall.clients.memory import Kept, Memory, StayingMemory
from fedsmall.clients.site_data import SiteData
from fedsmall.codec import CodecError, base_of, cut_at_site, pack, unpack
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.intercepts import fit_intercept
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import answer, members_of
from fedsmall.evaluation.site_sums import by_folds, metric_sums
from fedsmall.evaluation.stopping import reported_shapes
from fedsmall.models.registry import frozen_arrays, initial_model
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import reported_samples
from fedsmall.privacy.site_level import noise_for_comm_round, privatise_one, tells_loss
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.training.stack import leaving_state
from fedsmall.training.trainer import Trainer
from fedsmall.wire import Arrays, ModelState, split

NDArrays = list[np.ndarray]


class HospitalClient(NumPyClient):
    """Trains and evaluates models at one site; holds the site's data.

    Arrays of ``fit`` and ``evaluate`` are a model and what travels with it, by ``config["names"]`` ("arrays/0.weight").

    Parameters
    ----------
    home
        The site's samples, ready to train on.
    plan
        What is trained, and how.
    trainer
        The core in which the site trains, alone or among others.
    memory, kept
        What outlives a communication round of the site, and the same of compressed models on their way.
    noise_key
        A secret, from which a real site draws the same noise for the same update: asking again tells no more.
    """

    def __init__(
        self, home: SiteData, plan: Plan, trainer: Trainer, memory: Memory, kept: Memory, noise_key: bytes | None = None
    ) -> None:
        self.home, self.plan, self.trainer, self.noise_key = home, plan, trainer, noise_key
        self.memory, self.kept = memory, kept
        self.sent_names: list[str] = []
        self.trained: Arrays = {}  # as it was trained, before anything is done to it for its way out
        self.set_out: Arrays = {}  # what came, as on the wire, from which what leaves has been trained,
        self.steps = 0  # in so many steps of an optimizer
        self.answered = np.zeros((0, 1))  # what the model that was judged last says of the held-out samples
        self.intercept = np.zeros(1)  # what this site adds to it, for its own eyes

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """The answer at the handshake: site, task, model signature and number of samples."""
        plan, task = self.plan, self.home.task
        return {
            "site": self.home.site,
            "task": json.dumps(asdict(task)),
            "signature": signature_of(initial_model(plan, task), frozen_arrays(plan, task)),
            "num-examples": reported_samples(self.plan, len(self.home.train)),
        }

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train for ``config["rounds"]`` rounds up to ``config["round"]``; ``sent_names`` names what goes back."""
        received = _by_name(parameters, config)
        stack = self.trainer.stack([ModelState(split(received, wire.MODEL), split(received, wire.CARRIED))])
        inputs = {
            "is_global": [bool(config[wire.IS_GLOBAL])],
            "rule": split(received, wire.RULE),
            "memory": self.memory.read(),
        }
        trained = self.trainer.train(stack, [0], int(config[wire.ROUND]), int(config[wire.ROUNDS]), **inputs)
        if trained.memory:
            self.memory.write(trained.memory)
        held = stack.model_state(0)
        self.trained = held.model
        model = self._leaving(held.model, split(received, wire.MODEL), config)
        stays = not config.get(wire.LEAVES, True)
        carried = held.carried if stays else leaving_state(self.plan.recipe, held.carried)
        sent = wire.join(**{wire.MODEL: model, wire.CARRIED: carried, wire.RULE: wire.first_of(trained.rule)})
        self.sent_names = list(sent)
        self.set_out, self.steps = received, int(trained.steps[0])
        metrics: dict[str, Scalar] = {wire.STEPS: self.steps}
        if tells_loss(self.plan):
            metrics[wire.LOSS] = float(trained.loss[0])
        return list(sent.values()), reported_samples(self.plan, int(trained.examples[0])), metrics

    def _leaving(self, model: Arrays, received: Arrays, config: dict[str, Scalar]) -> Arrays:
        """The model as it may leave: clipped and noised, or blurred, and sparsified, as the plan asks."""
        share = self.plan.method.top_share
        if self.plan.privacy.at_comm_rounds and config.get(wire.LEAVES, True):
            key = None if self.home.simulated else secrets.token_bytes(32)
            if self.noise_key is not None:
                key = key_for(self.noise_key, model)
            noise = noise_for_comm_round(self.plan.seed, self.home.site, int(config[wire.ROUND]), key)
            model = privatise_one(model, received, self.plan.privacy, noise)
        if share is not None:
            model, kept = cut_at_site(model, received, self.kept.read(), config, share)
            self.kept.write(kept)
        return model

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """The (loss, samples, metrics) of a model or an ensemble on what the site has held out."""
        held_out = self.home.held_out
        if held_out is None or len(held_out) == 0:
            return 0.0, 0, {}
        self.answered = self._outputs(self._members(_by_name(parameters, config)), held_out.x)  # (samples, outputs)
        metrics = self._metrics(self.answered, held_out)
        return metrics["loss"], len(held_out), dict(metrics)

    def adjust(self, arrays: Arrays) -> dict[str, float]:
        """Fit the site's own intercept to a final model; the metrics with it here. Neither is for anybody else."""
        train, held_out, members = self.home.train, self.home.held_out, self._members(arrays)
        self.intercept = fit_intercept(self._outputs(members, train.x), train.y, self.home.task.loss)
        if held_out is None or len(held_out) == 0:
            return {}
        return self._metrics(self._outputs(members, held_out.x) + self.intercept, held_out)

    def validate(
        self, arrays: Arrays, config: Mapping[str, Any], rows: np.ndarray | None = None, floor: int = 1
    ) -> Arrays:
        """Sums of models over samples of the site that they never saw, or over ``rows`` of these.

        With routes these are the training samples, else those kept back. Where folds are of samples, the models of all
        routes come, and each sample is judged by its own fold's. Empty for few samples; PlanError where none are asked.
        """
        method, shapes = self.plan.method, reported_shapes(self.plan, self.home.task)
        samples = self.home.train if method.routes else self.home.kept_back
        if samples is None:
            raise PlanError("the plan does not ask sites to judge models on samples that these never saw")
        rows = np.arange(len(samples)) if rows is None else rows
        if len(rows) < max(1, floor, method.floor):
            return {}
        x, y, members = samples.x[rows], samples.y[rows], self._members(arrays)
        if not method.by_samples:
            sums = metric_sums(self._outputs(members, x), y, self.home.task)
            return {name: sums[name] for name in shapes}
        of_routes = _of_routes(members, config, method.routes)
        folds = folds_of_samples(self.plan, self.home.site, samples)[rows]
        outputs = by_folds(folds, x, lambda route, some: self._outputs(of_routes[route], some))
        return metric_sums(outputs, y, self.home.task)

    def _members(self, arrays: Arrays) -> list[Arrays]:
        return members_of(split(arrays, wire.MODEL), self.plan.method.is_ensemble)

    def _metrics(self, outputs: np.ndarray, samples: Samples) -> dict[str, float]:
        return {name: float(value) for name, value in evaluate(outputs, samples.y, self.home.task).items()}

    def _outputs(self, members: Sequence[Arrays], x: np.ndarray) -> np.ndarray:
        site, memory = self.trainer.names.index(self.home.site), self.memory.read()
        outputs = [self.trainer.predict_at(site, member, x, memory) for member in members]
        return answer(np.stack(outputs), self.home.task.loss, self.plan.method.together)


def unpack_order(plan: Plan, task: Task, arrays: Arrays, config: Mapping[str, Any], kept: Memory) -> Arrays:
    """An order's arrays, decompressed. Raises PlanError where they are broken.

    ``kept`` is the site's memory of models that came before.
    """
    if not plan.method.is_compressed:
        return arrays
    try:
        base = base_of(kept.read(), config) if plan.method.top_share is not None else None
        return unpack(plan, arrays, initial_model(plan, task), base)
    except CodecError as error:
        raise PlanError(f"the order brings no model of this run: {error}") from None


def pack_reply(plan: Plan, site: str, sent: Arrays, config: Mapping[str, Any], received: Arrays) -> Arrays:
    """The reply's arrays, compressed for who sent ``received``; in full where the model does not leave."""
    leaves = config.get(wire.LEAVES, True)
    return pack(plan, sent, site, int(config[wire.ROUND]), split(received, wire.MODEL)) if leaves else sent


def key_for(key: bytes, arrays: Arrays) -> bytes:
    """A key for these arrays alone, of the site's secret one."""
    return blake2b(digest_of(arrays).encode(), digest_size=32, key=key).digest()


def signature_of(model: Arrays, frozen: Arrays | None = None) -> str:
    """A model's signature: it differs where names, shapes, dtypes or the ``frozen`` numbers do."""
    description = json.dumps([[name, array.shape, str(array.dtype)] for name, array in model.items()])
    numbers = sum(array.size for array in model.values())
    signature = f"{len(model)} arrays, {numbers} numbers, {blake2b(description.encode(), digest_size=8).hexdigest()}"
    return f"{signature}, frozen {digest_of(frozen)[:16]}" if frozen else signature


def _by_name(parameters: NDArrays, config: dict[str, Any]) -> Arrays:
    return dict(zip(config[wire.NAMES], parameters, strict=True))


def _of_routes(members: list[Arrays], config: Mapping[str, Any], routes: int) -> list[list[Arrays]]:
    """The members of each route. Raises PlanError where an order's counts do not fit its models."""
    counts: list[int] = list(config.get(wire.MEMBERS, ()))
    if len(counts) != routes or sum(counts) != len(members) or min(counts) < 1:
        raise PlanError("the order does not say which of the models that came belong to which route")
    ends = np.cumsum(counts).tolist()
    return [members[end - count : end] for count, end in zip(counts, ends, strict=True)]


Fitted = tuple[NDArrays, int, dict[str, Any]]  # what a NumPyClient gives: arrays, samples, metrics


def memory_for(plan: Plan, memory: Memory) -> Memory:
    """The memory as a client of this plan uses it."""
    return StayingMemory(memory) if plan.method.is_dynamic else memory


def fit_or_stay(client: HospitalClient, arrays: Arrays, config: dict[str, Any]) -> Fitted:
    """Train what came, or the model that has stayed; ``client.sent_names`` names the arrays that leave."""
    if not isinstance(client.memory, StayingMemory):
        return client.fit(list(arrays.values()), _with_names(config, arrays))
    before = _set_out(client.memory, split(arrays, wire.MODEL), config)
    if before is None:
        client.sent_names = []
        return [], reported_samples(client.plan, len(client.home.train)), {wire.STEPS: 1, wire.FORGOT: 1}
    received = wire.join(**{wire.MODEL: before.model})
    _, examples, metrics = client.fit(list(received.values()), _with_names(config, received))
    now, word = _trained(client, before, int(metrics[wire.STEPS]))
    client.memory.keep(now)
    if word is not None:
        metrics = {wire.STEPS: metrics[wire.STEPS]}  # a loss may be no number
    if word is None and not _leaves(client.plan, now, config):
        word = wire.WITHIN
    sent = _sent(client, now) if word is None else {}
    client.sent_names = list(sent)
    return list(sent.values()), examples, {**metrics, **({word: 1} if word else {})}


def _with_names(config: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    return {**config, wire.NAMES: list(arrays)}


def stayed_model(client: HospitalClient, config: Mapping[str, Any]) -> Arrays:
    """The model that has stayed here, trained in this very round. Raises PlanError where there is none."""
    kept = client.memory.read_kept() if isinstance(client.memory, StayingMemory) else None
    if kept is None or kept.of != config.get(wire.REFERENCE):
        raise PlanError("this site has no model of this run that stays here")
    return _sent(client, kept)


def _set_out(memory: StayingMemory, model: Arrays, config: Mapping[str, Any]) -> Kept | None:
    """The model from which training starts; None where the site does not know it any more."""
    of, kept = int(config[wire.REFERENCE]), memory.read_kept()
    if model and config[wire.IS_GLOBAL]:
        return Kept(model, model, model, of, 0)
    if kept is None or kept.of != of:
        return None
    return kept._replace(model=model, sent=model, since=0) if model else kept


def _trained(client: HospitalClient, before: Kept, steps: int) -> tuple[Kept, str | None]:
    """What is kept after a training; where that made no sound model, what was before, and a word."""
    fault = fault_of(client.trained, {}, before.model, before.reference, float(client.plan.method.gate))
    if fault is not None:
        return before, wire.UNSOUND
    model = {name: np.array(array) for name, array in client.trained.items()}
    return before._replace(model=model, since=before.since + steps), None


def _leaves(plan: Plan, now: Kept, config: Mapping[str, Any]) -> bool:
    """Whether a model is sent unasked: beyond the bound, or at the run's end."""
    if not config.get(wire.LEAVES, True):
        return False
    assert plan.method.divergence is not None
    apart = float(squared_distances(wire.stack_of_one(now.model), now.reference)[0])
    return int(config[wire.ROUND]) >= plan.rounds or apart > plan.method.divergence


def _sent(client: HospitalClient, kept: Kept) -> Arrays:
    """The model on its way; the site's own check compares it with what its receiver has."""
    client.set_out, client.steps = wire.join(**{wire.MODEL: kept.sent}), kept.since
    return wire.join(**{wire.MODEL: kept.model})
