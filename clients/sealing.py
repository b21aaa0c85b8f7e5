"""Sealing around a site's handlers: orders are opened and checked, answers are sealed or masked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedsmall.aggregation.sums import LEAST, length, summand
from fedsmall.audit_log import digest_of
from fedsmall.clients.hospital import pack_reply, unpack_order
from fedsmall.clients.letters import (
    Desk,
    OpenDesk,
    arrays_in,
    check_beside,
    check_identities,
    check_model,
    destroy_ended,
    fault_of,
    identity_of,
    in_full,
)
from fedsmall.clients.memory import memories_of
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import RUNS
from fedsmall.clients.shelf import bytes_of
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import Answer, SiteRequest
from fedsmall.clients.telling import may_be_last
from fedsmall.codec.parcels import own_parcel, pack, parcel
from fedsmall.data.federation import Task
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.stopping import TELLING
from fedsmall.exact import WORDS, to_words
from fedsmall.files import one_line
from fedsmall.models.registry import initial_model
from fedsmall.planning.run_sheet import RUN, RUN_ID, RUN_NAME, SITES
from fedsmall.sealing.letters import LetterError, after, name_of
from fedsmall.sealing.masks import masked, total
from fedsmall.sealing.tallies import (
    JUDGED,
    SUMS_BEFORE,
    UNSEEN,
    Shapes,
    evaluation_tally,
    flat,
    judged_shapes,
    shapes_in,
    unseen_shapes,
)
from fedsmall.sealing.words import (
    ANNOUNCED,
    BEFORE,
    GROUP,
    KEY,
    LETTER,
    MASKED,
    MOMENTS,
    NONCE,
    NOT_TAKEN,
    NUMBERS,
    OF,
    REFUSED,
    ROLL,
    SEEDS,
    SUM,
    TALLY,
    TRAVELLER,
    WRITTEN,
    From,
    Opened,
    Order,
    order_in,
)
from fedsmall.travel.journey import starting
from fedsmall.travel.schedule import Action
from fedsmall.wire import (
    CARRIED,
    CHARGED,
    COMMON,
    EXAMPLES,
    HELD_OUT,
    KEEP,
    MODEL,
    OUT_OF_FOLD,
    ROUND,
    RULE,
    STEPS,
    VALIDATE,
    Arrays,
    join,
    parts,
    split,
)

Handler = Callable[[SiteRequest], Answer]
MOST_WORDS = 1 << 24  # of a tally


class Errand:
    """One sealed order at a site, whose desk is ``at_work``; ``config`` is the order's, ``task`` the site's.

    ``of`` names a sum of something else than models, which follows on what the round has made.
    """

    def __init__(
        self, at_work: OpenDesk, order: Order, task: Task, config: Mapping[str, Any], of: str | None = None
    ) -> None:
        self.desk, self.plan, self.task, self.config = at_work.desk, at_work.plan, task, config
        self.t, self.order, self.of = int(config[ROUND]), order, of or ""
        self.post, self.ways, self.thread = at_work.post, at_work.ways, at_work.thread
        self._starts = at_work.starts
        self._see_average()

    # -- what came --------------------------------------------------------------------------------------------------

    def open_order(self, arrays: Arrays) -> tuple[Arrays, bool, str]:
        """An order's arrays as the trainer takes them, whether the model is the common one, and why a letter was not
        used.

        The last common model then takes its place. Raises LetterError where the order is not of the model that the plan
        has here, or brings another common model than all sites were told of.
        """
        received, group = parts(arrays), self.ways.group(self.t, self.desk.site)
        self._check_rule(received.get(RULE, {}))
        if self.config[COMMON] or self.ways.number(self.t) == 0:
            self._check_common(received.get(MODEL, {}), group)
            self.desk.keep_common(group, received[MODEL])
            carried, is_common = self._moments(received.get(CARRIED, {})), bool(self.config[COMMON])
            return join(**{MODEL: received[MODEL], CARRIED: carried, RULE: received.get(RULE, {})}), is_common, ""
        if not self.plan.privacy.sealed:
            return arrays, False, ""
        try:
            opened = parts(self._letter(received.get(MODEL, {}), self.order.by, TRAVELLER))
            self._check_model(opened.get(MODEL, {}), opened.get(CARRIED, {}), group)
        except LetterError as error:
            common = self.desk.common(group)
            if common is None:
                raise
            return join(**{MODEL: common, RULE: received.get(RULE, {})}), True, str(error)
        return join(**{MODEL: opened[MODEL], CARRIED: opened.get(CARRIED, {}), RULE: received.get(RULE, {})}), False, ""

    def _see_average(self) -> None:
        """Extend the transcript by the last average; LetterError where it contradicts what was seen before."""
        last, average = self.ways.last_average(self.t, through=bool(self.of)), self.order.average
        if (average.t if average else 0) != last:
            raise LetterError(
                f"the order speaks of an average of round {average.t if average else 0}, the plan of {last}"
            )
        if average is None:
            return
        now = {
            self.ways.last_average(average.t): average.before,
            average.t: after(average.before, average.t, average.commons),
        }
        if any(self.thread.at.get(t, digest) != digest for t, digest in now.items()):
            raise LetterError("the order speaks of other common models than this site was told of before")
        if average.t not in self.thread.at:  # who was silent at an average takes the server's word for what was before
            self.thread.at |= now
            self.desk.keep_thread(self.thread)

    def _check_common(self, model: Arrays, group: int) -> None:
        if self.order.average is None:
            expected = digest_of(self._initial(group))
        else:
            commons = self.order.average.commons
            expected = commons[group] if group < len(commons) else ""
        if digest_of(model) != expected:
            raise LetterError("the common model that came is not the one that all sites were told of")

    def _check_rule(self, rule: Arrays) -> None:
        expected = self.order.average.commons[-1] if self.order.average else ""
        if rule and digest_of(rule) != expected:
            raise LetterError("what came for the local rule is not what all sites were told of")

    def _initial(self, group: int) -> Arrays:
        if group not in self._starts:
            self._starts[group] = self._start(group)
        return self._starts[group]

    def _start(self, group: int) -> Arrays:
        if self.plan.initial_models == "independent" and not self.plan.method.grouped:
            return own_parcel(self.plan, initial_model(self.plan, self.task, self.desk.site), self.desk.site).read
        groups = starting(self.plan, len(self.ways.names), lambda site: initial_model(self.plan, self.task, site))
        return parcel(self.plan, groups[group], 0, group).read

    def _letter(self, record: Arrays, by: From | None, kind: str) -> Arrays:
        """The arrays in a letter, which must be of the model that the plan has here now."""
        letter = record.get(LETTER)
        if by is None or letter is None or letter.dtype != np.uint8:
            raise LetterError("the order brings no letter where one was to come")
        since = self.ways.last_average(self.t)
        in_time = since < by.t < self.t if kind == TRAVELLER else by.t == since
        if not in_time or self.ways.traveller(by.t, by.site) != self.ways.traveller(self.t, self.desk.site):
            raise LetterError(f"a letter of {by.site} from round {by.t} is not of the traveller that comes here now")
        held = arrays_in(self.post.open(kind, by.t, by.site, self.thread.before(by.t), letter.tobytes()), by.site)
        return in_full(self.plan, held if kind == TRAVELLER else join(**{CARRIED: held}), self._initial(0), by.site)

    def _moments(self, record: Arrays) -> Arrays:
        if not record or not self.plan.privacy.sealed:
            return record
        carried = split(self._letter(record, self.order.beside, MOMENTS), CARRIED)
        assert self.order.beside is not None
        check_beside(self._initial(0), carried, self.order.beside.site)
        return carried

    def _check_model(self, model: Arrays, carried: Arrays, group: int) -> None:
        assert self.order.by is not None
        expected, common = self._initial(group), self.desk.common(group)
        last = expected if common is None else common
        check_model(model, carried, expected, last if self.plan.method.gate else None, self.order.by.site)

    # -- what leaves ------------------------------------------------------------------------------------------------

    def seal_reply(self, received: Arrays, header: dict[str, Any], sent: Arrays) -> Answer:
        """The answer to a training order as it may leave: ``sent``, trained from ``received``, sealed or masked.

        A model that no site should train on stays here: the received one goes on, and a sum is without it.
        """
        records, start = parts(sent), parts(received)
        wrong = self._wrong(records[MODEL], start[MODEL], records.get(CARRIED, {}))
        aggregates = self.ways.contact(self.t).action is Action.AGGREGATE
        metrics = dict(header["metrics"])
        if wrong and aggregates:
            raise LetterError(f"what was trained here may not be used: {wrong}")
        if wrong:
            records, metrics[REFUSED] = {MODEL: start[MODEL], CARRIED: start.get(CARRIED, {})}, 1
        else:  # what goes on as it came was rounded before, and would change if it were again
            records = parts(pack(self.plan, sent, self.desk.site, self.t))
        if self.plan.privacy.secure:
            metrics = {name: value for name, value in metrics.items() if name in (EXAMPLES, STEPS, REFUSED, NOT_TAKEN)}
        leaving = self._to_average(records, metrics) if aggregates else self._on_its_way(records)
        return {**header, "metrics": metrics, "order": list(leaving)}, leaving

    def _on_its_way(self, records: dict[str, Arrays]) -> Arrays:
        if not self.plan.privacy.sealed:
            return join(**records)
        to = self.ways.next_site(self.t, self.desk.site)
        assert to is not None  # only an average ends a run
        content = bytes_of(join(**{MODEL: records[MODEL], CARRIED: records.get(CARRIED, {})}))
        self.desk.keep_sent(self.t, content)
        return join(**{MODEL: {LETTER: self._write_letter(TRAVELLER, to, content)}})

    def _to_average(self, records: dict[str, Arrays], metrics: Mapping[str, Any]) -> Arrays:
        """A masked summand, with its seeds in letters to the helpers; moments go on in a letter."""
        carried, to = records.get(CARRIED, {}), self.ways.next_site(self.t, self.desk.site)
        beside: Arrays = {}
        if carried and to is not None:
            beside = {LETTER: self._write_letter(MOMENTS, to, bytes_of(carried))}
        if not self.plan.privacy.secure:
            return join(**{MODEL: records[MODEL], CARRIED: beside, RULE: records.get(RULE, {})})
        group = self.ways.group(self.t, self.desk.site)
        common, rule = self.desk.common(group) or self._initial(group), records.get(RULE, {})
        try:
            counts = float(metrics[EXAMPLES]), float(metrics[STEPS]), len(self.ways.names)
            numbers = summand(self.plan, records[MODEL], common, rule, *counts)
        except ReplyError as error:
            raise LetterError(str(error)) from None
        seeds = self.desk.seeds(self.t, self.ways.helpers(self.t), numbers)
        letters = {helper: self._write_letter(KEY, helper, seed) for helper, seed in seeds.items()}
        return join(**{MODEL: {MASKED: masked(numbers, seeds)}, SEEDS: letters, CARRIED: beside})

    def mask_sums(self, values: np.ndarray) -> Arrays:
        """This site's masked part of a sum of something else than models, (numbers,), with letters to the helpers."""
        try:
            numbers = to_words(values)
        except ReplyError as error:
            raise LetterError(str(error)) from None
        seeds = self.desk.seeds(self.t, self.ways.helpers(self.t, self.of), numbers, self.of)
        letters = {helper: self._write_letter(self._key, helper, seed) for helper, seed in seeds.items()}
        return join(**{TALLY: {MASKED: masked(numbers, seeds, wide=True)}, SEEDS: letters})

    def check_judged(self, model: Arrays) -> None:
        """Raise LetterError where a server asks to evaluate another model than this round's common one.

        An ensemble's earlier members and moving averages are not checked: sites are told no digest of them.
        """
        method = self.plan.method
        if not (method.is_ensemble or method.ema):
            self._check_common(model, 0)

    @property
    def _key(self) -> str:
        return f"{self.of} {KEY}" if self.of else KEY

    @property
    def _since(self) -> str:
        """The digest of what this site has seen of the run when it answers."""
        return self.thread.at[self.ways.last_average(self.t, through=True)] if self.of else self.thread.before(self.t)

    def _write_letter(self, kind: str, to: str, content: bytes) -> np.ndarray:
        return np.frombuffer(self.post.write(kind, self.t, to, self._since, content), np.uint8)

    def _wrong(self, model: Arrays, received: Arrays, carried: Arrays) -> str | None:
        common = self.desk.common(self.ways.group(self.t, self.desk.site))
        return fault_of(model, carried, received, received if common is None else common, self.plan.method.gate)

    # -- what else a site is asked ----------------------------------------------------------------------------------

    def sum_streams(self, group: int, letters: Mapping[str, np.ndarray], policy: Policy) -> Answer:
        """The sum of the streams of these sites' seeds, with which a server opens one sum of one set of sites.

        Raises LetterError for a set that is too small, has a site that is not in the sum, or is not the first.
        """
        sites, least = sorted(letters), max(LEAST, policy.least_sites)
        if len(sites) < least:
            raise LetterError(
                f"this site helps to open no sum of fewer than {least} sites, and {len(sites)} were given"
            )
        if self.desk.site not in self.ways.helpers(self.t, self.of):
            raise LetterError(f"by the plan this site is no helper of round {self.t}")
        if not set(sites) <= set(self.ways.names if self.of else self.ways.members(self.t, group)):
            raise LetterError(f"a site was given that is not in the sum of round {self.t}")
        count = self._words() if self.of else length(self.plan, self._initial(group))
        seeds = [self.post.open(self._key, self.t, site, self._since, letters[site].tobytes()) for site in sites]
        self.desk.note_help(self.t, group, sites, self.of)
        return {"config": {}}, join(**{SUM: {SUM: total(seeds, count, wide=bool(self.of))}})

    def _words(self) -> int:
        count = int(self.config.get(NUMBERS, 0))
        if not 0 < count <= MOST_WORDS or count % WORDS:
            raise LetterError("the question does not say how many numbers are to be opened")
        return count

    def reseal_traveller(self, written: int, policy: Policy, log: SiteLog) -> Answer:
        """The model that this site sealed after round ``written``, sealed anew for the site that trains it in this
        round.

        Raises LetterError where the plan has it nowhere then, or an average lies between.
        """
        if not self.ways.last_average(self.t) < written < self.t:
            raise LetterError(f"the traveller of round {written} does not go on to round {self.t}")
        to = self.ways.site_of(self.t, self.ways.traveller(written, self.desk.site))
        content = self.desk.sent(written)
        self.desk.count_readdressed(written, to, policy.most_readdressed)
        log.write(
            "readdressed", run=str(self.config[RUN]), kind="letter", t=written, reason=f"for {to}, round {self.t}"
        )
        letter = self.post.write(TRAVELLER, written, to, self.thread.before(written), content)
        return {"config": {}}, join(**{MODEL: {LETTER: np.frombuffer(letter, np.uint8)}})


@dataclass
class Letters:
    """The letters of all runs of one site, which writes in ``home``; ``folder_of`` gives a run's folder.

    ``identity`` is the file of the site's identity.
    """

    name: str
    home: Path
    log: SiteLog
    folder_of: Callable[[Mapping[str, Any]], Path]
    identity: Path
    _at_work: OpenDesk | None = None

    def wrap(self, kind: str, handle: Handler) -> Handler:
        """The handler of requests of this ``kind`` with letters opened before it and sealed after it."""
        around = {
            "roll": self._announce,
            "scaling": self._take,
            BEFORE: self._hide_sums,
            "train": self._train,
            "evaluate": self._evaluate,
            VALIDATE: self._validate,
        }
        return partial(around[kind], handle) if kind in around else handle

    def _announce(self, handle: Handler, order: SiteRequest) -> Answer:
        """Announce keys in the answer to a roll call, once the consortium's identities are the known ones."""
        sealed = order.plan.privacy.hidden
        desk = self.desk(order.config) if sealed else None
        if sealed:
            self.known_roll(order.config, order.policy)
        destroy_ended(self.home / RUNS, self.folder_of(order.config))
        words = {ANNOUNCED: desk.announce().model_dump_json()} if desk else {}
        header, sums = handle(order)
        return {**header, "config": header["config"] | words}, sums

    def _take(self, handle: Handler, order: SiteRequest) -> Answer:
        header, leaving = handle(order)
        if not order.plan.privacy.hidden:
            return header, leaving
        try:
            opened = Opened.model_validate_json(str(order.config.get(ANNOUNCED, "")))
        except ValidationError:
            raise LetterError("the keys of this run were not told in a form that this version knows") from None
        sites = [str(site) for site in order.config[SITES]]
        nonce = self.desk(order.config).take(opened.announced, self.known_roll(order.config, order.policy), sites)
        return {**header, "config": header["config"] | {NONCE: nonce}}, leaving

    def _train(self, handle: Handler, sealed: SiteRequest) -> Answer:
        errand = self._errand(sealed) if sealed.plan.privacy.hidden else None
        order = self._open_order(sealed, errand)
        header, sent = handle(order)
        if errand is None:
            leaving = pack_reply(order.plan, self.name, sent, {ROUND: order.config[ROUND]}, order.arrays)
            return {**header, "order": list(leaving)}, leaving
        if NOT_TAKEN in order.config:
            header = {**header, "metrics": {**header["metrics"], NOT_TAKEN: 1}}
        return errand.seal_reply(order.arrays, header, sent)

    def _open_order(self, order: SiteRequest, errand: Errand | None) -> SiteRequest:
        """The order as its trainer takes it; a letter that may not be used is noted in the site's log."""
        _, kept = memories_of(self.folder_of(order.config), int(order.config[ROUND]))
        received = unpack_order(order.plan, order.raw.task, order.arrays, order.config, kept)
        if errand is None:
            return order._replace(arrays=received)
        arrays, common, why = errand.open_order(received)
        if why:
            self.log.write("not used", run=str(order.config[RUN]), kind="train", t=order.config[ROUND], reason=why)
        config = {**order.config, COMMON: common, **({NOT_TAKEN: 1} if why else {})}
        return order._replace(arrays=arrays, config=config)

    def _hide_sums(self, handle: Handler, order: SiteRequest) -> Answer:
        header, sums = handle(order)
        return header, self._mask_sums(order, SUMS_BEFORE, sums, shapes_in(sums))

    def _evaluate(self, handle: Handler, order: SiteRequest) -> Answer:
        """A global model's evaluation, in a secure sum where the plan asks for it; charges stay in the clear."""
        header, sums = handle(order)
        if order.plan.privacy.secure:
            metrics, task = header["metrics"], order.raw.task
            header = {"metrics": {name: value for name, value in metrics.items() if name.startswith(CHARGED)}}
            tally = evaluation_tally(task, metrics, split(sums, HELD_OUT))
            sums = {} if order.config.get(KEEP) else self._mask_sums(order, JUDGED, tally, judged_shapes(task))
        if order.plan.privacy.hidden and may_be_last(order.plan, int(order.config.get(ROUND, 0))):
            self.desk(order.config).end()
        return header, sums

    def _validate(self, handle: Handler, order: SiteRequest) -> Answer:
        header, reply = handle(order)
        if not order.plan.privacy.secure:
            return header, reply
        sums = split(reply, OUT_OF_FOLD)
        tally = {TELLING: np.array(float(bool(sums))), **sums}
        return header, self._mask_sums(order, UNSEEN, tally, unseen_shapes(order.plan, order.raw.task))

    def known_roll(self, config: Mapping[str, Any], policy: Policy) -> dict[str, str]:
        """The consortium's identities in a message. Raises LetterError where this site knows others."""
        roll = self._roll(config)
        identity = name_of(identity_of(self.identity))
        if roll.get(self.name) != identity:
            raise LetterError(
                "the consortium's roll has another identity for this site; send the coordinator site.key.pub"
            )
        if fresh := [name for name in check_identities(self.home, roll, policy.roll) if name != self.name]:
            pinned = "as the policy pins it" if policy.roll else "compare `fedsmall site roll` with theirs"
            self.log.write("met", run=str(config[RUN]), kind="roll", reason=f"{', '.join(fresh)}: {pinned}")
        return roll

    def help(self, order: SiteRequest) -> Answer:
        """The streams of one sum's masks."""
        letters, of = split(order.arrays, SEEDS), one_line(order.config.get(OF, ""), 20)
        return self._errand(order, of).sum_streams(int(order.config.get(GROUP, 0)), letters, order.policy)

    def _mask_sums(self, order: SiteRequest, of: str, sums: Arrays, shapes: Shapes) -> Arrays:
        """Sums of this site under masks. LetterError where the model is not this round's common one."""
        errand = self._errand(order, of)
        if of == JUDGED:
            errand.check_judged(split(order.arrays, MODEL))
        return errand.mask_sums(flat(sums, shapes))

    def readdress(self, order: SiteRequest) -> Answer:
        """A letter sealed anew, for its addressee is silent."""
        return self._errand(order).reseal_traveller(int(order.config[WRITTEN]), order.policy, self.log)

    def _errand(self, order: SiteRequest, of: str | None = None) -> Errand:
        if not order.plan.privacy.hidden:
            raise PlanError("the plan has no letters to open")
        desk, words = self.desk(order.config), order_in(order.config)
        if self._at_work is None or not self._at_work.is_for(desk, order.plan, words):
            self._at_work = desk.open(order.plan, words)
        return Errand(self._at_work, words, order.raw.task, order.config, of)

    def desk(self, config: Mapping[str, Any]) -> Desk:
        """This site's letters of a message's run."""
        if not RUN_NAME.fullmatch(str(config[RUN])):  # two runs could be told apart by where the name ends alone
            raise LetterError("a run's name has letters, digits, dots, hyphens and underscores")
        run = f"{config[RUN]} {one_line(config.get(RUN_ID, ''), 64)}"
        return Desk(self.folder_of(config), self.name, run, identity_of(self.identity))

    @staticmethod
    def _roll(config: Mapping[str, Any]) -> dict[str, str]:
        try:
            roll = json.loads(str(config[ROLL]))
            return {str(site)[:100]: str(identity)[:64] for site, identity in roll.items()}
        except (KeyError, ValueError, AttributeError):
            raise LetterError("the message does not say who belongs to the consortium") from None
