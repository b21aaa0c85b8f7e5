"""``fedsmall start``, ``resume``, ``status``, ``stop``, ``logs``: a run over real sites, at the coordinator's desk."""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedsmall.audit_log import AuditLog
from fedsmall.entry_points import SCENARIOS, kind_of_run, kind_of_scenario, load_extension
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.sim.cli.consortium import HERE, Folder
from fedsmall.sim.cli.options import say
from fedsmall.sim.consortium import flower_cli, members, runs, server
from fedsmall.sim.report.facts import expectation
from fedsmall.sim.runs import scenario

Run = Annotated[str, typer.Argument(help="the run's name")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="return at once; `fedsmall status` shows how it goes")]


def start(
    path: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="a .toml file, or a name from `fedsmall list scenarios`")
    ],
    folder: Folder = HERE,
    name: Annotated[str | None, typer.Option(help="the run's name; by default the scenario's")] = None,
    sites: Annotated[str, typer.Option(help="only these sites, separated by commas")] = "",
    quorum: Annotated[int | None, typer.Option(help="how many sites must answer; by default more than half")] = None,
    round_deadline: Annotated[float, typer.Option(help="seconds that a contact waits for a site")] = 600.0,
    start_deadline: Annotated[float, typer.Option(help="seconds to wait for all sites to connect")] = 300.0,
    wait_for: Annotated[str, typer.Option(help="first wait until these sites are connected, separated by commas")] = "",
    within: Annotated[float, typer.Option(min=0, metavar="MINUTES", help="how long at most (--wait-for)")] = 10.0,
    settings: Annotated[list[str] | None, typer.Option("--set", help="set a key of the scenario, key=value")] = None,
    detach: Detach = False,
    region: Annotated[
        str, typer.Option(metavar="NAME", help="of a scenario with several servers, run the region whose this one is")
    ] = "",
    above: Annotated[
        bool, typer.Option("--above", help="run what goes on above the regions, which are the sites of this consortium")
    ] = False,
) -> None:
    """Run a scenario over the consortium's sites."""
    _warn(folder)
    if kind := kind_of_scenario(scenario.read(scenario.find(path))):
        extension = load_extension(SCENARIOS, kind)
        asked = extension.load(scenario.find(path), settings or [])
        run = name or _slug(asked.name)
        _wait_for(folder, _words(wait_for), 60 * within)
        extension.prepare(folder, run, asked, round_deadline_s=round_deadline, start_deadline_s=start_deadline)
        return follow(folder, run, runs.launch(folder, run, say), detach)
    read = scenario.load(scenario.find(path), settings or [])
    plans = read.plans()
    if detach and len(plans) > 1:
        raise PlanError("--detach takes a scenario of one method and one seed; this one has several")
    base = name or _slug(read.name)
    named = [base if len(plans) == 1 else f"{base}-{_slug(p.method.label)}-seed{p.seed}" for p in plans]
    place = _Place(folder, _words(sites), region, above)
    for run, plan in zip(named, plans, strict=True):  # before anybody waits
        place.sites(plan)
        runs.check_new(folder, run, plan, apart=place.apart)
    _wait_for(folder, _words(wait_for), 60 * within)
    for run, plan in zip(named, plans, strict=True):
        chosen = place.sites(plan)
        plan = runs.sealed_where_possible(folder, plan, chosen)
        patience: dict[str, Any] = {"quorum": quorum, "round_deadline_s": round_deadline, **place.words}
        runs.prepare(folder, run, plan, chosen, about=read.about, start_deadline_s=start_deadline, **patience)
        follow(folder, run, runs.launch(folder, run, say), detach)


class _Place(NamedTuple):
    """The server at which a run is started: the only one, a region's, or the one above the regions."""

    folder: Path
    chosen: list[str]
    region: str
    above: bool

    @property
    def apart(self) -> bool:
        """Whether there are several servers, each of which is started by itself."""
        return bool(self.region) or self.above

    @property
    def words(self) -> dict[str, Any]:
        """What a run's sheet says of it."""
        return {"apart": True, "region": self.region} if self.apart else {}

    def sites(self, plan: Plan) -> tuple[str, ...]:
        """The sites of a run here. PlanError where they are not admitted, or said twice."""
        if not self.apart:
            return runs.site_names(self.folder, self.chosen, plan)
        if self.chosen or (self.region and self.above):
            raise PlanError(
                "--region and --above take the sites that the scenario names, one of the two: leave --sites out."
            )
        return runs.sites_apart(self.folder, plan, self.region)


def resume(
    run: Run,
    folder: Folder = HERE,
    detach: Detach = False,
    contact: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="CONTACT", help="an earlier contact that the run's journal still holds"),
    ] = None,
) -> None:
    """Go on with a run that ended early, from its last contact and to the same bits, or from an earlier contact."""
    follow(folder, run, runs.resume(folder, run, say, contact), detach)


def status(folder: Folder = HERE) -> None:
    """The consortium's runs, and which sites are connected."""
    _warn(folder)
    for name, state, line in runs.states(folder):
        say(f"{name}: {state}  {line}")
    if not server.is_up(folder):
        say("the server does not run")
        return
    for name, node in sorted(server.registered(folder).items()):
        say(f"site {name}: {node.status}")


def stop(run: Run, folder: Folder = HERE) -> None:
    """Stop a run; it can be resumed."""
    runs.stop(folder, run, say)


def logs(
    run: Run,
    folder: Folder = HERE,
    last: Annotated[int, typer.Option(min=1, help="how many lines to show")] = 30,
    check: Annotated[
        bool, typer.Option("--verify", help="hold the run's log against what its sites have signed of theirs")
    ] = False,
    against: Annotated[
        list[Path] | None, typer.Option(help="and against a copy of a site's log, its log.jsonl; may be given again")
    ] = None,
) -> None:
    """The last orders and answers of a run, with every silence and every answer set aside."""
    home = runs.run_home(folder, run)
    if check or against:
        return _verify(folder, run, against or [])
    for entry in list(AuditLog(home / "log.jsonl").entries())[-last:]:
        what = entry.get("reason") or (f"{entry['bytes']} bytes" if "bytes" in entry else "")
        where = f"round {entry['t']}" if entry.get("t") else ""
        say(f"{entry['time']}  {entry['event']:8} {entry.get('site', ''):16} {where:12} {what}")
    say(f"Flower's own log: {flower_cli.shown(['flwr', 'log', '--show', 'RUN-ID', flower_cli.CONNECTION])}")


def _verify(folder: Path, run: str, copies: list[Path]) -> None:
    from fedsmall.sim.consortium import log_check

    faults, home = log_check.check_run(folder, run), runs.run_home(folder, run)
    entries = list(AuditLog(home / "log.jsonl").entries())
    for path in copies if not faults else ():
        site, own = log_check.read_site_log(path)
        key = folder / "sites" / f"{site}.pub"
        if not key.exists():
            raise ValueError(f"{path.name} is the log of {site!r}, of which this consortium holds no key")
        faults += log_check.between(site, own, entries, key.read_bytes())
        say(
            f"{path.name}, of {site}: {log_check.lost(site, own, entries)} answers left it and are not in the run's log"
        )
    for fault in faults:
        say(fault, "red")
    if faults:
        raise typer.Exit(1)
    signed = sum("signed" in entry for entry in entries)
    say(f"{run}: {len(entries)} lines hold, {signed} answers are signed; the last is {entries[-1]['digest']}")


def _warn(folder: Path) -> None:
    for line in members.warnings(folder):
        say(line, "yellow")


def follow(folder: Path, run: str, number: int, detach: bool) -> None:
    """Show how a run goes until it ends, and what came of it; with ``detach`` return at once."""
    if detach:
        say(f"{run} is on its way; `fedsmall status` shows how it goes")
        return
    last, said = -1, ""

    def waits(line: str) -> None:
        nonlocal said
        if line != said:
            said = line
            say(f"{run} waits for {line}" if line else f"{run} waits for nobody any more")

    def progress(at: dict[str, Any]) -> None:
        nonlocal last
        if at["t"] != last:
            last = at["t"]
            say(f"{run}: round {at['t']} of {at['rounds']}, {at['seconds']:.0f} s")

    try:
        outcome = runs.watch(folder, run, number, progress, waits)
    except RuntimeError as error:
        say(f"{run} ended early: {error}", "red")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(f"{run} goes on without you; `fedsmall stop {run}` stops it")
        raise typer.Exit(130) from None
    _report(folder / "runs" / run, outcome)


def _report(home: Path, outcome: dict[str, Any]) -> None:
    if kind := kind_of_run(home):
        for line in load_extension(SCENARIOS, kind).outcome_lines(home, outcome):
            say(line)
        return say(f"Report: {home / 'report.html'}")
    for event in outcome["events"]:
        say(f"round {event['t']}: {event['site']} {event['kind']}: {event['reason']}")
    evaluations = outcome["evaluations"] or [{}]
    judged = next((each for each in evaluations if each.get("t") == outcome.get("chosen")), evaluations[-1])
    if chosen := outcome.get("chosen"):
        say(f"ended after round {evaluations[-1]['t']}; the model is that of round {chosen}, of the lowest loss")
    common = judged.get("common") or {}
    measured = ", ".join(f"{name} {value:.3f}" for name, value in common.items())
    say(f"finished after {outcome['contacts']} contacts, {outcome['bytes_sent']} bytes of models.")
    say(f"the common model on what the sites held out: {measured or 'nothing was held out'}")
    if found := judged.get("validation"):
        say(expectation([found]))
    left = [name for name in ("model.safetensors", "packages", "outcome.json", "log.jsonl") if (home / name).exists()]
    say(f"in {home}: {', '.join(left)}")
    say(f"Report: {_page(home)}")


def _page(home: Path) -> Path:
    from fedsmall.sim.cli.options import complete_folder
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.folder import read

    run = read(complete_folder(home))
    return write_report(home, [run], run.scenario.name)


def _wait_for(folder: Path, names: list[str], within_s: float) -> None:
    if names:
        runs.admitted_sites(folder, names)
        server.check_up(folder)
        runs.wait_for(names, within_s, lambda: runs.online(folder), say)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
