"""Keeps one side's programs running: starts them, restarts what ends, stops them all; nothing outlives it.

A process folder holds ``programs.json``, ``supervisor.pid``, and a log per program; each leads its own process group.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 15.0
STEADY_S = 60.0  # a program that ran this long starts again at once
GRACE_S = 8.0
PR_SET_PDEATHSIG = 1
TICK_S = 0.05


class Program(NamedTuple):
    """A command under a name, with what it needs in its environment beside the supervisor's own."""

    name: str
    command: list[str]
    environment: dict[str, str] = {}  # noqa: RUF012


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait_s: float = FIRST_WAIT_S
    due: float = 0.0


_started: list[subprocess.Popen[bytes]] = []  # kept: Python warns of a child that is forgotten while it runs


def start(folder: Path, programs: Sequence[Program]) -> subprocess.Popen[bytes]:
    """Start a supervisor for the programs in the background and return it; ValueError where one runs already."""
    if running(folder):
        raise ValueError("already running; stop it first with `down`")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "programs.json").write_text(json.dumps(programs))
    with (folder / "supervisor.log").open("ab") as log:
        command = [sys.executable, "-P", "-m", "fedsmall.sim.consortium.supervisor", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _started.append(process)
    while process.poll() is None and not running(folder):  # whoever looks next must find it
        time.sleep(0.05)
    return process


def running(folder: Path) -> int | None:
    """The supervisor's process id, or None where none runs."""
    return _alive(folder / "supervisor.pid")


def pids(folder: Path) -> dict[str, int]:
    """The process ids of the programs that run now, by name."""
    programs = {path.stem: _alive(path) for path in sorted(folder.glob("*.pid"))}
    return {name: pid for name, pid in programs.items() if pid and name != "supervisor"}


def stop(folder: Path, timeout_s: float = 3 * GRACE_S) -> bool:
    """Stop a folder's supervisor and its programs; False where none ran. Raises TimeoutError if it does not end."""
    pid = running(folder)
    if pid is None:
        for left in pids(folder).values():  # the supervisor was killed: what it left behind goes now
            _signal_group(left, signal.SIGKILL)
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while running(folder):
        if time.monotonic() > deadline:
            raise TimeoutError("the programs did not stop; see supervisor.log")
        time.sleep(0.1)
    for process in _started:
        if process.pid == pid:
            process.wait(GRACE_S)
    return True


def stay(folder: Path, say: Callable[[str], None]) -> None:
    """Stay until the folder's supervisor ends or Ctrl-C is pressed, which stops it."""
    say("Ctrl-C stops it.")
    try:
        while running(folder):
            time.sleep(0.5)
    except KeyboardInterrupt:
        say("stopping")
    finally:
        stop(folder)


def supervise(folder: Path) -> None:
    """Run the folder's programs until SIGTERM or SIGINT; the main loop of the supervisor's own process."""
    children = [_Child(Program(*row)) for row in json.loads((folder / "programs.json").read_text())]
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: received.append(got))
    _write_pid(folder / "supervisor.pid", os.getpid())
    try:
        while not received:
            for child in children:
                _look_after(folder, child)
            time.sleep(0.2)
    finally:
        _stop_all(folder, children)
        (folder / "supervisor.pid").unlink(missing_ok=True)


def _look_after(folder: Path, child: _Child) -> None:
    now, process = time.monotonic(), child.process
    if process is None:
        if now >= child.due:
            _launch(folder, child, now)
        return
    if (code := process.poll()) is None:
        return
    _signal_group(process.pid, signal.SIGKILL)  # what it started must not outlive it
    child.process = None
    child.wait_s = FIRST_WAIT_S if now - child.started > STEADY_S else min(2 * child.wait_s, LONGEST_WAIT_S)
    child.due = now + child.wait_s
    _say(f"{child.program.name} ended with {code}; starting it again in {child.wait_s:.0f} s")


def _launch(folder: Path, child: _Child, now: float) -> None:
    program = child.program
    with (folder / f"{program.name}.log").open("ab") as log:
        child.process = subprocess.Popen(
            program.command,
            env={**os.environ, **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    child.started = now
    _write_pid(folder / f"{program.name}.pid", child.process.pid)
    _say(f"{program.name} runs as {child.process.pid}")


def _stop_all(folder: Path, children: Sequence[_Child]) -> None:
    living = [child.process for child in children if child.process and child.process.poll() is None]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + GRACE_S
    while any(process.poll() is None for process in living) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        if child.process:
            _signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()
        (folder / f"{child.program.name}.pid").unlink(missing_ok=True)


def _end_with_parent() -> None:
    # Linux only, and silently absent elsewhere: there, `down` after a killed supervisor clears up instead.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _write_pid(path: Path, pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended at once; the supervisor will see
        path.write_text(f"{pid} {_birth(psutil.Process(pid)):.2f}\n")


def _alive(path: Path) -> int | None:
    """The process a file names, if it is still the same one (numbers are used again) and no zombie."""
    try:
        pid, birth = path.read_text().split()
        process = psutil.Process(int(pid))
        same = abs(_birth(process) - float(birth)) < TICK_S and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.Error):
        return None
    return process.pid if same else None


def _birth(process: psutil.Process) -> float:
    """Seconds from the system's start to the process's: setting the clock moves both."""
    return float(process.create_time() - psutil.boot_time())


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", flush=True)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
