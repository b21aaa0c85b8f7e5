"""The ClientApp: the adapter between Flower's messages and the NumPyClient.

A bare ``ClientApp(client_fn)`` would not understand the messages of message-based strategies.
"""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsmall import __version__, wire
from fedsmall.clients.hospital import HospitalClient, fit_or_stay, memory_for, pack_reply, stayed_model, unpack_order
from fedsmall.clients.memory import TRAVEL, ContextMemory
from fedsmall.clients.site_data import SiteData, simulated_site
from fedsmall.data.federation import Samples
from fedsmall.plan import Plan
from fedsmall.replicas import plan_at
from fedsmall.training.trainer import Indices, Trainer
from fedsmall.training.trees import cohort_for

MOST_COHORTS = 1024
DEVICE, DEVICE_VARIABLE = "device", "FEDSMALL_DEVICE"  # where a site trains: a key of its node, or of its environment


def query(message: Message, context: Context) -> Message:
    """Answer the handshake."""
    client = _client(message, context)
    answer = ConfigRecord({**client.get_properties({}), "version": __version__, "protocol": wire.PROTOCOL})
    return Message(RecordDict({wire.CONFIG: answer}), reply_to=message)


def train(message: Message, context: Context) -> Message:
    """Train the model that came, and send it back."""
    client = _client(message, context)
    config: dict[str, Any] = dict(message.content.config_records[wire.CONFIG])
    arrays = unpack_order(client.plan, client.home.task, arrays_of(message.content), config, client.kept)
    leaving, examples, metrics = fit_or_stay(client, arrays, config)
    sent = dict(zip(client.sent_names, leaving, strict=True))
    records = records_of(pack_reply(client.plan, client.home.site, sent, config, arrays))
    return Message(RecordDict({wire.METRICS: _metrics(examples, metrics), **records}), reply_to=message)


def balance(message: Message, context: Context) -> Message:
    """Send the model that has stayed here, which an average wants."""
    client = _client(message, context)
    sent = records_of(stayed_model(client, message.content.config_records[wire.CONFIG]))
    return Message(RecordDict(dict(sent)), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model that came on what the site has held out."""
    client, arrays = _client(message, context), arrays_of(message.content)
    config: dict[str, Any] = {wire.NAMES: list(arrays)}
    _, examples, metrics = client.evaluate(list(arrays.values()), config)
    return Message(RecordDict({wire.METRICS: _metrics(examples, metrics)}), reply_to=message)


def validate(message: Message, context: Context) -> Message:
    """Sums of the models that came over training samples that they never saw."""
    sums = _client(message, context).validate(arrays_of(message.content), message.content.config_records[wire.CONFIG])
    return Message(RecordDict(dict(records_of(wire.join(**{wire.OUT_OF_FOLD: sums})))), reply_to=message)


def app_on(device: str | None = None, prepare: Callable[[], None] = lambda: None) -> ClientApp:
    """The app; for a simulation one whose sites train on ``device``, after what their process has to ``prepare``."""

    def train_on_device(message: Message, context: Context, proceed: Callable[[Message, Context], Message]) -> Message:
        context.node_config[DEVICE] = str(device)
        prepare()
        return proceed(message, context)

    answering = ClientApp(mods=[train_on_device] if device is not None else [])
    answering.query()(query)
    answering.query(wire.BALANCE)(balance)
    answering.train()(train)
    answering.evaluate()(evaluate)
    answering.evaluate(wire.VALIDATE)(validate)
    return answering


def _metrics(examples: int, metrics: dict[str, Any]) -> MetricRecord:
    return MetricRecord({wire.EXAMPLES: examples, **metrics})


app = app_on()


def _client(message: Message, context: Context) -> HospitalClient:
    text = str(message.content.config_records[wire.CONFIG][wire.PLAN])
    plan = _plan(text)
    site = simulated_site(plan, context)
    device = str(context.node_config.get(DEVICE) or os.environ.get(DEVICE_VARIABLE, "cpu"))
    cohort = _cohort(text, plan, site, device)
    memory, kept = memory_for(plan, ContextMemory(context)), ContextMemory(context, TRAVEL)
    return HospitalClient(site, cohort.plan, cohort, memory, kept)  # its own part of the plan


@lru_cache(maxsize=64)
def _plan(text: str) -> Plan:
    return Plan.model_validate_json(text)


_cohorts: dict[tuple[str, str, str], tuple[Samples, Trainer]] = {}  # by plan, site and device, with the data it is of


def _cohort(text: str, plan: Plan, site: SiteData, device: str) -> Trainer:
    """The training core of a site; kept, for a simulation asks for each site at every communication round."""
    samples, cohort = _cohorts.get((text, site.site, device), (None, None))
    if cohort is None or samples is not site.train:
        if len(_cohorts) >= MOST_COHORTS:
            _cohorts.clear()
        own, indices = plan_at(plan, site.place, site.sites), Indices((site.place,), site.sites)
        cohort = cohort_for(own, site.task, [site.site], [site.train], path="loop", device=device, indices=indices)
        _cohorts[text, site.site, device] = (site.train, cohort)
    return cohort


def arrays_of(content: RecordDict) -> wire.Arrays:
    """All arrays of a message, named with their record."""
    return {name: wire.read_npy(array.data) for name, array in wire.join(**content.array_records).items()}


def records_of(arrays: Mapping[str, np.ndarray]) -> dict[str, ArrayRecord]:
    """The records that hold these arrays, in the order given."""
    return {
        part: ArrayRecord({name: Array(np.asarray(array)) for name, array in named_arrays.items()})
        for part, named_arrays in wire.parts(arrays).items()
    }
