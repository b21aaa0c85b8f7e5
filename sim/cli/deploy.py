"""``fedsmall start``, ``resume``, ``status``, ``stop``, ``logs``: a run over real sites, at the coordinator's desk."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedsmall.audit_log import AuditLog
from fedsmall.entry_points import SCENARIOS, kind_of_run, kind_of_scenario, load_extension
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.sim.cli.consortium import HERE, Folder
from fedsmall.sim.cli.options import complete_folder, say, say_faults
from fedsmall.sim.consortium import coordinators, flower_cli, members, runs, server
from fedsmall.sim.report.facts import expectation
from fedsmall.sim.runs import scenario

Run = Annotated[str, Argument(help="the run's name")]
Detach = Annotated[bool, Option("--detach", "-d", help="return at once; `fedsmall status` shows how it goes")]

DOWN = 2  # the exit code of `status --json` where no server answers, as Nagios' "critical"; 1 is its "warning"


def start(
    path: Annotated[Path, Argument(metavar="SCENARIO", help="a .toml file, or a name from `fedsmall list scenarios`")],
    folder: Folder = HERE,
    name: Annotated[str | None, Option(help="the run's name; by default the scenario's")] = None,
    sites: Annotated[str, Option(help="only these sites, separated by commas")] = "",
    quorum: Annotated[int | None, Option(help="how many sites must answer; by default more than half")] = None,
    round_deadline: Annotated[float, Option(help="seconds that a communication round waits for a site")] = 600.0,
    start_deadline: Annotated[float, Option(help="seconds to wait for all sites to connect")] = 300.0,
    wait_for: Annotated[str, Option(help="first wait until these sites are connected, separated by commas")] = "",
    within: Annotated[float, Option(min=0, metavar="MINUTES", help="how long at most (--wait-for)")] = 10.0,
    settings: Annotated[list[str] | None, Option("--set", help="set a key of the scenario, key=value")] = None,
    detach: Detach = False,
    region: Annotated[str, Option(metavar="NAME", help="of several servers, run the region whose this one is")] = "",
    above: Annotated[bool, Option("--above", help="run what is above the regions, this consortium's sites")] = False,
) -> None:
    """Run a scenario over the consortium's sites."""
    for line in members.warnings(folder):
        say(line, "yellow")
    if kind := kind_of_scenario(scenario.read(scenario.find(path))):
        extension = load_extension(SCENARIOS, kind)
        asked = extension.load(scenario.find(path), settings or [])
        run = name or _slug(asked.name)
        _wait_for(folder, _words(wait_for), 60 * within)
        extension.prepare(folder, run, asked, round_deadline_s=round_deadline, start_deadline_s=start_deadline)
        runs.launch(folder, run, say)
        return follow(folder, run, detach)
    read = scenario.load(scenario.find(path), settings or [])
    plans = _federated(read.plans())
    if detach and len(plans) > 1:
        raise PlanError("--detach takes a scenario of one method and one seed; this one has several")
    base = name or _slug(read.name)
    named = [base if len(plans) == 1 else f"{base}-{_slug(p.method.label)}-seed{p.seed}" for p in plans]
    apart = bool(region) or above
    for run, plan in zip(named, plans, strict=True):  # before anybody waits
        _sites_of(folder, plan, _words(sites), region, above)
        runs.check_new(folder, run, plan, apart=apart)
    _wait_for(folder, _words(wait_for), 60 * within)
    words: dict[str, Any] = {"apart": True, "region": region} if apart else {}
    words |= {"quorum": quorum, "round_deadline_s": round_deadline, "start_deadline_s": start_deadline}
    failed = False
    for run, plan in zip(named, plans, strict=True):
        chosen = _sites_of(folder, plan, _words(sites), region, above)
        plan = runs.hidden_where_possible(folder, plan, chosen)
        runs.prepare(folder, run, plan, chosen, about=read.about, **words)
        runs.launch(folder, run, say)
        try:
            follow(folder, run, detach)
        except typer.Exit:
            if not (failed := (folder / "runs" / run / "failure.json").exists()):  # a run that was stopped ends all
                raise
    if failed:
        raise typer.Exit(1)
    if len(plans) > 1:
        say(f"Side by side: fedsmall compare {folder / 'runs' / base}-*")


def _federated(every: list[Plan]) -> list[Plan]:
    """The plans that sites can run; it is said which cannot. PlanError where none can."""
    plans = [plan for plan in every if plan.method.is_federated]
    if comparators := dict.fromkeys(plan.method.label for plan in every if not plan.method.is_federated):
        line = f"{', '.join(comparators)}: sites alone, or all data pooled, are for simulations: nothing travels"
        if not plans:
            raise PlanError(line)
        say(f"Not run here. {line}.")
    return plans


def _sites_of(folder: Path, plan: Plan, chosen: list[str], region: str, above: bool) -> tuple[str, ...]:
    """The sites of a run at the only server, at that of a ``region``, or at the one ``above`` the regions."""
    if not region and not above:
        return runs.site_names(folder, chosen, plan)
    if chosen or (region and above):
        raise PlanError("--region and --above, one of the two, take the sites of the scenario: leave --sites out.")
    return runs.sites_apart(folder, plan, region)


def resume(
    run: Run,
    folder: Folder = HERE,
    detach: Detach = False,
    comm_round: Annotated[
        int | None, Option("--from", min=1, metavar="ROUND", help="an earlier round that the run's journal still holds")
    ] = None,
) -> None:
    """Go on with a run that ended early, from its last communication round and to the same bits, or an earlier one.

    RUN is its name, or the folder of a simulation, of which the plans are run that are not done.
    """
    if (Path(run) / "plans.json").is_file():
        from fedsmall.sim.cli.run import resume_simulation

        return resume_simulation(Path(run))
    runs.run_home(folder, run)
    coordinators.sign(folder, "resume", run=run)
    runs.resume(folder, run, say, comm_round)
    follow(folder, run, detach)


def status(
    folder: Folder = HERE,
    as_json: Annotated[
        bool, Option("--json", help="as JSON; ends with 0 if all is well, 1 if something expires or is away, 2 if down")
    ] = False,
) -> None:
    """The consortium's runs, and which sites are connected."""
    warnings, rows, is_up = members.warnings(folder), runs.states(folder), server.is_up(folder)
    connected = {name: node.status for name, node in sorted(server.registered(folder).items())} if is_up else {}
    if as_json:
        admitted = members.admitted(members.load(folder))
        sites = {name: connected.get(name, "unknown") for name in sorted({*admitted, *connected})}
        states = [{"run": name, "state": state, "line": line} for name, state, line in rows]
        print(json.dumps({"server": is_up, "sites": sites, "runs": states, "warnings": warnings}))
        is_away = any(sites[name] != "online" for name in admitted)
        is_poor = bool(warnings) or is_away or any(state == runs.EARLY for _, state, _ in rows)
        raise typer.Exit(int(is_poor) if is_up else DOWN)
    for line in warnings:
        say(line, "yellow")
    for name, state, line in rows:
        say(f"{name}: {state}  {line}".rstrip())
    for name, site in connected.items():
        say(f"site {name}: {site}")
    if not is_up:
        say("the server does not run")


def stop(run: Run, folder: Folder = HERE) -> None:
    """Stop a run; it can be resumed."""
    runs.run_home(folder, run)
    coordinators.sign(folder, "stop", run=run)
    runs.stop(folder, run, say)


def logs(
    run: Run,
    folder: Folder = HERE,
    last: Annotated[int, Option(min=1, help="how many lines to show")] = 30,
    check: Annotated[bool, Option("--verify", help="hold it against what the sites have signed of theirs")] = False,
    against: Annotated[list[Path] | None, Option(help="and against a site's log, its log.jsonl; repeatable")] = None,
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
        site, lines = log_check.read_site_log(path)
        key = folder / "sites" / f"{site}.pub"
        if not key.exists():
            raise ValueError(f"{path.name} is the log of {site!r}, of which this consortium holds no key")
        faults += log_check.between(site, lines, entries, key.read_bytes())
        lost = log_check.lost(site, lines, entries)
        say(f"{path.name}, of {site}: {lost} answers left it and are not in the run's log")
    say_faults(faults)
    signed = sum("signed" in entry for entry in entries)
    say(f"{run}: {len(entries)} lines hold, {signed} answers are signed; the last is {entries[-1]['digest']}")


def follow(folder: Path, run: str, detach: bool) -> None:
    """Show how a run goes until it ends, and what came of it; with ``detach`` return at once."""
    if detach:
        say(f"{run} is on its way; `fedsmall status` shows how it goes")
        return
    last, last_line = -1, ""

    def waits(line: str) -> None:
        nonlocal last_line
        if line != last_line:
            last_line = line
            say(f"{run} waits for {line}" if line else f"{run} waits for nobody any more")

    def progress(at: dict[str, Any]) -> None:
        nonlocal last
        if last == -1 and at.get("note"):
            say(at["note"])
        if at["t"] != last:
            last = at["t"]
            say(f"{run}: round {at['t']} of {at['rounds']}, {at['seconds']:.0f} s")

    try:
        outcome = runs.watch(folder, run, progress, waits)
    except RuntimeError as error:
        say(f"{run} ended early: {error}", "red")
        say(f"put that right and `fedsmall resume {run}` goes on; a scenario that was changed takes another --name")
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
        line = f"round {event['t']}: {event['site']} {event['kind']}: {event['reason']}"
        say(runs.with_revoked(home.parent.parent, line))
    evaluations, chosen = outcome["evaluations"] or [{}], outcome.get("chosen")
    judged = next((evaluation for evaluation in evaluations if evaluation.get("t") == chosen), evaluations[-1])
    if chosen:
        say(f"ended after round {evaluations[-1]['t']}; the model is that of round {chosen}, of the lowest loss")
    common = judged.get("common") or {}
    measured = ", ".join(f"{name} {value:.3f}" for name, value in common.items())
    say(f"finished after {outcome['comm_rounds']} communication rounds, {outcome['bytes_sent']} bytes of models.")
    say(f"the global model on what the sites held out, means over sites: {measured or 'not measured'}")
    if validation := judged.get("validation"):
        say(expectation([validation]))
    left = [name for name in ("model.safetensors", "packages", "outcome.json", "log.jsonl") if (home / name).exists()]
    say(f"in {home}: {', '.join(left)}")
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.folder import read

    run = read(complete_folder(home))
    say(f"Report: {write_report(home, [run], run.scenario.name)}")


def _wait_for(folder: Path, names: list[str], within_s: float) -> None:
    if names:
        runs.admitted_sites(folder, names)
        server.check_up(folder)
        runs.wait_for(names, within_s, lambda: runs.online(folder), say)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
