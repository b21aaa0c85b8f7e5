"""What a hospital has of the runs that it was in, on its own disk: log, page and models; and how it forgets them."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from fedsmall.clients.site_log import SiteLog
from fedsmall.entry_points import load_extension
from fedsmall.sim.cli.site.kit import HERE, Home, Kit, RunName, policy_of, site_of
from fedsmall.sim.cli.terminal import say
from fedsmall.sim.consortium.site import Site

OWNERS_ALONE = 0o600  # the mode of what has a line or a point for every patient


def audit(
    run: Annotated[Path, typer.Argument(help="the folder of a finished run: sheet, scaling and model")],
    data: Annotated[Path | None, typer.Option(help="the site's file or folder of data")] = None,
    kit: Kit = HERE,
    site: Annotated[str, typer.Option(help="the site's name; the kit's if not given")] = "",
) -> None:
    """Whether a run's model tells this site's training patients from those it held out. Nothing leaves the site."""
    for line in load_extension("fedsmall.audits", "own_site")(run, site or Site(kit, kit).card.site, data):
        say(line)


def package(
    run: RunName,
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
    from fedsmall.clients.kept import OWN_MODEL, VISITORS, kept
    from fedsmall.clients.memory import RUNS, run_folder
    from fedsmall.errors import PlanError
    from fedsmall.package.record import COMMON
    from fedsmall.package.store import save
    from fedsmall.sim.runs.files import check_free

    if own and visitors:
        raise PlanError("--own and --visitors each mean other models; give one of them")
    site, what = site_of(kit, home), VISITORS if visitors else OWN_MODEL if own else COMMON
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


def report(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
    out: Annotated[Path | None, typer.Option(help="the page; RUN-at-SITE.html if not given")] = None,
) -> None:
    """One page on a run for this hospital: what left it, what the model is worth here, its budget, its log.

    Made from the hospital's own disk; nothing is sent.
    """
    from fedsmall.sim.report.sites.hospital import own_run, page
    from fedsmall.sim.runs.files import write

    site = site_of(kit, home)
    own = own_run(site.home, policy_of(kit), site.card.site, run)
    path = out or Path(f"{run}-at-{own.site}.html")
    if path.exists():
        raise ValueError(f"{path} is there already; it is not written over")
    write(path, page(own).encode(), OWNERS_ALONE)
    say(f"{path}: {len(own.sent)} messages left {own.site} in {run}, {own.size} bytes of models and sums")


def predictions(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
    out: Annotated[Path | None, typer.Option(help="the CSV; RUN.csv if not given")] = None,
) -> None:
    """What a forest over split columns says of this hospital's new patients; nobody else has it."""
    from fedsmall.clients.memory import PREDICTIONS, RUNS, run_folder
    from fedsmall.clients.upkeep.at_rest import opened
    from fedsmall.errors import PlanError
    from fedsmall.sim.runs.files import write

    file, path = run_folder(site_of(kit, home).home / RUNS, run) / PREDICTIONS, out or Path(f"{run}.csv")
    if path.exists():
        raise PlanError(f"{path} is there already; it is not written over")
    if not file.exists():
        raise PlanError(f"of {run!r} there are no predictions here: it is not over, or they are another site's")
    with _opened(kit):
        content = opened(file.read_bytes())
    write(path, content, OWNERS_ALONE)
    say(f"{path}: {len(content.splitlines()) - 1} patients. It is no medical device.")


def forget(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
) -> None:
    """Delete what this site keeps of a run: models, visitors, memory. Log, privacy account and guards stay."""
    from fedsmall.clients.socket_frames import is_answered
    from fedsmall.clients.upkeep import forgetting
    from fedsmall.errors import PlanError

    site = site_of(kit, home)
    if is_answered(site.socket_path):
        raise PlanError("this site is up, and its program writes the log; `fedsmall site down` first")
    gone = forgetting.forget(site.home, SiteLog(site.home, site.card.site), run)
    if gone is None:
        raise PlanError(f"this site keeps nothing of a run {run!r}")
    say(f"{gone.files} files of {run} are deleted, {gone.bytes} bytes; a line in the log says so.")
    say("Copies elsewhere stay, as a backup, and so does what the server and other hospitals were sent.")


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
    site = site_of(kit, home)
    written = SiteLog(site.home, site.card.site)
    if check or against:
        return _verify(site, written, against)
    for entry in written.entries()[-last:]:
        what = entry.get("reason") or f"{len(entry.get('arrays', {}))} arrays, {entry.get('bytes', 0)} bytes"
        say(f"{entry['time']}  {entry['event']:8} {entry.get('kind', ''):9} {entry.get('run', '')}  {what}")
    if not written.charges():
        return
    from fedsmall.clients.patients import spent_here

    delta = policy_of(kit).delta
    for run, epsilon in spent_here(written, delta):
        say(f"what it has cost a patient here, {run}: epsilon {epsilon:.3g} at delta {delta:g}")


def _verify(site: Site, written: SiteLog, against: Path | None) -> None:
    from fedsmall.sim.consortium.records import log_check

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
    from fedsmall.clients.upkeep.at_rest import keeping

    return keeping(policy_of(kit).rest_key)
