"""The site's policy: what it allows, read from its own file and enforced by its own program before it answers.

Samples, rounds and spent privacy are the site's own counts; the number of sites is the order's, and is logged.
"""

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from fedsmall.aggregation.sums import with_sealed_handovers
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import DataError, PolicyError
from fedsmall.evaluation.stopping import unseen_key
from fedsmall.files import read_toml
from fedsmall.parts import Device, Frozen, Recipe
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import lot_of
from fedsmall.privacy.site_level import as_blur, hands_on
from fedsmall.wire import Arrays

OWN = "own"
SLACK = 1e-6  # sums of epsilons are rounded
MOST_DRAWN = 100_000_000  # samples in a round: their numbers are drawn before it begins, and take eight bytes each
LIMITS = {
    "least_samples": "this site has fewer than the {1} samples its policy asks for",
    "least_per_class": "this site has fewer than the {1} samples of a class that its policy asks for",
    "least_sites": "the federation has {0} sites; the policy here asks for {1}",
    "most_rounds": "the plan has {0} rounds; the policy here allows {1}",
    "most_numbers": "a model of the plan has {0:,} numbers; the policy here allows {1:,}",
}  # what is counted, and the policy's limit


class Policy(Frozen):
    """What a site allows; ``policy.toml`` beside this module says what each key means, in its hospital's words.

    An empty list allows all of its kind, None demands nothing; ``sealed`` None asks for envelopes where possible.
    """

    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    least_samples: Annotated[int, Field(ge=1)] = 8
    count_floor: Annotated[int, Field(ge=1)] = 8
    least_per_class: Annotated[int, Field(ge=1)] = 1
    least_sites: Annotated[int, Field(ge=1)] = 3
    most_rounds: Annotated[int, Field(ge=1)] = 2_000
    most_numbers: Annotated[int, Field(ge=1)] = 2_000_000
    check_models: bool = True
    judge: bool = True
    permute: bool = True
    least_blur: Annotated[float, Field(ge=0)] = 1.0
    least_batch: Annotated[int, Field(ge=1)] = 8
    most_read: Annotated[int, Field(ge=0)] = 0
    when_read: Literal["blur", "refuse"] = "blur"
    clip: Annotated[float, Field(gt=0)] | None = None
    noise: Annotated[float, Field(ge=0)] | None = None
    budget: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    most_epsilon: Annotated[float, Field(gt=0)] | None = None
    most_exposure: Annotated[float, Field(gt=0)] | None = None
    least_lot: Annotated[int, Field(ge=1)] | None = None
    bundles: tuple[str, ...] = (OWN,)
    functions: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    approve: bool = False
    coordinators: tuple[Annotated[str, Field(pattern="^SHA256:[A-Za-z0-9+/]{43}$")], ...] = ()
    most_orders_per_minute: Annotated[int, Field(ge=1)] | None = None
    most_order_mib: Annotated[float, Field(gt=0)] | None = None
    most_order_minutes: Annotated[float, Field(gt=0)] = 60.0
    forget_after_days: Annotated[int, Field(ge=1)] | None = None
    rest_key: Annotated[str, Field(min_length=1)] | None = None
    sealed: bool | None = None
    secure: bool = False
    roll: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")] | None = None
    most_readdressed: Annotated[int, Field(ge=0)] = 20
    columns: bool = False
    least_side: Annotated[int, Field(ge=1)] = 5
    predict_from: Annotated[str, Field(min_length=1)] | None = None

    def check_plan(
        self,
        plan: Plan,
        task: str,
        *,
        samples: int,
        sites: int,
        numbers: int = 1,
        per_class: int | None = None,
        has_identity: bool = False,
    ) -> None:
        """Raise PolicyError, in one line without a number of the site's, unless this site may take part in the plan.

        ``task`` is the name of the site's own task, ``samples`` its training samples, ``sites`` the server's count,
        ``numbers`` the size of a model, ``per_class`` those of its rarest class. Who ``has_identity`` can encrypt.
        """
        method = plan.method
        for what, name, allowed in (("task", task, self.tasks), ("method", method.name, self.methods)):
            if allowed and name not in allowed:
                raise PolicyError(f"{what} {name!r} is not among those allowed here ({', '.join(allowed)})")
        found = {"samples": samples, "per_class": per_class, "sites": sites, "rounds": plan.rounds, "numbers": numbers}
        for key, reason in LIMITS.items():
            kind, what = key.split("_", 1)
            limit, count = getattr(self, key), found[what]
            if count is not None and (count < limit if kind == "least" else count > limit):
                raise PolicyError(f"{reason.format(count, limit)} ({key})")
        if (asked := unseen_key(plan)) is not None and not self.judge:
            raise PolicyError(f"the policy here lets no sums over its patients be told (judge); leave {asked} out")
        if method.trains_networks and not plan.privacy.is_patient_level:  # whose noise makes a small lot no danger
            self._check_batch(plan.recipe, samples)
        self._check_envelopes(plan, sites, has_identity)
        self._check_privacy(plan)
        self._check_hops(plan, numbers, sites)

    def check_site(self, plan: Plan, raw: RawSite, *, sites: int, numbers: int, has_identity: bool) -> None:
        """As :meth:`check_plan`, for what a site holds; how that is scaled counts, too."""
        found, rarest = {"samples": len(raw.train), "sites": sites, "numbers": numbers}, least_of_a_class(raw)
        self.check_plan(plan, raw.task.name, **found, per_class=rarest, has_identity=has_identity)
        if 0 < raw.unlabelled < self.count_floor:  # else runs that differ in them would count a few patients
            raise PolicyError("too few rows here have no outcome to leave them out (count_floor); delete them first")
        if self.most_exposure is not None and raw.scaled:  # by exact sums, which no limit of exposure covers
            raise PolicyError(
                "the policy here limits how much of a record may be told (most_exposure), and the exact sums by which "
                "features are scaled pass it; state their public ranges in the task, as in ranges = {age = [0, 120]}"
            )

    def check_budget(self, epsilon: float) -> None:
        """Raise PolicyError where ``epsilon``, after the communication round that is asked for, is over the budget."""
        if self.budget is not None and not epsilon <= self.budget:
            raise PolicyError(f"the privacy budget of {self.budget:g} at delta {self.delta:g} is spent")

    def check_patients(self, epsilon: float, plan: Plan) -> None:
        """Raise PolicyError where ``epsilon``, at the policy's delta, is more than a patient may be charged."""
        if self.most_epsilon is not None and not epsilon <= self.most_epsilon * (1 + SLACK):
            raise PolicyError(
                f"with this the runs on this site's patients would cost more than epsilon {self.most_epsilon:g} at "
                f"delta {self.delta:g}, which the policy here allows (most_epsilon); take fewer rounds or more noise"
            )

    def check_exposure(self, exposure: float) -> None:
        """Raise PolicyError where ``exposure``, all runs together, is more than may be told of a record."""
        if self.most_exposure is not None and not exposure <= self.most_exposure * (1 + SLACK):
            most = f"exposure {self.most_exposure:g}, which the policy here allows (most_exposure)"
            raise PolicyError(f"with this the runs on this site's patients would tell more of a record than {most}")

    def check_device(self, device: str) -> None:
        """Raise PolicyError unless the site may train on this device."""
        if self.devices and device not in self.devices and device.partition(":")[0] not in self.devices:
            raise PolicyError(f'device "{device}" is not among those allowed here ({", ".join(self.devices)})')

    def _check_batch(self, recipe: Recipe, samples: int) -> None:
        if recipe.batch is not None and recipe.batch < self.least_batch:
            raise PolicyError(
                f"the plan trains in batches of {recipe.batch}; the policy here asks for {self.least_batch} or more "
                "(least_batch)"
            )
        epoch = recipe.epoch_sizes(samples)
        if max(epoch) * recipe.count_steps(samples) > MOST_DRAWN:
            raise PolicyError(f"a round would draw more than {MOST_DRAWN:,} samples here; take fewer steps or epochs")
        if min(epoch[: recipe.steps]) < self.least_batch:
            raise PolicyError(
                f"a batch here would be smaller than the {self.least_batch} samples its policy asks for (least_batch); "
                f"take a batch of {2 * self.least_batch - 1} or more with even_batches = true, or leave batch out"
            )

    def _check_hops(self, plan: Plan, numbers: int, sites: int) -> None:
        bare = not (plan.privacy.secure or plan.privacy.is_patient_level)
        if self.least_blur and plan.method.sends_sums and bare:
            secure = "" if plan.method.permutes else "privacy = {secure = true} under it, or "
            raise PolicyError(
                "the sums of a regression, or for trees, can be solved for single patients, and no noise hides them "
                f"(least_blur); write {secure}least_blur = 0 into the policy"
            )
        if not hands_on(plan.method, sites, self.least_sites):  # an average over too few is as good as a hop
            return
        if not self.permute:
            raise PolicyError(
                "the policy here lets no model be handed over to a site, nor an average of too few (least_sites); "
                "take a method that averages over more sites"
            )
        if self.least_blur and not plan.method.trains_networks:
            raise PolicyError(
                "trees of single sites, or sums of too few, go to others, and no noise hides whose patients they are "
                "of (least_blur); take FedHistogramXGB or Ridge over more sites, or write least_blur = 0 here"
            )
        if as_blur(plan.privacy, numbers) < self.least_blur:
            raise PolicyError(
                "the plan hands over models, or averages of too few, with less noise than demanded here (least_blur); "
                f"write privacy = {{exposure = 1.0}} under its method, or {{blur = {self.least_blur:g}}} for less"
            )

    def _check_envelopes(self, plan: Plan, sites: int, has_identity: bool) -> None:
        is_asked = self.sealed and hands_on(plan.method, sites, 2)
        if self.sealed is None and has_identity:
            is_asked = with_sealed_handovers(plan, sites).privacy.sealed
        if is_asked and not plan.privacy.sealed:
            raise PolicyError(
                "the policy here lets models be handed over encrypted only (sealed); write privacy = {sealed = true}"
            )
        if self.secure and not plan.privacy.secure:
            raise PolicyError(
                "the policy here lets a server learn of averages the sum alone (secure); write privacy = "
                "{sealed = true, secure = true}"
            )

    def _check_privacy(self, plan: Plan) -> None:
        privacy = plan.privacy
        if privacy.is_patient_level:
            return self._check_patient_level(plan)
        if self.most_exposure is not None and not (privacy.exposure or math.inf) <= self.most_exposure:
            raise PolicyError(
                "the policy here limits how much of a record may be told (most_exposure); write privacy = {exposure = "
                f"{self.most_exposure:g}}} or less, or privacy for each patient, under the method"
            )
        if self.most_epsilon is not None or self.least_lot is not None:
            raise PolicyError(
                "the policy here demands privacy for each patient (most_epsilon, least_lot); write privacy = "
                '{level = "patient", clip = 1.0, epsilon = 3.0, lot = 16} under the method'
            )
        if privacy.clip is None:
            if self.clip is not None or self.noise or self.budget is not None:
                has = "no privacy" if privacy.blur is None else "blur, which no ledger counts"
                raise PolicyError(f"the policy here demands clipping and noise; the plan has {has}")
            return
        if self.clip is not None and privacy.clip > self.clip:
            raise PolicyError(f"the plan clips at {privacy.clip:g}; the policy here demands {self.clip:g} or less")
        if self.noise is not None and privacy.noise < self.noise:
            raise PolicyError(f"the plan's noise is {privacy.noise:g}; the policy here demands {self.noise:g} or more")
        if self.budget is not None and privacy.noise == 0:
            raise PolicyError("the policy here has a privacy budget, which a plan without noise exceeds at once")

    def _check_patient_level(self, plan: Plan) -> None:
        lot = lot_of(plan)
        if self.clip is not None or self.noise or self.budget is not None:
            raise PolicyError(
                "the policy here demands noise in what leaves the site (clip, noise, budget); the plan's privacy is "
                "for patients, for which a policy has most_epsilon"
            )
        if self.least_lot is not None and lot < self.least_lot:
            raise PolicyError(f"the plan draws lots of {lot}; the policy here asks for {self.least_lot} (least_lot)")


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file. Raises PolicyError, naming the key, where it cannot be read."""
    try:
        values = read_toml(path)
    except FileNotFoundError:
        raise PolicyError("there is no policy file; without one this site allows nothing") from None
    except OSError as error:
        raise PolicyError(f"the policy file cannot be read: {error.strerror}") from None
    except DataError as error:
        raise PolicyError(f"the policy file cannot be read: {error.words}") from None
    except ValueError as error:
        raise PolicyError(f"the policy file is not TOML: {error}") from None
    return policy_from(values)


def policy_from(values: dict[str, Any]) -> Policy:
    """A policy from its values. Raises PolicyError with the first wrong key."""
    try:
        return Policy(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Policy.model_fields)
        raise PolicyError(f"the policy's {key!r}: {first['msg'].lower()}; known: {known}") from None


MINUTE_S = 60.0
MIB = 2**20
LOOK_S = 0.5  # how often it is asked whether work on an order may go on


class CutError(BaseException):
    """Work on an order was cut for this ``reason``; no handler of ordinary errors catches it."""

    def __init__(self, reason: PolicyError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Pace:
    """The times of the last orders; refused ones count too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._came: deque[float] = deque()

    def check(self, policy: Policy, arrays: Arrays) -> None:
        """Count one order. Raises PolicyError where it is one too many in a minute, or too large."""
        now, most = self._clock(), policy.most_orders_per_minute
        self._came.append(now)
        while self._came[0] <= now - MINUTE_S:
            self._came.popleft()
        if most is not None and len(self._came) > most:
            raise PolicyError(f"more than {most} orders came in a minute, which the policy here allows")
        size = sum(array.nbytes for array in arrays.values())
        if policy.most_order_mib is not None and size > policy.most_order_mib * MIB:
            raise PolicyError(
                f"the order holds {size / MIB:.1f} MiB of arrays; the policy here takes {policy.most_order_mib:g}"
            )


def check_time(policy: Policy, seconds: float) -> None:
    """Raise PolicyError where work on one order has taken longer than the policy allows."""
    if seconds > MINUTE_S * policy.most_order_minutes:
        most = f"the {policy.most_order_minutes:g} minutes that the policy here allows (most_order_minutes)"
        raise PolicyError(f"the order takes longer than {most}; what was done for it is dropped")


@contextmanager
def cut_short(may_go_on: Callable[[], None]) -> Iterator[None]:
    """Ask ``may_go_on`` every half second; where it raises PolicyError, end work by a CutError, as by a kill.

    Works in the main thread, where a data process answers; in others nothing is cut.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def look(_number: int, _frame: FrameType | None) -> None:
        try:
            may_go_on()
        except PolicyError as error:
            raise CutError(error) from None

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, look)
    left, interval = signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # once more, for it may have rung just now
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), LOOK_S), interval)


def least_of_a_class(raw: RawSite) -> int | None:
    """The samples of a site's rarest class; None where there are no classes."""
    if raw.task.kind != "classes" or not len(raw.train):
        return None
    _, counts = np.unique(raw.train.y, return_counts=True)
    return int(counts.min())
