"""Of whom a site has told sums, over all runs: no two answers may differ by a few patients.

From the sums over a table, and those over the same table and one patient more, that patient follows by subtraction. So
new sums are told only where at least ``floor`` values are in nothing that was told before; else the site tells what it
told last, unless it has told just these sums before. Then each answer holds so many values that no earlier one holds,
and no combination of answers comes down to fewer. Values are kept as digests under a key of the site's own.
"""

import json
import secrets
from collections import Counter
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsmall.clients.memory import put

Entry = dict[str, Any]  # {"seen": {digest: count}, "last": what was told last, "told": digests of all that was summed}


class Verdict(Enum):
    """What may be told: these sums, which were told before, or are new enough; or what was told last."""

    AGAIN = "again"
    NEW = "new"
    LAST = "last"


def verdict(before: Entry | None, now: Counter[str], floor: int) -> Verdict:
    """Whether sums over the values ``now`` (their digests, counted) may be told, by what was told ``before``."""
    fresh = (now - Counter(before["seen"] if before else {})).total()
    if fresh == 0 and before is not None and _of(now) in before["told"]:
        return Verdict.AGAIN
    return Verdict.NEW if fresh >= max(floor, 1) else Verdict.LAST


def remembered(before: Entry | None, now: Counter[str], last: Any) -> Entry:
    """The entry once sums over the values ``now`` are told, of which ``last`` is to be told again."""
    seen = Counter(before["seen"] if before else {}) | now
    return {"seen": seen, "last": last, "told": [*(before["told"] if before else []), _of(now)]}


def recall(path: Path, **empty: Any) -> dict[str, Any]:
    """What a file remembers, with the site's "key"; ``empty`` and a new key where there is none yet."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known or {"key": secrets.token_hex(16), **empty}


def write(path: Path, known: dict[str, Any]) -> None:
    """Remember."""
    put(path, json.dumps(known).encode())


def digest(content: bytes, known: dict[str, Any], size: int) -> str:
    """``size`` bytes that stand for a value, to those who know the key alone."""
    return blake2b(content, digest_size=size, key=bytes.fromhex(known["key"])).hexdigest()


def _of(now: Counter[str]) -> str:
    return blake2b(json.dumps(sorted(now.items())).encode(), digest_size=16).hexdigest()
