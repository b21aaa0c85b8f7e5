"""Twelve months of a consortium in minutes: hospitals upgrade, reboot, lose lines, leave and join under their runs.

    python -m examples.twelve_months [ROUNDS]

Four hospitals and a server in processes of their own, on the loopback. In every month there is a run, and under most of
them something happens. At the end every model must have the bits of its simulation, both ends' logs must hold, and
nobody has typed `resume`. The next release, to which they upgrade one by one, is a copy of this tree by another number.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from safetensors.numpy import load_file

from examples.endurance import victims
from examples.loopback import LoopbackConsortium, free_ports
from fedsmall import HOME
from fedsmall.audit_log import digest_of, verify
from fedsmall.ends import fingerprint
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.app import main as fedsmall
from fedsmall.sim.consortium import coordinators, flower_cli, keys, runs, sample_data, server, site, supervisor
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs import scenario

FIRST, LATER = ("bonn", "essen", "graz", "ulm"), "koeln"
PATIENCE = {"round_deadline_s": 120.0, "start_deadline_s": 120.0}
POLICY = "least_samples = 1\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"
NEXT = "9.9.9"  # the number of the next release


class Year:
    """The consortium, and what has happened so far."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.data = {name: folder / "data" / f"{name}.csv" for name in (*FIRST, LATER)}
        sample_data.write(list(self.data.values()))
        files = {name: self.data[name] for name in FIRST}
        self.loopback = LoopbackConsortium(folder, files, POLICY, durable=False)
        self.members, self.upgraded, self.policy = set(FIRST), set[str](), POLICY
        self.models: dict[str, bool] = {}
        self.launches: dict[str, int] = {}

    # -- what the people of a consortium do --------------------------------------------------------------------------

    def run(self, month: str, under_it: Callable[[Path], None] = lambda home: None) -> None:
        """A run over all members; ``under_it`` happens once it has trained three times."""
        print(f"{month}: a run over {', '.join(sorted(self.members))}", flush=True)
        number = self.loopback.start(month, self.plan(), self.members, **PATIENCE)
        home = self.loopback.home(month)
        begun, ended = home / "journal" / "000003.json", home / "failure.json"
        flower_cli.wait_until(lambda: begun.exists() or ended.exists(), 300)
        under_it(home)
        self.loopback.finish(month, number)
        self.models[month] = digest_of(load_file(home / "model.safetensors")) == self.simulated(month)
        self.launches[month] = len(runs.numbers(home))
        print(f"{month}: {'the bits of its simulation' if self.models[month] else 'OTHER BITS'}", flush=True)

    def plan(self, rounds: int = 0) -> Plan:
        """Models that travel, without noise, so that a simulation gives the same bits."""
        path = HOME.parent / "sim" / "scenarios" / "consortium_demo.toml"
        words = ["method.0.permute_every=1", "method.0.aggregate_every=4", "method.0.privacy={blur = 0}"]
        rounds = rounds or self.rounds
        return scenario.load(path, [f"rounds={rounds}", f"evaluate_every={rounds}", *words]).plans()[0]

    def simulated(self, month: str) -> str:
        """The digest of the model that a simulation of a finished run has, over that run's hospitals."""
        plan = Plan.model_validate(json.loads((self.loopback.home(month) / "outcome.json").read_text())["plan"])
        with tempfile.TemporaryDirectory() as files:
            for name in self.members:
                shutil.copy(self.data[name], files)
            plan = plan.model_copy(update={"task": {**dict(plan.task), "csv": files}})
            model = run_plan(plan, build_federation(plan), "inprocess").model
        assert model is not None
        return digest_of(model)

    def site_up(self, name: str) -> None:
        """Start a hospital's site with the release that it has."""
        with self.release_of(name):
            self.loopback.site_up(name)

    @contextmanager
    def release_of(self, name: str) -> Iterator[None]:
        """The environment in which a hospital's, or the server's, programs are of its release."""
        if name not in self.upgraded:
            yield
            return
        copy = self.folder / "next"
        if not copy.exists():
            left_out = shutil.ignore_patterns("__pycache__", ".*", "build", "docs", "tests", "examples", "docker")
            shutil.copytree(HOME.parent, copy, ignore=left_out)
            toml = (copy / "pyproject.toml").read_text()
            now = next(line for line in toml.splitlines() if line.startswith("version = "))
            (copy / "pyproject.toml").write_text(toml.replace(now, f'version = "{NEXT}"', 1))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(copy)
        try:
            yield
        finally:
            os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)

    def upgrade(self, name: str) -> None:
        """A hospital installs the next release and starts its site again."""
        print(f"  {name} upgrades to {NEXT}", flush=True)
        self.upgraded.add(name)
        site.down(self.loopback.kit(name))
        self.site_up(name)

    def share_the_work(self) -> None:
        """Two coordinators: anna starts runs, as all hospitals ask from now on, and ben admits and revokes."""
        print("  anna may start from now on, ben admit and revoke", flush=True)
        rights = {"anna": ["appoint", "start"], "ben": ["admit", "revoke"]}
        for name in rights:
            keys.new_site_key(self.folder / name)
        self.acts("anna")
        for name, may in rights.items():
            coordinators.appoint(self.loopback.folder, name, self.folder / f"{name}.pub", may)
        anna = fingerprint((self.folder / "anna.pub").read_bytes())
        self.policy += f'coordinators = ["{anna}"]\n'
        for name in self.members:
            (self.loopback.kit(name).kit / "policy.toml").write_text(self.policy)

    def acts(self, name: str) -> None:
        """Let a coordinator command from now on."""
        os.environ[coordinators.KEY] = str(self.folder / name)

    # -- what happens to them ------------------------------------------------------------------------------------------

    def server_reboots(self, home: Path) -> None:
        """The server's machine loses its power, and starts its service again."""
        print("  the server's machine reboots", flush=True)
        _kill_all(server.process_folder(self.loopback.folder))
        with self.release_of("server"):
            server.up(self.loopback.folder, _silent)

    def server_app_dies(self, home: Path) -> None:
        """The program that conducts the run is killed, and nothing else."""
        print("  the ServerApp is killed", flush=True)
        os.kill(dict(victims(self.loopback))["ServerApp"], signal.SIGKILL)

    def site_reboots(self, name: str) -> Callable[[Path], None]:
        """A hospital's machine loses its power, and starts its service again."""

        def happen(home: Path) -> None:
            print(f"  {name}'s machine reboots", flush=True)
            _kill_all(self.loopback.kit(name).process_folder)
            self.site_up(name)

        return happen

    def line_is_lost(self, name: str) -> Callable[[Path], None]:
        """Nothing comes from a hospital for a while."""

        def happen(home: Path) -> None:
            print(f"  {name}'s line is lost for 15 s", flush=True)
            pid = supervisor.pids(self.loopback.kit(name).process_folder)["resident"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(15)
            os.kill(pid, signal.SIGCONT)

        return happen

    def certificate_is_renewed(self) -> None:
        """The server has a new certificate of the same authority; the kits stay."""
        print("  the server's certificate is renewed", flush=True)
        self.acts("ben")
        _command("consortium", "renew", "--folder", self.loopback.folder)
        self.acts("anna")
        server.down(self.loopback.folder)
        server.up(self.loopback.folder, _silent)

    def leaves(self, name: str, month: str) -> None:
        """A hospital is revoked under a run, which goes on without it; the coordinator reads why."""
        print(f"{month}: a run under which {name} is revoked", flush=True)
        patience = {**PATIENCE, "round_deadline_s": 20.0}
        number = self.loopback.start(month, self.plan(3 * self.rounds), self.members, **patience)
        home = self.loopback.home(month)
        flower_cli.wait_until((home / "journal" / "000003.json").exists, 300)
        try:
            _command("consortium", "revoke", name, "--folder", self.loopback.folder)
        except RuntimeError as error:
            self.models["anna, who may start, revokes nobody"] = str(error).endswith("with 2")
        self.acts("ben")
        _command("consortium", "revoke", name, "--folder", self.loopback.folder)
        self.acts("anna")
        events = self.loopback.finish(month, number)["events"]
        told = [runs.with_revoked(self.loopback.folder, f"{event['site']}: {event['reason']}") for event in events]
        print(f"  it went on without {name}: {told[0]}", flush=True)
        self.models[f"{month} says that {name} is revoked"] = f"({name} is revoked)" in told[0]
        self.models[f"{month} blames nobody else"] = {event["site"] for event in events} == {name}
        site.down(self.loopback.kit(name))
        self.members.remove(name)
        del self.loopback.data[name]

    def joins(self, name: str) -> None:
        """A hospital is admitted while the server runs."""
        print(f"  {name} is admitted", flush=True)
        loopback = self.loopback
        loopback.admit(name, self.policy)
        server.register(loopback.folder, _silent)
        loopback.data[name], (loopback.ports[name],) = self.data[name], free_ports(1)
        self.members.add(name)
        self.site_up(name)

    def old_backup_is_restored(self, name: str, backup: Path, month: str) -> None:
        """A hospital puts an old copy of its state back, with which it is in no run, and then the newest."""
        print(f"  {name} restores a backup of January, and then the newest", flush=True)
        own = self.loopback.kit(name)
        site.down(own)
        newest = self.folder / "newest"
        shutil.copytree(own.home, newest, symlinks=True, ignore=_no_sockets)
        shutil.rmtree(own.home)
        shutil.copytree(backup, own.home, symlinks=True)
        self.site_up(name)
        number = self.loopback.start(month, self.plan(), self.members, **PATIENCE)
        try:
            self.loopback.finish(month, number)
            reason = ""
        except RuntimeError as error:
            reason = str(error)
        print(f"  with the old one: {reason}", flush=True)
        self.models[f"an old backup of {name} gives no budget back"] = name in reason
        site.down(own)
        shutil.rmtree(own.home)
        shutil.copytree(newest, own.home, symlinks=True)
        self.site_up(name)


def main(rounds: int = 12) -> int:
    """Go through the year; 0 where all is as it should be."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fy") as scratch:
        year = Year(Path(scratch), rounds)
        with year.loopback:
            year.run("january")
            backup = Path(scratch) / "january"
            shutil.copytree(year.loopback.kit("ulm").home, backup, symlinks=True, ignore=_no_sockets)
            year.run("february", year.server_reboots)
            year.share_the_work()
            year.run("march", year.site_reboots("essen"))
            year.upgrade("bonn")
            year.run("april")
            year.run("may", year.line_is_lost("ulm"))
            year.certificate_is_renewed()
            year.run("june", year.server_app_dies)
            year.upgrade("essen")
            year.run("july", year.site_reboots("essen"))
            year.leaves("graz", "august")
            year.joins(LATER)
            year.run("september")
            year.old_backup_is_restored("ulm", backup, "october-old-backup")
            year.run("october")
            year.upgrade("ulm")
            year.upgrade(LATER)
            year.upgraded.add("server")
            year.run("november", year.server_reboots)
            year.run("december", year.site_reboots("bonn"))
            logs = [year.loopback.home(month) / "log.jsonl" for month in year.launches]
            logs += [year.loopback.kit(name).home / "log.jsonl" for name in year.members]
            commands = [entry["command"]["command"] for entry in coordinators.read(year.loopback.folder)[1]]
            year.models["all commands since March are signed"] = commands == [
                *["appoint"] * 2,
                *["start"] * 3,
                "renew",
                *["start"] * 3,
                "revoke",
                *["start"] * 5,
            ]
            faults = [str(verify(path).fault) for path in logs if verify(path).fault is not None]
    report = {
        "finished with the bits of their simulation": sum(year.models[month] for month in year.launches),
        "runs": len(year.launches),
        "what else": {what: held for what, held in year.models.items() if what not in year.launches},
        "went on by themselves": [month for month, launches in year.launches.items() if launches > 1],
        "faults of logs": faults,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(report, indent=1), flush=True)
    return 0 if all(year.models.values()) and not faults else 1


def _kill_all(folder: Path) -> None:
    """SIGKILL for a supervisor and all that it has started, as if the machine had lost its power."""
    pid = supervisor.running(folder)
    assert pid is not None
    victims = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in victims:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(victims, timeout=10)


def _command(*words: object) -> None:
    try:
        fedsmall([str(word) for word in words])
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{words} ended with {ended.code}") from None


def _no_sockets(folder: str, names: Collection[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def _silent(_: str) -> None:
    """Commands that the server runs are not shown."""


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
