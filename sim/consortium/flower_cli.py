"""Flower's own commands, as a consortium needs them: where they lie, their environment, and what they answer."""

import json
import os
import shlex
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import tomli_w

CONNECTION = "coordinator"  # the name of the SuperLink in Flower's config.toml
SAY_S = 300.0
DIRECTLY: dict[str, Any] = {"trust_env": False, "timeout": 5}  # a proxy is for what is far away
BUNDLE = Path(__file__).parent / "bundle"  # what goes to real sites


def tool(name: str) -> str:
    """The path of a Flower command, from the environment that runs this program."""
    return str(Path(sys.executable).parent / name)


def own_digest(source: Path = BUNDLE) -> str:
    """The digest of the bundle in a folder, by which a site approves it; by default of the one that fedsmall sends."""
    from flwr.cli.build import build_fab_from_disk

    from fedsmall.clients.bundles import bundle_digest

    return bundle_digest(build_fab_from_disk(source))


def environment(home: Path) -> dict[str, str]:
    """What every Flower process of ours runs with: a home of its own, no telemetry, no installs, a brisk poll."""
    return {
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # a SuperExec asks for work once a second by default: half a second lost on every communication round
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "FORCE_COLOR": "",  # a notebook's kernel asks for colours, which would stand in the JSON of an answer
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def direct(*hosts: str) -> dict[str, str]:
    """What a program runs with that dials these hosts, and the loopback, itself: a proxy is for what is far away."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = ",".join([*filter(None, [known]), *dict.fromkeys(["127.0.0.1", "localhost", *hosts])])
    return {"NO_PROXY": names, "no_proxy": names}


def write_connection(home: Path, address: str, certificate: Path) -> None:
    """Write Flower's ``config.toml``: one SuperLink, over TLS, and none by default that would start a daemon."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    superlink = {"address": address, "root-certificates": str(certificate.absolute())}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: superlink}}))


def call(
    home: Path, *arguments: str, say: Callable[[str], None] | None = None, timeout_s: float = SAY_S
) -> dict[str, Any]:
    """Run a ``flwr`` command, which ``say`` gets first; returns its JSON, or raises RuntimeError with its words."""
    if say:
        say(shown(["flwr", *arguments], {"FLWR_HOME": environment(home)["FLWR_HOME"]}))
    variables = {**os.environ, **environment(home), **direct(*_superlink(home))}
    settings: dict[str, Any] = {"env": variables, "capture_output": True, "text": True, "check": False}
    command = [tool("flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(command, timeout=timeout_s, **settings)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"`flwr {' '.join(arguments[:2])}` gave no answer within {timeout_s:g} s") from None
    answer = _last_json(done.stdout)
    if done.returncode != 0 or answer is None or answer.get("success") is False:
        reason = (answer or {}).get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise RuntimeError(f"`flwr {' '.join(arguments[:2])}` failed: {reason}")
    return answer


def shown(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """A command as one could type it."""
    prefix = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
    return " ".join([*prefix, shlex.join([Path(command[0]).name, *command[1:]])])


def healthy(address: str, authority: Path) -> bool:
    """Whether a server answers at an address, with a certificate of the authority's for that name."""
    try:
        httpx.get(f"https://{address}/health", verify=ssl.create_default_context(cafile=str(authority)), **DIRECTLY)
    except (httpx.HTTPError, OSError):
        return False
    return True  # whatever it says, it speaks, with a certificate we trust


def wait_until(truth: Callable[[], bool], timeout_s: float) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + timeout_s
    while not truth():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens at a port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _superlink(home: Path) -> list[str]:
    try:
        address = tomllib.loads((home / "config.toml").read_text())["superlink"][CONNECTION]["address"]
    except (OSError, LookupError):
        return []
    return [str(address).rpartition(":")[0]]


def _last_json(text: str) -> dict[str, Any] | None:
    # some commands print a line for people before the JSON
    for start, character in enumerate(text):
        if character == "{":
            try:
                value = json.loads(text[start:])
            except ValueError:
                continue
            return value if isinstance(value, dict) else None
    return None
