"""Programs that start in a startup kit's folder take no module from it: who sends the kit would else run code there."""

import os
import subprocess
from unittest.mock import patch

import pytest

from fedsmall.sim.consortium import members, server, site, supervisor

PROGRAMS = ("station", "resident", "region", "keeper", "supervisor")
MODULES = ("json.py", "numpy.py", "pathlib.py")  # of which every program takes one at least


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit as a coordinator sends it that hides modules of its own beside site.json."""
    folder = tmp_path_factory.mktemp("c") / "rhine"
    members.create(folder, "rhine", "localhost", 8443, listen="127.0.0.1", inner_port=18443, days=90)
    members.add_site(folder, "essen", None, days=90)
    kit = folder / "kits" / "essen"
    for name in MODULES:
        (kit / name).write_text(
            f"from builtins import open\nopen({str(kit / 'ran')!r}, 'w').close()\nraise ImportError"
        )
    return kit


def commands(kit):
    """What is started, as far as its module: its arguments are left out, without which it ends once it is loaded."""
    of_kit, folder = site.Site(kit, kit / "state"), kit.parents[1]
    station, resident = (program.command for program in site.programs(of_kit, None))
    region = site.programs(of_kit, None, region=folder)[0].command
    keeper = next(
        program.command for program in server.programs(folder, members.load(folder)) if program.name == "keeper"
    )
    with patch.object(supervisor.subprocess, "Popen") as popen:
        popen.return_value.poll.return_value = 0
        supervisor.start(kit / "run", [])
        supervisor._started.clear()
    every = (station, resident, region, keeper, popen.call_args.args[0])
    return {name: command[: command.index("-m") + 2] for name, command in zip(PROGRAMS, every, strict=True)}


def started(kit, command):
    """Whether code of the kit ran, once a program has been started in its folder and has ended."""
    (kit / "ran").unlink(missing_ok=True)
    done = subprocess.run(command, cwd=kit, env=os.environ, capture_output=True, timeout=120, text=True)
    assert done.returncode != 0  # it lacks its arguments
    return (kit / "ran").exists(), done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_takes_a_module_from_the_folder_in_which_it_starts(kit, program):
    ran, complaint = started(kit, commands(kit)[program])

    assert not ran, complaint


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_the_safe_path_the_kits_code_would_run(kit, program):
    assert started(kit, [word for word in commands(kit)[program] if word != "-P"])[0]
