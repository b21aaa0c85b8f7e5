"""A station's state from order to order: the site's data, log, letters and training core."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsmall.audit_log import digest_of
from fedsmall.clients.consent import Consent
from fedsmall.clients.hospital import HospitalClient, memory_for
from fedsmall.clients.kept import Place
from fedsmall.clients.memory import memories_of
from fedsmall.clients.patients import charge_contact
from fedsmall.clients.policy import Policy, least_of_a_class
from fedsmall.clients.runs import check_same_data, folder_of_order, scaling_of
from fedsmall.clients.sealing import Letters
from fedsmall.clients.self_check import check_released
from fedsmall.clients.shelf import secret
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import SiteRequest, check_order, count_rounds, plan_of
from fedsmall.clients.telling import Telling
from fedsmall.data.raw_site import RawSite
from fedsmall.data.sources.files import stamp
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, SITES
from fedsmall.planning.tasks import load_site
from fedsmall.privacy.site_level import epsilon
from fedsmall.replicas.tree import plan_at
from fedsmall.sealing.roll import IDENTITY
from fedsmall.training.trainer import Seat, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ROUND, Arrays

NOISE_KEY = "noise.key"


@dataclass
class Session:
    """The site ``name``, whose file or folder is ``data``; it writes to ``home``, and trains on ``device``.

    ``policy_file`` lies beside the site's key and identity.
    """

    name: str
    data: Path | None
    home: Path
    policy_file: Path
    device: str

    def __post_init__(self) -> None:
        self.log = SiteLog(self.home, self.name)
        self.telling = Telling(self.home, self.log)
        self.consent = Consent(self.home, self.log)
        self.folder_of = partial(folder_of_order, self.home)
        self.letters = Letters(self.name, self.home, self.log, self.folder_of, self.policy_file.with_name(IDENTITY))
        self._samples: tuple[Any, RawSite, str] | None = None
        self._core: tuple[Any, SiteData, Trainer] | None = None
        self._released: tuple[str, int] | None = None

    def read(self, kind: str, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> SiteRequest:
        """A message as a request, once policy, hospital and run allow it."""
        plan = plan_of(config)
        raw, digest = self._read_samples(plan)
        place, sites = self.place(config)
        numbers = self._count_released(plan_at(plan, place, sites), raw, digest)
        samples, least = len(raw.train), least_of_a_class(raw)
        policy.check_plan(plan, raw.task.name, samples=samples, per_class=least, sites=sites, numbers=numbers)
        self.consent.check(kind, policy, plan, raw, config)
        order, folder = SiteRequest(plan, policy, raw, config, arrays), self.folder_of(config)
        check_order(kind, order, folder)
        check_same_data(folder, digest)
        return order

    def place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """The site's index among the names of the run's sites, and their count."""
        names = sorted({str(name) for name in config.get(SITES, ())})
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
            train, held_out = order.raw.samples(scaling)
            apart = order.raw.samples_kept_back(scaling)
            place = self.place(order.config)
            home = SiteData(self.name, order.raw.learns(scaling), train, held_out, False, *place, apart)
            self._core = (key, home, self._trainer(plan_at(order.plan, *place), home))
        _, home, cohort = self._core
        memory_of_training, kept = memories_of(folder, int(order.config.get(ROUND, 0)) + after)
        memory = memory_for(order.plan, memory_of_training)
        return HospitalClient(home, cohort.plan, cohort, memory, kept, secret(self.home / NOISE_KEY))

    def spend(self, order: SiteRequest) -> None:
        """Count a contact's rounds, and charge the privacy budget, before anything is trained.

        An answer that is asked for twice counts twice, for its noise is drawn anew. All are counted at the least noise
        of any: more than was spent, never less.
        """
        count_rounds(order, self.folder_of(order.config))
        if order.plan.privacy.is_patient_level:
            return charge_contact(self.log, *self.account(order), order.config)
        privacy = order.plan.privacy
        if privacy.noise == 0:
            return
        releases, least = self.log.spent()
        if order.policy.budget is not None:
            least = privacy.noise if least is None else min(least, privacy.noise)
            order.policy.check_budget(epsilon(least, order.policy.delta, releases + 1))
        self.log.spend(privacy.noise, run=str(order.config[RUN]), t=order.config[ROUND])

    def account(self, order: SiteRequest) -> tuple[Policy, Plan, int, tuple[int, int]]:
        """The arguments by which an order of a run with patient-level privacy is charged."""
        return order.policy, order.plan, len(order.raw.train), self.place(order.config)

    def _trainer(self, plan: Plan, home: SiteData) -> Trainer:
        seat = Seat((home.place,), home.sites, secret=True)
        return cohort_for(plan, home.task, [self.name], [home.train], path="loop", device=self.device, seat=seat)

    def _count_released(self, plan: Plan, raw: RawSite, digest: str) -> int:
        """The numbers in a model, once the plan's privacy is checked."""
        key = plan.model_dump_json() + digest
        if self._released is None or self._released[0] != key:
            self._released = (key, check_released(plan, raw))
        return self._released[1]

    def _read_samples(self, plan: Plan) -> tuple[RawSite, str]:
        key = (plan.data_key, stamp(self.data))
        if self._samples is None or self._samples[0] != key:
            raw = load_site(plan, self.name, self.data)
            self._samples = (key, raw, digest_of({"x": raw.train.x, "y": raw.train.y}))
        return self._samples[1], self._samples[2]
