"""A whole consortium on the loopback of one machine, from real processes: for tests, measurements and first steps."""

import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Self

from examples.slow_line import Line, SlowLines
from fedsmall.audit_log import AuditLog
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import keys, members, runs, server, site
from fedsmall.sim.consortium.site import Site

Say = Callable[[str], None]


def silent(_: str) -> None:
    """Say nothing."""


class LoopbackConsortium:
    """A consortium in ``folder`` whose sites hold the given data; TLS, node authentication and the gate are all on.

    ``policy`` is the text of every site's policy; a ``durable`` server keeps its state on the disk, and over a ``line``
    all that goes between the sites and the server is slow. Where the sites are ``regions``, their data are the folders
    of their consortia. Use it as a context: whatever it started ends with it.
    """

    def __init__(
        self,
        folder: Path,
        data: Mapping[str, Path],
        policy: str = "",
        say: Say = silent,
        durable: bool = False,
        line: Line | None = None,
        regions: bool = False,
    ) -> None:
        self.folder = folder / "consortium"
        self.durable, self.regions = durable, regions
        self.data = dict(data)
        self.say = say
        lines = [f"line {name}" for name in self.data]
        wanted = ["gate", "superlink", *lines]
        self.ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
        self.lines = SlowLines({self.ports[one]: self.ports["gate"] for one in lines}, line) if line else None
        members.create(
            self.folder,
            "trial",
            "127.0.0.1",
            self.ports["gate"],
            listen="127.0.0.1",
            inner_port=self.ports["superlink"],
            days=1,
        )
        for name in self.data:
            self.admit(name, policy)
            if line:
                card = self.kit(name).kit / "site.json"
                here, there = (f"127.0.0.1:{self.ports[port]}" for port in ("gate", f"line {name}"))
                card.write_text(card.read_text().replace(here, there))

    def admit(self, name: str, policy: str = "") -> None:
        """Admit a site, with a key and an identity of its own."""
        members.add_site(self.folder, name, None, days=1)
        own, public = self.kit(name), self.kit(name).key.with_name("site.key.pub")
        keys.new_site_key(own.key)
        keys.new_identity(own.identity)
        keys.tell_identity(public, own.identity)
        members.add_site(self.folder, name, public, days=1)
        if policy:
            (own.kit / "policy.toml").write_text(policy)

    def kit(self, name: str) -> Site:
        """The site of that name."""
        kit = self.folder / "kits" / name
        return Site(kit, kit / "state")

    def __enter__(self) -> Self:
        """Start the server and all sites."""
        try:
            if self.lines:
                self.lines.__enter__()
            server.up(self.folder, self.say, durable=self.durable)
            for name in self.data:
                self.site_up(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        for name in self.data:
            site.down(self.kit(name))
        server.down(self.folder)
        if self.lines:
            self.lines.__exit__()

    def site_up(self, name: str) -> None:
        """Start one site."""
        data = None if self.regions else self.data[name]
        region = self.data[name] if self.regions else None
        site.up(self.kit(name), data, self.say, region=region)

    def start(self, run: str, plan: Plan, sites: Collection[str] = (), **patience: Any) -> int:
        """Start a run over these sites, or over all; returns Flower's number for it."""
        runs.prepare(self.folder, run, plan, tuple(sorted(sites or self.data)), **patience)
        return runs.launch(self.folder, run, self.say)

    def finish(self, run: str, number: int) -> dict[str, Any]:
        """Wait for a run's outcome. Raises RuntimeError where its files could not be written."""
        outcome = runs.watch(self.folder, run, lambda at: None)
        reasons = [
            line["reason"] for line in AuditLog(self.home(run) / "log.jsonl").entries() if line["event"] == "unwritten"
        ]
        if reasons:
            raise RuntimeError(f"what came of {run} was not written: {reasons[0]}")
        return outcome

    def home(self, run: str) -> Path:
        """A run's folder."""
        return runs.run_home(self.folder, run)

    def sheet(self, run: str) -> RunSheet:
        """A run's sheet."""
        return RunSheet.model_validate_json((self.home(run) / "sheet.json").read_text())


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nothing listens at now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
