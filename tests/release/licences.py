"""The licences of all that constraints.txt pins: ``make licences`` writes docs/licences.md anew.

A licence is what the package says of itself where it is installed: its licence expression, else its classifiers, else
the field. What is pinned and not installed (tools of a release, rivals of the benchmark) is installed for a moment into
a folder of its own, without what it needs.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parents[2]
PAGE = HERE / "docs" / "licences.md"
LINE = re.compile(r"^\| (?P<name>[\w.-]+) \| (?P<version>\S+) \| (?P<licence>.+?) \| (?P<comes>.+?) \|$", re.MULTILINE)
TOOLS = "development"  # what neither fedsmall nor one of its extras asks for
NO_LICENCE = ("OSI Approved", "DFSG approved")
SPELT = {  # what stands in classifiers and fields, by the SPDX list's names
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache License Version 2.0": "Apache-2.0",
    "Apache License v2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache v2": "Apache-2.0",
    "Apache-2": "Apache-2.0",
    "BSD License": "BSD",
    "BSD-like": "BSD",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0",
    "GPLv3": "GPL-3.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Public Domain": "public domain",
}
HEAD = """# Licences of what fedsmall needs

*For coordinators and Flower developers.*

fedsmall itself is under Apache-2.0 ([LICENSE](../LICENSE)). This page is made by `make licences` from what the pinned
packages of `constraints.txt` say of themselves; a test holds the two together.

**{gpl}** are under the GNU General Public License, version 3, and come with the extra `survival` alone
(`pip install 'fedsmall[survival]'`): a data set, and what tests compare with. Nothing else here needs them, and who
distributes a program together with them must do so under that licence. Licences like MPL and LGPL bind who changes
those packages themselves. Wheels may hold libraries of others, under licences that lie in the wheel.

"Comes with" says who asks for a package: `fedsmall` itself, an extra, or the tools of development alone. On another
platform, or with a torch that is built for CUDA, a few more come along (NVIDIA's libraries, under NVIDIA's licences).

| package | version | licence | comes with |
|---|---|---|---|
"""


def pinned(text: str) -> dict[str, str]:
    """{package: version} of a file of constraints, in its order."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def licence_of(package: Distribution) -> str:
    """What a package says of its licence, in the names of the SPDX list where they are known."""
    about = package.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    marks = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    marks = [mark for mark in marks if mark not in NO_LICENCE]
    field = (about.get("License") or "").strip()
    short = field if field and "\n" not in field and len(field) < 60 and field.upper() != "UNKNOWN" else ""
    if short and (not marks or marks == ["BSD License"]):
        marks = [short]  # the field says which BSD licence, the classifier does not
    return " OR ".join(SPELT.get(mark, mark) for mark in marks) or "not said"


def users() -> dict[str, set[str]]:
    """{package: who brings it along}: "fedsmall", or else the extras that do, by what is installed here."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"fedsmall": project["dependencies"], **project["optional-dependencies"]}
    brought: dict[str, set[str]] = {}
    for who, lines in lists.items():
        for line in lines if who != "dev" else ():
            for name in _closure(Requirement(line)):
                brought.setdefault(name, set()).add(who)
    return {name: {"fedsmall"} if "fedsmall" in who else who for name, who in brought.items()}


def _closure(asked: Requirement) -> set[str]:
    """A requirement and all that it brings along here."""
    names: set[str] = set()
    known: set[tuple[str, str]] = set()
    waiting = [asked]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        names.add(name)
        for extra in {"", *one.extras}:
            if (name, extra) not in known:
                known.add((name, extra))
                waiting += _asked_by(name, extra)
    return names


def _asked_by(name: str, extra: str) -> Iterator[Requirement]:
    try:
        lines = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for line in lines:
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield one


def rows_of(text: str) -> dict[str, tuple[str, str, str]]:
    """{package: (version, licence, comes with)} of a page."""
    return {m["name"]: (m["version"], m["licence"], m["comes"]) for m in LINE.finditer(text) if m["name"] != "package"}


def rows(packages: dict[str, Distribution]) -> dict[str, tuple[str, str, str]]:
    """The lines of the page for these packages, as :func:`rows_of` reads them."""
    brought = users()
    found: dict[str, tuple[str, str, str]] = {}
    for name, package in packages.items():
        who = brought.get(canonicalize_name(name))
        comes = ", ".join(f"`{one}`" for one in sorted(who)) if who else TOOLS
        found[name] = (package.version.partition("+")[0], licence_of(package), comes)
    return found


def installed(names: Iterable[str]) -> dict[str, Distribution]:
    """Those of the packages that are installed here."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = distribution(name)
    return found


def fetched(pins: dict[str, str], folder: str) -> dict[str, Distribution]:
    """Pinned packages, installed into a folder without what they need."""
    asked = [f"{name}=={version}" for name, version in pins.items()]
    call = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder)
    subprocess.run([*call, *asked], check=True)
    there = {canonicalize_name(one.metadata["Name"]): one for one in distributions(path=[folder])}
    return {name: there[canonicalize_name(name)] for name in pins}


def strong(found: dict[str, tuple[str, str, str]]) -> list[str]:
    """The packages whose licence asks the same of whatever they are passed on with: GPL and AGPL, LGPL not."""
    return [name for name, (_, licence, _) in found.items() if is_strong(licence)]


def is_strong(licence: str) -> bool:
    """Whether no alternative of a licence expression is weaker than the GPL."""
    return all(re.search(r"(?<!L)GPL|(?<!Lesser )General Public", one) for one in re.split(r" OR ", licence))


def page(found: dict[str, tuple[str, str, str]]) -> str:
    """The page's text."""
    return HEAD.format(gpl=" and ".join(strong(found))) + "".join(
        f"| {name} | {' | '.join(rest)} |\n" for name, rest in found.items()
    )


def main() -> None:
    """Write the page. Raises SystemExit where another version is installed than is pinned."""
    pins = pinned((HERE / "constraints.txt").read_text(encoding="utf-8"))
    here = installed(pins)
    odd = [name for name, package in here.items() if package.version.partition("+")[0] != pins[name]]
    if odd:
        raise SystemExit(f"constraints.txt pins another version than is installed of: {', '.join(odd)}")
    with TemporaryDirectory() as folder:
        packages = here | fetched({name: version for name, version in pins.items() if name not in here}, folder)
        found = rows({name: packages[name] for name in pins})
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
