"""``fedsmall site``: what a hospital runs: its key, its programs, its log, and what it has of runs on its own disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedsmall.clients import consent
from fedsmall.clients.policy import Policy, load_policy
from fedsmall.clients.runs import PREDICTIONS, RUNS, forget_run, run_folder
from fedsmall.clients.shelf import sealed_by, unseal
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.socket_frames import is_answered
from fedsmall.ends import fingerprint
from fedsmall.entry_points import SCENARIOS, allow_functions, kind_of_scenario, load_extension
from fedsmall.errors import PlanError, PolicyError
from fedsmall.package.record import GLOBAL
from fedsmall.package.store import save
from fedsmall.sealing.envelopes import known_identities
from fedsmall.sim.cli.bundle import bundle
from fedsmall.sim.cli.options import check_unwritten, command_group, say, say_faults, say_roll
from fedsmall.sim.consortium import keys, supervisor
from fedsmall.sim.consortium import site as sites
from fedsmall.sim.consortium.site import Site
from fedsmall.sim.consortium.supervisor import stay
from fedsmall.sim.runs.files import check_free, write

app = command_group("Run a hospital's side of a consortium.")
Kit = Annotated[Path, Option("--kit", "-k", help="the folder that the coordinator sent")]
Home = Annotated[Path | None, Option(help="where the site's programs write; by default the startup kit's state folder")]
RunName = Annotated[str, Argument(help="the run's name; `fedsmall site log` shows it")]
HERE = Path()


def site_of(kit: Path, home: Path | None) -> Site:
    """The site of a startup kit, whose programs write to ``home``; ValueError where the folder is no kit."""
    site = Site(kit, home or kit / "state")
    site.check_is_kit()
    return site


def policy_of(kit: Path) -> Policy:
    """The policy that lies in a startup kit; the default one where none does."""
    return load_policy(kit / "policy.toml") if (kit / "policy.toml").exists() else Policy()


def say_changes(policy: Policy) -> None:
    """Say in which keys a policy is not fedsmall's own: it came with the kit, and is the hospital's to judge."""
    changed = [f"{key} = {value}" for key, value in policy.model_dump(exclude_defaults=True).items()]
    say(f"The policy here is fedsmall's own{', but for ' * bool(changed)}{', '.join(changed)}.")


def keygen(kit: Kit = HERE) -> None:
    """Make the site's key pair and its identity, here and only here; the public half goes to the coordinator."""
    site = Site(kit, kit)
    card, public = site.card, kit / "site.key.pub"
    if site.key.exists() and site.identity.exists():
        raise ValueError("this startup kit has a key already; it is not overwritten")
    if site.key.exists():
        cure = f"If it was not made here, delete {site.key}: its maker has it, too"
        say(f"The key that lies here is kept. {cure}", "yellow")
    elif site.identity.exists() or (kit / "state").exists():  # with a key of noise in it, or an account that is spent
        raise ValueError("this startup kit holds an identity or a state that were not made here; delete them first")
    else:
        keys.new_site_key(site.key)
    if not site.identity.exists():
        keys.new_identity(site.identity)
    keys.tell_identity(public, site.identity)
    say(f"{keys.authority_words(kit / 'ca.crt')}; ask the coordinator on the telephone whether it is theirs.")
    say(f"The private key of {card.site} stays here: {site.key}, and its identity: {site.identity}")
    say(f"Send this file to the coordinator: {public}")
    say(f"and read this fingerprint to them on the telephone: {fingerprint(public.read_bytes())}")


def roll(kit: Kit = HERE, home: Home = None) -> None:
    """The identities of the hospitals that this site has met, and one number to compare with them on the telephone."""
    if not (known := known_identities(site_of(kit, home).home)):
        raise ValueError("this site has met no other in a sealed run yet; ask the coordinator: `consortium roll`")
    say_roll(known)


def up(
    kit: Kit = HERE,
    data: Annotated[Path | None, Option(help="the site's file or folder of data")] = None,
    home: Home = None,
    detach: Annotated[bool, Option("--detach", "-d", help="return at once; stop with `fedsmall site down`")] = False,
    only: Annotated[str, Option(help="`station` (data, no network) or `network` (no data): a container each")] = "",
    device: Annotated[str, Option(help="where the site trains: auto, cpu, cuda, cuda:1 or mps")] = "cpu",
    region: Annotated[
        Path | None, Option(metavar="CONSORTIUM", help="speak for a region: the folder of its own consortium")
    ] = None,
) -> None:
    """Join the federation: start the data process and the site agent; all connections go out."""
    site = site_of(kit, home)
    say_changes(policy_of(kit))
    sites.up(site, data, say, only=only, device=device, region=region)
    if only != "station":  # which has no network, and no certificate to trust
        say(keys.authority_words(kit / "ca.crt"))
    say(f"{site.card.site} is up; logs in {site.process_folder}. What leaves is in {site.home / 'log.jsonl'}")
    if not detach:
        stay(site.process_folder, say)


def check(
    data: Annotated[Path, Option(help="the site's file or folder of data")],
    task: Annotated[str, Option(help='a task\'s name or table, as {csv = "", label = "outcome"}')] = "",
    plan: Annotated[Path | None, Option("--scenario", help="the scenario that is to be run, or its name")] = None,
    site: Annotated[str, Option(help="the site's name; the startup kit's if one is given")] = "site",
    kit: Annotated[Path | None, Option("--kit", "-k", help="a startup kit: what its policy refuses is said")] = None,
    floor: Annotated[int, Option(min=1, help="counts below this are not written out")] = 8,
) -> None:
    """Look at the site's data before it joins: what is wrong with them, what would leave, and what never does."""
    from fedsmall.aggregation.sums import hidden_where_open
    from fedsmall.clients.self_check import check_released
    from fedsmall.planning.check import check_site
    from fedsmall.planning.validation import among
    from fedsmall.sim.runs import scenario

    if bool(task) == (plan is not None):
        raise ValueError("say what the data are for: either --task or --scenario")
    home = None if kit is None else site_of(kit, None)
    site, policy = (home.card.site, policy_of(home.kit)) if home else (site, Policy())
    has_identity = home is not None and home.identity.exists()
    if plan is not None and (kind := kind_of_scenario(scenario.read(path := scenario.find(plan)))):
        extension = load_extension(SCENARIOS, kind)
        for line in extension.check_site(extension.load(path, []), site, data, policy, has_identity=has_identity):
            say(line)
        return
    table = {"name": "check", "task": scenario.value_of(task), "method": [{"name": "FedDC"}]}
    read = scenario.load(path) if plan is not None else scenario.build(table)
    count = max(read.sites or 0, policy.least_sites)  # a scenario's is how many a simulation has
    of_methods = [among(plan, count) for plan in read.plans()[: len(read.method)]]
    plans = [plan for plan in of_methods if plan.method.is_federated] or of_methods
    plans = [hidden_where_open(asked, count) for asked in plans] if has_identity else plans  # as a start does
    with allow_functions(policy.functions):  # a scenario is the coordinator's
        for line in (report := check_site(plans[0], site, data, floor, plans[1:])).lines():
            say(line)
        if not report.good:
            raise typer.Exit(1)
        if home is not None and report.raw is not None:
            refusals = []
            for asked in plans:
                numbers = check_released(asked, report.raw)
                try:
                    policy.check_site(asked, report.raw, sites=count, numbers=numbers, has_identity=has_identity)
                except PolicyError as error:
                    refusals.append(f"{asked.method.label}: {error}" if len(plans) > 1 else str(error))
            if refusals:
                raise PolicyError("; ".join(refusals))
            say_changes(policy)
            say(f"The policy here has nothing against it, with {count} sites.")


def pause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer no order to train from now on; runs go on without this site, or wait, until `unpause`."""
    site = site_of(kit, home)
    if not consent.pause(site.home):
        say(f"{site.card.site} is paused already")
        return
    say(f"{site.card.site} is paused: it answers no order to train, and drops what it trains now.")
    say("The coordinator is informed that the hospital has paused. `fedsmall site unpause` ends it.")


def unpause(kit: Kit = HERE, home: Home = None) -> None:
    """Answer orders to train again."""
    site = site_of(kit, home)
    say(f"{site.card.site} answers again" if consent.unpause(site.home) else f"{site.card.site} is not paused")


def approve(
    run: Annotated[str, Argument(help="the run's name; without it, all that have asked are listed")] = "",
    kit: Kit = HERE,
    home: Home = None,
    yes: Annotated[bool, Option("--yes", "-y", help="say yes without being asked")] = False,
    no: Annotated[bool, Option("--no", help="refuse the run without being asked")] = False,
) -> None:
    """Say yes or no to a run that waits here, because the policy has `approve = true`; shows what it is first."""
    site = site_of(kit, home)
    if not run:
        for question in consent.requests(site.home):
            say(f"{question.run}: {question.verdict}; it asked first at {question.asked}")
        return
    if yes and no:
        raise ValueError("either --yes or --no")
    request = consent.request_of(site.home, run)
    say(f"{run} ({request.verdict}), asked first at {request.asked}:")
    for line in request.lines:
        say(f"  {line}")
    answer = yes or (not no and typer.confirm(f"May {run} train at {site.card.site}, and what is said above leave?"))
    consent.decide(site.home, request, answer)
    words = "approved; the coordinator asks again by itself" if answer else "refused, and that is remembered"
    say(f"{run} is {words}.")


def down(kit: Kit = HERE, home: Home = None) -> None:
    """Stop the site's programs."""
    say("stopped" if sites.down(site_of(kit, home)) else "nothing ran")


def status(kit: Kit = HERE, home: Home = None) -> None:
    """Which of the site's programs run."""
    site = site_of(kit, home)
    running = supervisor.pids(site.process_folder)
    for name in ("station", "resident"):
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


OWNERS_ALONE = 0o600  # the mode of what has a line or a point for every patient


def audit(
    run: RunName,
    data: Annotated[Path, Option(help="the site's file or folder of data")],
    kit: Kit = HERE,
    home: Home = None,
) -> None:
    """Whether a run's model tells this site's training patients from those it held out. Nothing leaves the site."""
    site = site_of(kit, home)
    with sealed_by(policy_of(kit).rest_key):
        kept = run_folder(site.home / RUNS, Path(run).name)  # the coordinator's folder of it has its name, too
        for line in load_extension("fedsmall.audits", "own_site")(kept, site.card.site, data).lines():
            say(line)


def package(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
    own: Annotated[bool, Option("--own", help="the model that this site trained last, not the global one")] = False,
    out: Annotated[Path | None, Option(help="the folder to write; RUN-common and the like if not given")] = None,
) -> None:
    """A model of a finished run, ready to use: from what the site keeps, without the coordinator."""
    from fedsmall.clients.kept import NOT_KEPT, OWN_MODEL, load_kept

    site, what = site_of(kit, home), OWN_MODEL if own else GLOBAL
    with sealed_by(policy_of(kit).rest_key):
        stored = load_kept(run_folder(site.home / RUNS, run), what)
    if stored is None:
        SiteLog(site.home, site.card.site).of_run(run)
        raise PlanError(f"of {run!r} {NOT_KEPT}")
    folder = out or Path(f"{run}-{what}")
    check_free(folder)
    save(folder, *stored)
    which = "the model that this site trained last" if own else "the global model"
    say(f"{folder}: {which}, {stored.package.label}")
    say(f"Use it: fedsmall predict {folder} NEW. It is no medical device; {folder / 'README.md'} says what it is.")


def report(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
    out: Annotated[Path | None, Option(help="the page; RUN-at-SITE.html if not given")] = None,
    data: Annotated[Path | None, Option(help="the site's data: says, too, what it has of joining")] = None,
) -> None:
    """One page on a run for this hospital: what left it, what the model is worth here, its budget, its log.

    Made from the hospital's own disk; nothing is sent.
    """
    from fedsmall.sim.report.hospital import own_run, page

    site = site_of(kit, home)
    run_here = own_run(site.home, policy_of(kit), site.card.site, run)
    path = out or Path(f"{run}-at-{run_here.site}.html")
    check_unwritten(path)
    write(path, page(run_here, data).encode(), OWNERS_ALONE)
    sent = f"{len(run_here.sent)} messages left {run_here.site} in {run}"
    say(f"{path}: {sent}, {run_here.size} bytes of models and sums")


def predictions(
    run: RunName,
    kit: Kit = HERE,
    home: Home = None,
    out: Annotated[Path | None, Option(help="the CSV; RUN.csv if not given")] = None,
) -> None:
    """What a forest over split columns says of this hospital's new patients; nobody else has it."""
    file, path = run_folder(site_of(kit, home).home / RUNS, run) / PREDICTIONS, out or Path(f"{run}.csv")
    check_unwritten(path)
    if not file.exists():
        raise PlanError(f"of {run!r} there are no predictions here: it is not over, or they are another site's")
    with sealed_by(policy_of(kit).rest_key):
        content = unseal(file.read_bytes())
    write(path, content, OWNERS_ALONE)
    say(f"{path}: {len(content.splitlines()) - 1} patients. It is no medical device.")


def forget(run: RunName, kit: Kit = HERE, home: Home = None) -> None:
    """Delete what this site keeps of a run: models, received models, memory. Log, privacy account and guards stay."""
    site = site_of(kit, home)
    if is_answered(site.socket_path):
        raise PlanError("this site is up, and its program writes the log; `fedsmall site down` first")
    gone = forget_run(site.home, SiteLog(site.home, site.card.site), run)
    if gone is None:
        raise PlanError(f"this site keeps nothing of a run {run!r}")
    say(f"{gone[0]} files of {run} are deleted, {gone[1]} bytes; a line in the log says so.")
    say("Copies elsewhere stay, as a backup, and so does what the server and other hospitals were sent.")


def log(
    kit: Kit = HERE,
    home: Home = None,
    check: Annotated[
        bool, Option("--verify", help="check that nothing was changed, cut off or replaced since it was written")
    ] = False,
    against: Annotated[Path | None, Option(help="hold it against the coordinator's log of a run, log.jsonl")] = None,
    last: Annotated[int, Option(min=1, help="how many lines to show")] = 20,
    as_json: Annotated[
        bool, Option("--json", help="whole lines as they were written, one JSON object each, for syslog or a SIEM")
    ] = False,
) -> None:
    """What left this site, when, and to which run."""
    site = site_of(kit, home)
    written = SiteLog(site.home, site.card.site)
    if check or against:
        return _verify(site, written, against)
    if as_json:
        for entry in written.entries()[-last:]:
            print(json.dumps(entry, sort_keys=True))
        return
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
    from fedsmall.sim.consortium import log_check

    result = written.verify()
    faults = [result.fault] if result.fault else []
    if against is not None and not faults:
        faults, missing = log_check.against_coordinator(site.card.site, written.entries(), against, site.key)
        say(f"{missing} answers left and are not in the coordinator's log")
    say_faults(faults)
    say(f"{result.lines} lines hold; the last is {result.head}")


COMMANDS: tuple[Callable[..., None], ...] = (  # as its help lists them
    *(keygen, roll, up, check, audit, package, pause, unpause, approve, report, predictions, forget),
    *(down, status, log, bundle),
)
for command in COMMANDS:
    app.command()(command)
