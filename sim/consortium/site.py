"""A site's side as processes: the data process with the data, and the site agent that speaks to the network."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from fedsmall.clients import socket_frames
from fedsmall.clients.policy import OWN, load_policy
from fedsmall.parts import Frozen
from fedsmall.sealing.envelopes import IDENTITY
from fedsmall.sim.consortium import admission, flower_cli, keys, members, supervisor
from fedsmall.sim.consortium.supervisor import Program

Say = Callable[[str], None]


class KitInfo(Frozen):
    """What a kit says: whose it is, and where to dial."""

    consortium: str
    site: Annotated[str, Field(pattern=f"^{members.NAME.pattern}$")]  # part of paths
    address: str
    expires: str


class Site(NamedTuple):
    """A site's kit, and ``home``, where its programs keep what they write; nothing of home ever leaves it."""

    kit: Path
    home: Path

    @property
    def card(self) -> KitInfo:
        """The kit's card; ValueError where the folder is no kit."""
        self.check_is_kit()
        return KitInfo.from_file(self.kit / "site.json")

    def check_is_kit(self) -> None:
        """Raise ValueError where the folder is no kit."""
        if not (self.kit / "site.json").is_file():
            raise ValueError(f"{self.kit} is no startup kit: it has no site.json. The coordinator makes one (add-site)")

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.kit / "site.key"

    @property
    def process_folder(self) -> Path:
        """Where the processes keep their numbers and logs."""
        return self.home / "run"

    @property
    def identity(self) -> Path:
        """The secret identity that signs its envelopes; with two kits it belongs into the data process's."""
        return self.kit / IDENTITY

    @property
    def socket_path(self) -> Path:
        """The data process's socket."""
        return self.home / "door" / "station"


def programs(site: Site, data: Path | None, device: str = "cpu", region: Path | None = None) -> list[Program]:
    """The two programs of a site, or of a ``region`` (its consortium's folder); none has a port or shows a secret."""
    socket, home = str(site.socket_path.absolute()), site.home.absolute()
    authority, key = (str(path.absolute()) for path in (site.kit / "ca.crt", site.key))
    command = [sys.executable, "-P", "-m", "fedsmall.clients.site_agent", site.card.address]
    bundles = load_policy(site.kit / "policy.toml").bundles
    digests = ",".join(flower_cli.own_digest() if word == OWN else word for word in bundles)
    command += [authority, key, socket, str(home), digests]
    agent = Program("resident", command, flower_cli.environment(home / "flwr"))
    return [_data_process(site, data, device, region), agent]


def _data_process(site: Site, data: Path | None, device: str, region: Path | None = None) -> Program:
    """What holds the data; for a region, what speaks for its consortium."""
    module = "fedsmall.clients.region_client" if region else "fedsmall.clients.data_process"
    command = [sys.executable, "-P", "-m", module, site.card.site, str(site.home.absolute())]
    command += [str(path.absolute()) for path in (site.kit / "policy.toml", site.socket_path)]
    command += [str((region / "runs").absolute())] if region else [device, *([str(data.absolute())] if data else [])]
    return Program("station", command)


def up(
    site: Site, data: Path | None, say: Say, *, only: str = "", device: str = "cpu", region: Path | None = None
) -> None:
    """Start a site's programs; ``say`` gets every command, the admission, and what expires soon.

    ``only`` starts the "station", which needs the data and no network, or the "network" half. The data process trains
    on ``device``. With ``region``, the folder of a region's consortium, the site holds no data and speaks for it.

    Raises ValueError, in one line, for: no key, no server, a certificate of another authority or name, a wrong clock,
    an unknown key, an expired admission.
    """
    card, left = site.card, None
    load_policy(site.kit / "policy.toml").check_device(device)
    if only != "network" and device != "cpu":
        from fedsmall.training.device import check_device  # brings torch, which takes its time

        check_device(device)
    if data is not None and not data.exists():
        raise ValueError("there are no data at the place that --data names")
    _check_region(region, data)
    if only != "station":
        if not site.key.exists():
            raise ValueError("the startup kit has no key yet; `fedsmall site keygen` makes one, here and only here")
        left = admission.check_server(card.address, site.kit / "ca.crt")
    # the data process would say so only in its own log, and start again for ever
    socket_frames.check_length(site.socket_path)
    if supervisor.running(site.process_folder):
        raise ValueError("this site is up already; `fedsmall site down` stops it")
    site.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if left is not None:
        say(admission.check_admission(card.address, site.kit / "ca.crt", site.key, site.home / "node", card.expires))
        for line in warnings(site, {"the server's certificate": left}):
            say(line)
    left_out = {"station": "resident", "network": "station"}.get(only)
    commands = [program for program in programs(site, data, device, region) if program.name != left_out]
    for program in commands:
        say(flower_cli.shown(program.command))
    supervisor.start(site.process_folder, commands)


def _check_region(region: Path | None, data: Path | None) -> None:
    if region is None:
        return
    if data is not None:
        raise ValueError("--region speaks for hospitals that hold their own data: leave --data out")
    if not (region / "consortium.json").is_file():
        raise ValueError(f"{region.name} is no consortium's folder; --region takes that of the region's own server")


def warnings(site: Site, further: Mapping[str, int] | None = None) -> list[str]:
    """What of this site's has expired or does within a month, a line each, and of ``further`` things with days left."""
    days = {
        "this site's admission": (date.fromisoformat(site.card.expires) - datetime.now(UTC).date()).days,
        "the consortium's own certificate (ca.crt)": keys.days_left(keys.load_certificate(site.kit / "ca.crt")),
    }
    return [f"{line}; tell the coordinator" for line in keys.warnings({**days, **(further or {})})]


def down(site: Site) -> bool:
    """Stop a site's programs; False where none ran."""
    return supervisor.stop(site.process_folder)
