"""The coordinator's side as processes: SuperLink, SuperExec and gate, and the sites that are registered there."""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sim import consortium, flower, gate, keys, supervisor
from sim.consortium import Consortium
from sim.supervisor import Program

RUNS = "FEDSMALL_RUNS"  # as strategies.deployment reads it; importing that would bring torch

START_S = 60.0
Say = Callable[[str], None]


def household(folder: Path) -> Path:
    """Where the server's processes keep their numbers and logs."""
    return folder / "log" / "server"


def programs(folder: Path, record: Consortium) -> list[Program]:
    """The three programs of the server, as they would be typed."""
    variables = flower.environment(folder / "flwr")
    authority = folder / "ca" / "ca.crt"
    secret = ["--superexec-auth-secret-file", str((folder / "server" / "superexec.secret").absolute())]
    superlink = [
        flower.tool("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(record.inner_port), "--isolation", "process"),
        *("--ssl-ca-certfile", str(authority.absolute())),
        *("--ssl-certfile", str((folder / "server" / "server.crt").absolute())),
        *("--ssl-keyfile", str((folder / "server" / "server.key").absolute())),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--database", str((folder / "state" / "superlink.db").absolute()), *secret),
    ]
    superexec = [
        flower.tool("flower-superexec"),
        *("--root-certificates", str(authority.absolute()), "--runtime-api-address", record.inner_address, *secret),
    ]
    return [
        Program("superlink", superlink, variables),
        Program("superexec", superexec, variables | {RUNS: str((folder / "runs").absolute())}),
        Program("gate", gate.command(gate.write(record, folder))),
    ]


def up(folder: Path, say: Say) -> None:
    """Start the server's programs and wait until sites can dial in; ``say`` is told every command.

    Raises ValueError for what a coordinator can mend: an expired certificate, a name it does not hold, a busy port.
    """
    record = consortium.load(folder)
    certificate = keys.load_certificate(folder / "server" / "server.crt")
    keys.check_host(certificate, record.host)
    if keys.days_left(certificate) < 0:
        raise ValueError("the server's certificate has expired; run `fedsmall consortium renew`")
    for host, port in ((record.listen, record.port), ("127.0.0.1", record.inner_port)):
        if not supervisor.running(household(folder)) and not flower.port_is_free(host, port):
            raise ValueError(f"port {port} on {host} is taken by another program; choose another at `consortium init`")
    _write_secret(folder)
    flower.write_connection(folder / "flwr", record.inner_address, folder / "ca" / "ca.crt")
    commands = programs(folder, record)
    for program in commands:
        say(flower.shown(list(program.command)))
    supervisor.start(household(folder), commands)
    if not flower.wait_until(lambda: _ready(folder, record), START_S):
        supervisor.stop(household(folder))
        raise ValueError(f"the server did not come up within {START_S:.0f} s; see {household(folder).name}/*.log")
    register(folder, say)


def register(folder: Path, say: Say) -> None:
    """Bring the SuperLink's register of node keys in line with the consortium: admit, and let go."""
    record, home = consortium.load(folder), folder / "flwr"
    present = registered(folder)
    for name, member in sorted(record.members.items()):
        standing = member.standing(consortium.today())
        if standing == "admitted" and name not in present:
            key = str((folder / "sites" / f"{name}.pub").absolute())
            words = ("supernode", "register", key, flower.CONNECTION, "--name", name)
            _note_node(folder, name, int(flower.call(home, *words, say=say)["node-id"]))
        if standing in ("revoked", "expired") and name in present:
            say(f"# {name} is {standing}")
            flower.call(home, "supernode", "unregister", str(present[name].node), flower.CONNECTION, say=say)


def registered(folder: Path) -> dict[str, "Node"]:
    """The sites that the SuperLink knows now, by name."""
    answer = flower.call(folder / "flwr", "supernode", "list", flower.CONNECTION)
    status = {int(node["node-id"]): node["status"] for node in answer["nodes"]}
    return {
        name: Node(node, status[node])
        for name, node in _nodes(folder).items()
        if status.get(node, "unregistered") != "unregistered"
    }


class Node(NamedTuple):
    """A registered site: Flower's number for it, and "online", "offline" or "registered" (never seen yet)."""

    node: int
    status: str


def down(folder: Path) -> bool:
    """Stop the server's programs; False where none ran."""
    return supervisor.stop(household(folder))


def is_up(folder: Path) -> bool:
    """Whether the server's programs run."""
    return supervisor.running(household(folder)) is not None


def _ready(folder: Path, record: Consortium) -> bool:
    authority = folder / "ca" / "ca.crt"
    gate_host = "127.0.0.1" if record.listen == "0.0.0.0" else record.listen
    return flower.healthy(record.inner_address, authority) and flower.healthy(f"{gate_host}:{record.port}", authority)


def _write_secret(folder: Path) -> None:
    path = folder / "server" / "superexec.secret"
    if not path.exists():
        keys.write_private(path, secrets.token_bytes(32))


def _nodes(folder: Path) -> dict[str, int]:
    path = folder / "state" / "nodes.json"  # beside the SuperLink's database: they are lost together
    return json.loads(path.read_text()) if path.exists() else {}


def _note_node(folder: Path, name: str, node: int) -> None:
    draft = folder / "state" / "nodes.json.draft"
    draft.write_text(json.dumps(_nodes(folder) | {name: node}, indent=2))
    os.replace(draft, folder / "state" / "nodes.json")
