"""The models on their way through a federation, as rows of one stack: where they are, and who averages with whom."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedsmall.aggregation.combiners import Combiner
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.algorithm.departing import Egress, make_small, packed_bytes
from fedsmall.algorithm.gate import are_outsized, halves, largest, name_culprit, size, sizes, too_large
from fedsmall.algorithm.global_models import GlobalModels, Outbox, sizes_of, sound_means
from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.training.stack import Rows, Stack, Tensors, leaving_state, stacked, tensors_of
from fedsmall.training.trainer import ABSENT, FORGOT, SPOILT, Fault, Mean, Phase, Trainer, TrainInput, TrainResult
from fedsmall.travel import journey
from fedsmall.travel.journey import Event, RoundResult, route_at
from fedsmall.travel.schedule import Action, CommRound
from fedsmall.wire import Arrays, ModelState, join, parts

NOT_FINITE = "the model holds a number that is not finite (NaN or Inf)"
UNUSABLE = Fault("set aside", NOT_FINITE)
GROWN = 3.0  # an update can be too large only where a model has grown more than so
OF_EACH = ("at", "group", "is_global", "trained", "_here", "_by", "_examples", "_steps", "_carries")  # (models,) each


class ModelStates:
    """The models on their way, a row each: where they are, what they have been through, and what their bytes cost."""

    def __init__(self, plan: Plan, trainer: Trainer, combiner: Combiner, initial: journey.Initial) -> None:
        self.plan, self.trainer, self.names = plan, trainer, trainer.names
        if list(self.names) != sorted(self.names):
            raise ValueError("sites must come in the order of their names")
        self._initial = initial
        self.global_models = GlobalModels(combiner, plan.method, journey.starting(plan, len(self.names), initial))
        # where models go between two communication rounds; a topology may know better
        self.move: Callable[[np.ndarray, CommRound, CommRound], np.ndarray] = lambda at, before, comm_round: (
            journey.move_on(plan, len(self.names), at, before, comm_round, trainer.samples)
        )
        self.has_sent = np.zeros(0, dtype=bool)  # of sites elsewhere: which have sent a model at the last round
        self.refused: set[int] | None = None  # groups without a new model, from an aggregation to :meth:`become_global`
        self.at = np.zeros(0, dtype=np.int64)  # nobody has set out
        self._before: CommRound | None = None
        self._memory = Arrays()
        self._mean: Arrays = {}  # of all models, where the trainer has made it
        self._sizes: list[np.ndarray] = []  # of the models as they stand, where they are known
        # communication round by communication round: each noises or rounds, or is an exchange of messages
        changed = plan.privacy.at_comm_rounds or plan.method.is_compressed
        self.careful = changed or trainer.is_remote
        self._outbox = Outbox(plan)  # the groups' global models as sites read them
        # sites elsewhere have doors of their own
        self._door = Egress(plan, self.names, self._outbox.known) if changed and not trainer.is_remote else None
        self._federated = plan.method.is_federated
        self.gate = float(plan.method.gate) if self._federated else 0.0
        self._in_part = plan.method.hidden or plan.method.is_dynamic  # the server knows of models that came alone
        self._alone = self._in_part or plan.method.topology is not None  # nobody sees all models of a round

    def depart(self, comm_round: CommRound) -> None:
        """Give a model to every site that takes part in the first communication round of the run."""
        self.at = journey.set_out(self.plan, len(self.names), comm_round, self.trainer.samples)
        self._sizes, rows, method = [], len(self.at), self.plan.method
        self.trainer.check_room(rows, self.global_models.models[0])
        self.group = journey.groups_of(method, rows, len(self.global_models))
        if method.region_count > 1:
            self.group = journey.regions_of(self.plan, len(self.names))[self.at]
        independent = self.plan.initial_models == "independent" and not method.grouped
        global_model = self._outbox.take(self.global_models.models, 0)
        start = [self._initial(self.names[site]) for site in self.at] if independent else global_model
        self.stack: Stack = self.trainer.stack([ModelState(model) for model in start])
        if not independent:
            self.stack = self.stack.rows(self.group)
        elif method.is_compressed:
            make_small(self.plan, self.stack, [self.names[site] for site in self.at], 0)
        self._measure()
        self.is_global = np.full(rows, not independent)  # the last global model, untouched
        self.trained = np.zeros(rows, dtype=bool)  # since the last aggregation
        self._here = np.zeros(rows, dtype=bool)  # trained at the last communication round, too
        self._by = np.full(rows, -1)  # the site that trained it last
        self._examples, self._steps = np.zeros(rows), np.zeros(rows, dtype=np.int64)
        self._carries = np.zeros(rows, dtype=bool)  # optimizer state goes along
        self._rule: Arrays = {}

    def _measure(self) -> None:
        """Note the bytes of a model on its way, and of what goes beside it."""
        beside = Rows(leaving_state(self.plan.recipe, self.stack.optimizer))
        plain = Rows(self.stack.state).bytes_per_row, beside.bytes_per_row
        self.sizes_of_one = packed_bytes(self.plan, self.stack) if self.plan.method.is_compressed else plain

    def walk(self, stretch: Sequence[CommRound]) -> RoundResult | None:
        """Train all models through several communication rounds; None, and nothing is changed, if each must be seen."""
        if not len(self.at):
            self.depart(stretch[0])
        phases, crossed = self._phases(stretch, self.at, self._before)
        at, comm_round = phases[-1].sites, stretch[-1]
        received = self._remember_sent()
        trained = self._train(phases, received)
        good, grown = self._check_norms(received)
        good[list(trained.lost)] = False
        if not good.all() or grown.any():
            self._sizes = []  # some models will be put back
        if len(stretch) > 1 and not (good.all() and not grown.any()):
            self.stack, self.careful = received(), self.careful or not good.all()
            return None
        lost = {row: fault for row, fault in trained.lost.items() if fault.kind != SPOILT}
        bad = [row for row in np.flatnonzero(~good).tolist() if row not in lost]
        reasons = {row: trained.lost.get(row, UNUSABLE).reason for row in bad}
        if grown.any():
            reasons |= self._too_large(received(), np.flatnonzero(good))
        good[list(reasons)] = False
        sent = self._bytes(stretch, trained, at, good)
        if self._outbox.known.models:
            names = [self.names[site] for site in at]
            orders = dict(zip(names, self.is_global.tolist(), strict=True))
            self._outbox.known.answered(comm_round.t, orders, [names[row] for row in np.flatnonzero(good)])
        between = crossed * sum(self.sizes_of_one)
        self.at, self._before, self._memory = at, comm_round, trained.memory
        faults = sorted((self.names[at[row]], fault) for row, fault in lost.items())
        events = [journey.event(comm_round.t, site, fault.kind, fault.reason) for site, fault in faults]
        events += [journey.event(comm_round.t, *note) for note in trained.notes]
        events += self._set_aside(received, lost, reasons, comm_round, phases[-1].arrived)
        self.trained[[row for row, fault in lost.items() if fault.stays]] = True
        if forgotten := [row for row, fault in lost.items() if fault.kind == FORGOT]:
            self._restart(np.array(forgotten))
        self._examples[good] = trained.examples[good]
        self._steps[good] = trained.steps[good] + (0 if phases[-1].arrived else self._steps[good])
        self._here = good
        self.trainer.delivery.accept(np.flatnonzero(good).tolist())
        if trained.messages is not None:
            self.has_sent = trained.messages.models
            self._carries[good] = trained.messages.carries[good]
        self._rule = trained.rule if (good | ~self._counting_rows()).all() else {}
        self._mean = trained.mean.model if trained.mean is not None and good.all() and self.goes_on else {}
        order = np.flatnonzero(good)[np.argsort(at[good])].tolist()
        sites, models = tuple(self.names[site] for site in at[order]), partial(self._models, order)
        ordered = len(at) - sum(fault.kind == ABSENT for fault in lost.values())
        updates = sum(comm_round.rounds for comm_round in stretch) * ordered
        return RoundResult(comm_round, None, sites, models, updates, sent, events, self._memory, between)

    def _phases(
        self, stretch: Sequence[CommRound], at: np.ndarray, before: CommRound | None
    ) -> tuple[list[Phase], int]:
        """The phases of a walk that sets out from the sites ``at``, and how many models come to another region."""
        phases, crossed = [], 0
        for comm_round in stretch:
            last, at = at, at if before is None else self.move(at, before, comm_round)
            crossed += journey.crossings(self.plan, len(self.names), last, at)
            arrived = before is None or before.travels
            closes, route = comm_round.action is Action.AGGREGATE, route_at(self.plan, comm_round.t)
            phases.append(Phase(at, comm_round.t, comm_round.rounds, arrived, closes, route, comm_round.travels))
            before = comm_round
        return phases, crossed

    @property
    def goes_on(self) -> bool:
        """Whether :meth:`walk_on` may be asked for: the trainer makes the means, and the server wants no more."""
        plain = self._federated and not (self._alone or self.careful or self.plan.method.by_samples)
        alike = len(self.global_models) == 1 and self.plan.initial_models == "common"
        return self.trainer.averages and plain and alike and self.global_models.combiner.takes_mean

    def walk_on(self, walks: Sequence[Sequence[CommRound]]) -> tuple[RoundResult | None, int]:
        """Walk from the global model to the next and on, without a look at any other: the result, before all become it.

        Returns how many of the ``walks``, each up to an aggregation, were gone: the next, if any, is to be looked at.
        """
        if not len(self.at):
            self.depart(walks[0][0])
        if not self.is_global.all():
            return None, 0
        phases, at, before = [list[Phase]() for _ in walks], self.at, self._before
        for k, stretch in enumerate(walks):
            phases[k], _ = self._phases(stretch, at, before)
            at, before = phases[k][-1].sites, stretch[-1]
        ends = iter(walks)

        def take(mean: Mean) -> Arrays | None:
            last, comm_round = self.global_models.models[0], next(ends)[-1]
            largest = float(mean.norms.max())  # NaN where one is
            first = float(np.linalg.norm(next(iter(last.values()))))  # at most the model's size, and soon known
            if not math.isfinite(largest) or (self.gate and largest > GROWN * first and largest > GROWN * size(last)):
                return None
            goes_on = self.global_models.follow(mean.model, self.names, comm_round.t, self.gate)
            return self.global_models.models[0] if goes_on else None

        done, trained = self.trainer.average(self.stack, self.global_models.models[0], phases, self._memory, take)
        if trained is None:
            return None, 0
        gone = [comm_round for stretch in walks[:done] for comm_round in stretch]
        at, comm_round, rows = phases[done - 1][-1].sites, gone[-1], len(self.at)
        sent = self._bytes(gone, trained, at, np.ones(rows, dtype=bool))
        self.at, self._before, self._memory, self._rule = at, comm_round, trained.memory, {}
        self._here, self._by = np.ones(rows, dtype=bool), at.copy()
        self._examples, self._steps = trained.examples.astype(float), trained.steps.copy()
        self.refused = set()
        updates = sum(comm_round.rounds for comm_round in gone) * rows
        return RoundResult(comm_round, None, (), dict, updates, sent, [], self._memory), done

    def _train(self, phases: Sequence[Phase], received: Callable[[], Stack]) -> TrainResult:
        inputs = TrainInput(self.is_global, self.global_models.order_rule(), self._memory, losses=False)
        if self.trainer.is_remote:
            outbox, fresh = self._outbox, ~self.trained
            group, carries = self.group, self._carries
            inputs = replace(inputs, sent=outbox.sent, known=outbox.known, group=group, carries=carries, fresh=fresh)
        if self._door is not None:
            self._door.arrive(self.stack, phases[-1].sites, self.is_global)
        trained = self.trainer.walk(self.stack, phases, inputs)
        if self._door is not None and phases[-1].leaves:
            self._door.leave(self.stack, received, phases[-1].sites, phases[-1].t)
        return trained

    def _models(self, rows: list[int]) -> Arrays:
        """The models of some rows, {name: (rows, ...)}, fetched where they have stayed at their sites."""
        return Rows(self.stack.state).arrays(self.trainer.delivery.fetch(self.stack, rows)[0])

    def walk_some(self, rows: np.ndarray, at: np.ndarray, comm_round: CommRound) -> RoundResult:
        """As :meth:`walk`, for one communication round and some rows' models, ``at`` their sites; others wait."""
        if not len(rows):
            self._before = comm_round
            return RoundResult(comm_round, None, (), dict, 0, 0, [], self._memory)
        part = copy(self)
        for name in OF_EACH:
            setattr(part, name, (at if name == "at" else getattr(self, name))[rows])
        part.stack, part._sizes = self.stack.rows(rows), []
        result = part.walk([comm_round])
        assert result is not None  # of one communication round
        self.at = np.array(at)
        for name in OF_EACH:
            getattr(self, name)[rows] = getattr(part, name)
        self.stack.put(rows, part.stack)
        self._before, self._memory = comm_round, part._memory
        return result

    def become(self, at: np.ndarray, sites: np.ndarray, models: Tensors) -> None:
        """Every model that is ``at`` one of these ``sites`` is now what the site has, {name: (sites, ...)}."""
        rows = np.flatnonzero(np.isin(at, sites))
        index = torch.from_numpy(np.searchsorted(sites, at[rows]))
        for name, array in models.items():
            tensor = self.stack.state[name]
            tensor[torch.from_numpy(rows).to(tensor.device)] = array[index].to(tensor.device)
        self.trained[rows], self._sizes = False, []

    def weights(self, rows: np.ndarray) -> np.ndarray:
        """How much each of some models counts in an average, (rows,)."""
        return self._examples[rows] if self.plan.method.weighted else np.ones(len(rows))

    def shares(self) -> np.ndarray:
        """What the models of every region count together, (regions,)."""
        counted = self._counting_rows()
        return np.bincount(
            self.group[counted], self.weights(np.flatnonzero(counted)), minlength=len(self.global_models)
        )

    def publish(self) -> None:
        """Let sites elsewhere know what the aggregation after the last communication round has made."""
        if self.trainer.is_remote:
            assert self._before is not None
            self._outbox.take(self.global_models.models, self._before.t)
            self.trainer.delivery.publish(self._before.t, self._outbox.sent, self.global_models.order_rule())

    def fetch(self, sites: Sequence[str]) -> tuple[list[str], int]:
        """Have the models of these sites here which have stayed there; gives the sites whose are, and the bytes."""
        row_of = {self.names[site]: row for row, site in enumerate(self.at)}
        rows, sent = self.trainer.delivery.fetch(self.stack, [row_of[site] for site in sites])
        return [self.names[self.at[row]] for row in rows], sent

    def is_sound(self) -> bool:
        """Whether no model has outgrown the last global one so far that no run should go on with it."""
        if not self.gate or self.refused is not None:  # all are about to become the global model
            return True
        return bool((sizes_of(self.stack)[0] <= largest(self._largest())).all())

    def places(self, following: CommRound | None) -> dict[str, tuple[int, str, bool]]:
        """By site, for the ``following`` round: its model's number, who trained it last (""), if it is global."""
        assert self._before is not None
        at = self.at if following is None else self.move(self.at, self._before, following)
        is_global = self.is_global if self.refused is None else np.ones(len(at), dtype=bool)
        number = np.where(is_global, self.group, len(self.global_models) + np.arange(len(at)))
        by = ["" if flag or site < 0 else self.names[site] for site, flag in zip(self._by, is_global, strict=True)]
        rows = zip(at.tolist(), number.tolist(), by, is_global.tolist(), strict=True)
        return {self.names[site]: (model, name, flag) for site, model, name, flag in sorted(rows)}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to go on after the last communication round, as arrays by name and a record for JSON."""
        models = {} if self.refused is not None else Rows(self.stack.state).arrays()  # else all become the global model
        groups, numbers = self.global_models.state()
        sent_models, rounds = self._outbox.state(self.global_models.models)
        arrays = join(
            model=models,
            beside=Rows(self.stack.optimizer).arrays(),
            rule=self._rule,
            of_each={name: getattr(self, name) for name in OF_EACH},
            global_model=self.global_models.models[0],
            global_models=groups,
            combiner=self.global_models.combiner.state()[0],
            sent_models=sent_models,
        )
        return {name: np.array(array) for name, array in arrays.items()}, {
            "groups": numbers,
            "combiner": self.global_models.combiner.state()[1],
            "refused": None if self.refused is None else sorted(self.refused),
            "sent_models": rounds,
        }

    def restore(self, arrays: Arrays, numbers: Mapping[str, Any], before: CommRound) -> None:
        """Take up what :meth:`state` gave after the communication round ``before``."""
        kept, global_models = parts(arrays), self.global_models
        names = list(global_models.models[0])  # a journal has an order of its own
        global_models.models[0] = {name: kept["global_model"][name] for name in names}
        global_models.restore(kept.get("global_models", {}), numbers["groups"])
        global_models.combiner.restore(kept.get("combiner", {}), numbers["combiner"])
        self._outbox.restore(global_models.models, kept.get("sent_models", {}), numbers["sent_models"])
        for name, array in kept["of_each"].items():
            setattr(self, name, np.array(array))
        models = kept.get("model") or {name: array[self.group] for name, array in global_models.stack().items()}
        tensors = {name: models[name] for name in names}
        self.stack = self.trainer.stack_of(tensors_of(tensors), tensors_of(kept.get("beside", {})))
        self._measure()
        self._before, self._rule = before, kept.get("rule", {})
        if numbers["refused"] is not None:
            self.refused = set(numbers["refused"])
            self.become_global()

    def updates(self, group: int = 0) -> Updates:
        """What counts in a group's aggregation, wherever it is."""
        rows = np.argsort(self.at)
        rows = rows[(self._counting_rows() & (self.group == group))[rows]]
        assert self._before is not None
        names = tuple(self.names[site] for site in self.at[rows])
        summed = self.trainer.delivery.sum_up(self._before.t, group, names)
        if summed is not None:
            weights = summed.examples if self.plan.method.weighted else None
            return Updates(summed.sites, {}, weights, summed.steps, sites_in_all=len(self.names), total=summed.total)
        return Updates(
            sites=names,
            stack=self._outbox.add_residual(Rows(self.stack.state).arrays(rows.tolist()), group),
            weights=self._examples[rows] if self.plan.method.weighted else None,
            steps=self._steps[rows],
            rule={name: array[rows] for name, array in self._rule.items()},
            sites_in_all=len(self.names),
            aggregate=self._mean,
        )

    def _counting_rows(self) -> np.ndarray:
        """Which models count in the next aggregation: those trained since the last.

        Of models that are kept from the server, those trained for this round: only then is a sum sent.
        """
        return self.trained & self._here if self._in_part else self.trained

    def become_global(self) -> None:
        """Make every model its group's global model, unless that was ``refused``; moments stay."""
        assert self._before is not None and self.refused is not None  # noqa: PT018
        afresh, self.refused = self.refused, None
        models, rows = self._outbox.take(self.global_models.models, self._before.t), np.arange(len(self.at))
        self._forget(rows if self.plan.method.by_samples else rows[np.isin(self.group, list(afresh))])
        if self.plan.method.by_samples:
            self.group[:] = self.global_models.turn
        if len(models) == 1:
            self.stack.replace(models[0])
            sizes = [np.array([size(half)]) for half in halves(models[0]) if half] if self.gate else []
        else:
            of_groups = (
                stacked(models, list(models[0]))
                if self.plan.method.is_compressed
                else tensors_of(self.global_models.stack())
            )
            for name, tensor in self.stack.state.items():
                tensor.copy_(of_groups[name][torch.from_numpy(self.group)])
            sizes = [Rows(half).norms() for half in halves(of_groups) if half] if self.gate else []
        self._sizes = [of_half[self.group] for of_half in sizes]
        self.is_global[:], self.trained[:] = True, False

    def means(self) -> Arrays | None:
        """The groups' next global models at once, {name: (groups, ...)}: sound plain means of as many models each.

        None where anything else is asked, not all models count, or one may be refused; group by group it would not pay.
        """
        groups, state = len(self.global_models), self.stack.state
        in_turn = np.arange(len(self.at)) % groups
        plain = (
            self.global_models.are_means
            and not self._in_part
            and self._counting_rows().all()
            and len(self.at) % groups == 0
        )
        if not plain or (self.group != in_turn).any():
            return None
        turns = {name: tensor.view(-1, groups, *tensor.shape[1:]) for name, tensor in state.items()}
        made = sound_means(turns, tensors_of(self.global_models.stack()))
        return None if made is None else Rows(made).arrays()

    def _of_groups(self, rows: np.ndarray) -> Stack:
        sent = self._outbox.take(self.global_models.models, 0)
        models = self.trainer.stack([ModelState(model) for model in sent]).rows(self.group[rows])
        return replace(models, optimizer=self.stack.rows(rows).optimizer)

    def _forget(self, rows: np.ndarray) -> None:
        for tensor in self.stack.optimizer.values() if len(rows) else ():
            tensor[torch.from_numpy(rows).to(tensor.device)] = 0
        self._carries[rows], self._by[rows] = False, -1

    def _remember_sent(self) -> Callable[[], Stack]:
        if self.is_global.all() and not self.stack.optimizer:
            return lambda: self._of_groups(np.arange(len(self.at)))
        copy = self.stack.clone()
        return lambda: copy

    def _check_norms(self, received: Callable[[], Stack]) -> tuple[np.ndarray, np.ndarray]:
        """Which models are finite, as their norm tells, and which may have had too large an update: (models,) each."""
        stack, nothing = self.stack, np.zeros(len(self.at), dtype=bool)
        if not self.gate:
            return Rows(stack.state | stack.optimizer).finite(), nothing
        earlier = self._sizes or sizes_of(received())
        self._sizes = sizes = sizes_of(stack)
        finite = all(np.isfinite(norms).all() for norms in sizes)
        doubtful = stack.optimizer if finite else stack.state | stack.optimizer
        grown = np.any([after > GROWN * before for after, before in zip(sizes, earlier, strict=True)], axis=0)
        return Rows(doubtful).finite() if doubtful else ~nothing, np.asarray(grown)

    def _too_large(self, received: Stack, rows: np.ndarray) -> dict[int, str]:
        replies, sent = Rows(self.stack.state).arrays(rows.tolist()), Rows(received.state).arrays(rows.tolist())
        outliers = too_large(replies, sent, self._largest(), self.gate, alone=self._alone)
        return {int(rows[row]): why for row, why in outliers.items()}

    def _set_aside(
        self,
        received: Callable[[], Stack],
        lost: Mapping[int, Fault],
        reasons: dict[int, str],
        comm_round: CommRound,
        arrived: bool,
    ) -> list[Event]:
        good = np.delete(np.arange(len(self.at)), [*lost, *reasons])
        if lost:
            rows = np.array(sorted(lost))
            self.stack.put(rows, received().rows(rows))
        if not len(good) and (reasons or any(fault.kind != ABSENT for fault in lost.values())):
            why = reasons | {row: fault.reason for row, fault in lost.items()}
            named = sorted((self.names[self.at[row]], reason) for row, reason in why.items())
            reasons_given = "; ".join(f"{site}: {reason}" for site, reason in named)
            if not self.trainer.is_remote:
                reasons_given = next(iter(why.values()))
            raise ReplyError(f"No site gave a model that may be used at round {comm_round.t}: {reasons_given[:1000]}")
        self.is_global[good], self.trained[good] = False, True
        events = self._put_back(received(), reasons, comm_round.t, arrived) if reasons else []
        self._by[good] = self.at[good]
        return events

    def _put_back(self, received: Stack, reasons: dict[int, str], t: int, arrived: bool) -> list[Event]:
        bad = np.array(sorted(reasons, key=lambda row: self.at[row]))
        self.stack.put(bad, received.rows(bad))
        moments = leaving_state(self.plan.recipe, received.optimizer) if arrived else received.optimizer
        models = sizes(halves(Rows(received.state).arrays())[0])
        beside = sizes(Rows(moments).arrays()) if moments else np.zeros(len(models))
        absurd = are_outsized(models, beside, self._largest()) & (self._by >= 0) & self._federated
        absurd &= not self._alone  # each site has looked at what it sent, and no other sees it
        events = []
        for row in bad:
            site, by = self.names[self.at[row]], self.names[self._by[row]]
            events.append(journey.event(t, *name_culprit(site, reasons[row], by if absurd[row] else None)))
        if absurd[bad].any():
            self._restart(bad[absurd[bad]])
        return events

    def _restart(self, rows: np.ndarray) -> None:
        self.stack.put(rows, self._of_groups(rows))
        self.is_global[rows], self.trained[rows] = True, False
        self._forget(rows)

    def _largest(self) -> Arrays:
        return self.global_models.models[self.global_models.largest()]

    def _bytes(self, stretch: Sequence[CommRound], trained: TrainResult, at: np.ndarray, good: np.ndarray) -> int:
        if not self._federated or self.plan.method.topology is not None:
            return 0
        if trained.messages is not None:
            return trained.messages.orders + int(trained.messages.replies[good].sum())
        if self.plan.method.is_dynamic:
            return 0  # known when it is decided who takes part
        model, moments = self.sizes_of_one
        order = model + sum(array.nbytes for array in self.global_models.order_rule().values())
        total, before = sum(int(array[good].nbytes) for array in trained.rule.values()), self._before
        rows, carried = len(at), int(self._carries.sum())
        for comm_round in stretch:
            if before is None or before.travels:  # models have travelled, and come in orders
                total += rows * order + carried * moments
            if comm_round.travels:  # the answers
                total += (int(good.sum()) if comm_round is stretch[-1] else rows) * (model + moments)
            carried, before = rows if moments else carried, comm_round
        self._carries = self._carries | ((good | (len(stretch) > 1)) & bool(moments))
        return total if self._door is None else total + self._door.close(at, good)
