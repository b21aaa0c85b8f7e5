"""A site's side as processes: the data process with the data, and the site agent that speaks to the network.

The *classic* programs, Flower's SuperNode and SuperExec with a fresh ClientApp for every message, give the same bits.
"""

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from fedsmall.clients import socket_frames
from fedsmall.clients.launcher import APPROVED
from fedsmall.clients.policy import OWN, load_policy
from fedsmall.clients.socket_frames import KEY, SOCKET
from fedsmall.parts import Frozen
from fedsmall.sealing.envelopes import IDENTITY
from fedsmall.sim.consortium import admission, flower_cli, keys, members, supervisor
from fedsmall.sim.consortium.supervisor import Program

Say = Callable[[str], None]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
NETWORK = {False: ("resident",), True: ("supernode", "superexec")}  # by whether the programs are the classic ones


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
    command += [authority, key, socket, str(home), _bundle_digests(site)]
    agent = Program("resident", command, flower_cli.environment(home / "flwr"))
    return [_data_process(site, data, device, region), agent]


def _data_process(site: Site, data: Path | None, device: str, region: Path | None = None) -> Program:
    """What holds the data; for a region, what speaks for its consortium."""
    module = "fedsmall.clients.region_client" if region else "fedsmall.clients.data_process"
    command = [sys.executable, "-P", "-m", module, site.card.site, str(site.home.absolute())]
    command += [str(path.absolute()) for path in (site.kit / "policy.toml", site.socket_path)]
    command += [str((region / "runs").absolute())] if region else [device, *([str(data.absolute())] if data else [])]
    return Program("station", command)


def _bundle_digests(site: Site) -> str:
    bundles = load_policy(site.kit / "policy.toml").bundles
    return ",".join(flower_cli.own_digest() if word == OWN else word for word in bundles)


def classic_programs(
    site: Site, data: Path | None, port: int, *, insecure: bool = False, device: str = "cpu"
) -> list[Program]:
    """The three classic programs of a site; ``port`` is the SuperNode's own, on the loopback."""
    home = site.home.absolute()
    secret = ["--superexec-auth-secret-file", str(home / "superexec.secret")]
    trust = ["--insecure"] if insecure else ["--root-certificates", str((site.kit / "ca.crt").absolute())]
    trust += [] if insecure else ["--auth-supernode-private-key", str(site.key.absolute())]
    supernode = [flower_cli.tool("flower-supernode"), "--superlink", site.card.address, *trust]
    supernode += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port), *secret]
    superexec = [flower_cli.tool("flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
    variables = flower_cli.environment(home / "flwr")
    relay = {SOCKET: str(site.socket_path.absolute()), APPROVED: _bundle_digests(site)}
    relay |= {} if insecure else {KEY: str(site.key.absolute())}
    relay["PATH"] = f"{home / 'bin'}:{variables['PATH']}"  # our flwr-clientapp comes before Flower's
    relay |= flower_cli.direct()  # the SuperNode is on this machine; the server may be behind a proxy
    return [
        _data_process(site, data, device),
        Program("supernode", supernode, variables),
        Program("superexec", [*superexec, *secret], variables | relay),
    ]


def up(
    site: Site,
    data: Path | None,
    port: int,
    say: Say,
    *,
    insecure: bool = False,
    only: str = "",
    device: str = "cpu",
    classic: bool = False,
    region: Path | None = None,
) -> None:
    """Start a site's programs; ``say`` gets every command, the admission, and what expires soon.

    ``classic`` programs need a ``port`` of the loopback, and ``insecure`` (plain text) goes with them alone. ``only``
    starts the "station", which needs the data and no network, or the "network" half. The data process trains on
    ``device``. With ``region``, the folder of a region's consortium, the site holds no data and speaks for it.

    Raises ValueError, in one line, for: no key, no server, a certificate of another authority or name, plain text where
    TLS is expected, a wrong clock, an unknown key, an expired admission.
    """
    card, left, is_classic = site.card, None, classic or insecure
    load_policy(site.kit / "policy.toml").check_device(device)
    if only != "network" and device != "cpu":
        from fedsmall.training.device import check_device  # brings torch, which takes its time

        check_device(device)
    if data is not None and not data.exists():
        raise ValueError("there are no data at the place that --data names")
    _check_region(region, data, is_classic)
    if insecure and card.address.rpartition(":")[0] not in LOOPBACK:
        raise ValueError("--insecure is for trials on the loopback; to any other address this site speaks TLS only")
    if not insecure and only != "station":
        if not site.key.exists():
            raise ValueError("the startup kit has no key yet; `fedsmall site keygen` makes one, here and only here")
        left = admission.check_server(card.address, site.kit / "ca.crt")
    # the data process would say so only in its own log, and start again for ever
    socket_frames.check_length(site.socket_path)
    if supervisor.running(site.process_folder):
        raise ValueError("this site is up already; `fedsmall site down` stops it")
    _prepare(site)
    if left is not None:
        say(admission.check_admission(card.address, site.kit / "ca.crt", site.key, site.home / "node", card.expires))
        for line in warnings(site, {"the server's certificate": left}):
            say(line)
    every = programs(site, data, device, region)
    if is_classic:
        every = classic_programs(site, data, port, insecure=insecure, device=device)
    names = {"station": ("station",), "network": NETWORK[is_classic]}.get(only, ("station", *NETWORK[is_classic]))
    commands = [program for program in every if program.name in names]
    for program in commands:
        say(flower_cli.shown(program.command))
    supervisor.start(site.process_folder, commands)


def _check_region(region: Path | None, data: Path | None, is_classic: bool) -> None:
    if region is None:
        return
    if data is not None:
        raise ValueError("--region speaks for hospitals that hold their own data: leave --data out")
    if is_classic:
        raise ValueError("a region is spoken for by the site agent alone: leave --classic and --insecure out")
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


def _prepare(site: Site) -> None:
    site.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (site.home / "superexec.secret").exists():
        keys.write_private(site.home / "superexec.secret", secrets.token_bytes(32))
    launcher = site.home / "bin" / "flwr-clientapp"
    launcher.parent.mkdir(exist_ok=True, mode=0o700)
    launcher.write_text(f'#!/bin/sh\nexec {json.dumps(sys.executable)} -P -m fedsmall.clients.launcher "$@"\n')
    launcher.chmod(0o700)
