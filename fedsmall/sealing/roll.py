"""The roll: who belongs to a consortium, by identity, and one number that people read to each other."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedsmall.sealing.letters import digest

IDENTITY = "identity.key"  # in a site's kit: the secret half of its identity, which its station alone reads
IDENTITIES = "identities.json"  # in a site's home: the identities of those that it has met
GROUPS, DIGITS = 12, 5


def roll_digest(roll: Mapping[str, str]) -> str:
    """One digest of all names and identities, as 64 hexadecimal digits; what a site's policy pins as ``roll``."""
    return digest("roll", sorted(roll.items()))


def known_identities(home: Path) -> dict[str, str]:
    """The identities of the sites that the one which writes in ``home`` has met, by name."""
    path = home / IDENTITIES
    return dict(json.loads(path.read_text())) if path.exists() else {}


def digest_words(roll: Mapping[str, str]) -> str:
    """The roll as twelve groups of five digits, for one telephone call of all hospitals: nearly 200 bits of it."""
    number = int(roll_digest(roll), 16)
    groups = []
    for _ in range(GROUPS):
        number, group = divmod(number, 10**DIGITS)
        groups.append(f"{group:0{DIGITS}d}")
    return " ".join(groups)
