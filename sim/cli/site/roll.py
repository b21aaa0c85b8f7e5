"""How a consortium's roll is shown, at the coordinator and at a hospital alike."""

from collections.abc import Mapping

from fedsmall.sealing.roll import roll_digest, spoken
from fedsmall.sim.cli.terminal import say


def say_roll(roll: Mapping[str, str]) -> None:
    """Names and identities, and their digest for people and for a policy."""
    for name, identity in sorted(roll.items()):
        say(f"{name:16} {identity}")
    say(f"to read to each other: {spoken(roll)}")
    say(f'to pin in policy.toml: roll = "sha256:{roll_digest(roll)}"')
