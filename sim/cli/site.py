"""``fedsmall site``: what a hospital runs: its key, its programs, its log."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from clients import consent
from clients.policy import Policy, load_policy
from clients.site_log import SiteLog
from sim.cli.terminal import say
from sim.consortium import keys, supervisor
from sim.consortium import site as sites
from sim.consortium.site import Site
from sim.consortium.supervisor import stay

app = typer.Typer(no_args_is_help=True, help="Run a hospital's side of a consortium.")
Kit = Annotated[Path, typer.Option("--kit", "-k", help="the folder that the coordinator sent")]
Home = Annotated[Path | None, typer.Option(help="where the site's programs write; by default the kit's state folder")]
HERE = Path()


def _site(kit: Path, home: Path | None) -> Site:
    return Site(kit, home or kit / "state")


@app.command("keygen")
def keygen(kit: Kit = HERE) -> None:
    """Make the site's key pair, here and only here; the public half is what you send to the coordinator."""
    card = Site(kit, kit).card
    try:
        mark = keys.new_site_key(kit / "site.key")
    except FileExistsError:
        raise ValueError("this kit has a key already; it is not overwritten") from None
    say(f"The private key of {card.site} stays here: {kit / 'site.key'}")
    say(f"Send this file to the coordinator: {kit / 'site.key.pub'}")
    say(f"and read this fingerprint to them on the telephone: {mark}")


@app.command("up")
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
    insecure: Annotated[bool, typer.Option(help="plain text; on the loopback only, for trials")] = False,
) -> None:
    """Join the federation: start the station and the resident; all connections go out."""
    site = _site(kit, home)
    sites.up(site, data, port, say, insecure=insecure, only=only, device=device, classic=classic)
    say(f"{site.card.site} is up; logs in {site.process_folder}. What leaves is in {site.home / 'log.jsonl'}")
    if not detach:
        stay(site.process_folder, say)


@app.command("check")
def check(
    data: Annotated[Path, typer.Option(help="the site's file or folder of data")],
    task: Annotated[str, typer.Option(help='a task\'s name or table, as {csv = "", label = "outcome"}')] = "",
    plan: Annotated[Path | None, typer.Option("--scenario", help="the scenario that is to be run, or its name")] = None,
    site: Annotated[str, typer.Option(help="the site's name")] = "site",
    floor: Annotated[int, typer.Option(min=1, help="counts below this are not written out")] = 8,
) -> None:
    """Look at the site's data before it joins: what is wrong with them, what would leave, and what never does."""
    from fedsmall.check import check_site
    from sim.runs import scenario, shipped

    if bool(task) == (plan is not None):
        raise ValueError("say what the data are for: either --task or --scenario")
    table = {"name": "check", "task": scenario.value_of(task), "method": [{"name": "FedDC"}]}
    read = scenario.load(shipped.find(plan)) if plan is not None else scenario.build(table)
    report = check_site(read.plans()[0], site, data, floor)
    for line in report.lines():
        say(line)
    if not report.good:
        raise typer.Exit(1)


@app.command("audit")
def audit(
    run: Annotated[Path, typer.Argument(help="the folder of a finished run: sheet, scaling and model")],
    data: Annotated[Path | None, typer.Option(help="the site's file or folder of data")] = None,
    kit: Kit = HERE,
    site: Annotated[str, typer.Option(help="the site's name; the kit's if not given")] = "",
) -> None:
    """Whether a run's model tells this site's training patients from those it held out. Nothing leaves the site."""
    from sim.audit.own_site import audit_own_site

    for line in audit_own_site(run, site or Site(kit, kit).card.site, data).lines():
        say(line)


@app.command("package")
def package(
    run: Annotated[str, typer.Argument(help="the run's name; `fedsmall site log` shows it")],
    kit: Kit = HERE,
    home: Home = None,
    own: Annotated[
        bool, typer.Option("--own", help="the model that this site trained last, not the common one")
    ] = False,
    visitors: Annotated[
        bool, typer.Option("--visitors", help="the last models that were trained at this site, together (keep_last)")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="the folder to write; RUN-common and the like if not given")] = None,
) -> None:
    """A model of a finished run, ready to use: from what the site keeps, without the coordinator."""
    from clients.kept import OWN_MODEL, VISITORS, kept
    from clients.memory import RUNS, run_folder
    from fedsmall.errors import PlanError
    from fedsmall.package.record import COMMON
    from fedsmall.package.store import save
    from sim.runs.files import check_free

    if own and visitors:
        raise PlanError("--own and --visitors each mean other models; give one of them")
    site, what = _site(kit, home), VISITORS if visitors else OWN_MODEL if own else COMMON
    with _opened(kit):
        stored = kept(run_folder(site.home / RUNS, run), what)
    if stored is None:
        SiteLog(site.home, site.card.site).of_run(run)
        raise PlanError(
            f"of {run!r} this site keeps no such model: the run is not over, or the site was away at its end"
            + (", or it keeps no visitors (keep_last)" if visitors else "")
        )
    folder = out or Path(f"{run}-{what}")
    check_free(folder)
    save(folder, *stored)
    words = {COMMON: "the common model", OWN_MODEL: "the model that this site trained last"}
    said = words.get(what, f"the last {stored.package.architecture.members} models that were trained here, together")
    say(f"{folder}: {said}, {stored.package.label}")
    say(f"Use it: fedsmall predict {folder} NEW.csv. It is no medical device; {folder / 'README.md'} says what it is.")


@app.command("pause")
def pause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer no order to train from now on; runs go on without this site, or wait, until `unpause`."""
    site = _site(kit, home)
    if not consent.pause(site.home):
        say(f"{site.card.site} is paused already")
        return
    say(f"{site.card.site} is paused: it answers no order to train that comes from now on; what it trains now it ends.")
    say("The coordinator is told that the hospital has paused. `fedsmall site unpause` ends it.")


@app.command("unpause")
def unpause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer orders to train again."""
    site = _site(kit, home)
    say(f"{site.card.site} answers again" if consent.unpause(site.home) else f"{site.card.site} is not paused")


@app.command("approve")
def approve(
    run: Annotated[str, typer.Argument(help="the run's name; without it, all that have asked are listed")] = "",
    kit: Kit = HERE,
    home: Home = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="say yes without being asked")] = False,
    no: Annotated[bool, typer.Option("--no", help="refuse the run without being asked")] = False,
) -> None:
    """Say yes or no to a run that waits here, because the policy has `approve = true`; shows what it is first."""
    site = _site(kit, home)
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


@app.command("report")
def report(
    run: Annotated[str, typer.Argument(help="the run's name; `fedsmall site log` shows it")],
    kit: Kit = HERE,
    home: Home = None,
    out: Annotated[Path | None, typer.Option(help="the page; RUN-at-SITE.html if not given")] = None,
) -> None:
    """One page on a run for this hospital: what left it, what the model is worth here, its budget, its log.

    Made from the hospital's own disk; nothing is sent.
    """
    from sim.report.sites.hospital import own_run, page
    from sim.runs.files import write

    site = _site(kit, home)
    own = own_run(site.home, _policy(kit), site.card.site, run)
    path = out or Path(f"{run}-at-{own.site}.html")
    if path.exists():
        raise ValueError(f"{path} is there already; it is not written over")
    write(path, page(own).encode())
    say(f"{path}: {len(own.sent)} messages left {own.site} in {run}, {own.size} bytes of models and sums")


@app.command("forget")
def forget(
    run: Annotated[str, typer.Argument(help="the run's name; `fedsmall site log` shows it")],
    kit: Kit = HERE,
    home: Home = None,
) -> None:
    """Delete what this site keeps of a run: models, visitors, memory. Log, privacy account and guards stay."""
    from clients.socket_frames import is_answered
    from clients.upkeep import forgetting
    from fedsmall.errors import PlanError

    site = _site(kit, home)
    if is_answered(site.socket_path):
        raise PlanError("this site is up, and its program writes the log; `fedsmall site down` first")
    gone = forgetting.forget(site.home, SiteLog(site.home, site.card.site), run)
    if gone is None:
        raise PlanError(f"this site keeps nothing of a run {run!r}")
    say(f"{gone.files} files of {run} are deleted, {gone.bytes} bytes; a line in the log says so.")
    say("Copies elsewhere stay, as a backup, and so does what the server and other hospitals were sent.")


@app.command("down")
def down(kit: Kit = HERE, home: Home = None) -> None:
    """Stop the site's programs."""
    say("stopped" if sites.down(_site(kit, home)) else "nothing ran")


@app.command("status")
def status(kit: Kit = HERE, home: Home = None) -> None:
    """Which of the site's programs run."""
    site = _site(kit, home)
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


@app.command("log")
def log(
    kit: Kit = HERE,
    home: Home = None,
    check: Annotated[
        bool, typer.Option("--verify", help="check that nothing was changed, cut off or replaced since it was written")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="hold it against the coordinator's log of a run, its log.jsonl")
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="how many lines to show")] = 20,
) -> None:
    """What left this site, when, and to which run."""
    site = _site(kit, home)
    written = SiteLog(site.home, site.card.site)
    if check or against:
        return _verify(site, written, against)
    for entry in written.entries()[-last:]:
        what = entry.get("reason") or f"{len(entry.get('arrays', {}))} arrays, {entry.get('bytes', 0)} bytes"
        say(f"{entry['time']}  {entry['event']:8} {entry.get('kind', ''):9} {entry.get('run', '')}  {what}")
    if not written.charges():
        return
    from clients.patients import spent_here

    delta = _policy(kit).delta
    for run, epsilon in spent_here(written, delta):
        say(f"what it has cost a patient here, {run}: epsilon {epsilon:.3g} at delta {delta:g}")


def _verify(site: Site, written: SiteLog, against: Path | None) -> None:
    from sim.consortium.records import log_check

    result, faults = written.verify(), []
    if result.fault:
        faults = [result.fault]
    elif against is not None:
        faults, missing = log_check.against_coordinator(site.card.site, written.entries(), against, site.key)
        say(f"{missing} answers left and are not in the coordinator's log")
    for fault in faults:
        say(fault, "red")
    if faults:
        raise typer.Exit(1)
    say(f"{result.lines} lines hold; the last is {result.head}")


def _opened(kit: Path) -> AbstractContextManager[None]:
    """Within it, what the site keeps is read by the key that its policy names, where it names one."""
    from clients.upkeep.at_rest import keeping

    return keeping(_policy(kit).rest_key)


def _policy(kit: Path) -> Policy:
    return load_policy(kit / "policy.toml") if (kit / "policy.toml").exists() else Policy()
