"""``fedsmall consortium``: make a consortium, admit and revoke sites, see what expires."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedsmall.ends import fingerprint
from fedsmall.sim.cli.options import check_unwritten, command_group, say, say_roll
from fedsmall.sim.consortium import coordinators, keys, members, server, supervisor
from fedsmall.sim.consortium.supervisor import stay

app = command_group("Provision a consortium: authority, certificates, and a startup kit per site.")
Folder = Annotated[Path, Option("--folder", "-f", help="the consortium's folder")]
HERE = Path("consortium")
LOOPBACK = "127.0.0.1"


@app.command("init")
def init(
    name: Annotated[str, Argument(help="the consortium's name")],
    host: Annotated[str, Option(help="the name or address that the sites dial")],
    port: Annotated[int, Option(help="the public port, TLS only")] = 8443,
    folder: Folder = HERE,
    listen: Annotated[str, Option(help="the address the reverse proxy listens at")] = "0.0.0.0",
    inner_host: Annotated[str, Option(help="the SuperLink's own host: the loopback, or a private network")] = LOOPBACK,
    inner_port: Annotated[int, Option(help="the SuperLink's own port")] = 18443,
    days: Annotated[int, Option(min=1, help="how long the certificates are good for")] = 365,
) -> None:
    """Make the folder, a private authority and the server's certificate."""
    members.create(folder, name, host, port, listen=listen, inner_port=inner_port, days=days, inner_host=inner_host)
    hosts = keys.certificate_hosts(keys.load_certificate(folder / "server" / "server.crt"))
    say(f"Consortium {name}: sites dial {host}:{port}. The certificate is good for {', '.join(hosts)}.")
    say("Next: `fedsmall consortium add-site NAME` for every hospital, then `fedsmall server up`.")


@app.command("add-site")
def add_site(
    name: Annotated[str, Argument(help="the site's name: lower-case letters, digits, hyphens")],
    key: Annotated[Path | None, Option(help="the public key that the site sent (the .pub file)")] = None,
    folder: Folder = HERE,
    days: Annotated[int, Option(min=1, help="how long the site is admitted for")] = 365,
) -> None:
    """Admit a site: first without a key, to get its startup kit; then with the key that it sent back."""
    mark = None if key is None else fingerprint(keys.read_public_key(key))
    coordinators.sign(folder, "add-site", site=name, days=days, key=mark)
    member = members.add_site(folder, name, key, days)
    kit = folder / "kits" / name
    if member.fingerprint is None:
        say(f"The startup kit for {name} is in {kit}: it holds no secret. Send it; the site runs")
        say(f"    fedsmall site keygen --kit {name}")
        say(f"and sends back site.key.pub. Then: fedsmall consortium add-site {name} --key site.key.pub")
        say(f"{keys.authority_words(folder / 'ca' / 'ca.crt')}; the site's keygen must say the same.")
        return
    say(f"{name} is admitted until {member.expires} with the key {member.fingerprint}.")
    say("Compare this fingerprint with the site on the telephone.")
    if server.is_up(folder):
        server.register(folder, say)


@app.command("list")
def show(folder: Folder = HERE) -> None:
    """The sites, their keys, and when each and the certificates expire."""
    record = members.load(folder)
    say(f"Consortium {record.name}, sites dial {record.address}")
    for name, member in sorted(record.members.items()):
        standing = member.standing(members.today())
        say(f"{name:16} {standing:19} until {member.expires}  {member.fingerprint or ''}")
    for label, days in members.certificates(folder).items():
        say(f"{label} certificate: " + ("expired" if days < 0 else f"{days} days left"), "red" if days < 0 else None)
    for warning in members.warnings(folder):
        say(warning, "yellow")


@app.command("roll")
def roll(folder: Folder = HERE) -> None:
    """The key list, and the one number of it that hospitals read to each other on the telephone."""
    known = members.roll_of(members.load(folder))
    if not known:
        raise ValueError("no site has sent an identity yet; `fedsmall site keygen` makes one with the key")
    say_roll(known)


@app.command("revoke")
def revoke(name: Annotated[str, Argument(help="the site's name")], folder: Folder = HERE) -> None:
    """Shut a site out for good: its key is let go at once where the server runs."""
    coordinators.sign(folder, "revoke", site=name)
    members.revoke(folder, name)
    say(f"{name} is revoked.")
    if server.is_up(folder):
        server.register(folder, say)
    else:
        say("The server does not run now; it lets go of the key when it starts.")


@app.command("keygen")
def keygen(path: Annotated[Path, Argument(help="the file of the private key; the public half lies beside it")]) -> None:
    """A coordinator's own key pair, to sign commands with."""
    check_unwritten(path)
    say(f"{path.name}.pub has the fingerprint {keys.new_site_key(path)}: hospitals may ask for it (coordinators).")


@app.command("appoint")
def appoint(
    name: Annotated[str, Argument(help="the coordinator's name: lower-case letters, digits, hyphens")],
    key: Annotated[Path, Option(help="the public half of the coordinator's key (the .pub file)")],
    may: Annotated[str, Option(help="rights, separated by commas; none at all: not any more")] = "start",
    folder: Folder = HERE,
) -> None:
    """Give a coordinator rights: appoint, start, admit, revoke. From then on such commands are signed and logged."""
    members.load(folder)
    coordinators.appoint(folder, members.checked_name(name), key, [right for right in may.split(",") if right])
    say(f"{name} may {may.replace(',', ', ') or 'nothing any more'}. Who commands here sets {coordinators.KEY}.")


@app.command("commands")
def commands(folder: Folder = HERE) -> None:
    """What coordinators have commanded, and the rights in force; each line is held against its signature."""
    members.load(folder)
    known, entries = coordinators.read(folder)
    for entry in entries:
        command = entry["command"]  # of whom it appoints the fingerprint is below
        words = " ".join(f"{n}={v}" for n, v in command["words"].items() if not str(v).startswith("ecdsa-"))
        say(f"{entry['time']}  {command['by']:16} {command['command']:9} {words}")
    for name, coordinator in known.items():
        say(f"{name} may {', '.join(coordinator.may) or 'nothing'}: {fingerprint(coordinator.key.encode())}")
    none = "no coordinator is appointed: whoever has the folder may do all"
    say(f"commands that hold: {len(entries)}" if known else none)


@app.command("renew")
def renew(
    folder: Folder = HERE,
    host: Annotated[list[str] | None, Option(help="further names the certificate must hold")] = None,
    days: Annotated[int, Option(min=1, help="how long the certificate is good for")] = 365,
) -> None:
    """A new certificate for the server, from the same authority: the startup kits stay as they are."""
    record = members.load(folder)
    coordinators.sign(folder, "renew", days=days)
    # a new key before the old is let go: a half-renewed folder keeps the old pair beside it
    for part in ("server.key", "server.crt"):
        os.replace(folder / "server" / part, folder / "server" / f"{part}.{int(time.time())}")
    keys.new_server_certificate(folder / "ca", folder / "server", [record.host, record.inner_host, *(host or [])], days)
    say(f"The server's certificate is good for {days} days; restart the server to use it.")


server_app = command_group("Run the coordinator's server.")


@server_app.command("up")
def up(
    folder: Folder = HERE,
    detach: Annotated[bool, Option("--detach", "-d", help="return when it is up; stop with `down`")] = False,
    only: Annotated[str, Option(help="`superlink`, `superexec` or `gate` alone: a container each")] = "",
    durable: Annotated[
        bool, Option("--durable", help="the SuperLink's state on the disk: slower; a run survives its death")
    ] = False,
) -> None:
    """Start the server and bring its register of sites up to date; every command that is run is shown."""
    from fedsmall.sim.consortium.keeper import interrupted

    server.up(folder, say, only, durable=durable)
    say(f"The server is up: sites dial {members.load(folder).address}; only this machine may command it.")
    for run in interrupted(folder) if only in ("", "superexec") else ():
        say(f"The run {run!r} was under way and goes on by itself; `fedsmall stop {run}` ends it.")
    if not detach:
        stay(server.process_folder(folder, only), say)


@server_app.command("down")
def down(
    folder: Folder = HERE, only: Annotated[str, Option(help="`superlink`, `superexec` or `gate` alone")] = ""
) -> None:
    """Stop the server; a run that is under way goes on when it is up again, unless it was stopped."""
    say("stopped" if server.down(folder, only) else "nothing ran")


@server_app.command("status")
def status(folder: Folder = HERE) -> None:
    """Which programs run, and which sites are connected."""
    running = supervisor.pids(server.process_folder(folder))
    for name in ("superlink", "superexec", "gate", "keeper"):
        say(f"{name}: {'runs' if name in running else 'does not run'}")
    if not running:
        raise typer.Exit(1)
    present = server.registered(folder)
    for name, member in sorted(members.load(folder).members.items()):
        node = present.get(name)
        say(f"{name}: {node.status if node else member.standing(members.today())}")
