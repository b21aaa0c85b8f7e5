"""Whether what is built works for a stranger: ``python -m release.check dist``, which ``make release`` calls.

For every Python that the classifiers of pyproject.toml name and that is at hand: an empty environment, the wheel with
the versions of constraints.txt, and, from an empty folder with no checkout to be found, every command's help, the
lists, a scenario that comes along and the demonstration. The sdist is built and installed too, and must give the same
wheel, to the byte.
"""

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
UV = (sys.executable, "-m", "uv")
LISTS = ("methods", "tasks", "scenarios")
SHORT = ("run", "synthetic", "--set", "rounds=4", "--set", "seeds=[0]", "--out", "short")
# Run by the environment's own Python: where the packages are, and every command with those below it.
ROOMS = """
import fedsmall, fedsmall.strategies, fedsmall.clients, fedsmall.sim
print(*(package.__file__ for package in (fedsmall, fedsmall.strategies, fedsmall.clients, fedsmall.sim)), sep="\\n")
"""
COMMANDS = """
import click, typer
from fedsmall.sim.cli.app import LazyCommand, app
def below(command, path):
    command = command.real() if isinstance(command, LazyCommand) else command
    print(*path)
    for name in command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ():
        below(command.get_command(click.Context(command), name), (*path, name))
below(typer.main.get_command(app), ())
"""


class Stranger:
    """Somebody with an environment and an empty folder, and nothing of ours but what was installed there."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment, self.folder = environment, folder

    def python(self, code: str) -> str:
        """What the environment's Python says to some code; it looks for modules in no folder but its own."""
        return self._said([str(self.environment / "bin" / "python"), "-P", "-c", code])

    def fedsmall(self, *words: str) -> str:
        """What a command prints. Raises SystemExit, with all that was printed, where it does not end well."""
        return self._said([str(self.environment / "bin" / "fedsmall"), *words])

    def shell(self, lines: str) -> str:
        """What lines of a shell print, the environment's programs before all others."""
        return self._said(
            ["env", f"PATH={self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "bash", "-ec", lines]
        )

    def install(self, what: Path) -> None:
        """Install a wheel, or a folder that can be built, and nothing that it needs: that is borrowed."""
        call = [*UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
        subprocess.run([*call, "--python", str(self.environment / "bin" / "python"), str(what)], check=True)

    def _said(self, call: list[str]) -> str:
        strange = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FEDSMALL", "VIRTUAL_ENV", "MAKE"))
        }
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(self.folder / ".flwr"),
        }
        done = subprocess.run(call, cwd=self.folder, env=strange | quiet, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(call[:3])} ... ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def stranger_with(wheel: Path, folder: Path) -> Stranger:
    """Somebody with the wheel in an environment of their own in a folder, which borrows what the wheel needs."""
    stranger = Stranger(folder / "venv", folder / "empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(stranger.environment)], check=True)
    # A path file adds the folder, and reads no path file in it: so the checkout's own, if it is installed, is not seen.
    site = next(stranger.environment.glob("lib/python3*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    stranger.install(wheel)
    stranger.folder.mkdir()
    return stranger


def check_installed(stranger: Stranger, version: str) -> None:
    """Raise SystemExit unless it is the installed fedsmall of this version that answers, with all that it brings."""
    here = stranger.environment.resolve()
    strays = [path for path in stranger.python(ROOMS).split() if not Path(path).resolve().is_relative_to(here)]
    if strays:
        raise SystemExit(f"these are not the installed packages: {', '.join(strays)}")
    said = stranger.fedsmall("--version").strip()
    if said != f"fedsmall {version}":
        raise SystemExit(f"what is installed says {said!r}; pyproject.toml says {version}")
    for name in LISTS:
        if not stranger.fedsmall("list", name).strip():
            raise SystemExit(f"fedsmall list {name} prints nothing")
    stranger.fedsmall(*SHORT)
    if not (stranger.folder / "short" / "report.html").is_file():
        raise SystemExit("a scenario that comes along left no report.html")


def check_commands(stranger: Stranger) -> int:
    """Ask every command, and every one below it, for its help; how many there are."""
    commands = [line.split() for line in stranger.python(COMMANDS).splitlines()]
    for words in commands:
        if "Usage: fedsmall" not in stranger.fedsmall(*words, "--help"):
            raise SystemExit(f"fedsmall {' '.join(words)} --help says nothing of its usage")
    return len(commands)


def build(source: Path, out: Path, *kinds: str) -> None:
    """Build ``kinds`` ("sdist", "wheel") from a folder; the same bytes for the same files."""
    call = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        str(out),
        *(word for kind in kinds for word in ("-t", kind)),
    ]
    subprocess.run(call, cwd=source, check=True, capture_output=True)


def only(folder: Path, pattern: str) -> Path:
    """The one file of this pattern; SystemExit where there is none or more."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} is to hold one {pattern}, and holds {len(found)}; `make clean` first")
    return found[0]


def check_sdist(sdist: Path, wheel: Path) -> None:
    """Raise SystemExit unless the sdist gives the same wheel, to the byte."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xzf", str(sdist), "-C", folder], check=True)
        build(only(Path(folder), "fedsmall-*"), Path(folder, "out"), "wheel")
        again = only(Path(folder, "out"), "*.whl")
        if hashlib.sha256(again.read_bytes()).digest() != hashlib.sha256(wheel.read_bytes()).digest():
            raise SystemExit(f"{sdist.name} gives another {wheel.name} than the checkout")


def stated() -> tuple[str, list[str]]:
    """The version, and the Pythons, that pyproject.toml states."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    return project["version"], named


def torch_here(python: Path, links: str) -> bool:
    """Put the pinned torch without CUDA into an environment, from files here or PyTorch's index; whether it worked."""
    pinned = re.search(r"^torch==(\S+)$", (HERE / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    ways = [("--torch-backend", "cpu", f"torch=={pinned[1]}")]
    ways = [("--find-links", links, f"torch=={pinned[1]}+cpu"), *ways] if links else ways
    install = (*UV, "pip", "install", "--quiet", "--python", str(python))
    return any(subprocess.run([*install, *way], capture_output=True).returncode == 0 for way in ways)


def environments(pythons: list[str], wheel: Path, place: Path) -> Iterator[tuple[str, Path]]:
    """An empty environment with torch for each Python that is at hand; a line for each that cannot be had whole."""
    links = os.environ.get("PIP_FIND_LINKS", "").replace(" ", ",")
    for version in pythons:
        environment = place / version
        made = [*UV, "venv", "--quiet", "--no-python-downloads", "--python", version, str(environment)]
        if subprocess.run(made, capture_output=True).returncode:
            print(f"Python {version}: not at hand here, so not checked")
        elif not torch_here(environment / "bin" / "python", links):
            check_compiles(version, environment / "bin" / "python", wheel)
            print(
                f"Python {version}: no torch without CUDA at hand; only compiled, and all versions found to go together"
            )
        else:
            yield version, environment


def check_compiles(version: str, python: Path, wheel: Path) -> None:
    """What can be known without torch: every module compiles, and constraints.txt has what the wheel asks for."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        done = subprocess.run([str(python), "-m", "compileall", "-q", folder], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"Python {version} does not compile all of the wheel:\n{done.stdout}{done.stderr}")
    asked = ["--quiet", "--python-version", version, "-c", "constraints.txt", "pyproject.toml"]
    # never -o /dev/null: uv renames a file over it, and takes the device away
    subprocess.run([*UV, "pip", "compile", *asked], cwd=HERE, check=True, stdout=subprocess.DEVNULL)


def install(environment: Path, package: Path) -> None:
    """Install a wheel or an sdist, with what constraints.txt pins."""
    into = ("--quiet", "--python", str(environment / "bin" / "python"), "--reinstall-package", "fedsmall")
    subprocess.run([*UV, "pip", "install", *into, "-c", str(HERE / "constraints.txt"), str(package)], check=True)


def main(dist: Path) -> None:
    """Check the wheel and the sdist of a folder; SystemExit with the reason where one does not work."""
    version, pythons = stated()
    wheel, sdist = only(dist, f"fedsmall-{version}-*.whl"), only(dist, f"fedsmall-{version}.tar.gz")
    check_sdist(sdist, wheel)
    print(f"{sdist.name} gives {wheel.name} to the byte")
    with tempfile.TemporaryDirectory() as place:
        for python, environment in environments(pythons, wheel, Path(place)):
            for kind, package in (("sdist", sdist), ("wheel", wheel)):
                install(environment, package)
                stranger = Stranger(environment, Path(tempfile.mkdtemp(dir=place)))
                check_installed(stranger, version)
                print(f"Python {python}: the {kind} works from an empty folder")
            count = check_commands(stranger)
            stranger.fedsmall("demo")
            print(f"Python {python}: help of {count} commands, and the demonstration")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
