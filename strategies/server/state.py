"""What a daisy chain must keep to go on after a restart, as named arrays and a JSON-able record.

Random streams are named, so no generator's state is kept. Each distinct model is written once, however many slots
refer to it: after an aggregation that is one model for all sites.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord

from fedsmall.wire import Arrays
from strategies.daisy_chain import DaisyChain
from strategies.foreign import foreign_state, restore_foreign
from strategies.records import to_arrays, to_record
from strategies.slots import Seen, Slot


class _Records:
    """Numbers each distinct record once."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._numbers: dict[int, int] = {}

    def number(self, record: ArrayRecord | None) -> int | None:
        if record is None:
            return None
        if id(record) not in self._numbers:
            self._numbers[id(record)] = number = len(self._numbers)
            self.arrays |= {f"record/{number}/{name}": array for name, array in to_arrays(record).items()}
        return self._numbers[id(record)]


def state_of(chain: DaisyChain) -> tuple[Arrays, dict[str, Any]]:
    """The chain's slots, common model, counters and events, and what the wrapped strategy remembers."""
    records = _Records()
    slots = {
        site: [records.number(slot.model), records.number(slot.carried), slot.common]
        for site, slot in chain.slots.items()
    }
    seen = {
        site: [records.number(s.model), s.examples, s.steps, records.number(s.rule)] for site, s in chain.seen.items()
    }
    common = records.number(chain.common)
    own = getattr(chain.strategy, "state", None)
    inner, numbers = own() if own is not None else foreign_state(chain.strategy)
    meta = {
        "slots": slots,
        "seen": seen,
        "common": common,
        "inner": numbers,
        "aggregations": chain.aggregations,
        "bytes_sent": chain.bytes_sent,
        "events": chain.events,
    }
    return records.arrays | {f"inner/{name}": array for name, array in inner.items()}, meta


def restore(chain: DaisyChain, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Take up what :func:`state_of` gave; sites are known by name, so new node ids do not matter."""
    held: dict[int, Arrays] = {}
    for key, array in arrays.items():
        if key.startswith("record/"):
            _, number, name = key.split("/", 2)
            held.setdefault(int(number), {})[name] = array
    records: dict[int | None, ArrayRecord | None] = {number: to_record(read) for number, read in held.items()}
    records[None] = None
    chain.slots = {
        site: Slot(_there(records[model]), records[carried], common)
        for site, (model, carried, common) in meta["slots"].items()
    }
    chain.seen = {
        site: Seen(_there(records[model]), examples, steps, records[rule])
        for site, (model, examples, steps, rule) in meta["seen"].items()
    }
    chain.common = records[meta["common"]]
    chain.aggregations = meta["aggregations"]
    chain.bytes_sent = meta["bytes_sent"]
    chain.events = list(meta["events"])
    inner = {key.removeprefix("inner/"): array for key, array in arrays.items() if key.startswith("inner/")}
    own = getattr(chain.strategy, "restore", None)
    if own is not None:
        own(inner, meta["inner"])
    else:
        restore_foreign(chain.strategy, inner, meta["inner"])


def _there(record: ArrayRecord | None) -> ArrayRecord:
    assert record is not None
    return record
