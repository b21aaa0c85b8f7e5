"""The part of a site's station that answers for its columns: a party, whose every answer is written down.

What is kept of a finished forest is a file in the run's folder; until then a notebook of what was asked
(:mod:`fedsmall.clients.columns.notebook`), from which a station that was killed goes on.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsmall.clients.columns.letters import Introductions
from fedsmall.clients.columns.notebook import Notebook
from fedsmall.clients.columns.say import check_policy, described
from fedsmall.clients.consent import Consent
from fedsmall.clients.memory import RUNS, check_same_data, folders_of
from fedsmall.clients.patients import Answer
from fedsmall.clients.policy import Policy
from fedsmall.clients.sealing.desk import identity_of
from fedsmall.clients.sealing.letters import Letters
from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.errors import DataError, PlanError, PolicyError, ReplyError
from fedsmall.files import one_line, write
from fedsmall.run_sheet import RUN, RUN_ID
from fedsmall.vertical.active import ActiveParty
from fedsmall.vertical.conducting import KEYS, MEET
from fedsmall.vertical.messages import Message
from fedsmall.vertical.party import Party, PassiveParty
from fedsmall.vertical.plan import ColumnPlan, ForestOf
from fedsmall.vertical.tables import read_party_table, read_target
from fedsmall.wire import COLUMNS, MESSAGE, ROUND, Arrays

PART = "columns.json"  # in a run's folder at a site: its part of the forest
PREDICTIONS = "predictions.csv"  # in that of a prediction, at the active site
WORTH = "worth.json"  # and at the active one what it is worth, whether or not that was told


@dataclass
class Seat:
    """A party in a run, and what was asked of it; ``introductions`` are where the parties write letters."""

    run: str
    plan: ColumnPlan
    party: Party
    notebook: Notebook
    introductions: Introductions | None


class ColumnDesk:
    """The party of the site ``name``, whose table is the file ``data``; ``letters`` know the consortium's sites."""

    def __init__(self, name: str, data: Path | None, letters: Letters, consent: Consent) -> None:
        self.name, self.data, self.letters, self.consent = name, data, letters, consent
        self._seat: Seat | None = None

    def answer(self, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """What the site's party says to a message; one that is sent again has the same answer.

        Raises PolicyError where the site takes no part, WaitsError where it is to be asked again, and PlanError for
        what is no message of this run.
        """
        plan = _plan(config)
        check_policy(policy, plan)
        self.consent.check_lines(policy, plan.model_dump_json(), lambda: described(plan, self.name), config)
        self.consent.check_paused(COLUMNS)
        try:
            said = self._said(plan, policy, config, arrays[f"{COLUMNS}/{MESSAGE}"].tobytes())
        except (ReplyError, KeyError, ValidationError) as error:
            self._seat = None  # what it was asked may be half done: the notebook holds what was whole
            raise PlanError(f"a message of this run cannot be answered: {one_line(error, 200)}") from None
        except Exception:
            self._seat = None
            raise
        return {"config": {COLUMNS: self.name}}, {f"{COLUMNS}/{MESSAGE}": said.as_array()}

    def _said(self, plan: ColumnPlan, policy: Policy, config: Mapping[str, Any], question: bytes) -> Message:
        number, message = int(config[ROUND]), Message.from_bytes(question)
        notebook = Notebook(self.letters.folder_of(config))
        notebook.check_plan(plan.model_dump_json())
        before = notebook.again(number, question)
        if before is None:
            before = self._written_down(self._seated(plan, policy, config), number, question, policy, config)
        if message.kind == "keep":
            notebook.end()
            self._seat = None
        return Message.from_bytes(before)

    def _written_down(
        self, seat: Seat, number: int, question: bytes, policy: Policy, config: Mapping[str, Any]
    ) -> bytes:
        """The answer to a new question, once what it leaves behind is on the disk."""
        message = Message.from_bytes(question)
        whole, folder = self._replied(seat, message, policy, config), self.letters.folder_of(config)
        reply = self._kept_back(whole, policy)
        if whole.words.get("worth"):
            write(folder / WORTH, seal(json.dumps(whole.words["worth"]).encode()), flush=True, mode=0o600)
        if message.kind == "keep":
            _keep(seat, folder)
        state = seat.party.state() if message.kind not in (MEET, KEYS) else None
        seat.notebook.note(number, question, reply.to_bytes(), None if state is None else state.to_bytes())
        return reply.to_bytes()

    def _replied(self, seat: Seat, message: Message, policy: Policy, config: Mapping[str, Any]) -> Message:
        if seat.introductions is None:
            return seat.party.answer(message)
        if message.kind == MEET:
            self.letters.known_roll(config, policy)
            return message.answer({"announced": seat.introductions.announce().model_dump()})
        if message.kind == KEYS:
            roll = self.letters.known_roll(config, policy)
            seat.introductions.take(message.words["announced"], roll, seat.plan)
            return message.answer()
        if seat.party.letters is None:
            seat.party.letters = seat.introductions.letters(seat.plan)
        return seat.party.answer(message)

    def _kept_back(self, reply: Message, policy: Policy) -> Message:
        """A share of few patients is as good as their labels."""
        worth = reply.words.get("worth")
        if not worth or (policy.judge and worth["held_out"] >= policy.count_floor):
            return reply
        return Message(reply.sender, reply.to, reply.kind, {**reply.words, "worth": {}}, reply.arrays)

    def _seated(self, plan: ColumnPlan, policy: Policy, config: Mapping[str, Any]) -> Seat:
        """The party of this run: as it sits here, or from its notebook."""
        run = f"{config.get(RUN, '')} {one_line(config.get(RUN_ID, ''), 64)}"
        if self._seat is None or (self._seat.run, self._seat.plan) != (run, plan):
            self._seat = None
            self._seat = self._taken_up(run, plan, policy, config)
        return self._seat

    def _taken_up(self, run: str, plan: ColumnPlan, policy: Policy, config: Mapping[str, Any]) -> Seat:
        folder = self.letters.folder_of(config)
        notebook = Notebook(folder)
        check_same_data(folder, hashlib.sha256(self._table(plan, policy).read_bytes()).hexdigest())
        introductions = None
        if plan.sealed:
            introductions = Introductions(notebook, self.name, run, identity_of(self.letters.identity))
        seat = Seat(run, plan, self._party(plan, policy, notebook), notebook, introductions)
        _go_on(seat)
        return seat

    def _table(self, plan: ColumnPlan, policy: Policy) -> Path:
        """The file whose rows take part: the site's table, or its new patients."""
        if plan.of is not None:
            path: Path | None = self.letters.identity.parent / str(policy.predict_from)
        else:
            path = self.data
        if path is None or not path.is_file():
            raise PlanError(
                "the table of new patients is not there (predict_from)"
                if plan.of is not None
                else "a run over split columns wants one table at every site; this one has none"
            )
        return path

    def _party(self, plan: ColumnPlan, policy: Policy, notebook: Notebook) -> Party:
        """The party as it begins, with its table read anew."""
        path = self._table(plan, policy)
        shared: dict[str, Any] = {"parties": plan.parties, "draw": notebook.draw}
        if plan.of is not None:
            part = self._part_of(plan.of)
            table = read_party_table(path, plan.reading, part["columns"])
            kind = ActiveParty if plan.active == self.name else PassiveParty
            return kind.from_part(self.name, table, part, **shared)
        table = read_party_table(path, plan.reading)
        if len(table.identifiers) < policy.least_samples or not table.columns:
            raise PolicyError(f"this site has no column, or fewer than {policy.least_samples} rows (least_samples)")
        if plan.active != self.name:
            order = int(notebook.draw("order", lambda: str(PassiveParty(self.name, table).secret)))
            return PassiveParty(
                self.name, table, secret=order, agreed=plan.settings, most_trees=plan.most_trees, **shared
            )
        return ActiveParty(self.name, table, **_labels(path, plan), key_bits=plan.key_bits, **shared)

    def _part_of(self, forest: ForestOf) -> dict[str, Any]:
        """What this site has kept of a forest; PlanError where that is nothing."""
        for folder in folders_of(self.letters.home / RUNS, forest.run):
            mark = folder / "id"
            if mark.exists() and mark.read_text() == forest.id and (folder / PART).exists():
                return dict(json.loads(opened((folder / PART).read_bytes())))
        raise PlanError(f"this site has no part of a forest of the run {one_line(forest.run, 100)!r}")


def _labels(path: Path, plan: ColumnPlan) -> dict[str, Any]:
    target = read_target(path, plan.reading)
    if len(target.classes) > len(plan.reading.classes or ("", "")):
        raise DataError(
            "there are more than two classes; name them in the scenario (classes = [...]), for other parties hold "
            "a run to the number of its trees"
        )
    return {"target": target.values, "classes": len(target.classes), "class_names": target.classes}


def _keep(seat: Seat, folder: Path) -> None:
    """Keep what a run was for: the part of a forest or, at the active party, what one says of new patients."""
    if seat.plan.of is None:
        return write(folder / PART, seal(json.dumps(seat.party.part()).encode()), flush=True, mode=0o600)
    if isinstance(seat.party, ActiveParty) and seat.party.predicted is not None:
        rows = seat.party.prediction_rows(seat.plan.reading, seat.party.predicted)
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        write(folder / PREDICTIONS, seal(text.getvalue().encode()), flush=True, mode=0o600)


def _go_on(seat: Seat) -> None:
    """Take up the last state, and ask again what was asked since: the answers are in the notebook, or past."""
    state, asked = seat.notebook.since()
    questions = [one for one in map(Message.from_bytes, asked) if one.kind not in (MEET, KEYS)]
    if seat.introductions is not None and (state is not None or questions):
        seat.party.letters = seat.introductions.letters(seat.plan)
    if state is not None:
        seat.party.restore(Message.from_bytes(state))
    for question in questions:
        seat.party.answer(question)


def _plan(config: Mapping[str, Any]) -> ColumnPlan:
    try:
        return ColumnPlan.model_validate_json(str(config[COLUMNS]))
    except (KeyError, ValidationError):
        raise PlanError("the order holds no plan over split columns that this version of fedsmall knows") from None
