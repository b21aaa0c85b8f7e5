"""The sites as they were read: what is dealt to whom, the sums that each tells, and what of it a model takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedsmall.data import splits
from fedsmall.data.federation import Samples, Task, join, task_at
from fedsmall.data.preparation import COUNT_FLOOR, YES_OR_NO, Preparation, Scaling, Sums, agree, tellable
from fedsmall.data.preparation import sums as sums_of
from fedsmall.data.sources.pool import NOWHERE, Part, Pool, preparation_of
from fedsmall.errors import DataError, PlanError
from fedsmall.files import list_some
from fedsmall.methods import check_known
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for

BALANCED = "balanced"
HELD_OUT = 0.25
UNUSED, OFFICIAL = "unused training samples", "official test"
NO_OFFICIAL = "these data have no test set of their own; say how much to hold out, as in test = 0.2"
Extra = dict[str, Part]  # further test sets by name
Choose = Callable[[np.ndarray | None], np.ndarray]


@dataclass(frozen=True)
class RawSite:
    """The samples of one site as they were read, split into those to train on and those held out.

    ``floor`` is the least number of patients in a reported sum; ``kept_back`` are for early stopping alone. So many
    ``unlabelled`` rows were left out.
    """

    name: str
    task: Task
    train: Part
    held_out: Part | None
    preparation: Preparation
    floor: int = COUNT_FLOOR
    notes: tuple[str, ...] = ()
    kept_back: Part | None = None
    unlabelled: int = 0

    @property
    def scaled(self) -> bool:
        """Whether the task's features, or its targets, are scaled by what the sites agree on."""
        return self.preparation.agrees

    @property
    def summed_values(self) -> np.ndarray:
        """The values of which the site reports sums, a column for each feature and for its target: (samples, ...)."""
        return self.preparation.summed_values(self.train.x, self.train.y)

    @property
    def summed_names(self) -> tuple[str, ...]:
        """The names of those columns; none where features have none."""
        if self.preparation.scaled and not self.task.feature_names:
            return ()
        features = self.task.feature_names if self.preparation.scaled else ()
        outcome = self.preparation.agreeing
        return features if outcome is None else (*features, outcome.name)

    def sums(self, is_told: bool = False) -> Sums | None:
        """Sums of its training samples for the scaling, None where nothing is scaled; a real site tells fewer."""
        if not self.scaled:
            return None
        x, whose = self.summed_values, self.train.patients
        if is_told:
            x = tellable(x.reshape(len(x), -1), self.summed_names, self.floor, whose)[0].reshape(x.shape)
        return sums_of(x, self.floor, whose)

    def class_sums(self) -> Sums:
        """What this site tells of the classes of its training samples, for weights."""
        return class_sums(self.train.y, self.task.classes, self.floor, self.train.patients)

    def withheld(self, is_told: bool = False) -> tuple[str, ...]:
        """The features (and target) without :meth:`sums`, for it has too few values there, or few patients have one."""
        sums = self.sums(is_told)
        if sums is None or not self.summed_names:
            return ()
        return tuple(name for name, count in zip(self.summed_names, sums.count, strict=True) if count == 0)

    def learns(self, scaling: Scaling | None) -> Task:
        """The task with what the sites agreed on of its targets."""
        return task_with(self.task, self.preparation.with_scaling(scaling))

    def samples(self, scaling: Scaling | None) -> tuple[Samples, Samples | None]:
        """The samples to train on and those held out, as a model takes them."""
        prepared = self.preparation.with_scaling(scaling)
        return prepare(self.train, prepared), None if self.held_out is None else prepare(self.held_out, prepared)

    def samples_kept_back(self, scaling: Scaling | None) -> Samples | None:
        """The samples that tell when to stop, as a model takes them; None where the plan asks for none."""
        return None if self.kept_back is None else prepare(self.kept_back, self.preparation.with_scaling(scaling))


def agreed(sites: Sequence[RawSite]) -> Scaling | None:
    """The scaling that the sites agree on, in the order of their names; None where nothing is scaled."""
    reported = [site.sums() for site in sorted(sites, key=lambda site: site.name)]
    return agree(known) if (known := [sums for sums in reported if sums is not None]) else None


def task_with(task: Task, preparation: Preparation) -> Task:
    """The task with what is agreed in a preparation: the unit of a number, the intervals of a time."""
    outcome = preparation.outcome
    return task if outcome is None else replace(task, **outcome.known)


def prepare(part: Part, preparation: Preparation) -> Samples:
    """Samples as a model takes them, classes as 64-bit integers, numbers in the scale of training."""
    targets = part.y if preparation.outcome is None else preparation.outcome.targets(part.y)
    y = targets.astype(np.int64 if targets.dtype.kind in "iub" else preparation.dtype)
    return Samples(preparation.inputs(part.x), y, patients=part.patients, groups=part.groups)


def class_sums(y: np.ndarray, classes: int, floor: int, patients: np.ndarray | None = None) -> Sums:
    """What a site may tell of its classes, sums of 0 and 1 for each: of few patients nothing, nor what leaves few."""
    told = tellable(np.eye(classes)[y], [f"{YES_OR_NO}{k}" for k in range(classes)], floor, patients)[0]
    return sums_of(told, floor, patients)


def agreed_weights(sites: Sequence[Sums], task: Task) -> tuple[float, ...]:
    """The weight of every class, 1 / (classes * its share); PlanError for a class of which nobody tells."""
    shares = agree(sites).mean
    for label, share in enumerate(shares):
        if share <= 0:
            name = task.class_names[label] if label < len(task.class_names) else str(label)
            raise PlanError(
                f"class_weights = {BALANCED!r}: no site may tell how many of class {name!r} it has, or none has any; "
                "give numbers, as in class_weights = [1.0, 3.0]"
            )
    return tuple(float(weight) for weight in shares.sum() / (len(shares) * shares))


def with_weights(plan: Plan, weights: Sequence[float]) -> Plan:
    """The plan with these numbers in place of the word; any other plan as it is."""
    if plan.recipe.class_weights != BALANCED:
        return plan
    return plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"class_weights": tuple(weights)})})


def deal(plan: Plan, task: Task, pool: Pool, common: Part | None = None) -> tuple[list[RawSite], Part, Extra]:
    """The sites in the order of their names, the common test set, and further test sets."""
    is_natural = splits.read_spec(plan.partition)[0] == "natural"
    if NOWHERE in pool.train or (plan.sites is not None and not is_natural):
        sites, test, extra = _deal_pool(plan, task, pool)
        remaining = _taking_part(plan, [site.name for site in sites])
        return [site for site in sites if site.name in remaining], test, extra
    if plan.sites not in (None, len(pool.train)):
        raise PlanError(f"these data come from {len(pool.train)} sites and sites = {plan.sites}; leave sites out")
    remaining = _taking_part(plan, sorted(pool.train))
    sites = [natural_site(plan, task, pool, name, name, common is None) for name in remaining]
    held = [site.held_out for site in sites if site.held_out is not None]
    if common is None:
        alike = len({part.y.shape[1:] for part in held}) <= 1
        common = join(held) if alike else held[0][np.arange(0)]
    if not len(common) and not any(map(len, held)):
        raise DataError("the sites are too small to hold anything out (a class needs two samples); give a test set")
    return sites, common, {}


def _taking_part(plan: Plan, names: list[str]) -> list[str]:
    for name in plan.without:
        check_known(name, names, f"without = {name!r}: there is no such site")
    if len(plan.without) == len(names):
        raise PlanError("without names every site; one must be left")
    return [name for name in names if name not in plan.without]


def natural_site(plan: Plan, task: Task, pool: Pool, name: str, key: str, hold: bool = True) -> RawSite:
    """The site ``name``, whose samples are under ``key``: split by its own streams, so that it can do so alone."""
    part, held = pool.train[key], pool.test.get(key)
    if held is None and plan.test == "official":
        raise PlanError(f'test = "official" and {NO_OFFICIAL}')
    if type(plan.test) is int and hold:
        raise PlanError(f"test = {plan.test} counts samples of all; sites of their own hold out a share: test = 0.2")
    if hold and (held is None or isinstance(plan.test, float)):
        part, held = _apart(part, partial(_held_out_rows, part, plan, name), plan.seed, name)
    if (n := plan.samples_per_site) is not None:
        if n > len(part):
            raise PlanError(f"samples_per_site = {n} and site {name!r} has {len(part)} to train on")
        part = part[np.sort(rng_for(plan.seed, "subset", name).permutation(len(part))[:n])]
    raw = RawSite(name, task_at(task, part.y), part, held, preparation_of(pool, plan.dtype), COUNT_FLOOR, pool.notes)
    return _keep_back(plan, replace(raw, unlabelled=pool.unlabelled), is_own=True)


def _keep_back(plan: Plan, raw: RawSite, is_own: bool = False) -> RawSite:
    if not plan.kept_back:
        return raw

    def choose(kin: np.ndarray | None) -> np.ndarray:
        rng = rng_for(plan.seed, "kept back", raw.name)
        return splits.keep_back(raw.train.y, plan.kept_back, rng, kin)

    train, kept_back = _apart(raw.train, choose, plan.seed, raw.name, is_own)
    return replace(raw, train=train, kept_back=kept_back)


def _held_out_rows(part: Part, plan: Plan, name: str, kin: np.ndarray | None) -> np.ndarray:
    if plan.folds is not None:
        return splits.fold_split(part.y, plan.folds, plan.fold, plan.folds - 1, plan.seed, kin, each=False)[1]
    share = plan.test if isinstance(plan.test, float) else HELD_OUT
    count = int(share * len(part) + 0.5)  # of all samples: a share of each class told how large that is
    if plan.test is None:  # of each class where that comes to as many, and where nobody trains over real sites
        out = splits.hold_out(part.y, share, rng_for(plan.seed, "held-out", name), kin)[1]
        if len(out) == count or len(part) < COUNT_FLOOR:
            return out
    return splits.hold_out(part.y, count, rng_for(plan.seed, "held-out", name), kin)[1]


def _apart(part: Part, choose: Choose, seed: int, name: str, is_own: bool = True) -> tuple[Part, Part]:
    """What a site trains on, and the samples that ``choose`` takes from it, given the groups that stay whole.

    A site of its own says how many it trains on, and a plan may call any column patients: so that the number tells
    nothing of groups it is as if there were none, and some samples are in neither part.
    """
    kin = splits.kin_of(part)
    groups = np.arange(len(part)) if kin is None else kin
    out = choose(kin)
    count = min(len(choose(None) if is_own and kin is not None else out), len(part) - 1)
    while len(out) > count:
        out = out[groups[out] != groups[out[-1]]]
    others = rng_for(seed, "trained on", name).permutation(np.setdiff1d(np.arange(len(part)), out))
    return part[np.sort(others[: len(part) - count])], part[out]


def _deal_pool(plan: Plan, task: Task, pool: Pool) -> tuple[list[RawSite], Part, Extra]:
    train = join(pool.train[key] for key in sorted(pool.train))
    official = join(pool.test[key] for key in sorted(pool.test)) if pool.test else None
    shares, test, extra = _by_folds(plan, train) if plan.folds else _by_partition(plan, train, official)
    if official is not None and test is not official:
        extra[OFFICIAL] = official
    if not pool.keep_unused:
        extra.pop(UNUSED, None)
    width, prepared = max(3, len(str(len(shares) - 1))), preparation_of(pool, plan.dtype)
    names = [f"site-{index:0{width}d}" for index in range(len(shares))]
    sites = [RawSite(name, task, train[share], None, prepared, 1) for name, share in zip(names, shares, strict=True)]
    return [_keep_back(plan, site) for site in sites], test, extra


def _by_partition(plan: Plan, train: Part, official: Part | None) -> tuple[splits.Shares, Part, Extra]:
    kept, test, kin = np.arange(len(train)), official, splits.kin_of(train)
    if test is None or plan.test not in (None, "official"):
        kept, held = splits.hold_out(train.y, _test_size(plan, len(train)), rng_for(plan.seed, "held-out"), kin)
        if not len(held):
            share = plan.test or HELD_OUT
            alone = train.y.ndim == 1 and len(np.unique(train.y)) == len(train)
            why = "; every class has one sample only: is the label an identifier?" if alone else "; ask for more"
            raise PlanError(f"test = {share} of {len(train)} samples holds none of them out{why}")
        test = train[held]
    shares = _share_out(plan, train, kept, rng_for(plan.seed, "partition"))
    taken = np.concatenate(shares)
    return shares, test, {UNUSED: train[splits.drop_kin_of(np.setdiff1d(kept, taken), taken, kin)]}


def _share_out(plan: Plan, train: Part, rows: np.ndarray, rng: np.random.Generator) -> splits.Shares:
    asked, part = (plan.partition, plan.sites, plan.samples_per_site, rng), train[rows]
    whose = part.patients
    shares = splits.partition(part.y, *asked) if whose is None else splits.partition_of_patients(part.y, whose, *asked)
    return [rows[share] for share in shares]


def _test_size(plan: Plan, available: int) -> int | float:
    if plan.test == "official":
        raise PlanError(f'test = "official" and {NO_OFFICIAL}')
    if plan.test is None or isinstance(plan.test, float):
        return HELD_OUT if plan.test is None else plan.test
    least = (plan.sites or 1) * (plan.samples_per_site or 1)
    if (size := int(plan.test)) + least > available:
        made = f"test = {size} and at least {least} samples to train on make {size + least}"
        raise PlanError(f"{made}; there are {available}")
    return size


def _by_folds(plan: Plan, train: Part) -> tuple[splits.Shares, Part, Extra]:
    if plan.sites is None or plan.folds is None:
        raise PlanError("folds need a number of sites, as in sites = 3")
    n, everything, kin = plan.samples_per_site, np.arange(len(train)), splits.kin_of(train)
    whole = n is None or train.patients is not None  # else a site would hold part of a patient
    pool = everything if whole else splits.fold_pool(train.y, plan.folds, plan.sites, n or 1, plan.seed, kin)
    parts, held = splits.fold_split(train.y[pool], plan.folds, plan.fold, plan.sites, plan.seed, kin if whole else None)
    test, shares = pool[held], [pool[share][:n] for share in parts]
    if min(map(len, shares)) < (n or 1):
        raise PlanError(f"a site of whole patients has {min(map(len, shares))} samples of {n}; ask for fewer a site")
    if plan.partition != "iid":  # skewed sites need more to choose from than the folds' own samples
        rest = splits.drop_kin_of(np.setdiff1d(everything, test), test, kin)
        shares = _share_out(plan, train, rest, rng_for(plan.seed, "partition", plan.fold))
        pool = np.concatenate([*shares, test])
    return shares, train[test], {UNUSED: train[splits.drop_kin_of(np.setdiff1d(everything, pool), pool, kin)]}


def dealing_notes(plan: Plan, sites: Sequence[RawSite], test: Part, pool: Pool, given: bool) -> tuple[str, ...]:
    """Notes on the ``sites`` that a ``pool`` was dealt to, and on the common ``test`` set, if ``given`` beside it."""
    single = sum(site.train.y.ndim == 1 and len(np.unique(site.train.y)) == 1 for site in sites)
    notes = [f"{single} of {len(sites)} sites hold samples of one class only"] if single else []
    few: dict[str, list[str]] = {}  # sites by what they withhold
    for site in sites:
        if site.floor > 1 and (withheld := ", ".join(site.withheld())):
            few.setdefault(f"{withheld} (fewer than {site.floor} values)", []).append(site.name)
    notes += [f"{list_some(names)} did not contribute to standardising {what}" for what, names in few.items()]
    notes += [*_note_patients(sites, test), *_note_twins(sites, test, bool(pool.test))]
    if type(plan.test) is int and len(test) != plan.test:
        notes.append(f"test = {plan.test}, and {len(test)} are held out: patients and equal samples stay together")
    dealt = [part for name, part in pool.train.items() if name not in plan.without]
    rows = sum(map(len, dealt)) - (0 if given else _count_held_out(plan, sites, test, pool))
    used = sum(len(site.train) + len(site.kept_back or ()) for site in sites)
    if used != rows:
        why = "" if plan.samples_per_site is None else f" (samples_per_site = {plan.samples_per_site})"
        notes.append(f"{used:,} of {rows:,} training rows were used{why}")
    return tuple(notes)


def _note_patients(sites: Sequence[RawSite], test: Part) -> tuple[str, ...]:
    trained = [site.train.patients for site in sites if site.train.patients is not None]
    if not trained:
        return ()
    patients, samples = sum(len(np.unique(whose)) for whose in trained), sum(map(len, trained))
    held = "" if test.patients is None else f", and {len(test)} of {len(np.unique(test.patients))} are held out"
    both = 0 if test.patients is None else len(np.intersect1d(test.patients, np.concatenate(trained)))
    sides = f", but {both} patients of the source's own test set are trained on" if both else " and on one side"
    dealt = f"Split by patients: {samples} samples of {patients} are trained on{held}"
    return (f"{dealt}; all of a patient's are at one site{sides}",)


def _note_twins(sites: Sequence[RawSite], test: Part, official: bool) -> tuple[str, ...]:
    parts = [site.train for site in sites]
    if len({part.x.shape[1:] for part in (*parts, test)}) > 1:
        return ()
    group = splits.twins(np.concatenate([*(part.x for part in parts), test.x]))
    trained, held = group[: -len(test) or None], group[len(group) - len(test) :]
    both, equal = int(np.isin(held, trained).sum()), len(group) - len(np.unique(group))
    if not equal:
        return ()
    if not both:
        return (f"Samples that equal another to the last bit: {equal}, none of them both trained on and held out",)
    if splits.coarse(group):
        return (
            f"{equal} of {len(group)} samples equal another: with so few different ones they were split as samples of "
            "different patients, so equal ones are trained on and held out",
        )
    whose = "the source's own test set" if official else "what one site holds out and another trains on"
    return (f"Equal to a sample that is trained on: {both} of {whose}; results look better than they are",)


def _count_held_out(plan: Plan, sites: Sequence[RawSite], test: Part, pool: Pool) -> int:
    held = [site for site in sites if site.held_out is not None]
    if held:
        of_test = () if isinstance(plan.test, float) else pool.test
        return sum(len(site.held_out or ()) for site in held if site.name not in of_test)
    return 0 if pool.test and not plan.folds and plan.test in (None, "official") else len(test)
