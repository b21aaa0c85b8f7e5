"""``flwr run`` as a user calls it, in a home of its own; Flower's local SuperLink is ended with the test."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ONLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def local_superlink(folder: Path) -> Iterator[Callable[..., tuple[str, str]]]:
    """Calls ``flwr`` in a folder and waits for the run's end: gives what it said, and Flower's word on how it ended."""
    home = folder / "home"
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": _free_port(), "FLWR_LOCAL_CONTROL_API_PORT": _free_port()}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    installed = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PATH": path, "FLWR_HOME": str(home)}
    environment = {**os.environ, **ONLINE, **ports, **installed}

    def flwr(*words: str) -> str:
        command = [sys.executable, "-m", "flwr.cli.app", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    def call(*words: str) -> tuple[str, str]:
        said = flwr(*words, "--stream")
        listed = flwr("ls", "--format", "json")
        return said, json.loads(listed[listed.index("{") :])["runs"][0]["status"]

    try:
        yield call
    finally:
        _end([one for one in psutil.process_iter() if _is_at_home(one, home)])


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _is_at_home(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("FLWR_HOME") == str(home)
    except psutil.Error:
        return False


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.terminate()
    for process in psutil.wait_procs(processes, timeout=10)[1]:
        process.kill()
