"""A consortium's folder at the coordinator: who belongs to it, its certificates, and a kit for every site.

::

    consortium.json        the sites, their fingerprints, and until when they are admitted
    ca/                    the private authority; ca.key stays here, and can be taken off the machine
    server/                the server's certificate and key
    sites/NAME.pub         the public half of a site's key, as the site sent it
    kits/NAME/             what the site is given: site.json, ca.crt, policy.toml; no key in it
    flwr/                  Flower's own home for this consortium
    state/  log/  runs/    the SuperLink's database, the logs, the runs
"""

import json
import re
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

import fedsmall.clients
from fedsmall.ends import fingerprint
from fedsmall.files import write
from fedsmall.parts import Frozen
from fedsmall.sim.consortium import keys

INNER = "127.0.0.1"  # where the SuperLink listens by default
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RECORD = "consortium.json"
ADMITTED, REVOKED = "admitted", "revoked"


class Member(Frozen):
    """A site; ``fingerprint`` is None until it has sent its public key, and with it its ``identity``."""

    name: str
    fingerprint: str | None = None
    identity: str | None = None
    added: date
    expires: date
    revoked: date | None = None

    def standing(self, today: date) -> str:
        """One word for a listing: revoked, expired, waiting (for its key), or admitted."""
        if self.revoked:
            return REVOKED
        if self.expires < today:
            return "expired"
        return ADMITTED if self.fingerprint else "waiting for its key"


class Consortium(Frozen):
    """What the coordinator knows. Sites dial ``address``, where the gate ``listen``s; the SuperLink is behind it."""

    name: str
    host: str
    port: int
    listen: str = "0.0.0.0"
    inner_host: str = INNER
    inner_port: int
    created: date
    members: dict[str, Member] = Field(default_factory=dict)

    @property
    def address(self) -> str:
        """Host and port that the sites dial."""
        return f"{self.host}:{self.port}"

    @property
    def inner_address(self) -> str:
        """Host and port of the SuperLink itself, for the coordinator alone."""
        return f"{self.inner_host}:{self.inner_port}"


def today() -> date:
    """Today, the same for everyone."""
    return datetime.now(UTC).date()


def checked_name(name: str) -> str:
    """The name, or ValueError where it could not be a folder and a Flower node name everywhere."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a name has lower-case letters, digits and hyphens (at most 63), not {name!r}")
    return name


def create(
    folder: Path, name: str, host: str, port: int, *, listen: str, inner_port: int, days: int, inner_host: str = INNER
) -> Consortium:
    """Make a consortium's folder, its certificates valid for ``days``; ValueError where it holds one already."""
    if (folder / RECORD).exists():
        raise ValueError("this folder holds a consortium already; choose another, or add sites to this one")
    inner: dict[str, Any] = {"inner_host": inner_host, "inner_port": inner_port}
    record = Consortium(name=checked_name(name), host=host, port=port, listen=listen, created=today(), **inner)
    for part in ("ca", "server", "sites", "kits", "flwr", "state", "log", "runs"):
        (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
    keys.new_authority(folder / "ca", name, days)
    keys.new_server_certificate(folder / "ca", folder / "server", [host, inner_host], days)
    save(folder, record)
    return record


def load(folder: Path) -> Consortium:
    """The consortium in a folder; raises ValueError where there is none."""
    path = folder / RECORD
    if not path.is_file():
        raise ValueError("no consortium in this folder; `fedsmall consortium init` makes one, or name it with --folder")
    return Consortium.from_file(path)


def save(folder: Path, record: Consortium) -> None:
    """Write the record whole or not at all."""
    write(folder / RECORD, (record.model_dump_json(indent=2) + "\n").encode(), flush=True)


def add_site(folder: Path, name: str, public_key: Path | None, days: int) -> Member:
    """Admit a site and write its kit; ValueError for a revoked name, another key, or the key of another site."""
    record = load(folder)
    known = record.members.get(checked_name(name)) or Member(name=name, added=today(), expires=today())
    if known.revoked:
        raise ValueError(f"{name} is revoked; admit the hospital under a new name and a new key")
    changes: dict[str, Any] = {"expires": today() + timedelta(days=days)}
    if public_key is not None:
        identity, key = keys.read_identity(public_key), keys.read_public_key(public_key)
        if known.identity and identity not in (None, known.identity):
            raise ValueError(f"{name} has another identity already; revoke it, and admit a new name")
        mark = fingerprint(key)
        if known.fingerprint not in (None, mark):
            raise ValueError(f"{name} has the key {known.fingerprint} already; revoke it, and admit a new name")
        for other in record.members.values():
            if other.name != name and other.fingerprint == mark:
                raise ValueError(f"{other.name} uses this key already; each site makes its own: `fedsmall site keygen`")
        changes |= {"fingerprint": mark, "identity": identity or known.identity}
        (folder / "sites" / f"{name}.pub").write_bytes(key + b"\n")
    member = known.model_copy(update=changes)
    _save_member(folder, record, member)
    _write_kit(folder, record, member)
    return member


def admitted(record: Consortium) -> list[str]:
    """The names of all sites that are admitted now, in order."""
    return [name for name, member in sorted(record.members.items()) if member.standing(today()) == ADMITTED]


def roll_of(record: Consortium) -> dict[str, str]:
    """The identities of all sites that are admitted now and have one, by name."""
    identities = {name: record.members[name].identity for name in admitted(record)}
    return {name: identity for name, identity in identities.items() if identity}


def revoke(folder: Path, name: str) -> Member:
    """Shut a site out for good; the server lets go of its key at once where it runs, else when it starts."""
    record = load(folder)
    if name not in record.members:
        raise ValueError(f"no site {name!r}; this consortium has {', '.join(sorted(record.members)) or 'none'}")
    member = record.members[name].model_copy(update={"revoked": today()})
    _save_member(folder, record, member)
    return member


def certificates(folder: Path) -> dict[str, int]:
    """The days that are left of the authority's and the server's certificate."""
    paths = {"authority": folder / "ca" / "ca.crt", "server": folder / "server" / "server.crt"}
    return {label: keys.days_left(keys.load_certificate(path)) for label, path in paths.items()}


def warnings(folder: Path) -> list[str]:
    """What has expired or does within a month, a line each, with what to do."""
    remedy = {"server": "`fedsmall consortium renew` makes a new one", "authority": "make a new consortium before"}
    lines, record = [], load(folder)
    for label, days in certificates(folder).items():
        lines += [f"{line}; {remedy[label]}" for line in keys.warnings({f"the {label}'s certificate": days})]
    for name, member in sorted(record.members.items()):
        days, renews = (member.expires - today()).days, f"`fedsmall consortium add-site {name}` renews"
        if member.standing(today()) == ADMITTED and days <= keys.SOON:
            lines.append(f"{name} is admitted for {days} more days; {renews} that")
        elif member.standing(today()) == "expired":
            lines.append(f"{name}'s admission expired on {member.expires}; {renews} it")
    return lines


def _write_kit(folder: Path, record: Consortium, member: Member) -> None:
    """What the site is given: where to dial, whom to trust, and a policy to fill in. No private key is in it."""
    kit = folder / "kits" / member.name
    kit.mkdir(parents=True, exist_ok=True)
    (kit / "ca.crt").write_bytes((folder / "ca" / "ca.crt").read_bytes())
    card = {"consortium": record.name, "site": member.name, "address": record.address}
    card |= {"expires": member.expires.isoformat()}
    write(kit / "site.json", (json.dumps(card, indent=2) + "\n").encode(), flush=True)
    if not (kit / "policy.toml").exists():
        (kit / "policy.toml").write_text(files(fedsmall.clients).joinpath("policy.toml").read_text())


def _save_member(folder: Path, record: Consortium, member: Member) -> None:
    save(folder, record.model_copy(update={"members": record.members | {member.name: member}}))
