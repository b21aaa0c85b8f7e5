"""A site's station: the long-lived program that holds the data and does everything that is ever done with them.

It answers on a Unix socket that only its own user can reach, and speaks to no network. Before it answers it asks the
site's policy; after it has answered it writes down what left. What goes wrong inside is told as one line; the traceback
stays in the station's own log.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall import __version__
from fedsmall.audit_log import digest_of
from fedsmall.clients.consent import Consent
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.kept import OWN_MODEL, Place, keep
from fedsmall.clients.log_ends import LogEnds
from fedsmall.clients.memory import check_same_data, folder_of_order, keep_scaling, memories_of, scaling_of
from fedsmall.clients.patients import Answer, charge_contact, check_affordable, once
from fedsmall.clients.policy import Policy, load_policy
from fedsmall.clients.sealing import hidden_sums
from fedsmall.clients.sealing.letters import Letters
from fedsmall.clients.self_check import check_released, looked_over
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import SiteRequest, check_order, count_rounds, named, plan_of
from fedsmall.clients.socket_frames import serve
from fedsmall.clients.staying.training import asked_for, fitted, memory_for
from fedsmall.clients.telling.answers import Telling
from fedsmall.clients.telling.logged import LoggedAnswers
from fedsmall.clients.telling.run_end import may_be_last
from fedsmall.clients.upkeep.at_rest import keeping, secret
from fedsmall.clients.upkeep.caps import CutError, Pace, check_time, cut_short, least_of_a_class
from fedsmall.clients.upkeep.forgetting import forget_old
from fedsmall.clients.visitors import keep_visitor, worth_of_visitors
from fedsmall.data.raw_site import RawSite
from fedsmall.data.sources.files import stamp
from fedsmall.ends import KEY_FILE
from fedsmall.entry_points import HANDLERS, extensions, load_extension
from fedsmall.errors import PlanError, PolicyError
from fedsmall.package.record import COMMON
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import is_patient_level
from fedsmall.privacy.site_level import epsilon
from fedsmall.replicas.tree import plan_at
from fedsmall.run_sheet import ROWS, RUN, SCALING, SITES
from fedsmall.sealing.roll import IDENTITY
from fedsmall.sealing.words import BEFORE, HELP, READDRESS
from fedsmall.tasks import load_site
from fedsmall.training.trainer import Seat, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import BALANCE, BLURRED, EXAMPLES, KEEP, MODEL, ROUND, VALIDATE, Arrays, split

NOISE_KEY = "noise.key"


@dataclass
class Station:
    """One site at work: ``name`` is its own name, ``data`` its file or folder, ``home`` is where it writes.

    ``device`` is where it trains: its own matter, of which no message speaks.
    """

    name: str
    data: Path | None
    home: Path
    policy_file: Path
    device: str = "cpu"
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.log = SiteLog(self.home, self.name)
        self._told = Telling(self.home, self.log)
        self.consent = Consent(self.home, self.log)
        self.ends = LogEnds(self.log, self.policy_file.with_name(f"{KEY_FILE}.pub"))
        self._door = LoggedAnswers(self.log, self.ends, self.consent.is_new, self._handle)
        self._read: tuple[Any, RawSite, str] | None = None
        self._core: tuple[Any, SiteData, Trainer] | None = None
        self._kept: tuple[str, int] | None = None
        self._run_folder = partial(folder_of_order, self.home)
        self._letters = Letters(self.name, self.home, self.log, self._run_folder, self.policy_file.with_name(IDENTITY))
        self._extended: dict[str, Any] = {}  # handlers of extensions, by the kinds that they answer

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """What the site answers to one message; a refusal or a failure is an answer too, of one line."""
        try:
            return self._door.answer(kind, config, arrays)
        except CutError as cut:
            self.__post_init__()  # as a station that is started again: what counts is on the disk
            return replace(self._door, handle=partial(_refuse, cut.reason)).answer(kind, config, {})

    def _handle(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        handlers = {"roll": self._roll, "scaling": self._take_agreed, "train": self._train}
        handlers |= {"evaluate": self._evaluate, VALIDATE: self._validate, BALANCE: self._balance}
        handlers |= {HELP: self._letters.help, READDRESS: self._letters.readdress, BEFORE: self._before}
        if kind not in (*handlers, *extensions(HANDLERS)):
            raise PlanError("this site was asked for something that it does not know")
        policy = load_policy(self.policy_file)
        policy.check_device(self.device)
        self.pace.check(policy, arrays)
        if kind == "roll":
            forget_old(self.home, self.log, policy.forget_after_days)
        with keeping(policy.rest_key), cut_short(partial(self._may_go_on, kind, policy, time.monotonic())):
            if kind not in handlers:
                return self._handler(kind).answer(policy, config, arrays)  # type: ignore[no-any-return]
            return handlers[kind](self._request(kind, policy, config, arrays))

    def _handler(self, kind: str) -> Any:
        if kind not in self._extended:
            made_by = load_extension(HANDLERS, kind)
            self._extended[kind] = made_by(self.name, self.data, self._letters, self.consent)
        return self._extended[kind]

    def _may_go_on(self, kind: str, policy: Policy, since: float) -> None:
        """Raise PolicyError where an order taken then is to be worked on no longer."""
        check_time(policy, time.monotonic() - since)
        self.consent.check_paused(kind)

    def _request(self, kind: str, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> SiteRequest:
        """A message, read, once it is known that the policy allows it, and the hospital has agreed to it."""
        plan = plan_of(config)
        raw, digest = self._samples(plan)
        place, sites = self._place(config)
        numbers = self._released(plan_at(plan, place, sites), raw, digest)
        samples, least = len(raw.train), least_of_a_class(raw)
        policy.check_plan(plan, raw.task.name, samples=samples, per_class=least, sites=sites, numbers=numbers)
        self.consent.check(kind, policy, plan, raw, config)
        order, folder = SiteRequest(plan, policy, raw, config, arrays), self._run_folder(config)
        check_order(kind, order, folder)
        check_same_data(folder, digest)
        return order

    def _roll(self, order: SiteRequest) -> Answer:
        if is_patient_level(order.plan):
            check_affordable(self.log, *self._account(order), str(order.config.get(RUN, "")))
        properties = self._client(order, scaled=False).get_properties({})
        properties[EXAMPLES] = max(int(properties[EXAMPLES]), order.policy.count_floor)
        rows = order.raw.preparation.model_dump_json()  # how rows become samples, for whoever uses the model later
        words = {**properties, "version": __version__, "scaled": order.raw.scaled, ROWS: rows}
        return {"config": words | self._letters.announced(order)}, self._told.at_the_roll(order)

    def _take_agreed(self, order: SiteRequest) -> Answer:
        agreed = split(order.arrays, SCALING)
        if order.raw.scaled and agreed:  # else keys alone came: sums are told in a tally
            keep_scaling(self._run_folder(order.config), agreed, order.raw.told.shape[1:])
        return {"config": self._letters.taken(order)}, {}

    def _before(self, order: SiteRequest) -> Answer:
        return hidden_sums.before_the_first(self._letters, self._told, order)

    def _train(self, order: SiteRequest) -> Answer:
        if is_patient_level(order.plan):
            answers = self._run_folder(order.config) / "answers"
            return once(answers, order.config, order.arrays, lambda: self._trained(order))
        return self._trained(order)

    def _trained(self, sealed: SiteRequest) -> Answer:
        errand = self._letters.errand(sealed)
        order = self._letters.opened(sealed, errand)
        self._spend(order)
        client = self._client(order)
        leaving, examples, metrics = fitted(client, order.arrays, named(order))
        counted = {EXAMPLES: max(examples, order.policy.count_floor), **metrics}
        sent = dict(zip(client.sent_names, (np.asarray(array) for array in leaving), strict=True))
        if client.trained:
            keep(self._kept_at(order), order.plan, OWN_MODEL, client.trained)
        sent, kappa = looked_over(self.log, order, sent, client)
        keep_visitor(self._run_folder(order.config), order.config, order.plan, sent, self.name)
        header = {"metrics": counted | ({BLURRED: kappa} if kappa else {}), "order": client.sent_names}
        return self._letters.closed(order, errand, header, sent)

    def _balance(self, order: SiteRequest) -> Answer:
        client = self._client(order, after=True)
        sent, _ = looked_over(self.log, order, asked_for(client, order.config), client)
        return {"order": list(sent)}, sent

    def _evaluate(self, order: SiteRequest) -> Answer:
        samples = 0 if order.raw.held_out is None else len(order.raw.held_out)
        said: dict[str, Any] = {EXAMPLES: 0}
        client, t = self._client(order, after=True), int(order.config.get(ROUND, 0))
        if samples >= order.policy.count_floor:  # a share of three patients is as good as their labels
            _, examples, metrics = client.evaluate(list(order.arrays.values()), named(order))
            kept = worth_of_visitors(self._run_folder(order.config), order.config, client)
            said = {EXAMPLES: examples, **metrics, **kept}
        if order.config.get(KEEP) or t == order.plan.rounds:
            keep(self._kept_at(order), order.plan, COMMON, split(order.arrays, MODEL), said)
        told: Answer = {"metrics": said}, {}
        if may_be_last(order.plan, t):
            told = self._told.at_the_end(order, client, said, self._run_folder(order.config))
        told = hidden_sums.evaluation(self._letters, order, *told)
        if may_be_last(order.plan, t):
            self._letters.end(order)
        return told

    def _kept_at(self, order: SiteRequest) -> Place:
        """Where a model is kept, on the site's own disk, so that it can be used here when the run is over."""
        scaling = scaling_of(self._run_folder(order.config)) if order.raw.scaled else None
        folder, (_, sites) = self._run_folder(order.config), self._place(order.config)
        return Place(folder, str(order.config[RUN]), order.raw, scaling, sites, int(order.config[ROUND]))

    def _validate(self, order: SiteRequest) -> Answer:
        told = self._told.out_of_fold(order, self._client(order, after=True))
        return hidden_sums.unseen(self._letters, order, *told)

    def _client(self, order: SiteRequest, *, scaled: bool = True, after: bool = False) -> HospitalClient:
        """Who trains and judges here; with the memory that the site has before the order's round, or ``after`` it."""
        scaling = scaling_of(self._run_folder(order.config)) if order.raw.scaled and scaled else None
        key = (order.plan, id(order.raw), None if scaling is None else digest_of(vars(scaling)))
        if self._core is None or self._core[0] != key:
            train, held_out = order.raw.samples(scaling)
            apart = order.raw.samples_kept_back(scaling)
            home = SiteData(
                self.name, order.raw.learns(scaling), train, held_out, False, *self._place(order.config), apart
            )
            plan = plan_at(order.plan, home.place, home.sites)
            self._core = (key, home, self._trainer(plan, home))
        _, home, cohort = self._core
        own, kept = memories_of(self._run_folder(order.config), int(order.config.get(ROUND, 0)) + after)
        memory = memory_for(order.plan, own)
        return HospitalClient(home, cohort.plan, cohort, memory, kept, secret(self.home / NOISE_KEY))

    def _trainer(self, plan: Plan, home: SiteData) -> Trainer:
        seat = Seat((home.place,), home.sites, secret=True)
        return cohort_for(plan, home.task, [self.name], [home.train], path="loop", device=self.device, seat=seat)

    def _released(self, plan: Plan, raw: RawSite, digest: str) -> int:
        """How many numbers a model has, once it is known that the plan's privacy is kept by what it would have sent."""
        key = plan.model_dump_json() + digest
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, check_released(plan, raw))
        return self._kept[1]

    def _place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        names = sorted({str(name) for name in config.get(SITES, ())})
        if self.name not in names:
            raise PlanError("the order is of a run that this site is not in")
        return names.index(self.name), len(names)

    def _samples(self, plan: Plan) -> tuple[RawSite, str]:
        """The site's samples and their digest, read again when a file has changed."""
        key = (plan.data_key, stamp(self.data))
        if self._read is None or self._read[0] != key:
            raw = load_site(plan, self.name, self.data)
            self._read = (key, raw, digest_of({"x": raw.train.x, "y": raw.train.y}))
        return self._read[1], self._read[2]

    def _spend(self, order: SiteRequest) -> None:
        """Count the contact's rounds, and the contact against the budget, before anything is trained.

        An answer that is asked for twice counts twice, for its noise is drawn anew. All are counted at the least noise
        of any of them: more than was spent, never less.
        """
        count_rounds(order, self._run_folder(order.config))
        if is_patient_level(order.plan):
            return charge_contact(self.log, *self._account(order), order.config)
        privacy = order.plan.method.privacy
        if privacy is None or privacy.noise == 0:
            return
        releases, least = self.log.spent()
        if order.policy.budget is not None:
            least = privacy.noise if least is None else min(least, privacy.noise)
            order.policy.check_budget(epsilon(least, order.policy.delta, releases + 1))
        self.log.spend(privacy.noise, run=str(order.config[RUN]), t=order.config[ROUND])

    def _account(self, order: SiteRequest) -> tuple[Policy, Plan, int, tuple[int, int]]:
        return order.policy, order.plan, len(order.raw.train), self._place(order.config)


def _refuse(reason: PolicyError, *_: Any) -> Answer:
    raise reason


def main(arguments: list[str]) -> None:
    """``python -m fedsmall.clients.station NAME HOME POLICY SOCKET DEVICE [DATA]``: what `fedsmall site up` runs."""
    name, home, policy, path, device, *data = arguments
    station = Station(name, Path(data[0]) if data else None, Path(home), Path(policy), device)
    serve(Path(path), station.answer, f"station {name}: ready")


if __name__ == "__main__":
    main(sys.argv[1:])
