"""A site in a run over split columns: its party, kept between messages, whose every answer is written down."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedsmall.clients.consent import Consent
from fedsmall.clients.key_store import KeyStore
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import PREDICTIONS, RUNS, check_same_data, folders_of
from fedsmall.clients.sealing import Encryption
from fedsmall.clients.shelf import Shelf
from fedsmall.clients.site_request import Answer
from fedsmall.errors import PlanError, PolicyError, ReplyError
from fedsmall.extensions.columns.active import ActiveParty
from fedsmall.extensions.columns.conducting import KEYS, MEET
from fedsmall.extensions.columns.messages import Message
from fedsmall.extensions.columns.party import Envelopes, Party, PassiveParty, read_own, read_party_table
from fedsmall.extensions.columns.plan import COLUMNS, MESSAGE, ColumnPlan, ForestOf
from fedsmall.files import one_line
from fedsmall.planning.run_sheet import RUN, RUN_ID
from fedsmall.sealing.envelopes import Announcement, EnvelopeError, digest
from fedsmall.sim.runs.files import csv_text
from fedsmall.wire import ROUND, Arrays

PART = "columns.json"  # in a run's folder at a site: its part of the forest
WORTH = "worth.json"  # and at the active one what it is worth, whether or not that was told
NOTEBOOK = "columns"  # a folder in the run's
QUESTION, STATE, ANSWER = "question", "state", "answer"
DIGEST = 32


class Notebook:
    """What a site was asked in one run, each question once, in the run's ``folder`` at the site.

    An answer is on disk before it leaves, the same bytes if asked again; another question by its number is refused.
    """

    def __init__(self, folder: Path) -> None:
        self._shelf = Shelf(folder / NOTEBOOK)

    def check_plan(self, plan: str) -> None:
        """Raise PlanError where the run was begun with another plan."""
        if (before := self.plan()) is None:
            self._shelf.write("plan", plan.encode())
        elif before != plan:
            raise PlanError("the plan is another than that with which this run was begun here")

    def plan(self) -> str | None:
        """The plan with which the run was begun; None where none was."""
        return None if (plan := self._shelf.read("plan")) is None else plan.decode()

    def draw(self, name: str, make: Callable[[], str]) -> str:
        """What was drawn by chance under a name; it is drawn once in a run."""
        drawn = json.loads(self._shelf.read("drawn.json") or "{}")
        if name not in drawn:
            drawn[name] = make()
            self._shelf.write("drawn.json", json.dumps(drawn).encode())
        return str(drawn[name])

    def answer_before(self, number: int, question: bytes) -> bytes | None:
        """What was answered to a question before; None where it is a new one. PlanError where it is neither."""
        last = self._last()
        if number > last:
            if (self._shelf.folder / "over").exists():
                raise PlanError("this run is over here; what was kept for it is gone")
            return None
        answer = self._shelf.read(f"{number:09d}.{ANSWER}") if number == last else None
        if answer is None or answer[:DIGEST] != hashlib.sha256(question).digest():
            raise PlanError(
                "this site has answered another question in this place of the run, and answers no second one"
            )
        return answer[DIGEST:]

    def note(self, number: int, question: bytes, answer: bytes, state: bytes | None) -> None:
        """Write down a question, then its answer: until that is there, nothing was asked."""
        kind, content = (QUESTION, question) if state is None else (STATE, state)
        self._shelf.write(f"{number:09d}.{kind}", content)
        self._shelf.write(f"{number:09d}.{ANSWER}", hashlib.sha256(question).digest() + answer)
        for path in self._numbered(ANSWER, *((QUESTION, STATE) if state is not None else ())):
            if int(path.stem) < number:
                path.unlink()

    def since(self) -> tuple[bytes | None, list[bytes]]:
        """The last state, None where there was none yet, and what was asked since, in order."""
        last = self._last()
        states = [path for path in self._numbered(STATE) if int(path.stem) <= last]
        begun = int(states[-1].stem) if states else -1
        asked = [path for path in self._numbered(QUESTION) if begun < int(path.stem) <= last]
        read = self._shelf.read
        return read(states[-1].name) if states else None, [read(path.name) or b"" for path in asked]

    def end(self) -> None:
        """The run is over: its last answer stays, for who has not heard it, and nothing else does."""
        self._shelf.write("over", b"")
        for path in self._shelf.folder.glob("*"):
            if path.name not in ("over", "plan", f"{self._last():09d}.{ANSWER}"):
                path.unlink()

    def _last(self) -> int:
        return max((int(path.stem) for path in self._numbered(ANSWER)), default=-1)

    def _numbered(self, *kinds: str) -> list[Path]:
        return sorted(path for kind in kinds for path in self._shelf.folder.glob(f"*.{kind}"))


def _envelopes(store: KeyStore, plan: ColumnPlan) -> Envelopes:
    announced, roll = store.read_announced()
    keys = [[site, key.sealing, key.commitment] for site, key in sorted(announced.items())]
    return Envelopes(store.mailbox(plan, announced), digest("columns", store.run, roll, keys))


@dataclass
class PartyRun:
    """A party in a run; ``store`` is where the parties write envelopes."""

    run: str
    plan: ColumnPlan
    party: Party
    store: KeyStore | None


class ColumnClient:
    """The party of the site ``name``, whose table is the file ``data``; ``encryption`` knows the consortium's sites."""

    def __init__(self, name: str, data: Path | None, encryption: Encryption, consent: Consent) -> None:
        self.name, self.data, self.encryption, self.consent = name, data, encryption, consent
        self._session: PartyRun | None = None

    def answer(self, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """What the site's party says to a message; one that is sent again has the same answer.

        Raises PolicyError where the site takes no part, WaitsError where it is to be asked again, else PlanError.
        """
        try:
            plan = ColumnPlan.model_validate_json(str(config[COLUMNS]))
        except (KeyError, ValidationError):
            raise PlanError("the order holds no plan over split columns that this version of fedsmall knows") from None
        check_policy(policy, plan)
        self.consent.check_lines(policy, plan.model_dump_json(), lambda: describe(plan, self.name), config)
        self.consent.check_paused(COLUMNS)
        try:
            reply = self._reply(plan, policy, config, arrays[f"{COLUMNS}/{MESSAGE}"].tobytes())
        except (ReplyError, KeyError, ValidationError) as error:
            self._session = None  # what it was asked may be half done: the notebook holds what was whole
            raise PlanError(f"a message of this run cannot be answered: {one_line(error, 200)}") from None
        except Exception:
            self._session = None
            raise
        return {"config": {COLUMNS: self.name}}, {f"{COLUMNS}/{MESSAGE}": reply.as_array()}

    def _reply(self, plan: ColumnPlan, policy: Policy, config: Mapping[str, Any], question: bytes) -> Message:
        number, message = int(config[ROUND]), Message.from_bytes(question)
        folder = self.encryption.folder_of(config)
        notebook = Notebook(folder)
        notebook.check_plan(plan.model_dump_json())
        answer = notebook.answer_before(number, question)
        if answer is None:
            session = self._take_part(plan, policy, config, folder)
            reply = self._ask(session, message, policy, config)
            answer = _without_small_counts(reply, policy).to_bytes()
            if reply.words.get("worth"):
                Shelf(folder).write(WORTH, json.dumps(reply.words["worth"]).encode())
            if message.kind == "keep":
                _keep_result(session, folder)
            state = session.party.state() if message.kind not in (MEET, KEYS) else None
            notebook.note(number, question, answer, None if state is None else state.to_bytes())
        if message.kind == "keep":
            notebook.end()
            if plan.sealed:
                shutil.rmtree(self.encryption.key_store(config).folder, ignore_errors=True)
            self._session = None
        return Message.from_bytes(answer)

    def _ask(self, session: PartyRun, message: Message, policy: Policy, config: Mapping[str, Any]) -> Message:
        if session.store is None:
            return session.party.answer(message)
        if message.kind == MEET:
            self.encryption.known_roll(config, policy)
            return message.answer({"announced": session.store.announce().model_dump()})
        if message.kind == KEYS:
            try:
                announced = TypeAdapter(dict[str, Announcement]).validate_python(message.words["announced"])
            except ValidationError:
                raise EnvelopeError("the keys of this run were not told in a form that this version knows") from None
            session.store.take(announced, self.encryption.known_roll(config, policy), session.plan.parties)
            return message.answer()
        if session.party.envelopes is None:
            session.party.envelopes = _envelopes(session.store, session.plan)
        return session.party.answer(message)

    def _take_part(self, plan: ColumnPlan, policy: Policy, config: Mapping[str, Any], folder: Path) -> PartyRun:
        run = f"{config.get(RUN, '')} {one_line(config.get(RUN_ID, ''), 64)}"
        if self._session is None or (self._session.run, self._session.plan) != (run, plan):
            self._session, notebook = None, Notebook(folder)
            check_same_data(folder, hashlib.sha256(self._table(plan, policy).read_bytes()).hexdigest())
            store = self.encryption.key_store(config) if plan.sealed else None
            session = PartyRun(run, plan, self._party(plan, policy, notebook), store)
            _go_on(session, notebook)
            self._session = session
        return self._session

    def _table(self, plan: ColumnPlan, policy: Policy) -> Path:
        path = self.data if plan.of is None else self.encryption.identity.parent / str(policy.predict_from)
        if path is None or not path.is_file():
            if plan.of is not None:
                raise PlanError("the table of new patients is not there (predict_from)")
            raise PlanError("a run over split columns needs one table at every site; this one has none")
        return path

    def _party(self, plan: ColumnPlan, policy: Policy, notebook: Notebook) -> Party:
        path = self._table(plan, policy)
        shared: dict[str, Any] = {"parties": plan.parties, "draw": notebook.draw}
        if plan.of is not None:
            part = self._part_of(plan.of)
            table = read_party_table(path, plan.reading, part["columns"])
            kind = ActiveParty if plan.active == self.name else PassiveParty
            return kind.from_part(self.name, table, part, **shared)
        table, target = read_own(path, plan, policy.least_samples, self.name)
        if target is None:
            order = int(notebook.draw("order", lambda: str(PassiveParty(self.name, table).secret)))
            shared |= {"secret": order, "agreed": plan.settings, "most_trees": plan.most_trees}
            return PassiveParty(self.name, table, **shared)
        shared |= {"target": target.values, "classes": len(target.classes), "class_names": target.classes}
        return ActiveParty(self.name, table, key_bits=plan.key_bits, **shared)

    def _part_of(self, forest: ForestOf) -> dict[str, Any]:
        for folder in folders_of(self.encryption.home / RUNS, forest.run):
            mark, part = folder / "id", Shelf(folder).read(PART)
            if mark.exists() and mark.read_text() == forest.id and part is not None:
                return dict(json.loads(part))
        raise PlanError(f"this site has no part of a forest of the run {one_line(forest.run, 100)!r}")


def _without_small_counts(reply: Message, policy: Policy) -> Message:
    """A share of few patients is as good as their labels: the reply without it."""
    worth = reply.words.get("worth")
    if not worth or (policy.judge and worth["held_out"] >= policy.count_floor):
        return reply
    return replace(reply, words={**reply.words, "worth": {}})


def _keep_result(session: PartyRun, folder: Path) -> None:
    if session.plan.of is None:
        Shelf(folder).write(PART, json.dumps(session.party.part()).encode())
    elif isinstance(session.party, ActiveParty) and session.party.predicted is not None:
        rows = session.party.prediction_rows(session.plan.reading, session.party.predicted)
        Shelf(folder).write(PREDICTIONS, csv_text(list(rows[0]), rows).encode())


def _go_on(session: PartyRun, notebook: Notebook) -> None:
    state, asked = notebook.since()
    questions = [message for message in map(Message.from_bytes, asked) if message.kind not in (MEET, KEYS)]
    if session.store is not None and (state is not None or questions):
        session.party.envelopes = _envelopes(session.store, session.plan)
    if state is not None:
        session.party.restore(Message.from_bytes(state))
    for question in questions:
        session.party.answer(question)


def check_policy(policy: Policy, plan: ColumnPlan) -> None:
    """Raise PolicyError, in one line, unless this site takes part in such a run."""
    settings = plan.settings
    if not policy.columns:
        raise PolicyError("the policy here takes no part in runs over split columns (columns = false)")
    if policy.sealed and not plan.sealed:
        raise PolicyError(
            "the policy here lets parties send each other encrypted messages only (sealed); the coordinator is to "
            "admit all sites with their identities"
        )
    if plan.of is not None:
        if policy.predict_from is None:
            raise PolicyError("the policy here names no patients about whom a forest may be asked (predict_from)")
        return
    if settings.least_samples < policy.least_side:
        raise PolicyError(
            f"the plan's least_samples is {settings.least_samples}: a side of a split may hold as few patients; the "
            f"policy here asks for {policy.least_side} or more (least_side)"
        )
    if settings.rounds > policy.most_rounds:
        raise PolicyError(f"the plan has {settings.rounds} rounds; the policy here allows {policy.most_rounds}")


def describe(plan: ColumnPlan, site: str) -> list[str]:
    """What a run is, and what of this site would leave for it, a line each."""
    settings, is_active = plan.settings, site == plan.active
    envelopes = "the server cannot open them" if plan.sealed else "none; the server can read all"
    parties = [f"parties: {', '.join(plan.parties)}; {plan.active} has the labels"]
    parties += [f"encrypted messages between parties: {envelopes}"]
    if plan.of is not None:
        leaves = "which of these patients come to a split of others" if is_active else "who goes left at ours"
        return [
            f"what the forest of the run {plan.of.run} says of the new patients that all parties have",
            *parties,
            "leaves: which of the new patients here (predict_from) the others have too; how many there are",
            f"leaves: {leaves}; what the forest says of them is {plan.active}'s alone",
        ]
    leaves = "gradients under encryption, of which the others learn which patients are alike in our label"
    if not is_active:
        leaves = (
            f"sums over {settings.least_samples} patients or more on each side of our cuts, and who goes left at those "
            "that are chosen: something of how patients are ordered in our columns; no value, no name of a column"
        )
    return [
        f"boosted trees over split columns, {settings.rounds} rounds of depth {settings.depth}",
        *parties,
        "leaves: which of our patients the others have too; how many rows our table has",
        f"leaves: {leaves}",
    ]
