"""The methods by name: each is a row of parts, and any part may be set anew in a scenario."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedsmall.entry_points import Registry
from fedsmall.errors import DataError, PlanError
from fedsmall.parts import Recipe
from fedsmall.plan import INSTEAD, Method, Plan


class MethodRow(NamedTuple):
    """A named method: a sentence for the user, its paper, the parts that are not plain averaging, its own recipe."""

    summary: str
    source: str
    parts: Mapping[str, Any]
    recipe: Mapping[str, Any] = {}


OURS: dict[str, MethodRow] = {
    "FedAvg": MethodRow("Average the sites' models.", "McMahan et al. 2017", {"aggregate_every": 1}),
    "FedDC": MethodRow(
        "Hand models on to random sites, average them now and then.",
        "Kamp, Fischer & Vreeken 2023, Algorithm 1",
        {"permute_every": 1, "aggregate_every": 10},
    ),
    "DaisyChain": MethodRow(
        "Hand models on to random sites; average once, at the end.",
        "Kamp, Fischer & Vreeken 2023, Table 1",
        {"permute_every": 1},
    ),
    "TravellingModel": MethodRow(
        "One model goes round all sites, one after the other.",
        "Chang et al. 2018, cyclic weight transfer; Souza et al. 2022",
        {"permute_every": 1, "models": 1, "route": "cyclic"},
    ),
    "TravellingGroups": MethodRow(
        "Models travel in groups, each averaged by itself at new sites; the groups' models are an ensemble.",
        "FedDC within groups that never merge",
        {"aggregate_every": 1, "groups": 5},
    ),
    "TravellingEnsemble": MethodRow(
        "Every site's model travels and none is averaged; they are an ensemble.",
        "the daisy chain of Kamp, Fischer & Vreeken 2023 without its average",
        {"permute_every": 1, "groups": "each"},
    ),
    "FedProx": MethodRow(
        "FedAvg with a pull towards the global model during local training.",
        "Li et al. 2020",
        {"aggregate_every": 1, "rule": "proximal", "proximal_mu": 0.1},
    ),
    "FedSGD": MethodRow(
        "One full-batch gradient step at every site, averaged each round.",
        "McMahan et al. 2017",
        {"aggregate_every": 1, "weighted": True},
        {"local_steps": 1, "batch": None, "momentum": 0.0},
    ),
    "FedAvgM": MethodRow("Server momentum.", "Hsu et al. 2019", {"aggregate_every": 1, "server": "momentum"}),
    "FedAdagrad": MethodRow("Adagrad at the server.", "Reddi et al. 2021", {"aggregate_every": 1, "server": "adagrad"}),
    "FedAdam": MethodRow("Adam at the server.", "Reddi et al. 2021", {"aggregate_every": 1, "server": "adam"}),
    "FedYogi": MethodRow("Yogi at the server.", "Reddi et al. 2021", {"aggregate_every": 1, "server": "yogi"}),
    "SCAFFOLD": MethodRow(
        "Control variates correct the drift of local training.",
        "Karimireddy et al. 2020, Algorithm 1, option II",
        {"aggregate_every": 1, "rule": "scaffold", "server": "scaffold"},
    ),
    "FedNova": MethodRow(
        "Averages updates normalised by the local steps taken.",
        "Wang et al. 2020",
        {"aggregate_every": 1, "server": "fednova", "weighted": True},
    ),
    "FedDyn": MethodRow(
        "A dynamic regulariser aligns local and common optima.",
        "Acar et al. 2021",
        {"aggregate_every": 1, "rule": "feddyn", "server": "feddyn", "feddyn_alpha": 0.01},
    ),
    "FedMedian": MethodRow(
        "The coordinate median of the models.", "Yin et al. 2018", {"aggregate_every": 1, "aggregator": "median"}
    ),
    "FedTrimmedAvg": MethodRow(
        "The coordinate mean without the extremes.",
        "Yin et al. 2018",
        {"aggregate_every": 1, "aggregator": "trimmed_mean"},
    ),
    "GeometricMedian": MethodRow(
        "The geometric median of the models.",
        "Pillutla et al. 2022",
        {"aggregate_every": 1, "aggregator": "geometric_median"},
    ),
    "Krum": MethodRow(
        "The model closest to its neighbours.", "Blanchard et al. 2017", {"aggregate_every": 1, "aggregator": "krum"}
    ),
    "RadonMachine": MethodRow(
        "The iterated Radon point of the models.", "Kamp et al. 2017", {"aggregate_every": 1, "aggregator": "radon"}
    ),
    "FedDC+Radon": MethodRow(
        "FedDC with the iterated Radon point.",
        "Kamp, Fischer & Vreeken 2023, section 5",
        {"permute_every": 1, "aggregate_every": 50, "aggregator": "radon"},
    ),
    "FedDC+FedProx": MethodRow(
        "FedDC with a pull towards the last global model.",
        "Kamp, Fischer & Vreeken 2023, Table 2",
        {"permute_every": 1, "aggregate_every": 10, "rule": "proximal", "proximal_mu": 0.1},
    ),
    "RepFL": MethodRow(
        "Replicas of each site's model on perturbed data, equally averaged.",
        "Ghilea & Rekik, RepFL",
        {"aggregate_every": 1, "tree": {"fanout": 3, "depth": 1, "drop": 0.1, "fold": "simple"}},
    ),
    "RepTreeFL": MethodRow(
        "A tree of replicas at each site, folded by diversity.",
        "Ghilea & Rekik, RepTreeFL, Algorithms 1 and 2",
        {"aggregate_every": 1, "tree": {"fanout": 3, "depth": 1, "drop": 0.1}},
    ),
    "RepTreeFL+FedProx": MethodRow(
        "Replica trees with a pull towards the global model.",
        "a composition of the parts",
        {"aggregate_every": 1, "tree": {"fanout": 3, "depth": 1, "drop": 0.1}, "rule": "proximal", "proximal_mu": 0.1},
    ),
    "RepTreeFL+GeometricMedian": MethodRow(
        "Replica trees, the geometric median at the server.",
        "a composition of the parts",
        {"aggregate_every": 1, "tree": {"fanout": 3, "depth": 1, "drop": 0.1}, "aggregator": "geometric_median"},
    ),
    "FedDC+RepTreeFL": MethodRow(
        "Anchors travel; every site grows its replicas from the circulating model.",
        "a composition of the parts",
        {"permute_every": 1, "aggregate_every": 10, "tree": {"fanout": 3, "depth": 1, "drop": 0.1}},
    ),
    "FedDC+Trees": MethodRow(
        "Whole replica trees travel.",
        "a composition of the parts",
        {"permute_every": 1, "aggregate_every": 10, "tree": {"fanout": 3, "depth": 1, "drop": 0.1, "travel": "trees"}},
    ),
    "FedXGBBagging": MethodRow(
        "Boosted trees: every round each site adds its own to the global forest (xgboost).",
        "Flower's XGBoost example, bagging with scaled_lr",
        {"aggregate_every": 1, "boosting": {}, "gate": False},
    ),
    "FedXGBCyclic": MethodRow(
        "Boosted trees: one forest goes round all sites, and each adds trees (xgboost).",
        "Flower's XGBoost example, cyclic; the travelling model of trees",
        {"permute_every": 1, "models": 1, "route": "cyclic", "boosting": {}, "gate": False},
    ),
    "FedHistogramXGB": MethodRow(
        "Boosted trees from histograms summed over sites: those of pooled data on agreed bins.",
        "the algorithm of xgboost's hist (Chen & Guestrin 2016) on sums, in own code",
        {"aggregate_every": 1, "boosting": {"histogram": True}, "gate": False},
    ),
    "Ridge": MethodRow(
        "Ridge regression by exact sums over sites: the fit of pooled data, in some ten exchanges.",
        "Newton's method on sums, as DataSHIELD's glm; penalty by cross-validation over sites",
        {"aggregate_every": 1, "regression": {}, "gate": False},
    ),
    "AdditiveRidge": MethodRow(
        "Ridge regression with hinges at five quantiles beside each column, by exact sums.",
        "penalised linear splines (Eilers & Marx 1996)",
        {"aggregate_every": 1, "regression": {"basis": "additive"}, "gate": False},
    ),
    "RandomFeatureRidge": MethodRow(
        "Ridge regression on random features of a Gaussian kernel, by exact sums.",
        "Rahimi & Recht 2007",
        {"aggregate_every": 1, "regression": {"basis": "random"}, "gate": False},
    ),
    "TravellingPosterior": MethodRow(
        "Ridge regression without a server: a posterior goes round all sites, the pooled fit after three passes.",
        "online Bayes (Opper 1998); expectation propagation with Laplace factors (Minka 2001)",
        {
            "permute_every": 1,
            "models": 1,
            "route": "shuffled",
            "regression": {"penalty": 1.0, "passes": 3},
            "gate": False,
        },
    ),
    "StandaloneRidge": MethodRow(
        "Ridge regression at every site alone.", "the comparator", {"family": "standalone", "regression": {}}
    ),
    "StandaloneXGB": MethodRow(
        "Boosted trees at every site alone (xgboost).", "the comparator", {"family": "standalone", "boosting": {}}
    ),
    "CentralXGB": MethodRow(
        "Boosted trees on all data pooled (xgboost): what privacy forbids.",
        "the comparator",
        {"family": "central", "boosting": {}},
    ),
    "Standalone": MethodRow("Every site alone: no federation.", "the comparator", {"family": "standalone"}),
    "Central": MethodRow(
        "One model on all data pooled, in batches as large as all sites' together: what privacy forbids.",
        "the comparator",
        {"family": "central"},
    ),
}

METHODS: Mapping[str, MethodRow] = Registry("fedsmall.methods", OURS)

OF_RULE = {"proximal_mu": "proximal", "feddyn_alpha": "feddyn"}
TABLES = ("tree", "boosting", "regression")
TABLE_KEYS = (
    *("label", "target", "targets", "order", "time", "event", "classes", "categorical", "drop", "missing"),
    *("features", "separator", "decimal", "patient", "sheet", "site_column", "subgroups", "ranges"),
)
HOMES: dict[str, Collection[str]] = {  # of keys that stand elsewhere
    "a recipe: recipe = {{{} = ...}}": Recipe.model_fields,
    "a task: task = {{{} = ...}}": TABLE_KEYS,
    "a method: {} = ... below [[method]]": ("validate", *Method.model_fields),
    "the scenario: {} = ... above its first table": ("seeds", *Plan.model_fields),
}
PLAIN = {  # pydantic's words, and a user's
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text in quotes",
    "a valid boolean": "true or false",
    "a valid dictionary": "a table",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def nearest(word: str, known: list[str]) -> str:
    """A hint that names the known word most like ``word``, or all of them where none is near."""
    lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), list(lower), n=1, cutoff=0.5)
    return f"Did you mean {lower[near[0]]!r}?" if near else f"Known: {', '.join(known)}."


def check_known(word: Any, known: Iterable[str], missing: str, error: type[PlanError | DataError] = PlanError) -> None:
    """Raise an error of the words ``missing``, with the nearest name, for a word that is none of the ``known``."""
    known = list(known)
    if word not in known:
        raise error(f"{missing}. {nearest(str(word), known)}")


def method(name: str, **settings: Any) -> Method:
    """The named method with some parts set anew; a table for one of :data:`TABLES` is laid over the row's own.

    Raises PlanError for an unknown name or setting.
    """
    if name in INSTEAD:
        raise PlanError(f"{name} was withdrawn: {INSTEAD[name]}.")
    check_known(name, METHODS, f"There is no method {name!r}")
    parts = {**METHODS[name].parts, **settings}
    for table in TABLES:
        if isinstance(settings.get(table), Mapping):
            parts[table] = {**METHODS[name].parts.get(table, {}), **settings[table]}
    for key in settings.keys() & OF_RULE.keys():
        if settings[key] and (rule := parts.get("rule", "none")) != OF_RULE[key]:
            raise PlanError(f"Method {name!r}: {key} is of rule = {OF_RULE[key]!r}, and here rule = {rule!r}")
    try:
        return Method(name=name, **parts)
    except ValidationError as error:
        raise PlanError(f"Method {name!r}: {explain(error, Method)}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The fault that says most of those that pydantic found in a ``model``, as one line for a user."""
    faults = error.errors()
    fault = _telling_fault(faults[0], faults[1:])
    words, known = _place(fault["loc"], model)
    where, key = ".".join(words), words[-1] if words else ""
    if fault["type"] == "extra_forbidden":
        hints = [
            f"It belongs to {home.format(key)}" for home, keys in HOMES.items() if key in keys and key not in known
        ]
        return f"unknown key {where!r}. {[*hints, nearest(key, known)][0]}"
    if fault["type"] == "missing":
        return f"{where} is missing"
    what = fault["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    if what.startswith("Input should be "):
        what = what.removeprefix("Input ").partition(" or instance of")[0]
        for theirs, ours in PLAIN.items():
            what = what.replace(theirs, ours)
    if fault["type"] == "too_short":
        what = f"should have at least {fault['ctx']['min_length']}"
    given = f"{fault['input']!r}"
    got = "" if isinstance(fault["input"], Mapping) or what.endswith(f"got {given}") else f" (got {given})"
    return (what if not key or what.startswith(f"{key} ") else f"{where}: {what}") + got


def _place(loc: Sequence[str | int], model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The keys of pydantic's ``loc`` without its names for the branches of a union, and all keys beside the last."""
    words: list[str] = []
    holder: Any = model
    known = list(model.model_fields)
    for place, word in enumerate(loc):
        models = _models_in(holder)
        fields = {name: field.annotation for one in models for name, field in one.model_fields.items()}
        is_last = place == len(loc) - 1
        if word in fields or isinstance(word, int) or (models and is_last) or (not models and _holds_words(holder)):
            words.append(str(word))
            known = list(fields) or known
            holder = fields.get(str(word), holder if isinstance(word, int) else None)
    return words, known


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _holds_words(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, Mapping) or any(map(_holds_words, get_args(annotation)))


def _telling_fault(first: Any, others: Sequence[Any]) -> Any:
    """The first fault, or what explains it: a slip for a key that is missing, the kind of value that was given."""
    for other in others:
        if first["type"] == "missing" and other["type"] == "extra_forbidden":
            return other
        is_word = isinstance(first["input"], str)
        if first["type"] == "literal_error" and not is_word and other["loc"][:-1][:2] == first["loc"][:-1][:2]:
            return other
    return first
