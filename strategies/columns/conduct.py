"""A run over split columns at real sites: messages of parties, carried from site to site by their names.

After every exchange the journal holds all that the next one is made of, so that a run which is started again asks the
very same questions, under the same numbers, and sites give the answers that they have written down.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedsmall.errors import PlanError
from fedsmall.files import one_line
from fedsmall.sealing.words import ROLL
from fedsmall.strategies.server.asking import wait_for_sites
from fedsmall.strategies.server.journal import FileJournal, put
from fedsmall.strategies.server.retrying_grid import RetryingGrid
from fedsmall.vertical.conducting import (
    BLIND,
    DONE,
    MEET,
    Phases,
    Stage,
    advance,
    conducting_phases,
    grow_message,
    meeting_phases,
    predict_message,
)
from fedsmall.vertical.messages import Message as Said
from fedsmall.vertical.plan import ColumnSheet
from fedsmall.wire import COLUMNS, CONFIG, MESSAGE, ROUND

KIND = f"{MessageType.QUERY}.{COLUMNS}"
JOURNAL = "journal"  # in the run's folder


@dataclass
class Traffic:
    """What was carried: ``exchanges`` in all, ``seconds`` that they took, messages and bytes by site."""

    exchanges: int = 0
    seconds: float = 0.0
    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


def conduct_columns(sheet: ColumnSheet, folder: Path, grid: RetryingGrid) -> dict[str, Any]:
    """Wait for all sites, lead the run from where its journal has it, and return what ``outcome.json`` is to hold.

    Raises PlanError, with every site's reason, where one refuses or is silent: no party of such a run can be done
    without.
    """
    wait_for_sites(sheet, grid)
    journal, phases = FileJournal(folder / JOURNAL), phases_of(sheet)
    stage, traffic = _taken_up(sheet, journal)
    mail = Mail(sheet, grid, traffic)
    while stage.phase != DONE:
        begun = time.monotonic()
        stage = advance(phases, stage, mail)
        traffic.exchanges += 1
        traffic.seconds += time.monotonic() - begun
        journal.save(
            traffic.exchanges, stage.arrays, {"phase": stage.phase, "words": stage.words, "traffic": vars(traffic)}
        )
        _note(folder, stage, sheet, traffic)
    told = {key: stage.words[key] for key in ("common", "rows", "worth", "splits")}
    carried = {"messages": traffic.messages, "bytes": traffic.bytes, "seconds": traffic.seconds}
    return {"columns": json.loads(sheet.columns.model_dump_json()), **told, **carried, "exchanges": traffic.exchanges}


def phases_of(sheet: ColumnSheet) -> Phases:
    """The exchanges of a run."""
    plan = sheet.columns
    if plan.of is not None:
        return {
            **meeting_phases(plan.parties),
            **conducting_phases(plan.parties, predict_message(plan.parties), least=1),
        }
    opening = grow_message(plan.parties, plan.settings, plan.test)
    return {**meeting_phases(plan.parties), **conducting_phases(plan.parties, opening)}


def _taken_up(sheet: ColumnSheet, journal: FileJournal) -> tuple[Stage, Traffic]:
    """Where the run stands, and what was carried for it."""
    if (kept := journal.latest()) is None:
        return Stage(MEET if sheet.columns.sealed else BLIND), Traffic()
    _, arrays, meta = kept
    told = meta["traffic"]
    counted = {key: Counter(told[key]) for key in ("messages", "bytes")}
    return Stage(meta["phase"], meta["words"], arrays), Traffic(told["exchanges"], told["seconds"], **counted)


class Mail:
    """Carries the messages of one exchange to the sites that they are for; counts them by the site at the other end."""

    def __init__(self, sheet: ColumnSheet, grid: RetryingGrid, traffic: Traffic) -> None:
        self.sheet, self.grid, self.traffic = sheet, grid, traffic
        self.plan = sheet.columns.model_dump_json()

    def __call__(self, messages: Sequence[Said]) -> list[Said]:
        """All replies, in the order of the messages."""
        nodes = {node.name: node.node_id for node in self.grid.get_nodes()}
        if missing := sorted({one.to for one in messages} - set(nodes)):
            raise PlanError(
                f"{', '.join(missing)} went away; a run over split columns needs all of its sites. "
                f"`fedsmall resume {self.sheet.run}` goes on from here."
            )
        orders = [self._order(one, nodes[one.to]) for one in messages]
        came = {one.metadata.reply_to_message_id: one for one in self.grid.send_and_receive(orders)}
        replies = [came.get(order.metadata.message_id) for order in orders]
        pairs = list(zip(messages, replies, strict=True))
        faults = [_fault(said.to, reply) for said, reply in pairs if reply is None or reply.has_error()]
        if faults:
            raise PlanError("Not every site takes part. " + "; ".join(faults))
        return [self._read(said, reply) for said, reply in pairs]

    def _order(self, said: Said, node: int) -> Message:
        words = ConfigRecord({COLUMNS: self.plan, ROUND: self.traffic.exchanges + 1})
        if self.sheet.columns.sealed:
            words[ROLL] = json.dumps(self.sheet.roll)
        content = said.as_array()
        self.traffic.messages[said.to] += 1
        self.traffic.bytes[said.to] += len(content)
        return Message(RecordDict({CONFIG: words, COLUMNS: ArrayRecord({MESSAGE: Array(content)})}), node, KIND)

    def _read(self, said: Said, reply: Message | None) -> Said:
        try:
            assert reply is not None
            content = reply.content.array_records[COLUMNS][MESSAGE].numpy()
            found = Said.from_bytes(content.tobytes())
        except (KeyError, ValueError, TypeError):
            raise PlanError(f"{said.to}: its answer cannot be read") from None
        if (found.sender, found.kind) != (said.to, said.kind):
            raise PlanError(f"{said.to}: its answer is to another question")
        self.traffic.bytes[said.to] += content.nbytes
        return found


def _fault(site: str, reply: Message | None) -> str:
    line = "no answer in time" if reply is None else one_line(reply.error.reason or "no reason given", 300)
    return line if line.startswith(f"{site}:") else f"{site}: {line}"


def _note(folder: Path, stage: Stage, sheet: ColumnSheet, traffic: Traffic) -> None:
    rounds = 1 if sheet.columns.of is not None else sheet.columns.settings.rounds
    t = rounds if stage.phase == DONE else int(stage.words.get("round", 0))
    now = {"t": t, "rounds": rounds, "seconds": traffic.seconds, "events": []}
    put(folder / "progress.json", json.dumps(now).encode())
