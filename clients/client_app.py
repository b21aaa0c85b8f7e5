"""The ClientApp: the short adapter in which Flower's messages and the NumPyClient meet.

Inside ``@app.train`` a NumPyClient works with any message-based strategy; a bare ``ClientApp(client_fn)`` would not
understand their messages.
"""

from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.hospital import HospitalClient
from clients.memory import ContextMemory
from clients.records import joined, parted
from clients.site_data import SiteData, simulated_site
from fedsmall import __version__
from fedsmall.plan import Plan
from fedsmall.replicas.tree import plan_at
from fedsmall.training.trainer import Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import CONFIG, EXAMPLES, METRICS, NAMES, PLAN

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """The roll call: who speaks here, and for what."""
    client = _client(message, context)
    answer = ConfigRecord({**client.get_properties({}), "version": __version__})
    return Message(RecordDict({CONFIG: answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the traveller that came, and send it back."""
    client = _client(message, context)
    names, arrays = joined(message.content)
    config: dict[str, Any] = {**message.content.config_records[CONFIG], NAMES: names}
    leaving, examples, metrics = client.fit(arrays, config)
    content = RecordDict({METRICS: _metrics(examples, metrics)})
    for part, record in parted(client.sent_names, leaving).items():
        content[part] = record
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the model that came on what the site has held out."""
    client = _client(message, context)
    names, arrays = joined(message.content)
    config: dict[str, Any] = {NAMES: names}
    _, examples, metrics = client.evaluate(arrays, config)
    return Message(RecordDict({METRICS: _metrics(examples, metrics)}), reply_to=message)


def _metrics(examples: int, metrics: dict[str, Any]) -> MetricRecord:
    return MetricRecord({EXAMPLES: examples, **metrics})


def _client(message: Message, context: Context) -> HospitalClient:
    text = str(message.content.config_records[CONFIG][PLAN])
    plan = _plan(text)
    home = simulated_site(plan, context)
    cohort = _cohort(text, home.site, _Held(home))
    return HospitalClient(home, cohort.plan, cohort, ContextMemory(context))  # its own part of the plan


@lru_cache(maxsize=64)
def _plan(text: str) -> Plan:
    return Plan.model_validate_json(text)


class _Held:
    """A home as part of a cache's key: by the identity of its data, which are not hashable."""

    def __init__(self, home: SiteData) -> None:
        self.home = home

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.home.train is other.home.train

    def __hash__(self) -> int:
        return hash(self.home.site)


@lru_cache(maxsize=1024)
def _cohort(text: str, site: str, held: _Held) -> Trainer:
    home = held.home
    plan = plan_at(_plan(text), home.place, home.sites)
    return cohort_for(plan, home.task, [site], [home.train], path="loop")
