"""Federated daisy-chaining around any Flower strategy (Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedsmall.aggregation.combiners import Combiner, Updates
from fedsmall.codec.known import Known
from fedsmall.errors import PlanError, ReplyError
from fedsmall.plan import Method, Plan
from fedsmall.travel.commons import Commons
from fedsmall.travel.gate import GATE, charge
from fedsmall.travel.schedule import AbstractSchedule, Action, Contact, Schedule, planned
from fedsmall.wire import EXAMPLES, METRICS, PLAN, ROUND, Arrays
from strategies.acceptance import absurd, accepted, oversized, sound
from strategies.checks import check_enough, limits_of, plan_for, samples_told
from strategies.folds import SiteFolds, dealt_to
from strategies.foreign import FEW, FlowerCombiner, count_key, count_of, own_config, train_metrics_of, with_our_count
from strategies.journey import Journey
from strategies.orders import bytes_of, contact_of, orders
from strategies.parcels import addressed, fresh_slot, in_full, open_reply, owing, renew
from strategies.records import array_records, size_in_bytes, to_arrays, to_record
from strategies.roster import Roster, await_sites
from strategies.slots import Slot, first_slots, renewed, trained, updates_of


class DaisyChain(Strategy):
    """Hands every site's model on to another site, and lets the wrapped strategy aggregate now and then.

    ``strategy`` is any Flower strategy, or a combiner of ours; it sees only the aggregations. ``schedule`` says at
    which rounds models travel and how (d and b of the paper). ``fraction`` of the sites, drawn anew with the run's
    ``seed``, takes part in a contact. ``alone``: nobody's model ever leaves it (the comparators without a federation).

    The server holds one slot per traveller, by the name of the site where it is. A site that is silent, or whose reply
    fails its check, loses nothing: the traveller it was sent stays in its slot and goes on at the next permutation.
    Every traveller that was trained since the last aggregation counts in the next, wherever it is, and no other does;
    where the method keeps models from the server, those alone that came at that contact.
    Under a fraction there are as many travellers as drawn sites, and they go to those drawn next. The mean is
    unweighted unless ``weighted``; models are combined in the order of names, so arrival order does not matter.
    A model whose update is too large is set aside too (:mod:`fedsmall.travel.gate`; ``gate`` false for none is).
    ``method`` says, of what no other argument does, how many models travel, by which route, in which groups, and what
    comes out.

    Departs from Algorithm 1 as printed: where both are due, aggregation wins, for with d = 1 it would never come.
    """

    def __init__(
        self,
        strategy: Strategy | Combiner,
        schedule: AbstractSchedule | None = None,
        *,
        seed: int = 0,
        fraction: float = 1.0,
        weighted: bool = False,
        alone: bool = False,
        gate: float = GATE,
        method: Method | None = None,
    ) -> None:
        if isinstance(strategy, DaisyChain):  # one of ours by its name: what it combines with, under this schedule
            self.combiner: Combiner = strategy.combiner
            self.strategy: Strategy = strategy.strategy
            weighted = weighted or bool(strategy.weighted)
        elif isinstance(strategy, Combiner):
            self.combiner, self.strategy = strategy, FedAvg(**FEW)
        else:
            self.combiner, self.strategy = FlowerCombiner(strategy), strategy
        self.schedule: AbstractSchedule = schedule or Schedule(permute_every=1, aggregate_every=10)
        self.seed, self.fraction, self.alone = seed, fraction, alone
        self.weighted: bool = weighted
        self.gate = 0.0 if alone else float(gate)
        self.method = (method or Method(name="DaisyChain")).model_copy(update={"fraction": fraction})
        if self.method.is_ensemble and isinstance(self.combiner, FlowerCombiner):
            raise PlanError("groups and snapshots are made by fedsmall's own combiners, not by a Flower strategy")
        self.roster = Roster()
        self.slots: dict[str, Slot] = {}
        self.folds = SiteFolds(self.method, seed)
        self.own: dict[str, ArrayRecord] = {}
        self.common: ArrayRecord | None = None  # the last, of the only group or of the largest norm
        self.commons: Commons
        self.known: Known  # what sites have of common models, where models go as changes of these
        self.fresh: list[Slot] = []  # the groups' last common models, as sites are sent them
        self._came: dict[str, dict[str, ArrayRecord]] = {}  # this contact's replies in codes
        self.contacts: list[Contact] = []
        self.events: list[dict[str, Any]] = []
        self.samples: dict[str, int] = {}  # of each site, as it said when it was first met
        self.bytes_sent = self.aggregations = 0
        self._orders: list[tuple[Message, str]] = []
        self._expected: dict[str, Slot] = {}
        self._plan: Plan | None = None  # which our own sites are sent; others' apps have none
        self._asked: dict[str, Any] = {}  # the same as orders carry it
        self._arrived = True  # the models of the contact have travelled since their last training

    def plan_contacts(self, rounds: int, evaluate_every: int | None = None) -> list[Contact]:
        """Fix the contacts of a run of ``rounds`` rounds, in pieces where models are to be evaluated between them."""
        self.contacts = planned(self.schedule, rounds, evaluate_every, self.alone)
        return self.contacts

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
        """Flower's own loop: ``num_rounds`` contacts, the last of which aggregates.

        Raises PlanError where several models come out: Flower's loop has a place for one.
        """
        if self.method.phases:
            raise PlanError("phases are parts of a plan's rounds, which Flower's loop does not know; run a plan")
        if self.method.is_ensemble:
            raise PlanError("several models come out of groups and snapshots, and Flower's loop takes one; run a plan")
        contacts = list(islice(self.schedule.contacts(None), num_rounds))
        self.contacts = [*contacts[:-1], contacts[-1]._replace(action=Action.AGGREGATE)]
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One order per site that takes part, each with the traveller in the site's slot."""
        contact = contact_of(self.contacts, server_round)
        self.meet(grid, arrays, config)
        if server_round == 1:
            self._set_out(contact, self.slots)
        online, self.own, self._came = set(grid.get_node_ids()), {}, {}
        present = [site for site in sorted(self.slots) if self.roster.nodes[site] in online]
        self._expected = {site: self.slots[site] for site in present}
        rule, told = self.commons.order_rule(), own_config(self.combiner, self.common, config, len(self.sites))
        record = to_record(rule) if rule else None
        sent = addressed(self._plan, self.known, self._expected)
        self._orders = orders(*sent, self.roster.nodes, record, told, server_round, contact)
        self._arrived = server_round == 1 or self.contacts[server_round - 2].travels
        if self._arrived and not self.alone:  # a piece of a contact leaves the models where they are
            self.bytes_sent += bytes_of(self._orders)
        for site in set(self.slots) - set(present):
            self.note(contact.t, site, "absent", "its program is not connected")
        return [order for order, _ in self._orders]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies into the slots; then permute, or aggregate, as the schedule says."""
        contact = self.contacts[server_round - 1]
        fresh = self._accept(contact, replies)
        if not fresh and self._expected:
            raise ReplyError(f"No site gave a model that may be used at round {contact.t}: {self._reasons(contact.t)}")
        common = self._aggregate(contact) if contact.action is Action.AGGREGATE else None
        if server_round < len(self.contacts):
            self._pass_on(contact, self.contacts[server_round])
        return common, train_metrics_of(self.strategy, fresh)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's evaluation, after an aggregation; between two there is no common model to judge."""
        contact = self.contacts[server_round - 1]
        if contact.action is not Action.AGGREGATE:
            return []
        if self._asked:  # our own clients know by it what they judge
            config = ConfigRecord({**self._asked, ROUND: contact.t, **config})
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's, of the sites that have held something out: no mean goes by weights of nothing."""
        key = count_key(self.strategy)
        told = [reply for reply in replies if reply.has_error() or count_of(reply, key) != 0]
        return self.strategy.aggregate_evaluate(server_round, told) if told else None

    def summary(self) -> None:
        """The wrapped strategy's."""
        self.strategy.summary()

    @property
    def sites(self) -> list[str]:
        """The names of all sites that have ever answered, in order; with routes, of those that the run began with."""
        return self.folds.sites or self.roster.sites

    @property
    def journey(self) -> Journey:
        """Who takes part, and where travellers go, by what is known of the sites so far."""
        return Journey(self.method, self.seed, 1.0 if self.alone else self.fraction, self.folds, self.samples)

    def meet(self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Learn who is there, and give every site that may be drawn first a slot with the common model.

        The roll is called where the config carries a plan, for then it is our own clients that are asked.
        """
        begins, self._asked = self.common is None, {PLAN: config[PLAN]} if PLAN in config else {}
        if begins:
            self._plan = plan_for(self.combiner, config)
            await_sites(grid, max(1, getattr(self.strategy, "min_available_nodes", 1)))  # as Flower's strategies do
            self.common = arrays
        if self._asked:
            self.roster.call(grid, self._asked)
        else:
            self.roster.list_unasked(grid)
        self.samples = {site: samples_told(self.roster.answers[site]) for site in self.sites} | self.samples
        if begins:
            check_enough(self.combiner, self._plan, self.method, grid, self.roster, arrays)
            self.begin_with([arrays] * self.method.group_count(len(self.sites)))
            self.folds = replace(self.folds, of=dealt_to(self.method, self._plan, self.samples))
        if begins or self.method.everyone(len(self.sites)):
            for site in self.sites:
                self.slots.setdefault(site, self.fresh[self.commons.turn])

    def begin_with(self, records: Sequence[ArrayRecord]) -> None:
        """Give each group the model that it starts with."""
        self.known = Known()
        self.fresh = [fresh_slot(self._plan, record, 0, group, self.known) for group, record in enumerate(records)]
        self.commons = Commons(self.combiner, self.method, [to_arrays(record) for record in records])

    def result(self) -> Arrays:
        """What the last aggregation has made, to be judged and kept; see :class:`fedsmall.travel.commons.Commons`."""
        return self.commons.result()

    def _pass_on(self, contact: Contact, following: Contact) -> None:
        """Move the travellers to the sites where they train next."""
        if following.phase != contact.phase:
            return self._set_out(following, {})
        groups = {site: slot.group for site, slot in self.slots.items()}
        if route := self.journey.route(contact, following, groups, self.sites):
            self.slots = {route[site]: self.slots[site] for site in sorted(self.slots)}

    def _set_out(self, contact: Contact, slots: dict[str, Slot]) -> None:
        """Put travellers at the sites of the first contact, of the run or of a phase."""
        drawn = self.journey.participants(contact.due, self.sites, contact.phase)
        self.slots = first_slots(slots, drawn, self.fresh, self.journey.first_groups(drawn, len(self.commons)))

    def sound(self) -> bool:
        """Whether no traveller has outgrown the last common model so far that no run should go on with it."""
        return not self.gate or self.common is None or sound(self.slots.values(), self.common)

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Write down what became of a site at round ``t`` that did not go as it should; the report has a row for it."""
        self.events.append({"t": t, "site": site, "kind": kind, "reason": reason})

    def _accept(self, contact: Contact, replies: Iterable[Message]) -> list[RecordDict]:
        key = count_key(self.strategy)
        replies = (with_our_count(reply, key) for reply in replies)
        note, limits = partial(self.note, contact.t), partial(limits_of, self._plan, contact, self.roster.answers)
        opened = partial(open_reply, self._came, self._plan if contact.travels else None, self.fresh[0], self._expected)
        good, bad = accepted(self._orders, replies, self._expected, note, limits, opened)
        assert self.common is not None
        bad |= oversized(good, self._expected, self.common, self.gate, hidden := self.method.hidden)
        theirs = absurd(self._expected, self.common) if bad and not (self.alone or hidden) else set()
        for site in sorted(bad):
            by = self._expected[site].by if site in theirs else None
            note(*charge(site, bad[site], by))
            if by is not None:
                self.slots[site] = self.fresh[self._expected[site].group]
        fresh = [site for site in good if site not in bad]
        self.known.answered(contact.t, {site: slot.common for site, slot in self._expected.items()}, fresh)
        for site in fresh:
            self._take(contact, site, good[site].content)
            if key != EXAMPLES:
                del good[site].content.metric_records[METRICS][EXAMPLES]  # it was ours
        return [good[site].content for site in fresh]

    def _take(self, contact: Contact, site: str, content: RecordDict) -> None:
        records, came = array_records(content), self._came.get(site, {})
        metrics: Any = content[METRICS]
        self.slots[site] = trained(self._expected[site], records, metrics, site, self._arrived, came)
        self.own[site] = self.slots[site].model
        if contact.travels:
            self.bytes_sent += size_in_bytes({**records, **came})

    def _aggregate(self, contact: Contact) -> ArrayRecord:
        assert self.common is not None
        self.aggregations += 1
        before = list(self.commons.models)
        refused, events = self.commons.aggregate(partial(self._updates, contact), contact.t, self.gate)
        self.events += events
        self.fresh = renew(self.fresh, self._plan, before, self.commons.models, contact.t, self.known)
        self.common = in_full(self.fresh, self.commons)
        self.slots = renewed(self.slots, self.fresh, refused, self.commons.turn if self.method.turns else None)
        return self.common

    def _updates(self, contact: Contact, group: int) -> Updates:
        only = self.own.keys() if self.method.hidden else None  # who has answered at this contact
        counted = updates_of(self.slots, self.weighted, len(self.sites), group, only)
        return owing(self._plan, self.fresh[group], self.commons.models[group], counted)

    def beside(self) -> dict[str, Any]:
        """What a journal keeps of this kind of chain alone."""
        return {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Take up what :meth:`beside` gave."""

    def _reasons(self, t: int) -> str:
        return "; ".join(f"{e['site']}: {e['reason']}" for e in self.events if e["t"] == t)[:1000]
