"""Between a message's records and the one list of arrays that a NumPyClient takes and gives."""

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedsmall.wire import CARRIED, MODEL, RULE

PARTS = (MODEL, CARRIED, RULE)


def joined(content: RecordDict) -> tuple[list[str], list[np.ndarray]]:
    """All arrays of a message in one list, and their names with the record they come from: "arrays/0.weight"."""
    held = [
        (f"{part}/{name}", array.numpy())
        for part in PARTS
        if part in content.array_records
        for name, array in content.array_records[part].items()
    ]
    return [name for name, _ in held], [array for _, array in held]


def parted(names: list[str], arrays: list[np.ndarray]) -> dict[str, ArrayRecord]:
    """The records that :func:`joined` would join to these names and arrays; a record without arrays is left out."""
    records: dict[str, dict[str, Array]] = {}
    for name, array in zip(names, arrays, strict=True):
        part, own = name.split("/", 1)
        records.setdefault(part, {})[own] = Array(np.asarray(array))
    return {part: ArrayRecord(held) for part, held in records.items()}
