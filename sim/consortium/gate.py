"""The gate: an nginx in front of the SuperLink that lets sites take and answer orders, and nothing else.

Open-source Flower has no user accounts, and one port serves the sites (``/v1/fleet/``), the ``flwr`` commands
(``/v1/control/``) and the ServerApp (``/v1/runtime/``): whoever reaches it can run code at every hospital. So the
SuperLink listens on the loopback alone, and the public port passes the ten calls that a registered site makes, at a
limited rate: by the key in the call where that is an admitted site's, else by address and over all addresses.
"""

import base64
import grp
import os
import pwd
import shutil
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedsmall.sim.consortium import members
from fedsmall.sim.consortium.members import ADMITTED, Consortium
from fedsmall.wire import PROTOCOL

# flwr 1.41 superlink/routers/fleet/router.py, less register-node and unregister-node: sites are registered by the
# coordinator. A call that a later Flower adds is refused until someone has looked at it.
FLEET_CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
    *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
)
STANDING_HEADER = "Fedsmall-Standing"  # of answers to a site whose key is known
LARGEST_CALL_MIB = 32  # Flower cuts arrays into objects of 5 MB

# Calls a second, and lines that wait for an answer. A site at .2 s a communication round asks a dozen times a second,
# one call after the other, beside a heartbeat (Flower's own SuperNode has up to five under way): who asks so is slowed
# down above the rate and never refused. More calls at once than are held back get a 503, after which sites ask again.
LIMITS = {"member": (100, 16), "stranger": (10, 4), "strangers": (40, 16)}

CONFIGURATION = Path(__file__).with_name("gate.conf")


def configuration(record: Consortium, folder: Path, *, upstream: str | None = None, access_log: str = "") -> str:
    """The gate's nginx configuration; ``upstream`` is the SuperLink's host and port, the loopback by default."""
    folder = folder.absolute()
    zones = [f"limit_req_zone ${who} zone={who}:10m rate={rate}r/s;" for who, (rate, _) in LIMITS.items()]
    zones += [f"limit_conn_zone ${who} zone={who}_lines:10m;" for who in LIMITS]  # an empty variable is not counted
    # a second's calls more than the rate pass at once, another second's wait
    limits = [f"limit_req zone={who} burst={2 * rate} delay={rate};" for who, (rate, _) in LIMITS.items()]
    limits += [f"limit_conn {who}_lines {lines};" for who, (_, lines) in LIMITS.items()]
    # a site whose key is not here counts as a stranger
    standings = {}
    for name, member in sorted(record.members.items()):
        if (path := folder / "sites" / f"{name}.pub").exists():
            standings[header(path.read_bytes())] = name, member.standing(members.today())
    return CONFIGURATION.read_text().format(
        user=_worker(folder),
        work=folder / "gate",
        access_log=access_log or folder / "log" / "gate-access.log",
        listen=f"{record.listen}:{record.port}",
        certificate=folder / "server" / "server.crt",
        key=folder / "server" / "server.key",
        authority=folder / "ca" / "ca.crt",
        calls="|".join(FLEET_CALLS),
        upstream=upstream or record.inner_address,
        largest=LARGEST_CALL_MIB,
        protocol=PROTOCOL,
        sites="".join(f'"{key}" {name}; ' for key, (name, standing) in standings.items() if standing == ADMITTED),
        standings="".join(f'"{key}" "{standing}"; ' for key, (_, standing) in standings.items()),
        zones="\n    ".join(zones),
        limits="\n            ".join(limits),
    )


def _worker(folder: Path) -> str:
    """The user of nginx's workers under root: as nobody they could not write here what exceeds the buffers."""
    if os.geteuid() != 0:
        return ""
    owner = folder.stat()
    with suppress(KeyError):  # a folder of nobody's whom this machine knows
        return f"user {pwd.getpwuid(owner.st_uid).pw_name} {grp.getgrgid(owner.st_gid).gr_name};\n"
    return "user root root;\n"


def header(public: bytes) -> str:
    """An OpenSSH public key in the form of Flower's header ``flwr-public-key``."""
    pem = load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(pem).decode()


def path_in(folder: Path) -> Path:
    """Where the gate's configuration lies."""
    return folder / "gate" / "nginx.conf"


def write(record: Consortium, folder: Path, **settings: str) -> Path:
    """Write the configuration into ``folder/gate`` and return its path."""
    path = path_in(folder)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(configuration(record, folder, **settings))
    return path


def command(configuration_path: Path) -> list[str]:
    """The command that runs the gate; raises ValueError where nginx is not installed."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    if nginx is None:
        raise ValueError("the server needs nginx (Debian: apt install nginx-light); or use the compose file in docker/")
    work = str(configuration_path.parent.absolute())
    return [nginx, "-e", "stderr", "-p", work, "-c", str(configuration_path.absolute())]
