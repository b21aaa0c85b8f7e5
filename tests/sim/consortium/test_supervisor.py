"""The supervisor starts, restarts and stops real processes, and leaves none behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fedsmall.sim.consortium import supervisor
from fedsmall.sim.consortium.supervisor import Program

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
FAMILY = [
    sys.executable,
    "-c",
    "import subprocess, sys, time, pathlib\n"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "pathlib.Path(sys.argv[1]).write_text(str(p.pid)); time.sleep(600)",
]


def wait_for(truth, timeout_s=15.0):
    deadline = time.monotonic() + timeout_s
    while not (value := truth()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def process_folder(tmp_path):
    yield tmp_path / "run"
    supervisor.stop(tmp_path / "run")


def test_programs_run_until_stopped(process_folder):
    supervisor.start(process_folder, [Program("a", SLEEP), Program("b", SLEEP)])
    pids = wait_for(lambda: (found := supervisor.pids(process_folder)) and len(found) == 2 and found)

    assert supervisor.stop(process_folder)

    assert all(gone(pid) for pid in pids.values())
    assert supervisor.running(process_folder) is None


def test_a_killed_program_is_started_again(process_folder):
    supervisor.start(process_folder, [Program("a", SLEEP)])
    first = wait_for(lambda: supervisor.pids(process_folder).get("a"))

    os.kill(first, signal.SIGKILL)

    second = wait_for(lambda: (pid := supervisor.pids(process_folder).get("a")) and pid != first and pid)
    assert second != first


def test_what_a_program_started_goes_with_it(process_folder, tmp_path):
    supervisor.start(process_folder, [Program("family", [*FAMILY, str(tmp_path / "grandchild")])])
    grandchild = int(wait_for(lambda: (tmp_path / "grandchild").exists() and (tmp_path / "grandchild").read_text()))

    supervisor.stop(process_folder)

    wait_for(lambda: gone(grandchild))


def test_a_killed_supervisor_takes_its_programs_along(process_folder):
    process = supervisor.start(process_folder, [Program("a", SLEEP)])
    child = wait_for(lambda: supervisor.pids(process_folder).get("a"))

    process.kill()
    process.wait()

    wait_for(lambda: gone(child))


def test_a_second_supervisor_is_refused(process_folder):
    supervisor.start(process_folder, [Program("a", SLEEP)])
    wait_for(lambda: supervisor.running(process_folder))

    with pytest.raises(ValueError, match="already running"):
        supervisor.start(process_folder, [Program("a", SLEEP)])


def test_a_number_used_again_is_not_taken_for_ours(process_folder):
    process_folder.mkdir()
    (process_folder / "a.pid").write_text(f"{os.getpid()} 1\n")

    assert supervisor.pids(process_folder) == {}
    assert supervisor.stop(process_folder) is False  # and this test is still alive


def test_a_process_that_has_ended_and_is_not_reaped_yet_is_not_alive(process_folder):
    process_folder.mkdir()
    child = subprocess.Popen([sys.executable, "-c", ""])
    supervisor._write_pid(process_folder / "a.pid", child.pid)
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)

    assert supervisor.pids(process_folder) == {}

    child.wait()
