"""A ``flwr-clientapp`` on the SuperExec's PATH that checks the digest of a bundle before Flower installs it.

A bundle whose digest the site's policy does not approve is not unpacked, and the server is told so in one line.
"""

import hashlib
import io
import json
import os
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from fedsmall.errors import PolicyError

# what zipfile raises on bytes that are no zip file, or only nearly one
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)
PIECE = 65_536  # bytes; of a pyproject.toml no more is read for the app's name
APPROVED = "FEDSMALL_BUNDLES"  # the approved digests, separated by commas; set by `fedsmall site up`


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


def check_before(install: Callable[..., Any], approved: str) -> Callable[..., Any]:
    """Flower's ``install_from_fab``, after the check."""

    def install_checked(content: Any, *rest: Any, **options: Any) -> Any:
        check_bundle(content, approved)
        return install(content, *rest, **options)

    return install_checked


def main() -> None:
    """Run Flower's program with the check in place; fails where Flower has no place for it any more."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    install = vars(run_clientapp)["install_from_fab"]
    vars(run_clientapp)["install_from_fab"] = check_before(install, os.environ.get(APPROVED, ""))
    flwr_clientapp()


if __name__ == "__main__":
    main()
