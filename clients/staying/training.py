"""How a site trains a model that may stay, and what it answers: the model, or a word."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsmall.algorithm.dynamic import squared_distances
from fedsmall.clients.hospital import HospitalClient, NDArrays
from fedsmall.clients.memory import Memory
from fedsmall.clients.sealing.contents import fault_of
from fedsmall.clients.staying.kept import Kept, StayingMemory
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import told_samples
from fedsmall.wire import (
    COMMON,
    FORGOT,
    LEAVES,
    MODEL,
    NAMES,
    REFERENCE,
    ROUND,
    STEPS,
    UNSOUND,
    WITHIN,
    Arrays,
    join,
    split,
    stack_of_one,
)

Fitted = tuple[NDArrays, int, dict[str, Any]]  # what a NumPyClient gives: arrays, samples, metrics


def memory_for(plan: Plan, memory: Memory) -> Memory:
    """The memory as a client of this plan uses it."""
    return StayingMemory(memory) if plan.method.is_dynamic else memory


def fitted(client: HospitalClient, arrays: Arrays, config: dict[str, Any]) -> Fitted:
    """Train what came, or the model that has stayed; ``client.sent_names`` names the arrays that leave, if any do."""
    if not isinstance(client.memory, StayingMemory):
        return client.fit(list(arrays.values()), named(config, arrays))
    before = _set_out(client.memory, split(arrays, MODEL), config)
    if before is None:
        client.sent_names = []
        return [], told_samples(client.plan, len(client.home.train)), {STEPS: 1, FORGOT: 1}
    came = join(**{MODEL: before.model})
    _, examples, metrics = client.fit(list(came.values()), named(config, came))
    now, word = _trained(client, before, int(metrics[STEPS]))
    client.memory.keep(now)
    if word is not None:
        metrics = {STEPS: metrics[STEPS]}  # a loss may be no number
    if word is None and not _leaves(client.plan, now, config):
        word = WITHIN
    sent = _sent(client, now) if word is None else {}
    client.sent_names = list(sent)
    return list(sent.values()), examples, {**metrics, **({word: 1} if word else {})}


def named(config: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The words of an order with the names of the arrays that a NumPyClient is given."""
    return {**config, NAMES: list(arrays)}


def asked_for(client: HospitalClient, config: Mapping[str, Any]) -> Arrays:
    """The model that has stayed here, as it was trained in this very round. Raises PlanError where there is none."""
    kept = client.memory.kept() if isinstance(client.memory, StayingMemory) else None
    if kept is None or kept.of != config.get(REFERENCE):
        raise PlanError("this site has no model of this run that stays here")
    return _sent(client, kept)


def _set_out(memory: StayingMemory, model: Arrays, config: Mapping[str, Any]) -> Kept | None:
    """Where the training sets out from; None where the site does not know it any more."""
    of, kept = int(config[REFERENCE]), memory.kept()
    if model and config[COMMON]:
        return Kept(model, model, model, of, 0)
    if kept is None or kept.of != of:
        return None
    return kept._replace(model=model, sent=model, since=0) if model else kept


def _trained(client: HospitalClient, before: Kept, steps: int) -> tuple[Kept, str | None]:
    """What is kept after a training; where that made no model, it is what was there before, and a word says so."""
    fault = fault_of(client.trained, {}, before.model, before.reference, float(client.plan.method.gate))
    if fault is not None:
        return before, UNSOUND
    model = {name: np.array(array) for name, array in client.trained.items()}
    return before._replace(model=model, since=before.since + steps), None


def _leaves(plan: Plan, now: Kept, config: Mapping[str, Any]) -> bool:
    """Whether a model is sent unasked: it is beyond the bound, or the run ends."""
    if not config.get(LEAVES, True):
        return False
    assert plan.method.divergence is not None
    apart = float(squared_distances(stack_of_one(now.model), now.reference)[0])
    return int(config[ROUND]) >= plan.rounds or apart > plan.method.divergence


def _sent(client: HospitalClient, kept: Kept) -> Arrays:
    """The model on its way; the site's own check is to compare it with what its receiver knows of it."""
    client.set_out, client.steps = join(**{MODEL: kept.sent}), kept.since
    return join(**{MODEL: kept.model})
