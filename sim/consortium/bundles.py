"""The bundle that goes to real sites, and its digest, by which a site approves it."""

from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from fedsmall.clients.launcher import bundle_digest

SOURCE = Path(__file__).parent / "bundle"


def own_digest(source: Path = SOURCE) -> str:
    """The digest of the bundle in a folder, as a site will see it; by default the one that fedsmall itself sends."""
    return bundle_digest(build_fab_from_disk(source))
