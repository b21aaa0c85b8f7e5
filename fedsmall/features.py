"""What goes together in a plan, as a table: what each feature needs, and what it takes away from the others.

A plan is refused where one feature needs what another takes away. Limits on numbers and tasks are checked elsewhere.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from fedsmall.errors import PlanError
from fedsmall.parts import Frozen, Privacy, Recipe
from fedsmall.plan import Method, Plan


class Property(NamedTuple):
    """What one feature may need and another take away, and why a plan with the former cannot do without it."""

    name: str
    why: str


# which models there are, and who has them
TRAVEL = Property("models that travel", "who trains alone, or on all samples at once, sends none")
AT_SITES = Property("a model at each site", "one that is trained on all samples at once is nobody's own")
WEIGHTS = Property(
    "the weights of a network", "boosted trees have splits and leaves, a regression takes steps from sums"
)
NOISE = Property(
    "noise on models or in steps", 'trees, and a regression\'s steps, take none; Ridge has level = "patient"'
)
ONE_KIND = Property("one kind of model", "a method trains networks, trees or a regression")
ONE_NETWORK = Property(
    "one network at all sites", "layers that a site keeps to itself fit no other's, and never leave it"
)
SERVER = Property("a server", "without one nobody has the models of a round together, or remembers the round before")
ONE_SERVER = Property("one server", "only a server of all sites can draw among them, compare them or keep them apart")
ONE_COUNT = Property("one count of models", "how many travel is said once, and of all sites under one server")
ONE_GLOBAL = Property("one global model", "models are held near it, or sent as what has changed since")
COMMON_START = Property("a common start", "what models are compared with is a model that all sites have had")
SINGLE_MODELS = Property("single models at the server", "of a secure sum it sees the sum alone")
READABLE = Property("models that the server can read", "it builds, compares or forwards single ones")
# how models become one
MEAN = Property("the mean", "it alone comes out of a sum, of a part of the models, or of their largest changes")
WEIGHING = Property("an aggregator that weighs", "others give every model the same say")
COUNTS = Property("numbers of samples", "patient-level privacy does not tell how many a site has")
SUMS = Property("sums over sites", "trees that sites grow with xgboost are joined, not added")
ONE_SUM = Property("one sum", "a weighted FedDyn takes two, with weights and without")
ROUNDED = Property("numbers that are sent rounded", "a secure sum takes 64 bits of each, whatever it was rounded to")
EVERY_AVERAGE = Property("an average whenever it is due", "divergence leaves it out while models are near the last one")
PLAIN_AVERAGE = Property("averages that nothing moves", "the mean of the models is then the global model")
ALL_SITES = Property("all sites at every average", "each says how far its model has gone from the last one")
# where models go, and what goes with them
STAYING = Property("models that stay where they trained", "one that is handed over is sent, averaged or not")
STRAIGHT_WAY = Property("a straight way from the global model", "a model that is handed over has come another way")
KNOWN_WAY = Property("a way known beforehand", "who seals knows who opens; folds of sites are drawn by their samples")
UNVISITED = Property("sites that a model never visits", "there it is judged")
ONE_MESSAGE = Property("one message a round", "without a server a model goes in several, which may be late or lost")
ONE_MODEL = Property("one model of each site", 'replicas stay there: fold_at = "site" and travel = "anchors"')
ONLY_MODEL = Property("nothing beside the model", 'noise covers it alone: optimizer_state = "reset", another rule')
MOMENTS_HOME = Property("moments that do not leave", 'they would go beside the model: optimizer_state = "reset"')
MOMENTS_ALONG = Property(
    "moments that go with their model", 'left behind they destroy daisy-chaining: optimizer_state = "travel" or "reset"'
)
# how a site trains
ONE_TRAINING = Property("one training of each sample", "a folded model has come several ways, most patients in each")
PLAIN_SGD = Property("steps of plain SGD", "each counts as a gradient times the learning rate")
FITTED_AFTER = Property(
    "a model fitted without intercepts", 'a regression fits its own: regression = {intercepts = "hospital"}'
)
NO_MOMENTUM = Property("steps without momentum", "a site's mean gradient is read off its way: set momentum = 0")
FROM_REST = Property("momentum from rest", 'steps are normalised as from a fresh start: optimizer_state = "reset"')
COVERED = Property("an epsilon that covers all", "it counts no other use of patients; privacy = {blur = 1} claims none")
NOISED_STEPS = Property(
    "steps that are noised and counted", "all else would tell of samples: local_steps, weights as numbers, option 2"
)
NO_MEMORY = Property(
    "training that remembers no earlier round", 'what it remembers tells again of records: optimizer_state = "reset"'
)
SECRET_DRAWS = Property("secret draws", "the changes of images are drawn from a stream that others can repeat")


class Feature(NamedTuple):
    """A row of the table: a feature as a scenario spells it (a format of plan, method, recipe), and when it is on."""

    name: str
    is_on: Callable[[Plan], bool]
    needs: AbstractSet[Property] = frozenset()
    takes: AbstractSet[Property] = frozenset()

    def spelled(self, plan: Plan) -> str:
        """The feature with the plan's own values."""
        return self.name.format(plan=plan, method=plan.method, recipe=plan.recipe)


def _when_set(path: str, **properties: AbstractSet[Property]) -> Feature:
    """The feature of a key, "method.groups", that is not as it is by default; words are spelled with it."""
    room, _, key = path.rpartition(".")
    records: dict[str, type[Frozen]] = {"": Plan, "method": Method, "recipe": Recipe}
    default = records[room].model_fields[key].default
    name = f'{key} = "{{{path}}}"' if isinstance(default, str) else key
    return Feature(name, lambda plan: attrgetter(path)(plan) != default, **properties)


NETWORKS = {TRAVEL, WEIGHTS, ONE_NETWORK}
CORRECTION = {MEAN, STRAIGHT_WAY, ONE_TRAINING}  # what a drift correction is defined for

FEATURES = (
    _when_set("method.family", takes={TRAVEL}),
    Feature('family = "central"', lambda p: p.method.family == "central", takes={AT_SITES}),
    # who averages with whom
    Feature(
        'topology = "{method.topology.by}"',
        lambda p: p.method.topology is not None,
        needs=NETWORKS | {ONE_MODEL, MOMENTS_ALONG},
        takes={SERVER, ONE_SERVER, ONE_MESSAGE, ONE_GLOBAL},
    ),
    Feature(
        "regions",
        lambda p: p.method.region_count > 1,
        needs=NETWORKS | {SERVER},
        takes={ONE_SERVER, ONE_GLOBAL, ONE_COUNT},
    ),
    _when_set(
        "method.divergence",
        needs=NETWORKS | {ONE_SERVER, ONE_GLOBAL, COMMON_START, MEAN, PLAIN_AVERAGE, ALL_SITES, STAYING, MOMENTS_HOME},
        takes={EVERY_AVERAGE},
    ),
    _when_set("method.groups", needs=NETWORKS | {ONE_SERVER, MOMENTS_ALONG}, takes={ONE_GLOBAL}),
    Feature(
        "validate",
        lambda p: p.method.routes > 0,
        needs=NETWORKS | {ONE_SERVER, SINGLE_MODELS, UNVISITED, MOMENTS_ALONG},
        takes={ONE_GLOBAL, COVERED},
    ),
    Feature("validate", lambda p: p.method.routes > 0 and not p.method.by_samples, takes={KNOWN_WAY}),
    # how many models there are, and where they go
    _when_set("method.fraction", needs={ONE_SERVER}, takes={ALL_SITES, ONE_COUNT}),
    _when_set("method.models", needs={TRAVEL, ONE_COUNT}, takes={ALL_SITES}),
    _when_set("method.permute_every", needs={MOMENTS_ALONG}, takes={STAYING, STRAIGHT_WAY}),
    _when_set("method.route", needs={ONE_SERVER, MOMENTS_ALONG}, takes={STAYING, UNVISITED}),
    _when_set("method.random_schedule", needs={WEIGHTS}),
    Feature('initial_models = "independent"', lambda p: p.initial_models == "independent", takes={COMMON_START}),
    # how models become one
    _when_set("method.aggregator", needs={WEIGHTS, SERVER, SINGLE_MODELS}, takes={MEAN}),
    Feature(
        'aggregator = "{method.aggregator}"',
        lambda p: p.method.aggregator in ("median", "trimmed_mean", "krum", "radon"),
        takes={WEIGHING},
    ),
    _when_set("method.weighted", needs={WEIGHTS, WEIGHING, COUNTS}),
    Feature("weighted", lambda p: p.method.weighted and p.method.server == "feddyn", takes={ONE_SUM}),
    _when_set("method.server", needs={WEIGHTS, SERVER}, takes={PLAIN_AVERAGE}),
    _when_set("method.ema", needs={TRAVEL, WEIGHTS, ONE_SERVER, EVERY_AVERAGE}),
    _when_set("method.snapshots", needs=NETWORKS | {ONE_SERVER, EVERY_AVERAGE}),
    Feature(
        'intercepts = "hospital"', lambda p: p.method.adds_intercepts, needs={TRAVEL, ONE_NETWORK, SERVER, FITTED_AFTER}
    ),
    _when_set("stop", needs={ONE_SERVER, ONE_NETWORK}),
    Feature("stop.hold_out", lambda p: p.kept_back > 0, takes={COVERED}),
    # how a site trains
    Feature('rule = "proximal"', lambda p: p.method.rule == "proximal", needs={WEIGHTS, ONE_GLOBAL, EVERY_AVERAGE}),
    Feature(
        'rule = "scaffold"',
        lambda p: "scaffold" in (p.method.rule, p.method.server),
        needs=CORRECTION | {WEIGHTS, ONE_NETWORK, ONE_GLOBAL, PLAIN_SGD, NO_MOMENTUM, EVERY_AVERAGE},
        takes={ONLY_MODEL},
    ),
    Feature(
        "scaffold_option = 1",
        lambda p: p.method.rule == "scaffold" and p.method.scaffold_option == 1,
        takes={NOISED_STEPS},
    ),
    Feature(
        'rule = "feddyn"',
        lambda p: "feddyn" in (p.method.rule, p.method.server),
        needs=CORRECTION | {WEIGHTS, ONE_GLOBAL, EVERY_AVERAGE},
        takes={NO_MEMORY},
    ),
    Feature(
        'server = "fednova"',
        lambda p: p.method.server == "fednova",
        needs=CORRECTION | {ONE_SERVER, PLAIN_SGD, FROM_REST},
    ),
    _when_set("method.tree", needs={WEIGHTS, EVERY_AVERAGE}, takes={ONE_TRAINING}),
    Feature(
        'fold_at = "server"',
        lambda p: p.method.server_tree is not None,
        needs={PLAIN_AVERAGE, STRAIGHT_WAY},
        takes={ONE_MODEL},
    ),
    Feature(
        'travel = "trees"',
        lambda p: p.method.tree is not None and p.method.tree.travel == "trees",
        needs={MOMENTS_ALONG},
        takes={ONE_MODEL},
    ),
    _when_set("method.boosting", takes={WEIGHTS, ONE_KIND, NOISE}),
    _when_set("method.regression", needs={ONE_KIND, COMMON_START}, takes={WEIGHTS, FITTED_AFTER}),
    Feature(
        "regression",  # sums over all sites can be noised once for each patient
        lambda p: p.method.regression is not None and (p.method.permutes or not p.privacy.is_patient_level),
        takes={NOISE},
    ),
    Feature(
        "boosting without histogram",
        lambda p: p.method.boosting is not None and not p.method.boosting.histogram,
        takes={SUMS},
    ),
    Feature(
        'model = "shared_part"', lambda p: p.model == "shared_part", needs={AT_SITES, ONE_MODEL}, takes={ONE_NETWORK}
    ),
    Feature('optimizer = "adam"', lambda p: p.recipe.optimizer == "adam", takes={PLAIN_SGD}),
    _when_set("recipe.momentum", takes={NO_MOMENTUM}),
    Feature(
        'momentum with optimizer_state = "{recipe.optimizer_state}"',
        lambda p: p.recipe.momentum > 0 and p.recipe.optimizer_state != "reset",
        takes={FROM_REST},
    ),
    Feature('optimizer_state = "travel"', lambda p: p.recipe.moments == "travel", takes={MOMENTS_HOME, ONLY_MODEL}),
    Feature('optimizer_state = "stay"', lambda p: p.recipe.moments == "stay", takes={MOMENTS_ALONG, NO_MEMORY}),
    _when_set("recipe.local_epochs", takes={NOISED_STEPS}),
    Feature('class_weights = "balanced"', lambda p: p.recipe.class_weights == "balanced", takes={NOISED_STEPS}),
    _when_set("recipe.augment", takes={SECRET_DRAWS}),
    # what leaves a site, and how
    _when_set("method.wire", needs={TRAVEL, WEIGHTS, ONE_SERVER, ROUNDED, EVERY_AVERAGE}),
    Feature(
        'wire = "{method.wire}"',
        lambda p: p.method.wire.startswith("top"),
        needs={READABLE, ONE_GLOBAL, COMMON_START, MEAN},
    ),
    Feature(
        "clip, exposure or blur",
        lambda p: p.method.is_federated and p.privacy.at_comm_rounds,
        needs={NOISE, ONE_MESSAGE, ONE_MODEL, ONLY_MODEL, EVERY_AVERAGE},
    ),
    Feature("clip", lambda p: p.privacy.counted, needs={NOISE, COVERED}),
    Feature(
        "exposure",
        lambda p: p.privacy.exposure is not None,
        needs={WEIGHTS, ONE_NETWORK, COVERED, ONE_TRAINING, NO_MEMORY},
    ),
    Feature(
        'level = "patient"',
        lambda p: p.privacy.is_patient_level,
        needs={ONE_TRAINING, NOISED_STEPS, SECRET_DRAWS},
        takes={COUNTS},
    ),
    Feature(
        "privacy without secure",
        lambda p: p.method.privacy is not None and not (p.privacy.secure or p.privacy.open),
        needs={NOISE},
    ),
    Feature(
        "sealed",
        lambda p: p.method.hidden and p.privacy.sealed,
        needs={ONE_SERVER, ONE_NETWORK, KNOWN_WAY, EVERY_AVERAGE},
        takes={READABLE},
    ),
    Feature(
        "secure",
        lambda p: p.method.hidden and p.privacy.secure,
        needs={ONE_SERVER, ONE_NETWORK, SUMS, MEAN, ONE_SUM, ONE_MODEL, EVERY_AVERAGE},
        takes={READABLE, SINGLE_MODELS, ROUNDED},
    ),
    Feature(
        "secure without sealed",
        lambda p: p.method.hidden and p.privacy.secure and not p.privacy.sealed,
        needs={MOMENTS_HOME},
    ),
)


def check_features(plan: Plan) -> None:
    """Raise PlanError, in one line that names both and says why, where two features of a plan do not go together."""
    for needing, lost, taking in conflicts(feature for feature in FEATURES if feature.is_on(plan)):
        raise PlanError(
            f"{needing.spelled(plan)} needs {lost.name} ({lost.why}), and {taking.spelled(plan)} takes it away: "
            "leave out one of them."
        )


def takes_noise(plan: Plan) -> bool:
    """Whether the plan's method goes with noise on the models that are handed over (``exposure``)."""
    noised = plan.model_copy(update={"method": plan.method.model_copy(update={"privacy": Privacy(exposure=1.0)})})
    return not any(conflicts(feature for feature in FEATURES if feature.is_on(noised)))


def conflicts(features: Iterable[Feature]) -> Iterator[tuple[Feature, Property, Feature]]:
    """What is between some features: who needs which property, and who takes it away."""
    for needing, taking in product(features, repeat=2):
        yield from ((needing, lost, taking) for lost in sorted(needing.needs & taking.takes))


def refused_partners() -> dict[str, list[str]]:
    """By the name of each feature, those that it does not go with, in the order of the table."""
    pairs = {(_plain(needing), _plain(taking)) for needing, _, taking in conflicts(FEATURES)}
    names = list(dict.fromkeys(map(_plain, FEATURES)))
    return {name: [other for other in names if {(name, other), (other, name)} & pairs] for name in names}


def _plain(feature: Feature) -> str:
    return re.sub(r"{.*?}", "…", feature.name)
