"""A plan: everything that decides the numbers of one run, as frozen records that are validated when built.

A scenario is a plan for each of its methods and seeds. A plan travels as JSON inside every order.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from fedsmall.entry_points import load_extension
from fedsmall.parts import (
    NO_PRIVACY,
    RENAMED_MODELS,
    SHARED_PART,
    Boosting,
    EarlyStop,
    Fraction,
    Frozen,
    InRegions,
    Length,
    NonNegative,
    NoServer,
    Options,
    Positive,
    Privacy,
    Recipe,
    Regression,
    Server,
    Test,
    Threshold,
    Tree,
    Validation,
    Wire,
    share_of,
)

INSTEAD = {  # of what earlier releases had: what to write
    "FedTM": 'take "TravellingModel", which came out as well on most data',
    "ParallelFedAvg": 'take "TravellingGroups", which is as good and needs fewer communication rounds',
    "FedPAGE": 'take "SCAFFOLD" or "FedDC", which came out as well',
    "FedFa": 'take "FedAvg"; examples/own_method.py has it as parts of one\'s own',
    "phases": "leave it out: the whole run has one schedule",
    "turns": "leave it out; validate = {routes = 5, by_samples = true} has folds of samples",
    "distil": "leave it out: FedAvg for as many rounds came out better",
    "keep_last": "leave it out: the global model came out as well or better than the last that a site received",
    "matched_mean": 'take "mean" with initial_models = "common"; examples/matching.py has it as one\'s own',
    "int4": 'take "int8", or the largest changes alone, "top10%"',
}
WITHDRAWN = {"page": "FedPAGE", "fedfa": "FedFa"}  # methods, by their rules and servers


def check_withdrawn(word: str) -> None:
    """Raise ValueError, in one line that says what to write instead, for a key, a method or a value of old."""
    if word in INSTEAD:
        raise ValueError(f"{word} was withdrawn: {INSTEAD[word]}")


def _without_withdrawn(given: Any) -> Any:
    """The keys of a method without those that an earlier release wrote and that said nothing; ValueError for others."""
    if not isinstance(given, Mapping):
        return given
    method = dict(given)
    validation = next((key for key in ("validate", "validation") if method.get(key)), None)
    if method.get("turns") and validation and isinstance(method[validation], Mapping):  # folds of samples, as of old
        method[validation], method["turns"] = {**method[validation], "by_samples": True}, False
    for key in ("phases", "turns", "distil", "keep_last"):
        if method.pop(key, None):
            check_withdrawn(key)
    for key in ("rule", "server", "aggregator", "wire"):
        if isinstance(word := method.get(key), str):
            check_withdrawn(WITHDRAWN.get(word, word))
    return method


class Method(Frozen):
    """One method, as the parts it is made of; :data:`fedsmall.methods.METHODS` holds the named ones.

    ``permute_every`` is the papers' d and ``aggregate_every`` their b, both in rounds; ``None`` means never (before the
    end, for the aggregation). ``rule`` is the client regularizer, ``server`` the server optimizer. ``gate`` is how many
    times the median of a round's updates one may be (:mod:`fedsmall.algorithm.gate`). ``wire`` is the compression.

    ``models`` travel, by default one a site, in ``groups`` that are averaged each by itself. What is evaluated, kept
    and used is the groups' models together, or of each its moving average (``ema``) or its last ``snapshots``.
    ``topology`` and ``regions`` say who averages, if it is not one server; ``divergence`` when an average is left out
    (:mod:`fedsmall.algorithm.dynamic`); docs/manual/meanings.toml has a line on every key.
    """

    name: str
    label: str = ""
    family: Literal["federated", "standalone", "central"] = "federated"
    permute_every: Positive | None = None
    aggregate_every: Positive | None = None
    random_schedule: bool = False
    aggregator: str = "mean"
    aggregator_options: dict[str, float] = Field(default_factory=dict)
    weighted: bool = False
    rule: Literal["none", "proximal", "scaffold", "feddyn"] = "none"
    proximal_mu: NonNegative = 0.0
    feddyn_alpha: NonNegative = 0.0
    scaffold_option: Literal[1, 2] = 2
    server: Server = "none"
    server_options: dict[str, float] = Field(default_factory=dict)
    fraction: Fraction = 1.0
    tree: Tree | None = None
    boosting: Boosting | None = None
    regression: Regression | None = None
    privacy: Privacy | None = None
    gate: Annotated[float, Field(gt=1)] | Literal[False] = 20.0
    wire: Wire = "full"
    models: Positive | None = None
    route: Literal["random", "cyclic", "shuffled"] = "random"
    groups: Positive | Literal["each"] = 1
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    snapshots: Positive = 1
    together: Literal["probability", "logit"] = "probability"
    validation: Validation | None = Field(default=None, validation_alias=AliasChoices("validate", "validation"))
    topology: NoServer = None
    regions: InRegions = None
    divergence: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    intercepts: Literal["common", "hospital"] = "common"

    @model_validator(mode="before")
    @classmethod
    def _withdrawn(cls, given: Any) -> Any:
        return _without_withdrawn(given)

    @model_validator(mode="after")
    def _label(self) -> Self:
        if not self.label:
            object.__setattr__(self, "label", self.name)
        return self

    @model_validator(mode="after")
    def _routes(self) -> Self:
        if self.routes and self.groups not in (1, "each") and self.groups % self.routes:
            raise ValueError(
                f"{self.groups} groups make no {self.routes} routes; give groups = {self.routes}, or a multiple"
            )
        return self

    @property
    def permutes(self) -> bool:
        """Whether models are handed on between two aggregations."""
        return self.permute_every is not None

    @property
    def is_federated(self) -> bool:
        """Whether models travel: no site trains alone, and no samples are pooled."""
        return self.family == "federated"

    @property
    def is_central(self) -> bool:
        """Whether one model is trained on the samples of all sites."""
        return self.family == "central"

    @property
    def moves(self) -> bool:
        """Whether models go to other sites than those that trained them, be it after an average."""
        return self.permutes or self.grouped or self.route != "random"

    @property
    def hidden(self) -> bool:
        """Whether single models are kept from the server (:class:`~fedsmall.parts.Privacy`)."""
        return self.is_federated and self.privacy is not None and self.privacy.hidden

    @property
    def shares_noise(self) -> bool:
        """Whether each site adds a share of the noise of a secure sum, which has it whole."""
        privacy = self.privacy if self.is_federated and self.regression is not None else None
        return privacy is not None and privacy.secure and privacy.is_patient_level

    @property
    def is_compressed(self) -> bool:
        """Whether what travels is not in full."""
        return self.wire != "full" and self.is_federated

    @property
    def top_share(self) -> float | None:
        """The share of its numbers that leave with a model, where the largest changes alone do; None elsewhere."""
        return share_of(self.wire) if self.is_compressed else None

    @property
    def is_ensemble(self) -> bool:
        """Whether what comes out is several models that answer together: arrays with a leading axis of members."""
        return self.grouped or self.snapshots > 1

    @property
    def keeps_global(self) -> bool:
        """Whether what is evaluated and kept is the global model itself: no ensemble, and no moving average."""
        return not (self.is_ensemble or self.ema)

    @property
    def server_tree(self) -> Tree | None:
        """The replica trees that the server folds; None where sites fold theirs, or have none."""
        return self.tree if self.tree is not None and self.tree.fold_at == "server" else None

    @property
    def routes(self) -> int:
        """How many routes of a cross-validation the models go, each of which leaves out a fold; 0 without one."""
        return 0 if self.validation is None else self.validation.routes

    @property
    def floor(self) -> int:
        """Of how many samples a site reports metrics of models that never saw them, at least."""
        return 1 if self.validation is None else self.validation.floor

    @property
    def grouped(self) -> bool:
        """Whether models travel in groups that are never merged."""
        return self.groups != 1 or self.routes > 0

    @property
    def by_samples(self) -> bool:
        """Whether routes keep from a fold of every site's samples, and take turns (:mod:`fedsmall.travel.journey`)."""
        return self.validation is not None and self.validation.by_samples

    @property
    def trains_networks(self) -> bool:
        """Whether models are networks, trained by gradients."""
        return self.boosting is None and self.regression is None

    @property
    def sends_sums(self) -> bool:
        """Whether what a site sends are sums over its patients: of a regression, or for a level of a tree."""
        return self.regression is not None or (self.boosting is not None and self.boosting.histogram)

    @property
    def has_local_models(self) -> bool:
        """Whether sites have models of their own that can be judged: not where all are pooled, or sites sum alone."""
        sums = self.regression is not None and not self.regression.passes
        return not self.is_central and not (sums and self.is_federated)

    @property
    def extension(self) -> Any:
        """What trains in place of networks, as ``fedsmall.trainers`` has it (:mod:`fedsmall.entry_points`), or None."""
        if self.trains_networks:
            return None
        return load_extension("fedsmall.trainers", "boosting" if self.regression is None else "regression")

    @property
    def keeps_intercepts(self) -> bool:
        """Whether every site adds an intercept of its own to what the global model says, which never leaves it."""
        return self.adds_intercepts or (self.regression is not None and self.regression.intercepts == "hospital")

    @property
    def adds_intercepts(self) -> bool:
        """Whether sites fit their intercepts after the run, to a model that was trained without any."""
        return self.intercepts == "hospital"

    @property
    def is_dynamic(self) -> bool:
        """Whether averages are left out while models are near the last global one."""
        return self.divergence is not None

    @property
    def has_one_server(self) -> bool:
        """Whether one server averages the models of all sites."""
        return self.topology is None and self.region_count == 1

    @property
    def region_count(self) -> int:
        """How many regions with a server each there are; one where there is one server."""
        return 1 if self.regions is None else self.regions.number

    def everyone(self, sites: int) -> bool:
        """Whether every one of so many sites takes part in every communication round."""
        return self.fraction >= 1 and (self.models is None or self.models >= sites)

    def travelling(self, sites: int) -> int:
        """How many models travel among so many sites."""
        drawn = max(1, round(self.fraction * sites)) if self.models is None else min(self.models, sites)
        return sites if not self.is_federated else drawn

    def averaged(self, sites: int) -> int:
        """How many models become one at an average among so many sites; of regions, in the smallest."""
        models = self.travelling(sites) // (1 if self.by_samples else max(self.group_count(sites), 1))
        return models if self.regions is None else min(models, self.regions.smallest(sites))

    def group_count(self, sites: int) -> int:
        """How many groups the models make that travel among so many sites."""
        if self.groups == 1:
            return self.routes or 1
        return self.travelling(sites) if self.groups == "each" else self.groups


class Shared(Frozen):
    """What a scenario and each plan of it have in common.

    ``task`` and ``partition`` are the scenario's own values, which :mod:`fedsmall.planning.tasks` reads. ``test`` is
    how many samples are held out, what share of them, or "official" for the source's own test set; ``None`` is that
    test set where there is one, else a quarter. ``metric`` is one beside those of every task.

    ``threshold`` is a number (``None`` is 0.5), or how it is chosen on training samples that the model has not seen:
    "youden" (the largest sensitivity + specificity) or {"sensitivity": 0.9} (the highest that reaches it).
    ``recalibrate`` fits an intercept and a slope to log-odds on such samples (Cox 1958).

    ``route_seed`` draws routes, sites that take part and folds of routes; ``None`` is ``seed``, which draws the rest.
    """

    name: str
    task: str | dict[str, Any]
    model: str = "mlp"
    model_options: Options = Field(default_factory=dict, validate_default=True)
    sites: Positive | None = None
    samples_per_site: Positive | None = None
    partition: str | dict[str, Any] = "iid"
    rounds: Length = 100
    route_seed: Annotated[int, Field(ge=0)] | None = None
    evaluate_every: Positive | None = None
    initial_models: Literal["common", "independent"] = "common"
    dtype: Literal["float32", "float64"] = "float32"
    metric: str | None = None
    threshold: Threshold = None
    recalibrate: bool = False
    folds: Annotated[int, Field(ge=2, le=10_000)] | None = None
    test: Test = None
    without: tuple[str, ...] = ()
    stop: EarlyStop | None = None
    recipe: Recipe = Recipe()


class Plan(Shared):
    """One run: task, sites, recipe, one method, one seed."""

    seed: Annotated[int, Field(ge=0)] = 0
    fold: Annotated[int, Field(ge=0)] = 0
    method: Method

    def with_model_of(self, sites: int) -> "Plan":
        """The plan with the model that so many sites train, where the method brings one and its size follows theirs."""
        extension = self.method.extension
        return self if extension is None else extension.plan_among(self, sites)

    @field_validator("model")
    @classmethod
    def _today(cls, model: str) -> str:
        return RENAMED_MODELS.get(model, model)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.folds is not None and self.test is not None:
            raise ValueError("folds say that one fold is the test set, so test has nothing to say; remove one of them")
        return self

    @property
    def privacy(self) -> Privacy:
        """What is done so that nobody's data can be told from what leaves a site; without any, all of it is off."""
        return self.method.privacy or NO_PRIVACY

    @property
    def has_own_models(self) -> bool:
        """Whether sites have models of their own, which share some layers (:mod:`fedsmall.models.own_models`)."""
        return self.model == SHARED_PART

    @property
    def travel_seed(self) -> int:
        """The seed from which who is where is drawn."""
        return self.seed if self.route_seed is None else self.route_seed

    @property
    def may_end_early(self) -> bool:
        """Whether the run may end before its last round: by ``stop``, or as a regression moves no more."""
        return self.stop is not None or self.method.regression is not None

    @property
    def kept_back(self) -> float:
        """What share of its training samples a site keeps back for ``stop``; none where routes judge the models."""
        return 0.0 if self.stop is None or self.method.routes else self.stop.hold_out or 0.0

    @property
    def data_key(self) -> str:
        """What the data of the sites depend on, as JSON: plans with equal keys share their federation."""
        fields = {"task", "sites", "samples_per_site", "partition", "seed", "dtype", "folds", "fold"}
        later = {"test"} if self.test is not None else set()  # keys of runs that knew no test stay what they were
        later |= {"stop"} if self.kept_back else set()
        later |= {"without"} if self.without else set()
        return self.model_dump_json(include=fields | later)
