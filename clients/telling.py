"""A site's answers in sums over patients; sums that differ from earlier ones by a few patients are never told."""

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.policy import Policy
from fedsmall.clients.shelf import Shelf
from fedsmall.clients.site_data import SiteData
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import Answer, SiteRequest, with_names
from fedsmall.data.federation import Samples, Task
from fedsmall.data.preparation import YES_OR_NO, Sums
from fedsmall.data.raw_site import BALANCED, RawSite, class_sums
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import probabilities
from fedsmall.evaluation.site_sums import held_out_sums
from fedsmall.features import check_features
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import CLASSES, RUN, SUMS, TELL
from fedsmall.privacy.site_level import epsilon
from fedsmall.wire import CHARGED, EXAMPLES, HELD_OUT, OUT_OF_FOLD, ROUND, VALIDATE, Arrays, join

Entry = dict[str, Any]  # {"seen": {digest: count}, "last": what was told last, "told": digests of all that was summed}


class Verdict(Enum):
    """What may be told: the same sums again, new ones, or the last ones in place of these."""

    AGAIN = "again"
    NEW = "new"
    LAST = "last"


def verdict(before: Entry | None, now: Counter[str], floor: int) -> Verdict:
    """Whether sums over the values ``now`` (their digests, counted) may be told after those ``before``."""
    fresh = (now - Counter(before["seen"] if before else {})).total()
    if fresh == 0 and before is not None and _of(now) in before["told"]:
        return Verdict.AGAIN
    return Verdict.NEW if fresh >= max(floor, 1) else Verdict.LAST


def updated_entry(before: Entry | None, now: Counter[str], last: Any) -> Entry:
    """The entry once sums over the values ``now`` are told; ``last`` is to be told again."""
    before = before or {"seen": {}, "told": []}
    return {"seen": Counter(before["seen"]) | now, "last": last, "told": [*before["told"], _of(now)]}


class Guard(NamedTuple):
    """The file that remembers, over all runs, of whom sums were told; its digest is in the site's ``log``."""

    path: Path
    log: SiteLog
    run: str

    def read(self) -> dict[str, Any]:
        """What it remembers, with the site's "key", a new one where there is nothing yet."""
        # not sealed: it outlives every run, and any key
        known = Shelf(self.path.parent, is_sealed=False).words(self.path.stem)
        return dict(known) if known else {"key": secrets.token_hex(16)}

    def write(self, known: dict[str, Any]) -> None:
        """Remember this, the log first."""
        self.log.guard(self.path, json.dumps(known).encode(), run=self.run)


def digest(content: bytes, known: dict[str, Any], size: int) -> str:
    """A digest of ``size`` bytes, keyed by the site's secret."""
    return blake2b(content, digest_size=size, key=bytes.fromhex(known["key"])).hexdigest()


def _of(now: Counter[str]) -> str:
    return blake2b(json.dumps(sorted(now.items())).encode(), digest_size=16).hexdigest()


def told_sums(guard: Guard, sums: Sums, x: np.ndarray, names: tuple[str, ...], floor: int) -> tuple[Sums, int]:
    """The sums that may be told of ``x`` (samples, features), where NaN is missing; of how many they are earlier ones.

    The guard remembers them: {"key", "features": {name: :data:`Entry`}, "kinds": {column: how it is told of}}.
    """
    known = guard.read()
    told, columns = known.setdefault("features", {}), x.reshape(len(x), -1)
    flat = np.stack([sums.count.ravel(), sums.total.ravel(), sums.squares.ravel()])  # (3, features)
    again = 0
    for index in np.flatnonzero(flat[0]):
        name = names[index] if names else f"{columns.shape[1]} features, {index}"
        before = told.get(name)
        now = digests(columns[:, index], known)
        allowed = verdict(before, now, floor) if is_told_alike(known, name) else Verdict.LAST
        if allowed is Verdict.NEW:
            told[name] = updated_entry(before, now, flat[:, index].tolist())
        elif allowed is Verdict.LAST:
            flat[:, index] = before["last"] if before else 0.0
            again += 1
    guard.write(known)
    return Sums(*(row.reshape(sums.count.shape) for row in flat)), again


def columns_withheld(guard: Guard, x: np.ndarray, names: Sequence[str], floor: int) -> set[str]:
    """Columns of ``x`` of which fewer than ``floor`` values differ from what was told of them before, in any table.

    The guard remembers the others: {"columns": {name: :data:`Entry`}}.
    """
    known = guard.read()
    columns, withheld = known.setdefault("columns", {}), set()
    for name, values in zip(names, x.T, strict=True):
        now = digests(values, known)
        allowed = verdict(columns.get(name), now, floor) if is_told_alike(known, name) else Verdict.LAST
        if allowed is Verdict.NEW:
            columns[name] = updated_entry(columns.get(name), now, None)
        withheld |= {name} if allowed is Verdict.LAST and now else set()  # of no value nothing is told
    guard.write(known)
    return withheld


def is_told_alike(known: dict[str, Any], name: str, kind: str = "") -> bool:
    """Whether a column is told of as it was before, if it was: as a number, by a category's values, or by classes.

    From two of these few patients could be counted. What is ``known`` remembers it.
    """
    column, of_category, _ = name.partition(YES_OR_NO)
    return bool(known.setdefault("kinds", {}).setdefault(column, kind or of_category) == (kind or of_category))


def is_grouped_alike(guard: Guard, samples: Samples, plan: Plan) -> bool:
    """Whether samples are in classes of the plan's label as they were, if sums by it were told before.

    By the difference of two groupings few patients could be counted. The guard remembers the class of each:
    {"classes": {label: {patient: number}}}.
    """
    known, label = guard.read(), str(plan.task.get("label", "")) if isinstance(plan.task, Mapping) else ""
    before = known.setdefault("classes", {}).get(label, {})
    now = {patient: int(number) for patient, number in zip(_patients(samples, known), samples.y, strict=True)}
    both = {(now[patient], before[patient]) for patient in before.keys() & now}
    named = dict(both)
    if not len(both) == len(named) == len({*named.values()}) or not is_told_alike(known, label, CLASSES):
        return False
    others = {*before.values()} - {*named.values()}
    for number in sorted({*now.values()} - named.keys()):
        named[number] = others.pop() if len(others) == 1 else max([*before.values(), *named.values()], default=-1) + 1
    known["classes"][label] = before | {patient: named[number] for patient, number in now.items()}
    guard.write(known)
    return True


def told_classes(raw: RawSite, plan: Plan, floor: int, guard: Guard) -> Sums:
    """The sums of each class, of those of whom they may be told. PlanError for a plan that asks for none or forbids."""
    task = raw.task
    if plan.recipe.class_weights != BALANCED or task.kind != "classes":
        raise PlanError("this plan balances no classes; the site tells no counts of them")
    check_features(plan)
    floor = max(floor, raw.floor)
    part = raw.train[rows_to_tell(guard, raw.train, floor)]
    part = part if is_grouped_alike(guard, part, plan) else part[np.arange(0)]
    return class_sums(part.y, task.classes, floor, part.patients)


def digests(values: np.ndarray, known: dict[str, Any]) -> Counter[str]:
    """The values that are there, by digests under the site's own key, and how often each is."""
    present = values[~np.isnan(values)].astype(np.float64)
    return Counter(digest(value.tobytes(), known, 8) for value in present)


def rows_to_tell(guard: Guard, samples: Samples, floor: int) -> np.ndarray:
    """The rows of the samples that may be told of, (rows,); none where nobody may be.

    The guard remembers them: {"key", "patients": :data:`Entry`}.
    """
    if len(samples) < floor:
        return np.arange(0)
    known = guard.read()
    patients, before = _patients(samples, known), known.get("patients")
    now = Counter(patients)
    allowed = verdict(before, now, floor)
    if allowed is Verdict.NEW:
        known["patients"] = updated_entry(before, now, now)
        guard.write(known)
    if allowed is not Verdict.LAST:
        return np.arange(len(patients))
    return _of_these(patients, Counter(before["last"] if before else {}))


def _patients(samples: Samples, known: dict[str, Any]) -> list[str]:
    """A digest of each sample: of the row or file it was read from, else of what a plan takes of it."""
    if samples.digests is not None:
        return [digest(number.tobytes(), known, 16) for number in samples.digests]
    pairs = zip(samples.x, samples.y, strict=True)
    return [digest(np.ascontiguousarray(x).tobytes() + np.asarray(y).tobytes(), known, 16) for x, y in pairs]


def _of_these(digests: list[str], wanted: Counter[str]) -> np.ndarray:
    """The rows of the ``wanted`` digests, each as often as wanted; none unless all are there."""
    if not wanted <= Counter(digests):
        return np.arange(0)
    seen: Counter[str] = Counter()
    rows = []
    for row, patient in enumerate(digests):
        seen[patient] += 1
        if seen[patient] <= wanted[patient]:
            rows.append(row)
    return np.array(rows, dtype=np.int64)


OWN = "own_evaluation"  # in the folder of a run


class OwnEvaluation(NamedTuple):
    """The answers of the global model after round ``t`` for the site's own held-out patients; it never leaves the site.

    ``predictions`` are probabilities (samples, classes), or numbers (samples, outputs); ``y`` is the truth.
    """

    t: int
    predictions: np.ndarray
    y: np.ndarray
    beside: Arrays  # "patients", where some have several samples


def may_be_last(plan: Plan, t: int) -> bool:
    """Whether a run may end with the model after round ``t``."""
    return t == plan.rounds or plan.may_end_early


def charged_metrics(log: SiteLog, run: str, plan: Plan, policy: Policy) -> dict[str, float]:
    """What a run was charged here, in counts; the epsilon of patients follows from their number, and stays here."""
    privacy = plan.privacy
    if not privacy.counted:
        return {}
    if privacy.is_patient_level:
        steps = sum(charge.steps for of, charge in log.charges() if of == run)
        most, account = policy.most_epsilon, {"steps": float(steps)}
    else:
        releases = sum(entry["event"] == "spent" and entry.get("run") == run for entry in log.entries())
        spent = epsilon(privacy.noise, policy.delta, releases)
        most, account = policy.budget, {"releases": float(releases), "epsilon": spent, "delta": policy.delta}
    account |= {} if most is None else {"most": most}
    return {f"{CHARGED}{name}": value for name, value in account.items() if np.isfinite(value)}


def keep_evaluation(folder: Path, t: int, answered: np.ndarray, raw: RawSite, home: SiteData) -> None:
    """Keep a model's answers for the held-out patients beside the truth, on the site's own disk.

    They are probabilities of classes and labels, numbers in their own unit, log-odds by interval of survival times.
    """
    if raw.held_out is None or home.held_out is None or not len(raw.held_out):
        return
    y = home.held_out.y if home.task.kind == "times" else raw.held_out.y
    predictions = _convert(answered, home.task)
    Shelf(folder).put(OWN, {"t": np.array(t), "said": predictions, "y": y, **home.held_out.of_patients})


def _convert(answered: np.ndarray, task: Task) -> np.ndarray:
    if task.kind == "labels":
        return np.asarray(expit(np.asarray(answered, dtype=np.float64)))
    if task.kind == "classes":
        return probabilities(answered, task.loss)
    mean, scale = task.unit or (0.0, 1.0)
    return np.asarray(np.asarray(answered, dtype=np.float64) * scale + mean)


def own_evaluation(folder: Path) -> OwnEvaluation | None:
    """What :func:`keep_evaluation` kept last; None where there is nothing."""
    arrays = Shelf(folder).arrays(OWN)
    return OwnEvaluation(int(arrays.pop("t")), arrays.pop("said"), arrays.pop("y"), arrays) if arrays else None


TOLD_SUMS, TOLD_PATIENTS, TOLD_HELD_OUT = "told_sums.json", "told_patients.json", "told_held_out.json"


@dataclass(frozen=True)
class Telling:
    """A site's answers in sums over all its runs in ``home``; what is withheld is noted in its log."""

    home: Path
    log: SiteLog

    def at_handshake(self, order: SiteRequest) -> Arrays:
        """The sums that a handshake asks for, {"sums/count": (features,), "classes/count": (classes,), ...}.

        Raises PlanError for unknown sums, classes that the plan does not balance, and sums that the plan hides.
        """
        if order.plan.privacy.secure and order.config.get(TELL):
            raise PlanError("this run's sums are hidden, and the handshake asks for them in the clear")
        return self.before_the_first(order)

    def before_the_first(self, order: SiteRequest) -> Arrays:
        """The same sums after the handshake, for a secure sum of all sites."""
        asked, answers = order.config.get(TELL, ()), dict[str, Sums | None]()
        if not set(asked) <= {CLASSES, SUMS}:
            raise PlanError("this site was asked for sums that it does not know")
        if CLASSES in asked:  # first, for it may refuse, and what is told is remembered
            guard = self._guard(order, TOLD_SUMS)
            answers[CLASSES] = told_classes(order.raw, order.plan, order.policy.count_floor, guard)
        if SUMS in asked:
            answers[SUMS] = self._features(order)
        return join(**{name: vars(sums) for name, sums in answers.items() if sums is not None})

    def _features(self, order: SiteRequest) -> Sums | None:
        """Sums of each feature, from which the sites agree on a scaling; None where nothing is scaled."""
        raw = replace(order.raw, floor=max(order.raw.floor, order.policy.count_floor))
        sums = raw.sums(is_told=True)
        if sums is None:
            return None
        sums, again = told_sums(self._guard(order, TOLD_SUMS), sums, raw.summed_values, raw.summed_names, raw.floor)
        if again:
            reason = f"sums of {again} features sent as before: under {raw.floor} values are new, or of another kind"
            self.log.write("kept", run=str(order.config[RUN]), kind="sums", reason=reason)
        return sums

    def _guard(self, order: SiteRequest, file: str) -> Guard:
        return Guard(self.home / file, self.log, str(order.config[RUN]))

    def out_of_fold(self, order: SiteRequest, client: HospitalClient) -> Answer:
        """Sums over the site's own patients, of models that never saw them."""
        routed, floor = bool(order.plan.method.routes), order.policy.count_floor
        part = order.raw.train if routed else order.raw.kept_back
        if part is None:
            raise PlanError("the plan does not ask sites to judge models on samples that these never saw")
        rows = rows_to_tell(self._guard(order, TOLD_PATIENTS), part, floor)
        self._note_untold(order, VALIDATE, len(rows), len(part))
        sums = client.validate(order.arrays, order.config, rows, floor)
        return {"config": {}}, join(**{OUT_OF_FOLD: sums})

    def at_the_end(self, order: SiteRequest, client: HospitalClient, metrics: dict[str, Any], folder: Path) -> Answer:
        """The answer at a run's end: metrics, sums over held-out patients, and the run's charges."""
        sums: Arrays = {}
        held, raw, may_tell = client.home.held_out, order.raw.held_out, order.policy.judge
        if not metrics[EXAMPLES]:  # for the site's own eyes
            client.evaluate(list(order.arrays.values()), with_names(order))
        elif held is not None and raw is not None and may_tell and not order.plan.has_own_models:
            rows = rows_to_tell(self._guard(order, TOLD_HELD_OUT), raw, order.policy.count_floor)
            self._note_untold(order, "evaluate", len(rows), len(held))
            sums = held_out_sums(client.answered[rows], held.y[rows], client.home.task) if len(rows) else {}
        keep_evaluation(folder, int(order.config[ROUND]), client.answered + client.intercept, order.raw, client.home)
        spent = charged_metrics(self.log, str(order.config[RUN]), order.plan, order.policy)
        return {"metrics": metrics | spent}, join(**{HELD_OUT: sums})

    def _note_untold(self, order: SiteRequest, kind: str, judged: int, patients: int) -> None:
        if judged < patients:
            whom = "the patients of before" if judged else "nobody"
            reason = f"sums are sent of {whom}: fewer than {order.policy.count_floor} are new"
            self.log.write("kept", run=str(order.config[RUN]), kind=kind, t=order.config[ROUND], reason=reason)
