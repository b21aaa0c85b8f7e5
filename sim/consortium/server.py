"""The coordinator's side as processes: SuperLink, SuperExec, gate and keeper, and the sites registered there."""

import fcntl
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedsmall.errors import PlanError
from fedsmall.files import write
from fedsmall.sim.consortium import flower_cli, gate, keys, members, supervisor
from fedsmall.sim.consortium.members import Consortium
from fedsmall.sim.consortium.supervisor import Program

# as fedsmall.strategies.server.deployment reads them; importing that would bring torch
RUNS, SITES = "FEDSMALL_RUNS", "FEDSMALL_SITES"

SEEN = "seen.json"  # the server as its keeper has seen it last
STARTED = "started"  # in it: the server was just started, and what was under way when it ended is to go on
KEPT = ("superexec", "keeper")  # where each program has a container, these two share one
START_S = 300.0  # a busy machine takes its time to import Flower
Say = Callable[[str], None]


def process_folder(folder: Path, only: str = "") -> Path:
    """Where the server's processes keep their numbers and logs; each has its own where it runs alone (a container)."""
    return folder / "log" / ("server" if not only else f"server-{only}")


def programs(folder: Path, record: Consortium, *, durable: bool = False) -> list[Program]:
    """The four programs of the server, as they would be typed; a ``durable`` SuperLink keeps its state on the disk."""
    folder = folder.absolute()
    variables = flower_cli.environment(folder / "flwr") | flower_cli.direct(record.inner_host)
    secret = ["--superexec-auth-secret-file", str(folder / "server" / "superexec.secret")]
    authority = str(folder / "ca" / "ca.crt")
    superlink = [
        flower_cli.tool("flower-superlink"),
        *("--host", _bind(record.inner_host), "--port", str(record.inner_port), "--isolation", "process"),
        *("--ssl-ca-certfile", authority, "--ssl-certfile", str(folder / "server" / "server.crt")),
        *("--ssl-keyfile", str(folder / "server" / "server.key")),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *(("--database", str(folder / "state" / "superlink.db")) if durable else ()),
    ]
    superexec = [flower_cli.tool("flower-superexec"), "--root-certificates", authority]
    superexec += ["--runtime-api-address", record.inner_address, *secret]
    keeper = [sys.executable, "-P", "-m", "fedsmall.sim.consortium.keeper", str(folder), *["--durable"] * durable]
    return [
        Program("superlink", [*superlink, *secret], variables),
        Program("superexec", superexec, variables | {RUNS: str(folder / "runs"), SITES: str(folder / "sites")}),
        Program("gate", gate.command(gate.write(record, folder))),
        Program("keeper", keeper, variables),
    ]


def up(folder: Path, say: Say, only: str = "", *, durable: bool = False) -> None:
    """Start the server's programs and wait until sites can dial in; ``say`` gets every command.

    ``only`` starts one of them, for a container each; the state is then on disk, as for a ``durable`` server, and the
    SuperExec's container runs keeper and register. ValueError for a certificate expired or of others, or a busy port.
    """
    record, processes = members.load(folder), process_folder(folder, only)
    if supervisor.running(processes):
        raise ValueError("the server runs already; `fedsmall server down` stops it")
    _check(folder, record, only)
    secret = folder / "server" / "superexec.secret"
    if only != "gate" and not secret.exists():  # the gate passes calls on, and needs no secret of its own
        keys.write_private(secret, secrets.token_bytes(32))
    flower_cli.write_connection(folder / "flwr", record.inner_address, folder / "ca" / "ca.crt")
    has_keeper = only in ("", "superexec")
    if has_keeper:  # until the server is up it does nothing
        (folder / "state" / SEEN).unlink(missing_ok=True)
    every = programs(folder, record, durable=durable or bool(only))
    commands = [program for program in every if only in ("", program.name) or (only, program.name) == KEPT]
    for program in commands:
        say(flower_cli.shown(program.command))
    supervisor.start(processes, commands)
    if has_keeper:
        if not flower_cli.wait_until(lambda: is_up(folder), START_S):
            supervisor.stop(processes)
            raise ValueError(f"the server did not come up within {START_S:.0f} s; see {processes}")
        register(folder, say)
        note(folder, state(folder) | {STARTED: True})


def _check(folder: Path, record: Consortium, only: str) -> None:
    certificate = keys.load_certificate(folder / "server" / "server.crt")
    keys.check_host(certificate, record.host)
    if keys.days_left(certificate) < 0:
        raise ValueError("the server's certificate has expired; run `fedsmall consortium renew`")
    ports = {"gate": (record.listen, record.port), "superlink": (_bind(record.inner_host), record.inner_port)}
    for name, (host, port) in ports.items():
        if only in ("", name) and not flower_cli.port_is_free(host, port):
            raise ValueError(f"port {port} on {host} is taken by another program; choose another at `consortium init`")


def register(folder: Path, say: Say) -> None:
    """Bring the SuperLink's register of node keys in line with the consortium: admit, and let go."""
    with (folder / "state" / "register.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: a command of the coordinator's, or the keeper
        home, present = folder / "flwr", registered(folder)
        for name, member in sorted(members.load(folder).members.items()):
            standing = member.standing(members.today())
            if standing == members.ADMITTED and name not in present:
                key = str((folder / "sites" / f"{name}.pub").absolute())
                command = ("supernode", "register", key, flower_cli.CONNECTION, "--name", name)
                nodes = _nodes(folder) | {name: int(flower_cli.call(home, *command, say=say)["node-id"])}
                write(folder / "state" / "nodes.json", json.dumps(nodes, indent=2).encode(), flush=True)
            if standing in (members.REVOKED, "expired") and name in present:
                say(f"# {name} is {standing}")
                node = str(present[name].node)
                flower_cli.call(home, "supernode", "unregister", node, flower_cli.CONNECTION, say=say)
        tell_gate(folder)


def tell_gate(folder: Path) -> None:
    """Let a gate that runs beside this server know who is admitted; lines that are open go on meanwhile."""
    path = gate.path_in(folder)
    before = path.read_text() if path.exists() else ""
    number = supervisor.pids(process_folder(folder)).get("gate")
    if number and before != gate.write(members.load(folder), folder).read_text():
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGHUP)


def registered(folder: Path) -> dict[str, "Node"]:
    """The sites that the SuperLink knows now, by name."""
    answer = flower_cli.call(folder / "flwr", "supernode", "list", flower_cli.CONNECTION)
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


def state(folder: Path) -> dict[str, object]:
    """What the keeper goes by: which SuperLink runs, as a process, and how every site stands today."""
    path, today = process_folder(folder) / "superlink.pid", members.today()
    standing = {name: member.standing(today) for name, member in members.load(folder).members.items()}
    return {"superlink": path.read_text() if path.exists() else "", "standing": standing}


def began(folder: Path) -> float:
    """When this SuperLink began, in seconds since 1970, 0 where unknown: what was launched later is its own."""
    marks = [process_folder(folder) / "superlink.pid", folder / "state" / SEEN]
    return next((mark.stat().st_mtime for mark in marks if mark.exists()), 0.0)


def note(folder: Path, seen: dict[str, object]) -> None:
    """Write down what was seen, and acted upon, last."""
    write(folder / "state" / SEEN, json.dumps(seen).encode())


def down(folder: Path, only: str = "") -> bool:
    """Stop the server's programs; False where none ran."""
    return supervisor.stop(process_folder(folder, only))


def is_up(folder: Path) -> bool:
    """Whether the SuperLink answers, with its own certificate."""
    return flower_cli.healthy(members.load(folder).inner_address, folder / "ca" / "ca.crt")


def check_up(folder: Path) -> None:
    """PlanError where the server does not run."""
    if not is_up(folder):
        raise PlanError("The server does not run; `fedsmall server up` starts it.")


def _bind(host: str) -> str:
    """Where the SuperLink listens: the loopback itself, or all addresses for a name on a private network."""
    return host if host == "127.0.0.1" else "0.0.0.0"


def _nodes(folder: Path) -> dict[str, int]:
    path = folder / "state" / "nodes.json"  # beside the SuperLink's database: they are lost together
    return json.loads(path.read_text()) if path.exists() else {}
