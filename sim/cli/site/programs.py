"""What starts, pauses and stops a hospital's programs, and what it says before it joins and before a run."""

from pathlib import Path
from typing import Annotated

import typer

from fedsmall.clients import consent
from fedsmall.sealing.roll import known_identities
from fedsmall.sim.cli.site.kit import HERE, Home, Kit, site_of
from fedsmall.sim.cli.site.roll import say_roll
from fedsmall.sim.cli.terminal import say
from fedsmall.sim.consortium import keys, supervisor
from fedsmall.sim.consortium import site as sites
from fedsmall.sim.consortium.site import Site
from fedsmall.sim.consortium.supervisor import stay


def keygen(kit: Kit = HERE) -> None:
    """Make the site's key pair and its identity, here and only here; the public half goes to the coordinator."""
    site = Site(kit, kit)
    card, public = site.card, kit / "site.key.pub"
    if site.key.exists() and site.identity.exists():
        raise ValueError("this kit has a key already; it is not overwritten")
    if not site.key.exists():
        keys.new_site_key(site.key)
    if not site.identity.exists():
        keys.new_identity(site.identity)
    keys.tell_identity(public, site.identity)
    mark = keys.fingerprint(public.read_bytes())
    say(f"The private key of {card.site} stays here: {kit / 'site.key'}, and its identity: {site.identity}")
    say(f"Send this file to the coordinator: {kit / 'site.key.pub'}")
    say(f"and read this fingerprint to them on the telephone: {mark}")


def roll(kit: Kit = HERE, home: Home = None) -> None:
    """The identities of the hospitals that this site has met, and one number to compare with them on the telephone."""
    site = site_of(kit, home)
    known = known_identities(site.home)
    if not known:
        raise ValueError("this site has met no other in a sealed run yet; ask the coordinator: `consortium roll`")
    say_roll(known)


def up(
    kit: Kit = HERE,
    data: Annotated[Path | None, typer.Option(help="the site's file or folder of data")] = None,
    home: Home = None,
    classic: Annotated[
        bool, typer.Option("--classic", help="Flower's SuperNode and SuperExec in place of the one resident program")
    ] = False,
    port: Annotated[int, typer.Option(help="the SuperNode's own port, on the loopback (--classic)")] = 9094,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="return at once; stop with `fedsmall site down`")
    ] = False,
    only: Annotated[str, typer.Option(help="station (data, no network) or network (no data): a container each")] = "",
    device: Annotated[str, typer.Option(help="where the site trains: auto, cpu, cuda, cuda:1 or mps")] = "cpu",
    region: Annotated[
        Path | None, typer.Option(metavar="CONSORTIUM", help="speak for a region: the folder of its own consortium")
    ] = None,
    insecure: Annotated[bool, typer.Option(help="plain text; on the loopback only, for trials")] = False,
) -> None:
    """Join the federation: start the station and the resident; all connections go out."""
    site = site_of(kit, home)
    sites.up(site, data, port, say, insecure=insecure, only=only, device=device, classic=classic, region=region)
    say(f"{site.card.site} is up; logs in {site.process_folder}. What leaves is in {site.home / 'log.jsonl'}")
    if not detach:
        stay(site.process_folder, say)


def check(
    data: Annotated[Path, typer.Option(help="the site's file or folder of data")],
    task: Annotated[str, typer.Option(help='a task\'s name or table, as {csv = "", label = "outcome"}')] = "",
    plan: Annotated[Path | None, typer.Option("--scenario", help="the scenario that is to be run, or its name")] = None,
    site: Annotated[str, typer.Option(help="the site's name")] = "site",
    floor: Annotated[int, typer.Option(min=1, help="counts below this are not written out")] = 8,
) -> None:
    """Look at the site's data before it joins: what is wrong with them, what would leave, and what never does."""
    from fedsmall.check import check_site
    from fedsmall.sim.runs import scenario

    if bool(task) == (plan is not None):
        raise ValueError("say what the data are for: either --task or --scenario")
    table = {"name": "check", "task": scenario.value_of(task), "method": [{"name": "FedDC"}]}
    read = scenario.load(scenario.find(plan)) if plan is not None else scenario.build(table)
    report = check_site(read.plans()[0], site, data, floor)
    for line in report.lines():
        say(line)
    if not report.good:
        raise typer.Exit(1)


def pause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer no order to train from now on; runs go on without this site, or wait, until `unpause`."""
    site = site_of(kit, home)
    if not consent.pause(site.home):
        say(f"{site.card.site} is paused already")
        return
    say(f"{site.card.site} is paused: it answers no order to train, and drops what it trains now.")
    say("The coordinator is told that the hospital has paused. `fedsmall site unpause` ends it.")


def unpause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer orders to train again."""
    site = site_of(kit, home)
    say(f"{site.card.site} answers again" if consent.unpause(site.home) else f"{site.card.site} is not paused")


def approve(
    run: Annotated[str, typer.Argument(help="the run's name; without it, all that have asked are listed")] = "",
    kit: Kit = HERE,
    home: Home = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="say yes without being asked")] = False,
    no: Annotated[bool, typer.Option("--no", help="refuse the run without being asked")] = False,
) -> None:
    """Say yes or no to a run that waits here, because the policy has `approve = true`; shows what it is first."""
    site = site_of(kit, home)
    if not run:
        for each in consent.requests(site.home):
            say(f"{each.run}: {each.verdict}; it asked first at {each.asked}")
        return
    if yes and no:
        raise ValueError("either --yes or --no")
    request = consent.request_of(site.home, run)
    say(f"{run} ({request.verdict}), asked first at {request.asked}:")
    for line in request.lines:
        say(f"  {line}")
    answer = yes or (not no and typer.confirm(f"May {run} train at {site.card.site}, and what is said above leave?"))
    consent.decide(site.home, request, answer)
    told = "approved; the coordinator asks again by itself" if answer else "refused, and that is remembered"
    say(f"{run} is {told}.")


def down(kit: Kit = HERE, home: Home = None) -> None:
    """Stop the site's programs."""
    say("stopped" if sites.down(site_of(kit, home)) else "nothing ran")


def status(kit: Kit = HERE, home: Home = None) -> None:
    """Which of the site's programs run."""
    site = site_of(kit, home)
    running = supervisor.pids(site.process_folder)
    classic = "supernode" in running or "superexec" in running
    for name in ("station", *sites.NETWORK[classic]):
        say(f"{name}: {'runs' if name in running else 'does not run'}")
    for line in sites.warnings(site):
        say(line, "yellow")
    if consent.is_paused(site.home):
        say("paused by the hospital: it answers no order to train; `fedsmall site unpause` ends that")
    for request in consent.requests(site.home):
        if request.verdict == consent.WAITING:
            say(f"{request.run} waits for a yes: `fedsmall site approve {request.run}`")
    if not running:
        raise typer.Exit(1)
