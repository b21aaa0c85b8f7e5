"""Federated daisy-chaining around any Flower strategy (Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1)."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsmall.errors import ReplyError
from fedsmall.randomness import rng_for
from fedsmall.schedule import AbstractSchedule, Action, Contact, Schedule, permutation
from fedsmall.wire import (
    CARRIED,
    COMMON,
    EXAMPLES,
    LEAVES,
    LOSS,
    METRICS,
    MODEL,
    PLAN,
    ROUND,
    ROUNDS,
    RULE,
    STEPS,
    Arrays,
)
from strategies.acceptance import accepted
from strategies.combine import Updates
from strategies.foreign import combine_with, config_told
from strategies.records import array_records, order_content, size_in_bytes, stacked, to_arrays, to_record
from strategies.roster import Roster, await_sites
from strategies.slots import Seen, Slot


class DaisyChain(Strategy):
    """Hands every site's model on to another site, and lets the wrapped strategy aggregate now and then.

    ``strategy`` is any Flower strategy; it sees only the aggregations. ``schedule`` says at which rounds models travel
    and how (d and b of the paper). ``fraction`` of the sites, drawn anew with the run's ``seed``, takes part in a
    contact. ``alone``: nobody's model ever leaves it (the comparators without a federation).

    The server holds one slot per site, known by its name. A site that is silent, or whose reply fails its check, loses
    nothing: the traveller it was sent stays in its slot, goes on at the next permutation, and counts in the next
    aggregation unless it is the last common model untouched. The mean is unweighted unless ``weighted``; models are
    combined in the order of names, so arrival order does not matter to the bit.

    Departs from Algorithm 1 as printed: where both are due, aggregation wins, for with d = 1 it would never come.
    """

    def __init__(
        self,
        strategy: Strategy,
        schedule: AbstractSchedule | None = None,
        *,
        seed: int = 0,
        fraction: float = 1.0,
        weighted: bool = False,
        alone: bool = False,
    ) -> None:
        self.strategy = strategy
        self.schedule: AbstractSchedule = schedule or Schedule(permute_every=1, aggregate_every=10)
        self.seed = seed
        self.fraction = fraction
        self.weighted = weighted
        self.alone = alone
        self.roster = Roster()
        self.slots: dict[str, Slot] = {}
        self.seen: dict[str, Seen] = {}
        self.common: ArrayRecord | None = None
        self.contacts: list[Contact] = []
        self.events: list[dict[str, Any]] = []
        self.bytes_sent = 0
        self.aggregations = 0
        self._orders: list[tuple[Message, str]] = []
        self._expected: dict[str, Slot] = {}

    def route(self, t: int, sites: Sequence[str]) -> dict[str, str]:
        """Whose model goes where after round ``t``: {site that trained it: site that gets it}."""
        if self.schedule.action(t) is Action.PERMUTE and not self.alone:
            return permutation(self.seed, t, sites)
        return {site: site for site in sites}

    def participants(self, t: int, sites: Sequence[str]) -> list[str]:
        """The sites that take part in the contact after round ``t``, in name order."""
        names = sorted(sites)
        if self.fraction >= 1.0:
            return names
        count = max(1, round(self.fraction * len(names)))
        drawn = rng_for(self.seed, "participants", t).choice(len(names), count, replace=False)
        return [names[i] for i in sorted(drawn)]

    def plan_contacts(self, rounds: int, look_every: int | None = None) -> list[Contact]:
        """Fix the contacts of a run of ``rounds`` rounds; ``look_every`` adds looks that cost no message."""
        contacts = list(self.schedule.contacts(rounds, look_every))
        if self.alone:
            contacts = [contact._replace(action=Action.LOOK) for contact in contacts]
        self.contacts = contacts
        return contacts

    def passing(self, server_round: int) -> list[Contact]:
        """The contacts from ``server_round`` on that only pass models on, up to the next aggregation."""
        stretch = []
        for contact in self.contacts[server_round - 1 :]:
            if contact.action is Action.AGGREGATE:
                break
            stretch.append(contact)
        return stretch

    def walkable(self, server_round: int) -> list[Contact]:
        """The contacts of :meth:`passing`, and the aggregation that ends them where the wrapped strategy combines."""
        stretch = self.passing(server_round)
        closing = self.contacts[server_round - 1 + len(stretch) :][:1] if hasattr(self.strategy, "combine") else []
        return stretch + closing

    def close(self, contact: Contact) -> None:
        """End a contact whose trained models are in the slots: permute, or aggregate, as the schedule says."""
        if contact.action is Action.AGGREGATE:
            self._aggregate(contact)
        else:
            self.pass_on(contact)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop: ``num_rounds`` contacts, the last of which aggregates."""
        contacts = list(islice(self.schedule.contacts(None), num_rounds))
        self.contacts = [*contacts[:-1], contacts[-1]._replace(action=Action.AGGREGATE)]
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order per site that takes part, each with the traveller in the site's slot."""
        contact = self.contacts[server_round - 1]
        self.meet(grid, arrays, config)
        online = set(grid.get_node_ids())
        present = [site for site in self.participants(contact.t, self.sites) if self.roster.nodes[site] in online]
        rule = self._order_rule()
        configs = self._configs(server_round, contact, self._told(config))
        # sites that are sent the same thing share its content, as under Flower's own strategies
        contents: dict[Slot, RecordDict] = {}
        for slot in {self.slots[site] for site in present}:
            contents[slot] = order_content(slot.model, slot.carried, rule, configs[slot.common])
        self._expected = {site: self.slots[site] for site in present}
        orders = [
            Message(contents[slot], self.roster.nodes[site], MessageType.TRAIN) for site, slot in self._expected.items()
        ]
        # a look costs no message, and neither does leaving the models where a look has found them
        if not self._looked_before(server_round):
            sizes = {slot: size_in_bytes(array_records(content)) for slot, content in contents.items()}
            self.bytes_sent += sum(sizes[slot] for slot in self._expected.values())
        self._orders = list(zip(orders, present, strict=True))
        self._note_absent(contact, present)
        return orders

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies into the slots; then permute, or aggregate, as the schedule says."""
        contact = self.contacts[server_round - 1]
        fresh = self._accept(contact, replies)
        if not fresh and self._expected:
            raise ReplyError(f"No site gave a model that may be used at round {contact.t}: {self._reasons(contact.t)}")
        if contact.action is Action.AGGREGATE:
            return self._aggregate(contact), self._metrics(fresh)
        self.pass_on(contact)
        return None, self._metrics(fresh)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's evaluation, after an aggregation; between two there is no common model to judge."""
        if self.contacts[server_round - 1].action is not Action.AGGREGATE:
            return []
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's."""
        replies = list(replies)
        return self.strategy.aggregate_evaluate(server_round, replies) if replies else None

    def summary(self) -> None:
        """The wrapped strategy's."""
        self.strategy.summary()

    @property
    def sites(self) -> list[str]:
        """The names of all sites that have ever answered, in order."""
        return self.roster.sites

    def meet(self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Call the roll for new programs, and give every site that has none a slot with the common model."""
        if self.common is None:
            await_sites(grid, max(1, getattr(self.strategy, "min_available_nodes", 1)))  # as Flower's strategies do
            self.common = arrays
        self.roster.call(grid, {PLAN: config[PLAN]} if PLAN in config else {})
        start = Slot(arrays, common=True)
        for site in self.sites:
            self.slots.setdefault(site, start)

    def pass_on(self, contact: Contact) -> None:
        """Move the travellers over the slots as :meth:`route` says."""
        route = self.route(contact.t, self.sites)
        self.slots = {route[site]: self.slots[site] for site in self.sites}

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Write down what became of a site at round ``t`` that did not go as it should; the report has a row for it."""
        self.events.append({"t": t, "site": site, "kind": kind, "reason": reason})

    def _accept(self, contact: Contact, replies: Iterable[Message]) -> list[str]:
        good = accepted(self._orders, replies, self._expected, partial(self.note, contact.t))
        for site, reply in good.items():
            self._take(contact, site, reply.content)
        return list(good)

    def _take(self, contact: Contact, site: str, content: RecordDict) -> None:
        records = array_records(content)
        metrics: Any = content[METRICS]
        self.slots[site] = Slot(records[MODEL], records.get(CARRIED))
        self.seen[site] = Seen(
            records[MODEL], float(metrics[EXAMPLES]), float(metrics.get(STEPS, 1.0)), records.get(RULE)
        )
        self.roster.answers.setdefault(site, {})[LOSS] = float(metrics.get(LOSS, np.nan))
        if contact.action is not Action.LOOK:
            self.bytes_sent += size_in_bytes(records)

    def _aggregate(self, contact: Contact) -> ArrayRecord:
        counted = [site for site in self.sites if not self.slots[site].common and site in self.seen]
        assert self.common is not None
        self.aggregations += 1
        rules = [self.seen[site].rule for site in counted]
        updates = Updates(
            sites=tuple(counted),
            stack=stacked([self.slots[site].model for site in counted]),
            weights=np.array([self.seen[site].examples for site in counted]) if self.weighted else None,
            steps=np.array([self.seen[site].steps for site in counted]),
            rule=stacked([rule for rule in rules if rule]) if all(rules) else {},
            sites_in_all=len(self.sites),
        )
        common = to_record(self._combine(to_arrays(self.common), updates, contact.t))
        self.common = common
        # the moments stay with their slot: aggregation replaces weights and buffers alone
        bare = Slot(common, common=True)
        self.slots = {
            site: Slot(common, slot.carried, common=True) if slot.carried else bare for site, slot in self.slots.items()
        }
        return common

    def _combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        combine = getattr(self.strategy, "combine", None)
        if combine is not None:
            combined: Arrays = combine(common, updates, t)
            return combined
        return combine_with(self.strategy, self.aggregations, common, updates)

    def _order_rule(self) -> ArrayRecord | None:
        order_rule = getattr(self.strategy, "order_rule", None)
        rule = order_rule() if order_rule is not None else {}
        return to_record(rule) if rule else None

    def _told(self, config: ConfigRecord) -> ConfigRecord:
        """The config, with what a Flower strategy adds to it for the sites (FedProx's mu)."""
        if hasattr(self.strategy, "combine") or self.common is None:
            return config
        return config_told(self.strategy, self.aggregations + 1, to_arrays(self.common), config, len(self.sites))

    def _configs(self, server_round: int, contact: Contact, config: ConfigRecord) -> dict[bool, ConfigRecord]:
        told = {**config, "server-round": server_round, ROUND: contact.t, ROUNDS: contact.rounds}
        told[LEAVES] = contact.action is not Action.LOOK
        return {common: ConfigRecord({**told, COMMON: common}) for common in (True, False)}

    def _looked_before(self, server_round: int) -> bool:
        before = self.contacts[server_round - 2] if server_round > 1 else None
        return self.alone or (before is not None and before.action is Action.LOOK)

    def _metrics(self, fresh: list[str]) -> MetricRecord | None:
        losses = [self.roster.answers[site][LOSS] for site in fresh]
        return MetricRecord({LOSS: float(np.mean(losses)), "sites": len(fresh)}) if fresh else None

    def _note_absent(self, contact: Contact, present: list[str]) -> None:
        for site in set(self.participants(contact.t, self.sites)) - set(present):
            self.note(contact.t, site, "absent", "its program is not connected")

    def _reasons(self, t: int) -> str:
        return "; ".join(f"{e['site']}: {e['reason']}" for e in self.events if e["t"] == t)[:1000]
