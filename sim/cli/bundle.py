"""``fedsmall site bundle``: all that a hospital without internet installs, in a folder and a tar."""

import hashlib
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

from typer import Option

from fedsmall import HOME, __version__
from fedsmall.errors import PlanError
from fedsmall.sim.cli.options import check_unwritten, say

UNITS = (HOME / "systemd", HOME.parent / "docker" / "systemd")  # in a wheel, in a checkout
SUMS, INSTALL = "SHA256SUMS", "install.sh"
SCRIPT = f"""#!/bin/sh
# Installs fedsmall {__version__} for a hospital's site, without a network: sh {INSTALL} [FOLDER]
set -eu
cd "$(dirname "$0")"
folder="${{1:-/opt/fedsmall}}"
sha256sum --quiet -c {SUMS}
python3 -c 'import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})' ||
    {{ echo "these wheels are for Python {sys.version_info[0]}.{sys.version_info[1]}" >&2; exit 2; }}
python3 -m venv "$folder"
"$folder/bin/python" -I -m pip install --quiet --no-index --find-links wheels --upgrade 'fedsmallEXTRAS=={__version__}'
"$folder/bin/fedsmall" --version
echo "Units for systemd and a file for logrotate are in $(pwd)/systemd"
"""


def bundle(
    out: Annotated[Path, Option(help="the folder to write; OUT.tar is written beside it")],
    extras: Annotated[str, Option(help="extras that the site needs, as sql,excel")] = "",
    wheel: Annotated[Path | None, Option(help="fedsmall's own wheel; a checkout builds its own")] = None,
    pip: Annotated[str, Option(help="further words for pip, as --extra-index-url ADDRESS")] = "",
) -> None:
    """Gather all wheels for a hospital without internet, in the versions that are installed here."""
    tar = out.with_name(f"{out.name}.tar")
    for path in (out, tar):
        check_unwritten(path)
    if wheel is None and not (HOME.parent / "pyproject.toml").is_file():
        raise PlanError("this fedsmall was installed from a wheel: name that file with --wheel")
    source = wheel or HOME.parent
    if not source.exists():
        raise PlanError(f"there is no file {source}")
    chosen = f"[{extras}]" if extras else ""
    with tempfile.TemporaryDirectory(dir=out.absolute().parent) as scratch:
        folder = Path(scratch) / out.name
        (folder / "wheels").mkdir(parents=True)
        say("pip gathers the wheels, which takes minutes ...")
        _gather(f"{source.absolute()}{chosen}", folder / "wheels", Path(scratch), shlex.split(pip))
        units = next(place for place in UNITS if place.is_dir())
        (folder / "systemd").mkdir()
        for unit in sorted(units.iterdir()):
            (folder / "systemd" / unit.name).write_bytes(unit.read_bytes())
        (folder / INSTALL).write_text(SCRIPT.replace("EXTRAS", chosen))
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
        (folder / SUMS).write_text("".join(sums))
        with tarfile.open(Path(scratch) / tar.name, "w") as packed:
            packed.add(folder, out.name)
        folder.rename(out)
        (Path(scratch) / tar.name).rename(tar)
    wheels = list((out / "wheels").iterdir())
    size = sum(path.stat().st_size for path in wheels) / 1e6
    machine = f"{platform.system()} {platform.machine()} and Python {sys.version_info[0]}.{sys.version_info[1]}"
    say(f"{out} and {tar}: {len(wheels)} wheels, {size:.0f} MB, for {machine}")
    if any(path.name.startswith("nvidia_") for path in wheels):
        say("torch here is built for CUDA, 3 GB of it: a site on processors wants a build for CPUs", "yellow")
    say(f"At the hospital: tar xf {tar.name} && sh {out.name}/{INSTALL} /opt/fedsmall")
    say(f"Tell them on the telephone: SHA-256 of {SUMS} is {hashlib.sha256((out / SUMS).read_bytes()).hexdigest()}")


def _gather(what: str, wheels: Path, scratch: Path, words: list[str]) -> None:
    """All wheels of a requirement, in the versions that are installed here. PlanError, with pip's reason, for none."""
    pins = scratch / "pins.txt"
    known = {found.metadata["Name"]: found.version for found in distributions()}
    pins.write_text("".join(f"{name}=={version}\n" for name, version in known.items() if name != "fedsmall"))
    call = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels), "-c", str(pins)]
    done = subprocess.run([*call, *words, what], capture_output=True, text=True)
    if done.returncode:
        complaint = " ".join(done.stderr.split()[-40:])
        raise PlanError(f"pip could not gather the wheels: {complaint}")
