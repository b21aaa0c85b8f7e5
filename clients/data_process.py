"""A site's data process: the long-lived program that holds the data and does all work on them.

It answers on a Unix socket that only its own user can reach, and knows no network. The site's policy is asked before
every answer, and what left is logged after it; tracebacks stay in the data process's own log. Handlers are a table
(:data:`HANDLERS`), which see requests in the clear: :meth:`fedsmall.clients.sealing.Encryption.wrap` opens what comes
and seals what leaves. Extensions add theirs by the entry points ``fedsmall.handlers``.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall import __version__
from fedsmall.audit_log import digest_of
from fedsmall.clients import site_request
from fedsmall.clients.consent import Consent
from fedsmall.clients.hospital import HospitalClient, fit_or_stay, memory_for, stayed_model
from fedsmall.clients.incoming import Incoming
from fedsmall.clients.kept import OWN_MODEL, Place, keep
from fedsmall.clients.memory import memories_of
from fedsmall.clients.patients import charge_comm_round, check_affordable, once
from fedsmall.clients.policy import CutError, Pace, Policy, check_time, cut_short, load_policy
from fedsmall.clients.runs import check_same_data, folder_of_order, forget_old, keep_scaling, scaling_of
from fedsmall.clients.sealing import Encryption
from fedsmall.clients.self_check import check_leaving, check_released
from fedsmall.clients.shelf import sealed_by, secret
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog, mark_of, note_table, spent_beside
from fedsmall.clients.site_request import Answer, SiteRequest
from fedsmall.clients.socket_frames import serve
from fedsmall.clients.telling import Telling, may_be_last
from fedsmall.data.raw_site import RawSite
from fedsmall.data.sources.files import stamp
from fedsmall.data.table_files import is_query, queries
from fedsmall.ends import KEY_FILE
from fedsmall.entry_points import HANDLERS as GROUP
from fedsmall.entry_points import allow_functions, extensions, load_extension
from fedsmall.errors import PlanError, PolicyError
from fedsmall.package.record import GLOBAL
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import ROWS, RUN, SCALING, SITES
from fedsmall.planning.tasks import load_site
from fedsmall.privacy.patient_level import shares_of
from fedsmall.privacy.site_level import epsilon
from fedsmall.replicas import plan_at
from fedsmall.sealing.envelopes import IDENTITY
from fedsmall.sealing.terms import BEFORE, HELP, PAIRS, READDRESS
from fedsmall.training.information import BudgetedCohort
from fedsmall.training.trainer import Indices, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import BALANCE, BLURRED, EXAMPLES, IS_GLOBAL, KEEP, MODEL, PROTOCOL, ROUND, VALIDATE, Arrays, split

NOISE_KEY = "noise.key"
TABLES = "FEDSMALL_TABLES"  # the folder where a user's data processes note their tables, if not ~/.fedsmall
Handler = Callable[["DataProcess", SiteRequest], Answer]
HANDLERS: dict[str, Handler] = {}  # by the kind of a request

Extension = Callable[[Policy, Mapping[str, Any], Arrays], Answer]


@dataclass
class DataProcess:
    """One site at work: its ``name``, its file or folder ``data``, and the folder ``home`` where it writes.

    In the folder ``tables`` a user's data processes note which table each has, so that one table has one budget.
    """

    name: str
    data: Path | None
    home: Path
    policy_file: Path
    device: str = "cpu"
    pace: Pace = field(default_factory=Pace)
    tables: Path | None = None

    def __post_init__(self) -> None:
        self.log = SiteLog(self.home, self.name)
        self.telling, self.consent = Telling(self.home, self.log), Consent(self.home, self.log)
        self.folder_of = partial(folder_of_order, self.home)
        identity = self.policy_file.with_name(IDENTITY)
        self.encryption = Encryption(self.name, self.home, self.log, self.folder_of, identity)
        public = self.policy_file.with_name(f"{KEY_FILE}.pub")
        self._logged = site_request.LoggedAnswers(self.log, public, self.consent.is_new, self._handle)
        self._samples: tuple[Any, RawSite, str] | None = None
        self._core: tuple[Any, SiteData, Trainer] | None = None
        self._released: tuple[str, int] | None = None
        self._mark: tuple[RawSite, bytes] | None = None
        self._exposed: tuple[dict[str, str], list[int]] | None = None
        self._extensions: dict[str, Extension] = {}

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to one message; a refusal or a failure is an answer of one line."""
        try:
            return self._logged.answer(kind, config, arrays)
        except CutError as cut:
            self.__post_init__()  # as a data process that is started again: what counts is on the disk
            return replace(self._logged, handle=partial(_refuse, cut.reason)).answer(kind, config, {})

    def _handle(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        extension = None if kind in HANDLERS else self._extension(kind)
        policy = load_policy(self.policy_file)
        policy.check_device(self.device)
        self.pace.check(policy, arrays)
        if kind == "roll":
            forget_old(self.home, self.log, policy.forget_after_days)
        since = time.monotonic()

        def check_goes_on() -> None:
            check_time(policy, time.monotonic() - since)
            self.consent.check_paused(kind)

        with sealed_by(policy.rest_key), allow_functions(policy.functions), cut_short(check_goes_on):
            if extension is not None:
                return extension(policy, config, arrays)
            order = self.read(kind, policy, config, arrays)
            self.log.beside = tuple(spent_beside(self._homes_beside(order)))
            handle = self.encryption.wrap(kind, partial(HANDLERS[kind], self))
            if kind == "train" and order.plan.privacy.is_patient_level:
                return once(self.folder_of(config) / "answers", config, arrays, lambda: handle(order))
            return handle(order)

    def _extension(self, kind: str) -> Extension:
        if kind not in self._extensions:
            if kind not in extensions(GROUP):
                raise PlanError("this site was asked for something that it does not know")
            handler = load_extension(GROUP, kind)(self.name, self.data, self.encryption, self.consent)
            self._extensions[kind] = handler.answer
        return self._extensions[kind]

    def read(self, kind: str, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> SiteRequest:
        """A message as a request, once policy, hospital and run allow it."""
        plan = site_request.plan_of(config)
        raw, digest = self._read_samples(plan, str(config.get(RUN, "")), policy.functions)
        place, sites = self.place(config)
        key = plan_at(plan, place, sites).model_dump_json() + digest + str(policy.functions)
        if self._released is None or self._released[0] != key:  # how many numbers leave, once privacy is checked
            self._released = (key, check_released(plan_at(plan, place, sites), raw))
        identity = self.encryption.identity.exists()
        policy.check_site(plan, raw, sites=sites, numbers=self._released[1], has_identity=identity)
        self.consent.check(kind, policy, plan, raw, config)
        order, folder = SiteRequest(plan, policy, raw, config, arrays), self.folder_of(config)
        site_request.check_order(kind, order, folder)
        check_same_data(folder, digest)
        return order

    def place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """The site's index among the names of the run's sites, and their count."""
        sites = config.get(SITES)
        names = sorted({str(name) for name in sites}) if isinstance(sites, Sequence) else []
        if self.name not in names:
            raise PlanError("the order is of a run that this site is not in")
        return names.index(self.name), len(names)

    def place_of_models(self, order: SiteRequest) -> Place:
        """Where models of an order's run are kept on the site's own disk."""
        folder = self.folder_of(order.config)
        scaling, (_, sites) = scaling_of(folder) if order.raw.scaled else None, self.place(order.config)
        return Place(folder, str(order.config[RUN]), order.raw, scaling, sites, int(order.config[ROUND]))

    def client(self, order: SiteRequest, *, scaled: bool = True, after: bool = False) -> HospitalClient:
        """The client that trains and evaluates here, with the memory before the order's round, or ``after`` it."""
        folder = self.folder_of(order.config)
        scaling = scaling_of(folder) if order.raw.scaled and scaled else None
        key = (order.plan, id(order.raw), None if scaling is None else digest_of(vars(scaling)))
        if self._core is None or self._core[0] != key:
            place, (train, held_out) = self.place(order.config), order.raw.samples(scaling)
            apart, task = order.raw.samples_kept_back(scaling), order.raw.learns(scaling)
            home = SiteData(self.name, task, train, held_out, False, *place, apart)
            indices = Indices((place[0],), place[1], True)
            plan = plan_at(order.plan, *place)
            trainer = cohort_for(plan, task, [self.name], [train], path="loop", device=self.device, indices=indices)
            self._core = (key, home, trainer)
        _, home, cohort = self._core
        memory_of_training, kept = memories_of(folder, int(order.config.get(ROUND, 0)) + after)
        memory = memory_for(order.plan, memory_of_training)
        return HospitalClient(home, cohort.plan, cohort, memory, kept, secret(self.home / NOISE_KEY))

    def spend(self, order: SiteRequest) -> None:
        """Count a communication round's rounds, and charge the privacy budget, before anything is trained.

        An answer that is asked for twice counts twice: its noise is drawn again. All count at the least noise of any.
        """
        site_request.count_rounds(order, self.folder_of(order.config))
        if order.plan.privacy.is_patient_level:
            return charge_comm_round(self.log, *self.account(order), order.config)
        privacy = order.plan.privacy
        client = self.client(order)
        if isinstance(client.trainer, BudgetedCohort):
            self._expose(order, client.trainer, client.noise_key or b"")
        if privacy.noise == 0:
            return
        releases, least = self.log.spent()
        if order.policy.budget is not None:
            least = privacy.noise if least is None else min(least, privacy.noise)
            order.policy.check_budget(epsilon(least, order.policy.delta, releases + 1))
        self.log.spend(privacy.noise, run=str(order.config[RUN]), t=order.config[ROUND])

    def _expose(self, order: SiteRequest, cohort: BudgetedCohort, key: bytes) -> None:
        """Charge what all communication rounds so far tell of the patient who is in most, less what was charged."""
        run, t, plan = str(order.config[RUN]), int(order.config[ROUND]), order.plan.model_dump_json()
        marks = {"run": run, "of": digest_of({"plan": np.array(plan), "x": order.raw.train.x, "key": np.array(key)})}
        if self._exposed is None or self._exposed[0] != marks:  # a log of years is read once for a run
            lines = [entry for entry in self.log.entries() if entry["event"] == "exposed"]
            self._exposed = (marks, [entry["t"] for entry in lines if marks.items() <= entry.items()])
        before = self._exposed[1]
        exposure = cohort.exposure_after(0, [*before, t]) - cohort.exposure_after(0, before)
        order.policy.check_exposure(self.log.exposure() + exposure)
        self.log.expose(exposure, t=t, **marks)
        before.append(t)

    def account(self, order: SiteRequest) -> tuple[Policy, Plan, np.ndarray, tuple[int, int]]:
        """The arguments by which an order of a run with patient-level privacy is charged."""
        return order.policy, order.plan, shares_of(order.raw.train), self.place(order.config)

    def _homes_beside(self, order: SiteRequest) -> list[Path]:
        """The other homes with this site's table, where a budget is spent; looked for at every order."""
        privacy = order.plan.privacy
        if self.tables is None or not (privacy.counted or privacy.exposure is not None):
            return []
        try:
            if self._mark is None or self._mark[0] is not order.raw:
                self._mark = (order.raw, mark_of(self.tables, order.raw))
            return note_table(self.tables, self.home, self._mark[1])
        except OSError as error:
            print(f"{self.tables} cannot be written ({error.strerror}): a budget is this name's alone", flush=True)
            return []

    def _read_samples(self, plan: Plan, run: str = "", functions: tuple[str, ...] = ()) -> tuple[RawSite, str]:
        key = (plan.data_key, stamp(self.data), is_query(self.data) and run, functions)  # a query is asked once a run
        if self._samples is None or self._samples[0] != key:
            for kind, text in queries(self.data).items():
                self.log.write("asked", run=run, kind=kind, reason=text)
            raw = load_site(plan, self.name, self.data)
            self._samples = (key, raw, digest_of({"x": raw.train.x, "y": raw.train.y}))
        return self._samples[1:]


def answers(kind: str) -> Callable[[Handler], Handler]:
    """Register a handler of requests of this kind."""

    def register(handler: Handler) -> Handler:
        HANDLERS[kind] = handler
        return handler

    return register


@answers("roll")
def introduce_site(site: "DataProcess", order: SiteRequest) -> Answer:
    """The handshake: the site's properties, and the sums that a run begins with."""
    if order.plan.privacy.is_patient_level:
        check_affordable(site.log, *site.account(order), str(order.config.get(RUN, "")))
    properties = site.client(order, scaled=False).get_properties({})
    properties[EXAMPLES] = max(int(properties[EXAMPLES]), order.policy.count_floor)
    rows = order.raw.preparation.model_dump_json()  # how rows become samples, for whoever uses the model later
    words = {**properties, "version": __version__, "protocol": PROTOCOL, "scaled": order.raw.scaled, ROWS: rows}
    return {"config": words}, site.telling.at_handshake(order)


@answers("scaling")
def take_scaling(site: "DataProcess", order: SiteRequest) -> Answer:
    """Keep the scaling on which the sites have agreed."""
    agreed = split(order.arrays, SCALING)
    if order.raw.scaled and agreed:  # else keys alone came: sums are told in a tally
        keep_scaling(site.folder_of(order.config), agreed, order.raw.summed_values.shape[1:])
    return {"config": {}}, {}


@answers(BEFORE)
def tell_sums(site: "DataProcess", order: SiteRequest) -> Answer:
    """Sums of features and classes. Raises PlanError where the handshake has asked for them."""
    if not order.plan.privacy.secure:
        raise PlanError("sums are sent with the answer to the handshake, in a run that does not hide them")
    return {"config": {}}, site.telling.before_the_first(order)


@answers("train")
def train(site: "DataProcess", order: SiteRequest) -> Answer:
    """Train the model that came or stayed, check what would leave, and send it."""
    client, folder = site.client(order), site.folder_of(order.config)
    came, (_, sites) = split(order.arrays, MODEL), site.place(order.config)
    incoming = Incoming(folder, client, int(order.config[ROUND]), sites)
    incoming.check_arrays(came)
    if order.policy.check_models:
        incoming.check(came)
    site.spend(order)
    leaving, examples, metrics = fit_or_stay(client, order.arrays, site_request.with_names(order))
    counted = {EXAMPLES: max(examples, order.policy.count_floor), **metrics}
    sent = dict(zip(client.sent_names, (np.asarray(array) for array in leaving), strict=True))
    if client.trained:
        keep(site.place_of_models(order), order.plan, OWN_MODEL, client.trained)
    sent, kappa = check_leaving(site.log, order, sent, client)
    incoming.keep(came, bool(order.config.get(IS_GLOBAL)), split(sent, MODEL))
    return {"metrics": counted | ({BLURRED: kappa} if kappa else {}), "order": client.sent_names}, sent


@answers(BALANCE)
def send_stayed_model(site: "DataProcess", order: SiteRequest) -> Answer:
    """Send the model that has stayed here, which an average wants."""
    client = site.client(order, after=True)
    sent, _ = check_leaving(site.log, order, stayed_model(client, order.config), client)
    return {"order": list(sent)}, sent


@answers("evaluate")
def evaluate(site: "DataProcess", order: SiteRequest) -> Answer:
    """Evaluate a global model on the held-out patients; at a run's end keep it, and tell of it in sums."""
    samples = 0 if order.raw.held_out is None else len(order.raw.held_out)
    reported: dict[str, Any] = {EXAMPLES: 0}
    client, folder = site.client(order, after=True), site.folder_of(order.config)
    t = int(order.config.get(ROUND, 0))
    if samples >= order.policy.count_floor:  # a share of three patients is as good as their labels
        _, examples, metrics = client.evaluate(list(order.arrays.values()), site_request.with_names(order))
        reported = {EXAMPLES: examples, **metrics}
    at_home: dict[str, Any] = {}
    if order.plan.method.adds_intercepts and (order.config.get(KEEP) or may_be_last(order.plan, t)):
        at_home = client.adjust(order.arrays)
    if order.config.get(KEEP) or t == order.plan.rounds:
        place, model = site.place_of_models(order), split(order.arrays, MODEL)
        keep(place, order.plan, GLOBAL, model, reported | at_home, client.intercept)
    if may_be_last(order.plan, t):
        return site.telling.at_the_end(order, client, reported, folder)
    return {"metrics": reported}, {}


@answers(VALIDATE)
def validate(site: "DataProcess", order: SiteRequest) -> Answer:
    """Evaluate models on patients that they never saw."""
    return site.telling.out_of_fold(order, site.client(order, after=True))


HANDLERS |= {
    HELP: lambda site, order: site.encryption.help(order),
    PAIRS: lambda site, order: site.encryption.take_pair_keys(order),
    READDRESS: lambda site, order: site.encryption.readdress(order),
}


def _refuse(reason: PolicyError, *_: Any) -> Answer:
    raise reason


def main(arguments: list[str]) -> None:
    """``python -m fedsmall.clients.data_process NAME HOME POLICY SOCKET DEVICE [DATA]``, run by `fedsmall site up`."""
    name, home, policy, path, device, *data = arguments
    tables = Path(os.environ.get(TABLES, Path.home() / ".fedsmall"))
    data_process = DataProcess(name, Path(data[0]) if data else None, Path(home), Path(policy), device, tables=tables)
    serve(Path(path), data_process.answer, f"data process {name}: ready")


if __name__ == "__main__":
    main(sys.argv[1:])
