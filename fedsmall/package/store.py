"""A package on disk: a folder, or a .zip of one, whose every file is in a list of digests.

::

    README.md           the model card, for people and for the Hugging Face hub
    package.json        the record (:class:`fedsmall.package.record.Package`)
    model.safetensors   the weights
    SHA256SUMS          the digest of each of the others; `sha256sum -c SHA256SUMS` checks them
"""

import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, Template
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fedsmall import __version__, files
from fedsmall.data.image_files import EIGHT_BITS
from fedsmall.data.preparation import FAR
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import by_digits
from fedsmall.package.record import CENTRAL, FORMAT, GLOBAL, Package
from fedsmall.wire import Arrays

CARD, RECORD, WEIGHTS, DIGESTS = FILES = ("README.md", "package.json", "model.safetensors", "SHA256SUMS")
KINDS = {"table": "tabular", "images": "image", "arrays": "tabular"}
WHO = {GLOBAL: "The global model of all sites", CENTRAL: "A model of the same patients pooled"}
SHOWN = 40  # columns that are listed by name


class Stored(NamedTuple):
    """A package as it was read: its record and its weights, checked against its digests."""

    package: Package
    weights: Arrays


def contents(package: Package, weights: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """The files of a package by name."""
    metadata = {"format": "pt", "fedsmall": __version__, "method": package.label, "model": package.architecture.model}
    held = {
        CARD: card(package, weights).encode(),
        RECORD: (package.model_dump_json(indent=1) + "\n").encode(),
        WEIGHTS: _same_bytes(save_arrays({name: np.ascontiguousarray(a) for name, a in weights.items()}, metadata)),
    }
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in held.items()]
    return {**held, DIGESTS: "".join(lines).encode()}


def save(folder: Path, package: Package, weights: Mapping[str, np.ndarray]) -> None:
    """Write a package into ``folder``; its digests come last, so that half a package is never taken for a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents(package, weights).items():
        files.write(folder / name, content)


def save_zip(path: Path, stored: Stored) -> None:
    """Write a package as one .zip, the same bytes every time."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents(*stored).items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    files.write(path, held.getvalue())


def is_package(path: Path) -> bool:
    """Whether something at ``path`` looks like a package."""
    return (path / RECORD).is_file() or path.suffix == ".zip"


def read(path: Path | str) -> Stored:
    """The package in a folder or a .zip. Nothing is unpickled, and no code comes with it.

    Raises PlanError where there is none, it is not what its digests say, or a later release has written it.
    """
    path = Path(path)
    held = _of_zip(path) if path.suffix == ".zip" else _of_folder(path)
    _check_digests(path, held)
    try:
        if json.loads(held[RECORD])["format"] > FORMAT:
            raise PlanError(f"{path} is of a later fedsmall than this one, {__version__}; install that")
        record = Package.model_validate_json(held[RECORD])
    except ValidationError as error:
        fault = error.errors()[0]
        where = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise PlanError(f"{path}: {RECORD} is not one that fedsmall {__version__} reads: {where}") from None
    except PlanError:
        raise
    except (ValueError, KeyError, TypeError):
        raise PlanError(f"{path}: {RECORD} is no record of a package") from None
    try:
        return Stored(record, load_arrays(held[WEIGHTS]))
    except SafetensorError:
        raise PlanError(f"{path}: {WEIGHTS} holds no weights that can be read") from None


def _same_bytes(content: bytes) -> bytes:
    """Safetensors whose metadata stand in order: the library writes them in another one each time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[end:]


def _of_folder(path: Path) -> dict[str, bytes]:
    if (path / "run.json").is_file():
        raise PlanError(f"{path} is a run, of several models; choose a package in {path / 'packages'}")
    if not (path / RECORD).is_file():
        raise PlanError(f"{path} holds no package: it has no {RECORD}")
    return {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}


def _of_zip(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in FILES if name in archive.namelist()}
    except FileNotFoundError:
        raise PlanError(f"there is no package {path}") from None
    except (OSError, zipfile.BadZipFile):
        raise PlanError(f"{path} is no .zip that can be read") from None


def _check_digests(path: Path, held: Mapping[str, bytes]) -> None:
    for name in (RECORD, WEIGHTS, DIGESTS):
        if name not in held:
            raise PlanError(f"{path} is no whole package: it has no {name}")
    lines = held[DIGESTS].decode(errors="replace").splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, content in held.items():
        if name != DIGESTS and digests.get(name) != hashlib.sha256(content).hexdigest():
            changed = "it was changed or damaged since it was written"
            raise PlanError(f"{path}: {name} is not what {DIGESTS} says; {changed}")


def card(package: Package, weights: Mapping[str, np.ndarray], place: str = ".", header: bool = True) -> str:
    """The card as Markdown, with the hub's ``header``; its commands name the package by the ``place`` where it is."""
    whose = package.whose
    who = WHO.get(whose, f"The model that {whose} trained last")
    tag = "".join(character if character.isalnum() else "-" for character in package.method)
    return _template().render(
        p=package,
        header=header,
        who=who,
        tag=tag.strip("-").lower() or "method",
        size=sum(int(array.size) for array in weights.values()),
        shell_place=shlex.quote(place),
        python_place=json.dumps(place),
        cuts=", ".join(f"{cut:g}" for cut in package.cuts),
        versions=", ".join(f"{name} {version}" for name, version in package.versions.items()),
    )


@cache
def _template() -> Template:
    loader = PackageLoader("fedsmall.package")
    cards = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    cards.filters["quoted"] = lambda text: '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
    cards.filters["by_digits"] = by_digits
    cards.globals |= {"KINDS": KINDS, "SHOWN": SHOWN, "FAR": FAR, "EIGHT_BITS": EIGHT_BITS}
    return cards.get_template("card.md")
