"""The parts that plans and methods are made of, as frozen records: a recipe, a replica tree, what privacy is given."""

import re
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from fedsmall.entry_points import extensions
from fedsmall.errors import PlanError

Positive = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1, le=1_000_000)]  # of a round: whoever asks for more would have a site's memory
Fraction = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Server = Literal["none", "momentum", "adagrad", "adam", "yogi", "fednova", "scaffold", "feddyn"]

# How far a training image may be changed: what is taken without a number, and the most.
AUGMENTATIONS: dict[str, tuple[float, float]] = {
    "flip": (0.5, 1.0),  # the share of the images that are mirrored, left to right
    "shift": (2.0, 10_000.0),  # pixels, up or down and left or right
    "rotate": (10.0, 180.0),  # degrees, either way
    "intensity": (0.1, 1.0),  # of contrast, and of brightness as a share of half the range of values
}


def _augmentations(given: Any) -> Any:
    if given is None:
        return None
    named = {name: AUGMENTATIONS.get(name, (0, 0))[0] for name in given} if isinstance(given, list | tuple) else given
    if not isinstance(named, Mapping) or not named:
        raise ValueError('augment is a list, as in ["flip", "shift"], or a table, as in {shift = 3, rotate = 15}')
    for name, number in named.items():
        if name not in AUGMENTATIONS:
            raise ValueError(f"there is no augmentation {name!r}; there are {', '.join(AUGMENTATIONS)}")
        most = AUGMENTATIONS[name][1]
        if type(number) not in (int, float) or not 0 < number <= most or (name == "shift" and number != int(number)):
            whole = "a whole number of pixels, " if name == "shift" else ""
            raise ValueError(f"{name} = {number!r}: it takes {whole}above 0 and at most {most:g}")
    return {name: float(named[name]) for name in AUGMENTATIONS if name in named}


def device_word(word: str) -> str:
    """A word for where models train, which is no part of a plan; ValueError where it is none."""
    if not re.fullmatch(r"auto|cpu|kernel(:[1-9]\d*)?|cuda(:\d+)?|mps", word):
        raise ValueError('a device is "auto", "cpu", "cuda", "cuda:1", "mps", "kernel" or "kernel:4"')
    return word


Device = Annotated[str, AfterValidator(device_word)]


class Frozen(BaseModel):
    """A record that cannot be changed and knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The record that a file of JSON holds; PlanError where it holds none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValueError:
            raise PlanError(f"{path.name} is damaged, or was made by another release of fedsmall") from None


class Recipe(Frozen):
    """How one round of local training goes at a site.

    A round is ``local_steps`` optimizer steps or ``local_epochs`` passes over the site's samples (one step if neither
    is given), in batches of ``batch`` samples, ``None`` the whole site. Every epoch draws a fresh order, cut into
    batches, the last of which may be smaller, or by ``even_batches`` all alike; with steps, a round takes the first.

    ``class_weights`` says how much a sample of each class counts in the loss; "balanced" is 1 / (classes * the class's
    share over all sites). ``augment`` changes images at random whenever they are trained on: names of
    :data:`AUGMENTATIONS`, or a table of names and numbers (:mod:`fedsmall.training.augmentation`).
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.1
    momentum: Decay = 0.0
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: NonNegative = 0.0
    batch: Positive | None = None
    even_batches: bool = False
    local_steps: Length | None = None
    local_epochs: Length | None = None
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    lr_step_rounds: Positive = 1
    lr_decay: Fraction = 1.0
    optimizer_state: Literal["travel", "reset", "stay"] = "travel"
    class_weights: Literal["balanced"] | tuple[Annotated[float, Field(gt=0)], ...] | None = None
    augment: Annotated[dict[str, float] | None, BeforeValidator(_augmentations)] = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError("a round is local_steps or local_epochs, not both; remove one")
        return self

    @property
    def steps(self) -> int | None:
        """Optimizer steps a round, or None where a round is counted in epochs."""
        return None if self.local_epochs is not None else (self.local_steps or 1)

    def batch_sizes(self, samples: int, batch: int | None = None) -> list[int]:
        """The sizes of a round's batches at a site with so many samples, in order; of ``batch`` or the recipe's."""
        return list(islice(cycle(self.epoch_sizes(samples, batch)), self.count_steps(samples, batch)))

    def count_steps(self, samples: int, batch: int | None = None) -> int:
        """The optimizer steps of such a round, counted and not listed, for a site may say any number of samples."""
        return self.steps or -(-samples // min(batch or self.batch or samples, samples)) * (self.local_epochs or 1)

    def epoch_sizes(self, samples: int, batch: int | None = None) -> list[int]:
        """The sizes of the batches of one pass over so many samples."""
        size = min(batch or self.batch or samples, samples)
        steps = -(-samples // size)
        if self.even_batches:
            return [samples // steps + (k < samples % steps) for k in range(steps)]
        return [min(size, samples - k * size) for k in range(steps)]

    @property
    def has_state(self) -> bool:
        """Whether the optimizer remembers anything from step to step."""
        return self.optimizer == "adam" or self.momentum > 0

    @property
    def moments(self) -> str:
        """What becomes of the optimizer's memory where it has any: "travel", "reset", "stay", else nothing."""
        return self.optimizer_state if self.has_state else ""


class Tree(Frozen):
    """A replica tree at every site (RepTreeFL; Ghilea & Rekik).

    Attributes
    ----------
    fanout, depth, drop
        Replicas of a model (r), generations (d) and the share of samples that a replica leaves out (p), or one value
        per site.
    perturbation
        Whether samples are left out at random or class by class.
    fold, diversity
        How replicas become one: weighed by how far they are from their parent, or a plain mean.
    fold_at, travel
        Where they are folded, and whether anchors or whole trees travel.

    Examples
    --------
    >>> from fedsmall.strategies import Tree
    >>> Tree(fanout=2, depth=2).drop
    0.1
    """

    fanout: Positive | tuple[Positive, ...] = 3
    depth: Annotated[int, Field(ge=0)] | tuple[Annotated[int, Field(ge=0)], ...] = 1
    drop: Annotated[float, Field(ge=0, lt=1)] | tuple[float, ...] = 0.1
    perturbation: Literal["random", "stratified"] = "random"
    fold: Literal["diversity", "simple"] = "diversity"
    diversity: str = "l2"
    fold_at: Literal["site", "server"] = "site"
    travel: Literal["anchors", "trees"] = "anchors"

    @model_validator(mode="after")
    def _foldable(self) -> Self:
        fanout, depth = (max(v, default=0) if isinstance(v, tuple) else v for v in (self.fanout, self.depth))
        if depth > 100 or fanout**depth > 10_000:
            raise ValueError(f"{fanout} replicas of each model over {depth} generations are too many; take fewer")
        leave_sites = self.travel == "trees" or self.fold_at == "server"
        if leave_sites and (isinstance(self.fanout, tuple) or isinstance(self.depth, tuple)):
            several = "trees that travel or are folded at the server have one fanout and one depth for all sites"
            raise ValueError(f"{several}; give one value")
        if self.fold_at == "server" and self.diversity == "kl":
            raise ValueError(
                'diversity = "kl" needs the anchor\'s samples, which only the site has; use fold_at = "site"'
            )
        return self


class Validation(Frozen):
    """Routes as cross-validation (:mod:`fedsmall.travel.journey`): each of ``routes`` leaves out a fold.

    A fold is of sites, or ``by_samples`` of every site's samples. Sites of under ``floor`` samples report no metrics.
    """

    routes: Annotated[int, Field(ge=2)]
    floor: Positive = 1
    by_samples: bool = False

    @model_validator(mode="before")
    @classmethod
    def _no_patience(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("patience") is not None:
            raise ValueError(f"patience belongs to the scenario: stop = {{patience = {given['patience']}}}")
        return given


class EarlyStop(Frozen):
    """When a run ends before its last round, and which model it keeps (:mod:`fedsmall.evaluation.stopping`).

    It ends after ``patience`` evaluations without a lower validation loss, and keeps the model of the lowest. The
    validation set is the share ``hold_out`` of each site's training samples, or what routes (``validate``) never saw.
    """

    patience: Positive
    hold_out: Annotated[float, Field(gt=0, le=0.5)] | None = None


def _a_test(value: Any) -> Any:
    if value in (None, "official") or (type(value) is int and value >= 1) or (type(value) is float and 0 < value < 1):
        return value
    raise ValueError(f'test is a number of samples (53), a share (0.2) or "official"; got {value!r}')


def _a_threshold(value: Any) -> Any:
    if value in (None, "youden") or (isinstance(value, float) and 0 < value < 1):
        return value
    asked = value.get("sensitivity") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(asked, float) and 0 < asked <= 1:
        return value
    raise ValueError(f'threshold is a probability (0.5), "youden" or {{sensitivity = 0.9}}; got {value!r}')


Threshold = Annotated[float | str | dict[str, float] | None, BeforeValidator(_a_threshold)]
Test = Annotated[int | float | str | None, BeforeValidator(_a_test)]


class Privacy(Frozen):
    """What is done so that nobody can tell, from what leaves a site, who was in its data.

    ``level`` "site" hides a site: its update is clipped to norm ``clip`` and noised with standard deviation ``noise *
    clip`` as it leaves (Geyer et al. 2017); ``budget`` is the most epsilon of the run.

    "patient" hides each patient: every local step takes a random lot of ``lot`` samples on average (default: the
    recipe's batch), clips each sample's gradient to ``clip`` and adds noise (Abadi et al. 2016, algorithm 1). ``noise``
    is the multiplier, or sites find it from ``epsilon``, what a run may cost a patient, with :mod:`.patient_level`.

    Or ``exposure`` is how much of any record may be told in the whole run: 1 / exposure is the least mean square error,
    in standard deviations, of who knows all else (:mod:`fedsmall.training.information`). It claims no epsilon.

    Instead of any, ``blur`` is the size of the noise over that of an update as it leaves
    (:mod:`fedsmall.privacy.site_level`): it claims no epsilon; 0 leaves models as they are. Beside any of these, or
    alone, ``sealed`` models go in envelopes that only the next site opens; of ``secure`` sums the server sees the sum.
    """

    level: Literal["site", "patient"] = "site"
    clip: Annotated[float, Field(gt=0)] | None = None
    noise: NonNegative = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    budget: Annotated[float, Field(gt=0)] | None = None
    epsilon: Annotated[float, Field(ge=1e-3)] | None = None
    lot: Positive | None = None
    blur: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    exposure: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    sealed: bool = False
    secure: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        is_noised = self.noise > 0 or self.budget is not None or self.is_patient_level
        if self.exposure is not None and (is_noised or self.blur is not None or self.clip is not None):
            raise ValueError("privacy is exposure, from which the noise follows, or another kind of noise; remove one")
        if self.blur is None and self.clip is None and self.exposure is None and (is_noised or not self.hidden):
            raise ValueError("privacy is {clip = 1.0, noise = 1.0}, {exposure = 1.0} or {blur = 1}; give one of them")
        if self.blur is not None and (self.clip is not None or self.noise or self.budget is not None):
            raise ValueError("privacy is blur, which claims no epsilon, or clip with noise and budget; remove one")
        if not self.is_patient_level and (self.epsilon is not None or self.lot is not None):
            key = "lot" if self.epsilon is None else "epsilon"
            raise ValueError(f'{key} belongs to level = "patient"; with level = "site" say noise and budget')
        if self.is_patient_level and self.blur is not None:
            raise ValueError('blur belongs to level = "site"; with level = "patient" say clip and epsilon')
        if self.is_patient_level and (self.noise > 0) == (self.epsilon is not None):
            raise ValueError('level = "patient" takes noise (above 0) or epsilon, one of the two')
        if self.is_patient_level and self.budget is not None:
            raise ValueError('budget belongs to level = "site"; with level = "patient" say epsilon')
        return self

    @property
    def is_patient_level(self) -> bool:
        """Whether each patient is hidden."""
        return self.level == "patient"

    @property
    def counted(self) -> bool:
        """Whether a ledger counts what leaves: blur claims no epsilon."""
        return self.clip is not None

    @property
    def open(self) -> bool:
        """Whether models leave without noise: somebody wrote down ``blur = 0``, or only how they travel."""
        return self.clip is None and not self.blur and self.exposure is None

    @property
    def hidden(self) -> bool:
        """Whether single models are kept from the server; then only replies of an average's own round count in it."""
        return self.sealed or self.secure

    @property
    def at_comm_rounds(self) -> bool:
        """Whether something is done to a model as it leaves; for patients it is done in every local step."""
        return self.level == "site" and not self.open


NO_PRIVACY = Privacy.model_construct()


class Boosting(Frozen):
    """Gradient-boosted trees in place of a network; names and defaults are xgboost's (Chen & Guestrin 2016).

    ``trees`` is the most boosting rounds, ``None`` what rounds allow. With ``histogram`` sites count for a global tree.
    """

    histogram: bool = False
    trees: Positive | None = None
    depth: Annotated[int, Field(ge=1, le=8)] = 3
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    l2: NonNegative = 1.0
    least_gain: NonNegative = 0.0
    least_weight: NonNegative = 1.0
    bins: Annotated[int, Field(ge=2, le=256)] = 32


class Regression(Frozen):
    """A regression in place of a network, exact by sums over sites (Newton's method).

    ``basis``: the columns as they are, hinges beside them ("additive"), or so many ``features`` of a kernel ("random").
    ``penalty`` is the ridge penalty on the sum of losses, scikit-learn's 1 / C; "cv" chooses it by cross-validation
    over sites. With ``intercepts`` "hospital" each site fits one of its own under ``intercept_penalty``, which stays
    there. ``firth`` is Firth's correction; errors are ``robust`` by site or "patients"; ``counts`` are numbers.
    With ``cox`` times until an event have Cox's partial likelihood over the ends of the task's intervals.
    With ``passes`` a posterior goes so often through all sites in place of sums. ``terms`` are columns and products
    ("age * sex") in place of all columns; an ``offset`` has the coefficient 1, ``weights`` count patients.
    """

    basis: Literal["linear", "additive", "random"] = "linear"
    features: Annotated[int, Field(ge=1, le=1024)] = 256
    penalty: NonNegative | Literal["cv"] = "cv"
    intercepts: Literal["common", "hospital"] = "common"
    intercept_penalty: NonNegative = 1.0
    firth: bool = False
    robust: bool | Literal["patients"] = False
    counts: bool = False
    cox: bool = False
    passes: Positive | None = None
    terms: tuple[str, ...] | None = Field(default=None, min_length=1)
    offset: str = ""
    weights: str = ""


SHARED_PART = "shared_part"  # the model of a plan whose sites have models of their own (fedsmall.models.own_models)
RENAMED_MODELS = {
    "fedsmall.small_maps:resnet10": "resnet10_cropped",
    "fedsmall.small_maps:resnet18": "resnet18_cropped",
    "fedsmall.mixed:shared_part": SHARED_PART,
}
NORM, EARLIER_NORM = "group", "batch"  # batches of a few images have no statistics worth the name
NORMED = {"cnn", "resnet10", "resnet18", "resnet_small", "resnet10_cropped", "resnet18_cropped"}


# A plan or a package names how its model normalises images. Read from JSON that names nothing it is of an earlier
# release, where it was "batch".
def with_norm(model: str, options: Mapping[str, Any], norm: str) -> dict[str, Any]:
    """A model's options, where it normalises images with ``norm`` named if none is; of each site's, if they differ."""
    model = RENAMED_MODELS.get(model, model)
    if model in NORMED:
        return {"norm": norm, **options}
    if model == SHARED_PART and isinstance(sites := options.get("sites"), list | tuple):
        return {**options, "sites": [_site_with_norm(entry, norm) for entry in sites]}
    return dict(options)


def _site_with_norm(entry: Any, norm: str) -> Any:
    named = {"name": entry} if isinstance(entry, str) else entry
    normed = isinstance(named, Mapping) and named.get("name") in NORMED
    return with_norm(named["name"], named, norm) if normed else entry


def _as_recorded(options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    return with_norm(info.data.get("model", ""), options, EARLIER_NORM if info.mode == "json" else NORM)


Options = Annotated[dict[str, Any], AfterValidator(_as_recorded)]  # of a record's field "model", which stands before


RegionName = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]


class Topology(Frozen):
    """Sites that send each other what others send a server (:mod:`fedsmall.algorithm.gossip`).

    ``by`` "gossip" every site sends to one drawn each time, by "ring" to the next in the order of names, by another
    name as the package says that brings it (``fedsmall.topologies``). An average takes ``exchanges``, in each of which
    a site sends one new message, and again those not acknowledged; a hop at most ``tries``. ``loss`` is the share of
    messages that never come; one may come up to ``delay`` exchanges later.
    """

    by: str
    exchanges: Positive = 10
    tries: Positive = 3
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    delay: Annotated[int, Field(ge=0)] = 0


class Regions(Frozen):
    """Sites in so many regions, each with a server of its own (:mod:`fedsmall.travel.journey`).

    Which are in which ``sites`` says by name; else they are dealt. The regions' global models are averaged every
    ``average_every`` rounds, or whenever models are in a region; a handover leaves it with probability ``across``.
    """

    number: Positive
    average_every: Positive | None = None
    across: Annotated[float, Field(ge=0, le=1)] = 0.1
    sites: dict[RegionName, tuple[str, ...]] | None = None

    @model_validator(mode="after")
    def _each_in_one(self) -> Self:
        if self.sites is None:
            return self
        if len(self.sites) != self.number:
            raise ValueError(f"number is {self.number}, and sites names {len(self.sites)} regions; leave number out")
        if empty := [region for region, names in self.sites.items() if not names]:
            raise ValueError(f"region {empty[0]!r} has no site; a region needs one at least")
        names = self.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"site {twice[0]!r} is named twice; a site is in one region")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The sites of all regions in the order of their names, where they are named."""
        return tuple(sorted(name for names in (self.sites or {}).values() for name in names))

    def smallest(self, sites: int) -> int:
        """How many of so many sites the smallest region has."""
        return min(map(len, self.sites.values())) if self.sites else sites // self.number


def _a_topology(value: Any) -> Any:
    if value is None or value == "server":
        return None
    if isinstance(value, str):
        value = {"by": value}
    known = dict.fromkeys(["gossip", "ring", *extensions("fedsmall.topologies")])
    if isinstance(value, Mapping) and value.get("by") not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise ValueError(f'topology is "server", or one of {names}; or a table: {{by = "gossip", loss = 0.2}}')
    return value


def _some_regions(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("sites"), Mapping) and "number" not in value:
        return {**value, "number": len(value["sites"])}
    return {"number": value} if type(value) is int else value


NoServer = Annotated[Topology | None, BeforeValidator(_a_topology)]
InRegions = Annotated[Regions | None, BeforeValidator(_some_regions)]


PRECISIONS = ("full", "half", "int8")
TOP = re.compile(r"top(\d{1,3}(?:\.\d{1,6})?)%")


def share_of(wire: str) -> float | None:
    """The share of its numbers that leave with a model, "top1%" -> 0.01; None for other forms."""
    read = TOP.fullmatch(wire)
    return float(read[1]) / 100 if read else None


def _known_wire(wire: str) -> str:
    share = share_of(wire)
    if wire not in PRECISIONS and (share is None or not 0 < share <= 1):
        forms = ", ".join(f'"{name}"' for name in PRECISIONS)
        raise ValueError(f'wire is {forms} or a share such as "top1%", above 0 and at most 100')
    return wire


Wire = Annotated[str, AfterValidator(_known_wire)]
