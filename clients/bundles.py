"""The bundle that a run was started with, of which a site runs no code: it is one that the site's policy approves."""

import hashlib
import io
import json
import re
import tomllib
import zipfile
import zlib

from fedsmall.errors import PolicyError

# what zipfile raises on bytes that are no zip file, or only nearly one
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)
PIECE = 65_536  # bytes; of a pyproject.toml no more is read for the app's name


def bundle_digest(content: bytes) -> str:
    """SHA-256 over a bundle's files. PolicyError where it is no zip file, or names a file twice."""
    rows = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            for name in sorted(bundle.namelist()):
                with bundle.open(name) as file:  # in pieces: a small bundle may unpack to more than the memory holds
                    rows.append([name, hashlib.file_digest(file, "sha256").hexdigest()])  # type: ignore[arg-type]
    except UNREADABLE:
        raise PolicyError("the bundle is no zip file; no code of it was loaded") from None
    if len({name for name, _ in rows}) != len(rows):
        raise PolicyError("the bundle names a file twice; no code of it was loaded")
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def app_name(content: bytes) -> str:
    """A bundle's own name, "publisher/name version", cut to plain letters: it is its sender's word."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle, bundle.open("pyproject.toml") as file:
            about = tomllib.loads(file.read(PIECE).decode())
        publisher = about["tool"]["flwr"]["app"]["publisher"]
        name = f"{publisher}/{about['project']['name']} {about['project']['version']}"
    except (*UNREADABLE, LookupError, TypeError):
        return "without a name"
    return re.sub(r"[^A-Za-z0-9._/ -]", "?", name)[:80]


def check_bundle(content: bytes, approved: str) -> None:
    """Raise PolicyError unless the bundle's digest is one of those approved (separated by commas)."""
    digest = bundle_digest(content)
    if digest not in approved.split(","):
        what = f"the app {app_name(content)} (bundle {digest[:16]})"
        raise PolicyError(f"{what} is not among those approved here; no code of it was loaded")
