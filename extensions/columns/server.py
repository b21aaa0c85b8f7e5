"""A run over split columns at real sites: prepared at the coordinator's desk, led by the server, written down."""

import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.app import Message as FlowerMessage

from fedsmall.audit_log import AuditLog
from fedsmall.clients.policy import Policy
from fedsmall.errors import PlanError
from fedsmall.extensions.columns import conducting
from fedsmall.extensions.columns.conducting import DONE, Protocol, Stage
from fedsmall.extensions.columns.messages import Message
from fedsmall.extensions.columns.page import Facts, Learnt, knowledge_lines, knowledge_of, write_real_page
from fedsmall.extensions.columns.party import read_own
from fedsmall.extensions.columns.plan import COLUMN_SHEET, COLUMNS, MESSAGE, ColumnPlan, ColumnSheet, ForestOf
from fedsmall.extensions.columns.simulation import METHODS, SAVES_TIME, Columns, Task
from fedsmall.extensions.columns.site import check_policy, describe
from fedsmall.files import one_line, write
from fedsmall.sealing.terms import ROLL
from fedsmall.sim.consortium import runs
from fedsmall.sim.runs.files import write_json
from fedsmall.sim.runs.scenario import as_toml
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.handshake import wait_for_sites
from fedsmall.strategies.server.journal import FileJournal, put
from fedsmall.wire import CONFIG, ROUND

KIND = f"{MessageType.QUERY}.{COLUMNS}"
JOURNAL = "journal"  # in the run's folder

Told = Mapping[str, Any]  # what outcome.json holds


def prepare(folder: Path, run: str, scenario: Columns, **patience: Any) -> Path:
    """Make the folder of a new run with its sheet; returns it.

    Raises PlanError for several seeds, or methods that send messages, a party that is no admitted site or lacks the
    identity that ``sealed`` asks for, and where there is a run of that name.
    """
    parties = tuple(scenario.task.columns)
    runs.admitted_sites(folder, parties)
    roll: dict[str, str] = {}
    if scenario.sealed is not False:
        try:
            roll = runs.roll_for(folder, parties, "sealed")
        except PlanError:
            if scenario.sealed:
                raise
    label, columns = _real_plan(scenario, bool(roll))
    words: dict[str, Any] = {"run": run, "id": secrets.token_hex(8), "about": scenario.about, **patience}
    sheet = ColumnSheet(columns=columns, sites=tuple(sorted(parties)), quorum=len(parties), roll=roll, **words)
    return runs.write_sheet(folder / "runs" / run / COLUMN_SHEET, sheet, columns.model_dump_json(), method=label)


def _real_plan(scenario: Columns, sealed: bool) -> tuple[str, ColumnPlan]:
    """The label and the plan of what sends messages; a simulation's scenario has comparators too."""
    plans = [plan for plan in scenario.plans() if METHODS[plan.name].apart]
    if len(plans) != 1:
        raise PlanError(
            "A run over split columns at real sites takes one seed and one method, SecureBoost or SecureBoostPlus."
        )
    words: dict[str, Any] = {"parties": tuple(scenario.task.columns), "reading": scenario.task.reading}
    words |= {"settings": plans[0].settings, "test": scenario.test, "key_bits": scenario.key_bits}
    return plans[0].label, ColumnPlan(**words, sealed=sealed)


def check_site(scenario: Columns, site: str, data: Path, policy: Policy, *, has_identity: bool) -> list[str]:
    """What a run would ask of a site's table, and what would leave, in lines; DataError or PolicyError as it does."""
    _, plan = _real_plan(scenario, has_identity if scenario.sealed is None else scenario.sealed)
    if site not in plan.parties:
        raise PlanError(f"{site!r} is none of the parties {', '.join(plan.parties)}: say which is yours, --site")
    table, _ = read_own(data, plan, policy.least_samples, site)
    check_policy(policy, plan)
    return [f"{data.name}: {len(table.identifiers)} rows; columns {', '.join(table.columns)}", *describe(plan, site)]


def prepare_prediction(home: Path, name: str | None = None, **patience: Any) -> Path:
    """Make the folder of a run that asks the forest of one in ``home`` of new patients; PlanError for no forest."""
    sheet = read_sheet(home)
    if not (home / "outcome.json").exists() or sheet.columns.of is not None:
        raise PlanError(f"{home.name!r} has grown no forest, or is not finished; `fedsmall status` shows how it goes")
    runs.admitted_sites(home.parents[1], list(sheet.sites))
    free = (f"{sheet.run}-predictions-{k}" for k in itertools.count(1))
    run = name or next(other for other in free if not (home.parent / other).exists())
    columns = sheet.columns.model_copy(update={"of": ForestOf(run=sheet.run, id=sheet.id)})
    changes = {"run": run, "id": secrets.token_hex(8), "columns": columns, **patience}
    asking = ColumnSheet(**{**vars(sheet), **changes})
    method = f"the forest of {sheet.run}"
    return runs.write_sheet(home.parent / run / COLUMN_SHEET, asking, columns.model_dump_json(), method=method)


def read_sheet(folder: Path) -> ColumnSheet:
    """The sheet in the folder of a run."""
    return ColumnSheet.from_file(folder / COLUMN_SHEET)


@dataclass
class Traffic:
    """What was carried: ``exchanges`` in all, ``seconds`` that they took, messages and bytes by site."""

    exchanges: int = 0
    seconds: float = 0.0
    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


def conduct(sheet: ColumnSheet, folder: Path, grid: RetryingGrid) -> tuple[dict[str, Any], dict[str, int]]:
    """Wait for all sites, and lead the run from where its journal has it.

    Returns what ``outcome.json`` is to hold, and what the log says. PlanError, with all reasons, where a site refuses.
    """
    wait_for_sites(sheet, grid)
    journal, protocol = FileJournal(folder / JOURNAL), _protocol_of(sheet.columns)
    stage, traffic = _read_journal(sheet, journal)
    mail = Mail(sheet, grid, traffic)
    while stage.phase != DONE:
        begun = time.monotonic()
        stage = protocol.takes(stage, mail(protocol.asks(stage)))
        traffic.exchanges += 1
        traffic.seconds += time.monotonic() - begun
        words = {"phase": stage.phase, "words": stage.words, "traffic": vars(traffic)}
        journal.save(traffic.exchanges, stage.arrays, words)
        _note_progress(folder, stage, sheet, traffic)
    outcome = {key: stage.words[key] for key in ("common", "rows", "worth", "splits")}
    sent = {"messages": traffic.messages, "bytes": traffic.bytes, "seconds": traffic.seconds}
    outcome |= {COLUMNS: json.loads(sheet.columns.model_dump_json()), **sent, "exchanges": traffic.exchanges}
    return outcome, {"rounds": sheet.columns.settings.rounds}


def _protocol_of(plan: ColumnPlan) -> Protocol:
    if plan.of is None:
        return Protocol(plan.parties, conducting.grow_message(plan.parties, plan.settings, plan.test))
    asking = Message(conducting.COORDINATOR, plan.active, "predict", {"passives": list(plan.parties[1:])})
    return Protocol(plan.parties, asking, least=1)


def _read_journal(sheet: ColumnSheet, journal: FileJournal) -> tuple[Stage, Traffic]:
    if (entry := journal.latest()) is None:
        return Stage(conducting.MEET if sheet.columns.sealed else conducting.BLIND), Traffic()
    _, arrays, meta = entry
    traffic = meta["traffic"]
    counters = {key: Counter(traffic[key]) for key in ("messages", "bytes")}
    return Stage(meta["phase"], meta["words"], arrays), Traffic(traffic["exchanges"], traffic["seconds"], **counters)


class Mail:
    """Carries the messages of one exchange to the sites that they are for; counts them by the site at the other end."""

    def __init__(self, sheet: ColumnSheet, grid: RetryingGrid, traffic: Traffic) -> None:
        self.sheet, self.grid, self.traffic = sheet, grid, traffic
        self.plan = sheet.columns.model_dump_json()

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """Every site's reply, in the order of the messages."""
        nodes = {node.name: node.node_id for node in self.grid.get_nodes()}
        if missing := sorted({message.to for message in messages} - set(nodes)):
            raise PlanError(
                f"{', '.join(missing)} went away; a run over split columns needs all of its sites. "
                f"`fedsmall resume {self.sheet.run}` goes on from here."
            )
        orders = [self._order(message, nodes[message.to]) for message in messages]
        received = {reply.metadata.reply_to_message_id: reply for reply in self.grid.send_and_receive(orders)}
        replies = [received.get(order.metadata.message_id) for order in orders]
        pairs = list(zip(messages, replies, strict=True))
        faults = [_fault(message.to, reply) for message, reply in pairs if reply is None or reply.has_error()]
        if faults:
            raise PlanError("Not every site takes part. " + "; ".join(faults))
        return [self._read(message, reply) for message, reply in pairs]

    def _order(self, message: Message, node: int) -> FlowerMessage:
        words = ConfigRecord({COLUMNS: self.plan, ROUND: self.traffic.exchanges + 1})
        if self.sheet.columns.sealed:
            words[ROLL] = json.dumps(self.sheet.roll)
        content = message.as_array()
        self.traffic.messages[message.to] += 1
        self.traffic.bytes[message.to] += len(content)
        return FlowerMessage(RecordDict({CONFIG: words, COLUMNS: ArrayRecord({MESSAGE: Array(content)})}), node, KIND)

    def _read(self, question: Message, reply: FlowerMessage | None) -> Message:
        try:
            assert reply is not None
            content = reply.content.array_records[COLUMNS][MESSAGE].numpy()
            answer = Message.from_bytes(content.tobytes())
        except (KeyError, ValueError, TypeError):
            raise PlanError(f"{question.to}: its answer cannot be read") from None
        if (answer.sender, answer.kind) != (question.to, question.kind):
            raise PlanError(f"{question.to}: its answer is to another question")
        self.traffic.bytes[question.to] += content.nbytes
        return answer


def _fault(site: str, reply: FlowerMessage | None) -> str:
    line = "no answer in time" if reply is None else one_line(reply.error.reason or "no reason given", 300)
    return line if line.startswith(f"{site}:") else f"{site}: {line}"


def _note_progress(folder: Path, stage: Stage, sheet: ColumnSheet, traffic: Traffic) -> None:
    rounds = 1 if sheet.columns.of is not None else sheet.columns.settings.rounds
    t = rounds if "worth" in stage.words else int(stage.words.get("round", 0))  # the last is grown
    progress = {"t": t, "rounds": rounds, "seconds": traffic.seconds, "events": []}
    put(folder / "progress.json", json.dumps(progress).encode())


def write_run(folder: Path, outcome: Told) -> None:
    """Write scenario, summary and page of a run into ``folder``, which holds its sheet and log."""
    sheet = read_sheet(folder)
    scenario = _scenario_of(sheet)
    plan = scenario.plans()[0]
    row = {"method": plan.label, "name": plan.name, "seed": plan.seed, **outcome["worth"]}
    row |= {key: outcome[key] for key in ("seconds", "messages", "bytes", "splits")}
    settings, log = as_toml(scenario), runs.run_log(AuditLog(folder / "log.jsonl").entries())
    write(folder / "scenario.toml", settings)
    write_json(folder / "summary.json", {"common": outcome["common"], "rows": [row]})
    words = {"sheet": sheet, "method": plan.label, "told": outcome, "log": log, "learnt": _knowledge(outcome)}
    write_real_page(folder, settings=settings.decode(), **words)


def _scenario_of(sheet: ColumnSheet) -> Columns:
    plan = sheet.columns
    settings = plan.settings.model_dump(mode="json", exclude_defaults=True)
    name = "SecureBoostPlus" if all(settings.get(key) for key in SAVES_TIME) else "SecureBoost"
    task = Task(columns={site: f"{site}.csv" for site in plan.parties}, **plan.reading.model_dump())
    words: dict[str, Any] = {"seeds": (settings.pop("seed", 0),), "task": task, "method": ({"name": name},)}
    words |= {key: getattr(plan, key) for key in ("test", "key_bits", "sealed")}
    boosting = {key: value for key, value in settings.items() if key not in METHODS[name].sets}
    return Columns(name=sheet.run, about=sheet.about, boosting=boosting, **words)


def _knowledge(outcome: Told) -> list[Learnt]:
    plan = ColumnPlan.model_validate(outcome[COLUMNS])
    facts = Facts(plan.parties, outcome["common"], outcome["splits"], plan.settings, sealed=plan.sealed)
    return knowledge_of(facts, is_prediction=plan.of is not None)


def outcome_lines(home: Path, outcome: Told) -> list[str]:
    """What came of the finished run in ``home``, in lines for the coordinator."""
    plan = ColumnPlan.model_validate(outcome[COLUMNS])
    sent = f"{sum(outcome['messages'].values())} messages, {sum(outcome['bytes'].values())} bytes"
    worth = ", ".join(f"{name} {value:.3f}" for name, value in outcome["worth"].items() if name != "held_out")
    splits = ", ".join(f"{site} {count}" for site, count in outcome["splits"].items())
    result, kept = f"the forest on those held out: {worth or 'not told'}", "; each site keeps its part of the forest"
    if plan.of is not None:
        says, kept = f"what the forest of {plan.of.run} says of them", ""
        result = f"{plan.active} has {says} (fedsmall site predictions RUN there)"
    return [
        f"{outcome['common']} patients are at all sites; {result}",
        f"splits by site: {splits}; {sent}, {outcome['seconds']:.0f} s",
        *knowledge_lines(_knowledge(outcome)),
        f"in {home}: outcome.json, summary.json, log.jsonl{kept}",
    ]
