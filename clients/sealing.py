"""Sealing around a site's handlers: orders are opened and checked, answers are sealed or masked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import ValidationError

from fedsmall import wire
from fedsmall.aggregation.sums import summand
from fedsmall.audit_log import digest_of
from fedsmall.clients.hospital import pack_reply, unpack_order
from fedsmall.clients.key_store import (
    KeyStore,
    SealedSession,
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
from fedsmall.clients.shelf import bytes_of, secret
from fedsmall.clients.site_log import SiteLog, table_of
from fedsmall.clients.site_request import Answer, SiteRequest
from fedsmall.clients.telling import may_be_last
from fedsmall.codec import encode_model, encode_own_model, pack
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.stopping import TELLING
from fedsmall.exact import to_words
from fedsmall.files import one_line
from fedsmall.models.registry import initial_model
from fedsmall.planning.run_sheet import RUN, RUN_ID, RUN_NAME, SITES
from fedsmall.sealing import tallies, terms
from fedsmall.sealing.envelopes import EnvelopeError, Mailbox, after, name_of
from fedsmall.sealing.masks import BYTES, masked, pair_signs, seed_from, share
from fedsmall.sealing.tables import MEETING, TABLES, sketches
from fedsmall.sealing.terms import From, Opened, Order, order_in, remove_seal
from fedsmall.travel.journey import starting
from fedsmall.travel.schedule import Action
from fedsmall.wire import CARRIED, IS_GLOBAL, MODEL, ROUND, RULE, Arrays, join, parts, split

Handler = Callable[[SiteRequest], Answer]


class SealedTask:
    """One sealed order at a site, whose store is ``session``; ``of`` names a sum of something else than models."""

    def __init__(self, session: SealedSession, order: Order, request: SiteRequest, of: str) -> None:
        self.store, self.plan = session.store, session.plan
        self.task, self.config = request.raw.task, request.config
        self.t, self.order, self.of, self.site = int(self.config[ROUND]), order, of, session.store.site
        self.mailbox, self.routes, self.transcript = session.mailbox, session.routes, session.transcript
        self._starts = session.starts
        self._see_average()

    # -- what came --------------------------------------------------------------------------------------------------

    def open_order(self, arrays: Arrays) -> tuple[Arrays, bool, str]:
        """An order's arrays for training, whether the model is the global one, and why an envelope was not used.

        The last global model then takes its place. EnvelopeError for a model of another place or round.
        """
        received, group = parts(arrays), self.routes.group(self.t, self.site)
        model, rule, is_global = received.get(MODEL, {}), received.get(RULE, {}), bool(self.config[IS_GLOBAL])
        if rule and digest_of(rule) != (self.order.average.global_models[-1] if self.order.average else ""):
            raise EnvelopeError("what came for the local rule is not what all sites received")
        if is_global or self.routes.number(self.t) == 0:
            self._check_global_model(model, group)
            self.store.shelf.put(f"common.{group}", model)
            carried = self._moments(received.get(CARRIED, {}))
        elif not self.plan.privacy.sealed:
            return arrays, False, ""
        else:
            try:
                model, carried = self._open_model(model, group)
            except EnvelopeError as error:
                if global_model := self._last_global_model(group):
                    return join(**{MODEL: global_model, RULE: rule}), True, str(error)
                raise
        return join(**{MODEL: model, CARRIED: carried, RULE: rule}), is_global, ""

    def _see_average(self) -> None:
        """Extend the transcript by the last average; EnvelopeError where it contradicts what was seen before."""
        last, average = self.routes.last_average(self.t, through=bool(self.of)), self.order.average
        t = average.t if average else 0
        if t != last:
            raise EnvelopeError(f"the order speaks of an average of round {t}, the plan of {last}")
        if average is None:
            return
        now = {self.routes.last_average(t): average.before, t: after(average.before, t, average.global_models)}
        if any(self.transcript.at.get(t, digest) != digest for t, digest in now.items()):
            raise EnvelopeError("the order names other global models than this site received before")
        if t not in self.transcript.at:  # who was silent at an average takes the server's word for what was before
            self.transcript.at |= now
            self.store.shelf.put("thread", words=self.transcript.at)

    def _check_global_model(self, model: Arrays, group: int) -> None:
        if self.order.average is None:
            expected = digest_of(self._initial(group))
        else:
            expected = dict(enumerate(self.order.average.global_models)).get(group, "")
        if digest_of(model) != expected:
            raise EnvelopeError("the global model that came is not the one that all sites received")

    def _last_global_model(self, group: int) -> Arrays:
        """A group's last global model; empty where none ever came."""
        return self.store.shelf.arrays(f"common.{group}")

    def _initial(self, group: int) -> Arrays:
        if group not in self._starts:
            self._starts[group] = self._start(group)
        return self._starts[group]

    def _start(self, group: int) -> Arrays:
        if self.plan.initial_models == "independent" and not self.plan.method.grouped:
            return encode_own_model(self.plan, initial_model(self.plan, self.task, self.site), self.site).read
        groups = starting(self.plan, len(self.routes.names), lambda site: initial_model(self.plan, self.task, site))
        return encode_model(self.plan, groups[group], 0, group).read

    def _open_envelope(self, record: Arrays, by: From | None, kind: str) -> tuple[Arrays, str]:
        """The arrays in an envelope, which must be of the model that the plan has here now, and its writer."""
        envelope = record.get(terms.ENVELOPE)
        if by is None or envelope is None or envelope.dtype != np.uint8:
            raise EnvelopeError("the order brings no encrypted message where one was to come")
        since = self.routes.last_average(self.t)
        in_time = since < by.t < self.t if kind == terms.MODEL_ENVELOPE else by.t == since
        if not in_time or self.routes.model_at(by.t, by.site) != self.routes.model_at(self.t, self.site):
            raise EnvelopeError(f"a message of {by.site} from round {by.t} is not of the model that comes here now")
        content = self.mailbox.open(kind, by.t, by.site, self.transcript.before(by.t), envelope.tobytes())
        held = arrays_in(content, by.site)
        coded = held if kind == terms.MODEL_ENVELOPE else join(**{CARRIED: held})
        return in_full(self.plan, coded, self._initial(0), by.site), by.site

    def _moments(self, record: Arrays) -> Arrays:
        if not record or not self.plan.privacy.sealed:
            return record
        opened, writer = self._open_envelope(record, self.order.beside, terms.MOMENTS)
        carried = split(opened, CARRIED)
        check_beside(self._initial(0), carried, writer)
        return carried

    def _open_model(self, record: Arrays, group: int) -> tuple[Arrays, Arrays]:
        """The model in an envelope and what goes beside it, once they may be trained on."""
        opened, writer = self._open_envelope(record, self.order.by, terms.MODEL_ENVELOPE)
        model, carried, expected = split(opened, MODEL), split(opened, CARRIED), self._initial(group)
        last = self._last_global_model(group) or expected
        check_model(model, carried, expected, last if self.plan.method.gate else None, writer)
        return model, carried

    # -- what leaves ------------------------------------------------------------------------------------------------

    def seal_reply(self, received: Arrays, header: dict[str, Any], sent: Arrays) -> Answer:
        """The answer to a training order: ``sent``, trained from ``received``, sealed or masked.

        In place of a model that no site should train on the received one goes on; a sum is without it.
        """
        model, carried = split(sent, MODEL), split(sent, CARRIED)
        start, start_carried = split(received, MODEL), split(received, CARRIED)
        last = self._last_global_model(self.routes.group(self.t, self.site)) or start
        wrong = fault_of(model, carried, start, last, self.plan.method.gate)
        aggregates = self.routes.comm_round(self.t).action is Action.AGGREGATE
        metrics = dict(header["metrics"])
        if wrong and aggregates:
            raise EnvelopeError(f"what was trained here may not be used: {wrong}")
        if wrong:
            records, metrics[terms.REFUSED] = {MODEL: start, CARRIED: start_carried}, 1
        else:  # what goes on as it came was rounded before, and would change if it were again
            records = parts(pack(self.plan, sent, self.site, self.t))
        if self.plan.privacy.secure:
            shown = (wire.EXAMPLES, wire.STEPS, terms.REFUSED, terms.NOT_TAKEN)
            metrics = {name: value for name, value in metrics.items() if name in shown}
        leaving = self._to_average(records, metrics) if aggregates else self._on_its_way(records)
        return {**header, "metrics": metrics, "order": list(leaving)}, leaving

    def _on_its_way(self, records: dict[str, Arrays]) -> Arrays:
        if not self.plan.privacy.sealed:
            return join(**records)
        to = self.routes.next_site(self.t, self.site)
        assert to is not None  # only an average ends a run
        content = bytes_of(join(**{MODEL: records[MODEL], CARRIED: records.get(CARRIED, {})}))
        self.store.keep_sent(self.t, content)
        return join(**{MODEL: {terms.ENVELOPE: self._write_envelope(terms.MODEL_ENVELOPE, to, content)}})

    def _to_average(self, records: dict[str, Arrays], metrics: Mapping[str, Any]) -> Arrays:
        """A masked summand, with its seeds' shares in envelopes to the decryptors; moments go on in an envelope."""
        carried, rule, to = records.get(CARRIED, {}), records.get(RULE, {}), self.routes.next_site(self.t, self.site)
        beside: Arrays = {}
        if carried and to is not None:
            beside = {terms.ENVELOPE: self._write_envelope(terms.MOMENTS, to, bytes_of(carried))}
        if not self.plan.privacy.secure:
            return join(**{MODEL: records[MODEL], CARRIED: beside, RULE: rule})
        group = self.routes.group(self.t, self.site)
        global_model = self._last_global_model(group) or self._initial(group)
        counts = float(metrics[wire.EXAMPLES]), float(metrics[wire.STEPS]), len(self.routes.names)
        numbers = _checked(lambda: summand(self.plan, records[MODEL], global_model, rule, *counts))
        hidden, envelopes = self._mask(numbers, group)
        return join(**{MODEL: hidden, terms.SEEDS: envelopes, CARRIED: beside})

    def mask_sums(self, values: np.ndarray) -> Arrays:
        """This site's masked part of a sum of other things than models, (numbers,), and envelopes to decryptors."""
        hidden, envelopes = self._mask(_checked(lambda: to_words(values)))
        return join(**{terms.TALLY: hidden, terms.SEEDS: envelopes})

    def _mask(self, numbers: np.ndarray, group: int = 0) -> tuple[Arrays, Arrays]:
        """Numbers under masks, and shares of the seeds of these in envelopes to the decryptors."""
        key, decryptors = self.store.summand_key(self.t, numbers, self.of), self.routes.decryptors(self.t, self.of)
        others = [site for site in self.routes.summed(self.t, group, self.of) if site != self.site]
        words, own = (self._key, self.t, self._since), seed_from(key, "own")
        pairs = {site: seed_from(pair_key, *words) for site, pair_key in self.store.pair_keys(others).items()}
        shares = share([own, *pairs.values()], len(decryptors), seed_from(key, "shares"))
        envelopes = {to: self._write_envelope(self._key, to, s) for to, s in zip(decryptors, shares, strict=True)}
        return {terms.MASKED: masked(numbers, own, pair_signs(self.site, pairs), wide=bool(self.of))}, envelopes

    def check_judged(self, model: Arrays) -> None:
        """Raise EnvelopeError for another model than the round's global one; of ensembles no digest is known."""
        if self.plan.method.keeps_global:
            self._check_global_model(model, 0)

    @property
    def _key(self) -> str:
        return f"{self.of} {terms.KEY}" if self.of else terms.KEY

    @property
    def _since(self) -> str:
        """The digest of what this site has seen of the run when it answers."""
        t = self.routes.last_average(self.t, through=True)
        return self.transcript.at[t] if self.of else self.transcript.before(self.t)

    def _write_envelope(self, kind: str, to: str, content: bytes) -> np.ndarray:
        return np.frombuffer(self.mailbox.write(kind, self.t, to, self._since, content), np.uint8)

    # -- what else a site is asked ----------------------------------------------------------------------------------

    def tell_shares(self, group: int, envelopes: Mapping[str, np.ndarray], policy: Policy) -> Answer:
        """This decryptor's shares of what opens one sum of one set of sites, in order of their names.

        Of each site its own seed, and those that it has with the sites that are not in the set. Raises EnvelopeError
        for a set that is too small, has a site that is not in the sum, or is not the first.
        """
        sites, summed = sorted(envelopes), self.routes.summed(self.t, group, self.of)
        least = max(self.routes.least_in_sum(self.t, group, self.of), policy.least_sites)
        if len(sites) < least:
            raise EnvelopeError(
                f"this site helps to open no sum of fewer than {least} sites, and {len(sites)} were given"
            )
        if self.site not in self.routes.decryptors(self.t, self.of):
            raise EnvelopeError(f"by the plan this site is no decryptor of round {self.t}")
        if not set(sites) <= set(summed):
            raise EnvelopeError(f"a site was given that is not in the sum of round {self.t}")
        packed = b""
        for site in sites:
            shares = self.mailbox.open(self._key, self.t, site, self._since, envelopes[site].tobytes())
            if len(shares) != BYTES * len(summed):
                raise EnvelopeError(f"what {site} sealed holds no shares of its masks")
            others = [None, *(other for other in summed if other != site)]  # None: of its own seed
            picked = [k for k, other in enumerate(others) if other not in sites]
            packed += b"".join(shares[BYTES * k : BYTES * (k + 1)] for k in picked)
        self.store.note_help(self.t, group, sites, self.of)
        return {"config": {}}, join(**{terms.SHARES: {terms.SHARES: np.frombuffer(packed, np.uint8)}})

    def reseal_model(self, written: int, policy: Policy, log: SiteLog) -> Answer:
        """The model sealed after round ``written``, for the site that trains it now; EnvelopeError for none."""
        if not self.routes.last_average(self.t) < written < self.t:
            raise EnvelopeError(f"the circulating model of round {written} does not go on to round {self.t}")
        to = self.routes.site_of(self.t, self.routes.model_at(written, self.site))
        content = self.store.sent(written)
        self.store.count_readdressed(written, to, policy.most_readdressed)
        reason = f"for {to}, round {self.t}"
        log.write("readdressed", run=str(self.config[RUN]), kind="letter", t=written, reason=reason)
        envelope = self.mailbox.write(terms.MODEL_ENVELOPE, written, to, self.transcript.before(written), content)
        return {"config": {}}, join(**{MODEL: {terms.ENVELOPE: np.frombuffer(envelope, np.uint8)}})


def _keys_in(config: Mapping[str, Any]) -> dict[str, str]:
    """The keys of all sites by which they compare their tables; none where the question brings none."""
    try:
        return {str(site): str(key) for site, key in json.loads(str(config.get(MEETING, "{}"))).items()}
    except (ValueError, AttributeError):
        raise PlanError("the keys by which sites compare their tables cannot be read") from None


def _checked(numbers: Callable[[], np.ndarray]) -> np.ndarray:
    """A site's part of a sum. Raises EnvelopeError where it fits no sum."""
    try:
        return numbers()
    except ReplyError as error:
        raise EnvelopeError(str(error)) from None


@dataclass
class Encryption:
    """The encryption of one site, which writes in ``home``; ``identity`` is the file of its identity."""

    name: str
    home: Path
    log: SiteLog
    folder_of: Callable[[Mapping[str, Any]], Path]
    identity: Path
    _session: SealedSession | None = None

    def wrap(self, kind: str, handle: Handler) -> Handler:
        """The handler of requests of this ``kind`` with envelopes opened before it and sealed after it."""
        around = {"roll": self._announce, "scaling": self._take, terms.BEFORE: self._hide_sums}
        around |= {"train": self._train, "evaluate": self._evaluate, wire.VALIDATE: self._validate}
        return partial(around[kind], handle) if kind in around else handle

    def _announce(self, handle: Handler, order: SiteRequest) -> Answer:
        """Announce keys in the answer to a handshake, once the consortium's identities are the known ones."""
        words = {}
        if order.plan.privacy.hidden:
            store = self.key_store(order.config)
            self.known_roll(order.config, order.policy)
            words = {terms.ANNOUNCED: store.announce().model_dump_json()}
        else:
            words = {MEETING: self._meeting_key(order.config).public_key().public_bytes_raw().hex()}
        destroy_ended(self.home / RUNS, self.folder_of(order.config))
        header, sums = handle(order)
        return {**header, "config": header["config"] | words}, sums

    def _take(self, handle: Handler, order: SiteRequest) -> Answer:
        header, leaving = handle(order)
        if not order.plan.privacy.hidden:
            return self._with_sketches(order, header, _keys_in(order.config)), leaving
        try:
            opened = Opened.model_validate_json(str(order.config.get(terms.ANNOUNCED, "")))
        except ValidationError:
            raise EnvelopeError("the keys of this run were not told in a form that this version knows") from None
        sites = [str(site) for site in order.config[SITES]]
        store = self.key_store(order.config)
        nonce = store.take(opened.announced, self.known_roll(order.config, order.policy), sites)
        if order.plan.privacy.secure and not order.arrays:  # a scaling comes when sums were told
            envelopes = store.write_pair_keys(self._mailbox(store, order), sites)
            leaving = {**leaving, **join(**{terms.PAIRS: envelopes})}
        header = {**header, "config": header["config"] | {terms.NONCE: nonce}}
        keys = {site: announcement.classic for site, announcement in opened.announced.items()}
        return self._with_sketches(order, header, keys), leaving

    def _meeting_key(self, config: Mapping[str, Any]) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(secret(self.folder_of(config) / f"{MEETING}.key"))

    def _with_sketches(self, order: SiteRequest, header: dict[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
        """The answer to the second question with this table's sketches for the others, who are told by their keys."""
        if not keys:
            return header
        hidden = order.plan.privacy.hidden
        own = self.key_store(order.config).classic_key() if hidden else self._meeting_key(order.config)
        run = f"{order.config[RUN]} {order.config.get(RUN_ID, '')}"
        sketched = sketches(table_of(order.raw), own, self.name, run, keys)
        return {**header, "config": header["config"] | {TABLES: json.dumps(sketched)}}

    def take_pair_keys(self, order: SiteRequest) -> Answer:
        """Keep the keys of masks that the sites before this one have drawn for it."""
        store, envelopes = self.key_store(order.config), split(order.arrays, terms.PAIRS)
        store.take_pair_keys(self._mailbox(store, order), [str(site) for site in order.config[SITES]], envelopes)
        return {"config": {}}, {}

    @staticmethod
    def _mailbox(store: KeyStore, order: SiteRequest) -> Mailbox:
        return store.mailbox(remove_seal(order.plan), store.read_announced()[0])

    def _train(self, handle: Handler, order: SiteRequest) -> Answer:
        sealed = self._sealed_task(order) if order.plan.privacy.hidden else None
        order = self._open_order(order, sealed)
        header, sent = handle(order)
        if sealed is None:
            leaving = pack_reply(order.plan, self.name, sent, {ROUND: order.config[ROUND]}, order.arrays)
            return {**header, "order": list(leaving)}, leaving
        if terms.NOT_TAKEN in order.config:
            header = {**header, "metrics": {**header["metrics"], terms.NOT_TAKEN: 1}}
        return sealed.seal_reply(order.arrays, header, sent)

    def _open_order(self, order: SiteRequest, sealed: SealedTask | None) -> SiteRequest:
        """The order as its trainer takes it; an envelope that may not be used is noted in the site's log."""
        _, kept = memories_of(self.folder_of(order.config), int(order.config[ROUND]))
        received = unpack_order(order.plan, order.raw.task, order.arrays, order.config, kept)
        if sealed is None:
            return order._replace(arrays=received)
        arrays, is_global, why = sealed.open_order(received)
        if why:
            self.log.write("not used", run=str(order.config[RUN]), kind="train", t=order.config[ROUND], reason=why)
        config = {**order.config, IS_GLOBAL: is_global, **({terms.NOT_TAKEN: 1} if why else {})}
        return order._replace(arrays=arrays, config=config)

    def _hide_sums(self, handle: Handler, order: SiteRequest) -> Answer:
        header, sums = handle(order)
        shapes = {name: array.shape for name, array in sums.items()}  # of which all sites have the same
        return header, self.mask_sums(order, tallies.SUMS_BEFORE, sums, shapes)

    def _evaluate(self, handle: Handler, order: SiteRequest) -> Answer:
        """A global model's evaluation, in a secure sum where the plan asks for it; charges stay in the clear."""
        header, sums = handle(order)
        if order.plan.privacy.secure:
            metrics, task = header["metrics"], order.raw.task
            header = {"metrics": {name: value for name, value in metrics.items() if name.startswith(wire.CHARGED)}}
            tally = tallies.evaluation_tally(task, metrics, split(sums, wire.HELD_OUT))
            sums = (
                {}
                if order.config.get(wire.KEEP)
                else self.mask_sums(order, tallies.JUDGED, tally, tallies.judged_shapes(task))
            )
        if order.plan.privacy.hidden and may_be_last(order.plan, int(order.config.get(ROUND, 0))):
            self.key_store(order.config).end()
        return header, sums

    def _validate(self, handle: Handler, order: SiteRequest) -> Answer:
        header, reply = handle(order)
        if order.plan.privacy.secure:
            sums = split(reply, wire.OUT_OF_FOLD)
            tally = {TELLING: np.array(float(bool(sums))), **sums}
            reply = self.mask_sums(order, tallies.UNSEEN, tally, tallies.unseen_shapes(order.plan, order.raw.task))
        return header, reply

    def known_roll(self, config: Mapping[str, Any], policy: Policy) -> dict[str, str]:
        """The consortium's identities in a message. Raises EnvelopeError where this site knows others."""
        try:
            roll = {str(k)[:100]: str(v)[:64] for k, v in json.loads(str(config[terms.ROLL])).items()}
        except (KeyError, ValueError, AttributeError):
            raise EnvelopeError("the message does not say who belongs to the consortium") from None
        if roll.get(self.name) != name_of(identity_of(self.identity)):
            raise EnvelopeError(
                "the consortium's key list has another identity for this site; send the coordinator site.key.pub"
            )
        if fresh := [name for name in check_identities(self.home, roll, policy.roll) if name != self.name]:
            pinned = "as the policy pins it" if policy.roll else "compare `fedsmall site roll` with theirs"
            self.log.write("met", run=str(config[RUN]), kind="roll", reason=f"{', '.join(fresh)}: {pinned}")
        return roll

    def help(self, order: SiteRequest) -> Answer:
        """This site's shares of what opens one sum."""
        envelopes, of = split(order.arrays, terms.SEEDS), one_line(order.config.get(terms.OF, ""), 20)
        return self._sealed_task(order, of).tell_shares(int(order.config.get(terms.GROUP, 0)), envelopes, order.policy)

    def mask_sums(self, order: SiteRequest, of: str, sums: Arrays, shapes: tallies.Shapes) -> Arrays:
        """Sums of this site under masks. EnvelopeError where the model is not this round's global one."""
        sealed = self._sealed_task(order, of)
        if of == tallies.JUDGED:
            sealed.check_judged(split(order.arrays, MODEL))
        return sealed.mask_sums(tallies.flat(sums, shapes))

    def readdress(self, order: SiteRequest) -> Answer:
        """An envelope sealed anew, for its addressee is silent."""
        return self._sealed_task(order).reseal_model(int(order.config[terms.WRITTEN]), order.policy, self.log)

    def _sealed_task(self, order: SiteRequest, of: str = "") -> SealedTask:
        if not order.plan.privacy.hidden:
            raise PlanError("the plan has no encrypted messages to open")
        store, words = self.key_store(order.config), order_in(order.config)
        if self._session is None or not self._session.is_for(store, order.plan, words):
            self._session = store.open(order.plan, words)
        return SealedTask(self._session, words, order, of)

    def key_store(self, config: Mapping[str, Any]) -> KeyStore:
        """This site's keys in a message's run."""
        if not RUN_NAME.fullmatch(str(config[RUN])):  # two runs could be told apart by where the name ends alone
            raise EnvelopeError("a run's name has letters, digits, dots, hyphens and underscores")
        run = f"{config[RUN]} {one_line(config.get(RUN_ID, ''), 64)}"
        return KeyStore(self.folder_of(config), self.name, run, identity_of(self.identity))
