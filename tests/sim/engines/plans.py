"""The table of plans that every property of a run is tested on (:mod:`tests.sim.engines.test_properties`)."""

from typing import Any

from fedsmall.methods import METHODS
from fedsmall.parts import EarlyStop, Privacy, Recipe, Tree
from fedsmall.plan import Plan
from fedsmall.planning.validation import among
from tests.sim.engines.harness import ADAM, BLUR, MOMENTUM, PATIENTS, PRIVATE, RESET, SETTINGS, SGD, plan_for, plan_of

CHAIN = SETTINGS["FedDC"]
ORDINARY: dict[str, Plan] = {
    "moments that travel": plan_of(recipe=ADAM),
    "moments that start afresh": plan_of(recipe=RESET, evaluate_every=2),
    "FedAvg with moments": plan_of("FedAvg", recipe=ADAM),
    "proximal, afresh": plan_of("FedProx", recipe=RESET),
    "independent starts": plan_of(initial_models="independent"),
    "a random schedule": plan_of(settings={"permute_every": 2, "aggregate_every": 4, "random_schedule": True}),
    "clip and noise": plan_of(settings={**SETTINGS["FedDC"], **PRIVATE}, evaluate_every=2),
    "some of the sites": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.6}, evaluate_every=3),
    "some of the sites, moments": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.4}, recipe=ADAM),
    "some, starting apart": plan_of(settings={**SETTINGS["FedDC"], "fraction": 0.4}, initial_models="independent"),
    "FedAvg over some": plan_of("FedAvg", {"aggregate_every": 2, "fraction": 0.6}, evaluate_every=3),
    "SCAFFOLD over some": plan_of("SCAFFOLD", {"aggregate_every": 2, "fraction": 0.6}),
    "some, in private": plan_of(settings={**SETTINGS["FedDC"], **PRIVATE, "fraction": 0.6}),
    "patients": plan_of(settings={**SETTINGS["FedDC"], **PATIENTS}, recipe=SGD, evaluate_every=2),
    "patients, moments that travel": plan_of(
        settings={**SETTINGS["FedDC"], **PATIENTS}, recipe=Recipe(optimizer="adam", lr=0.01)
    ),
    "patients, some of the sites": plan_of(
        settings={**SETTINGS["FedDC"], **PATIENTS, "fraction": 0.6}, recipe=MOMENTUM, evaluate_every=2
    ),
    "patients, proximal": plan_of("FedProx", {**SETTINGS["FedProx"], **PATIENTS}, recipe=SGD),
    "patients, SCAFFOLD": plan_of("SCAFFOLD", {"aggregate_every": 2, **PATIENTS}, recipe=SGD),
    "patients, moments that stay": plan_of(
        "FedAvg", {"aggregate_every": 2, **PATIENTS}, recipe=Recipe(momentum=0.5, optimizer_state="stay")
    ),
    "patients at large": plan_of("Central", PATIENTS),
    "blur": plan_of(settings={**SETTINGS["FedDC"], **BLUR}, evaluate_every=2),
    "exposure": plan_of(settings={**SETTINGS["FedDC"], "privacy": Privacy(exposure=5.0)}, evaluate_every=2),
    "exposure, moments afresh": plan_of(
        settings={**SETTINGS["FedDC"], "fraction": 0.6, "privacy": Privacy(exposure=5.0)}, recipe=RESET
    ),
    "exposure, proximal": plan_of("FedProx", {"aggregate_every": 2, "privacy": Privacy(exposure=5.0)}),
    "exposure, in sums": plan_of(settings={**CHAIN, "privacy": Privacy(exposure=5.0, sealed=True, secure=True)}),
    "blur over some": plan_of(settings={**SETTINGS["FedDC"], **BLUR, "fraction": 0.6}),
    "blur of 0": plan_of(settings={**SETTINGS["FedDC"], "privacy": Privacy(blur=0.0)}, recipe=ADAM, evaluate_every=2),
    "blur of running statistics": plan_of(
        task="digits",
        model="cnn",
        model_options={"norm": "batch"},
        rounds=3,
        sites=3,
        settings={**SETTINGS["FedDC"], **BLUR},
    ),
    "weighted": plan_of(settings={**SETTINGS["FedDC"], "weighted": True}),
    "trees folded at the server": plan_of("RepTreeFL", {"aggregate_every": 2, "tree": Tree(fold_at="server")}),
    "trees that travel": plan_of(
        settings={**SETTINGS["FedDC"], "tree": Tree(travel="trees", drop=0.2)}, recipe=ADAM, evaluate_every=2
    ),
    "trees that travel, afresh": plan_of(
        settings={**SETTINGS["FedDC"], "tree": Tree(travel="trees", drop=0.2)}, recipe=RESET
    ),
    "a tree in a chain": plan_of(settings={**SETTINGS["FedDC"], "tree": Tree(fanout=2, depth=2)}, recipe=ADAM),
    "one site": plan_of(sites=1),
    "two sites": plan_of(sites=2),
    "medians": plan_of(settings={**SETTINGS["FedDC"], "aggregator": "median"}),
}


TEN: dict[str, Any] = {"sites": 10}

GROUPS: dict[str, Any] = {"permute_every": 1, "aggregate_every": 3, "groups": 3}


def groups_of(name: str = "TravellingGroups", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return plan_of(name, {"groups": 3} if settings is None else settings, **(TEN | changes))


IN_GROUPS: dict[str, Plan] = {
    "averages at every communication round": groups_of(),
    "averages now and then": groups_of(settings=GROUPS, evaluate_every=2),
    "moments": groups_of(settings=GROUPS, recipe=MOMENTUM),
    "Adam": groups_of(recipe=ADAM, evaluate_every=4),
    "moments that start afresh": groups_of(recipe=RESET),
    "server momentum": groups_of(settings={"groups": 2, "server": "momentum"}),
    "clip and noise": groups_of(settings={**GROUPS, **PRIVATE}),
    "trees": groups_of(settings={**GROUPS, "tree": Tree(fanout=2, travel="trees", drop=0.2)}, recipe=ADAM),
    "some of the sites": groups_of(settings={**GROUPS, "fraction": 0.6}, recipe=ADAM, evaluate_every=4),
    "starting apart": groups_of(initial_models="independent"),
    "medians": groups_of(settings={**GROUPS, "groups": 2, "aggregator": "median"}),
    "six models in three groups": groups_of(settings={**GROUPS, "models": 6}),
    "each": plan_of("TravellingEnsemble", {"permute_every": 1, "groups": "each"}, recipe=MOMENTUM),
    "each of three": plan_of("TravellingEnsemble", {"permute_every": 1, "groups": "each", "models": 3}),
    "one model": plan_of("TravellingModel", {}, recipe=MOMENTUM, evaluate_every=4),
    "one model at random": plan_of("TravellingModel", {"route": "random"}, recipe=ADAM),
    "three models round": plan_of("FedDC", {"aggregate_every": 4, "models": 3, "route": "cyclic"}, recipe=ADAM),
    "all round": plan_of("FedDC", {"aggregate_every": 4, "route": "cyclic"}),
    "moving average": plan_of("FedAvg", {"ema": 0.7}),
    "snapshots": plan_of("FedAvg", {"snapshots": 3, "aggregate_every": 2}, evaluate_every=2),
    "snapshots of averages of groups": groups_of(settings={"groups": 2, "snapshots": 2, "ema": 0.5}),
    "one site": plan_of("TravellingGroups", {"groups": 1}, sites=1),
    "two sites": plan_of("TravellingGroups", {"groups": 2}, sites=2),
}


ROUTES: dict[str, Any] = {"validate": {"routes": 3}}

NOW_AND_THEN = {"permute_every": 1, "aggregate_every": 3, **ROUTES}


def routes_of(name: str = "FedAvg", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    given = {"aggregate_every": 1, **ROUTES} if settings is None else settings
    return plan_of(name, given, **({"sites": 10} | changes))


BY_ROUTES: dict[str, Plan] = {
    "averages at every communication round": routes_of(),
    "averages now and then": routes_of("FedDC", NOW_AND_THEN, evaluate_every=2),
    "two groups a route": routes_of("TravellingGroups", {"groups": 6, **ROUTES}, recipe=ADAM),
    "each": routes_of("TravellingEnsemble", {"permute_every": 1, "groups": "each", **ROUTES}, recipe=MOMENTUM),
    "some of the sites": routes_of(settings={**NOW_AND_THEN, "fraction": 0.6}, evaluate_every=4),
    "few models": routes_of(settings={**NOW_AND_THEN, "models": 4}, recipe=ADAM),
    "two routes of seven sites": routes_of(settings={"aggregate_every": 1, "validate": {"routes": 2}}, sites=7),
    "a route for each site": routes_of(settings={"aggregate_every": 1, "validate": {"routes": 4}}, sites=4),
    "snapshots of moving averages": routes_of(settings={"aggregate_every": 1, "snapshots": 2, "ema": 0.5, **ROUTES}),
    "server momentum": routes_of(settings={"aggregate_every": 1, "server": "momentum", **ROUTES}),
    "trees": routes_of("RepTreeFL", {"tree": Tree(drop=0.2), **ROUTES}),
    "starting apart": routes_of(initial_models="independent"),
    "patience": routes_of(evaluate_every=1, stop=EarlyStop(patience=1)),
}


EPOCHS = plan_of().recipe.model_copy(update={"lr": 0.05, "batch": 3, "local_epochs": 1})


def of_samples(routes: int, sites: int, name: str = "FedAvg", settings: dict[str, Any] | None = None, **more: Any):
    given = {"aggregate_every": 1, "validate": {"routes": routes}, **(settings or {})}
    asked = plan_of(name, given, **({"sites": sites, "rounds": 12} | more))
    return among(asked, sites)


BY_FOLDS: dict[str, Plan] = {
    "one site": of_samples(5, 1),
    "two sites that hand on": of_samples(3, 2, "FedDC", {"permute_every": 1, "aggregate_every": 3}, evaluate_every=2),
    "three sites": of_samples(4, 3, recipe=EPOCHS),
    "more folds than samples": of_samples(11, 3, samples_per_site=3),
    "moments that travel": of_samples(3, 2, "FedDC", {"permute_every": 1, "aggregate_every": 2}, recipe=ADAM),
    "momentum": of_samples(3, 1, recipe=MOMENTUM),
    "weighed by samples": of_samples(3, 2, settings={"weighted": True}, recipe=EPOCHS, samples_per_site=7),
    "some of the sites": of_samples(4, 3, settings={"fraction": 0.6}),
    "two groups a route": of_samples(3, 2, "TravellingGroups", {"groups": 6}),
    "snapshots of moving averages": of_samples(5, 2, settings={"snapshots": 2, "ema": 0.5}),
    "server momentum": of_samples(3, 2, settings={"server": "momentum"}),
    "trees": of_samples(3, 2, "RepTreeFL", {"tree": Tree(drop=0.2, fanout=(2, 3))}),
    "starting apart": of_samples(3, 2, initial_models="independent"),
    "at random rounds": of_samples(3, 2, settings={"random_schedule": True, "aggregate_every": 2}, rounds=20),
    "more sites than folds, as asked": of_samples(2, 3, settings={"validate": {"routes": 2, "by_samples": True}}),
}


STOP = EarlyStop(patience=2, hold_out=0.25)

WILD = Recipe(lr=2.0)  # so that losses rise again soon


def patient(name: str = "FedAvg", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    given = {"aggregate_every": 1} if settings is None else settings
    defaults = {"evaluate_every": 3, "stop": STOP, "rounds": 40, "recipe": WILD, "samples_per_site": 12}
    return plan_of(name, given, **(defaults | changes))


STOPPING: dict[str, Plan] = {
    "averages at every communication round": patient(),
    "FedDC, not evaluated when it averages": patient("FedDC", {"permute_every": 1, "aggregate_every": 4}),
    "under blur, where communication rounds are not cut": patient(
        "FedDC", {"permute_every": 1, "aggregate_every": 2, **BLUR}, evaluate_every=5
    ),
    "groups": patient("TravellingGroups", {"groups": 2}, recipe=ADAM, rounds=12),
    "snapshots": patient(settings={"aggregate_every": 1, "snapshots": 2}),
    "each alone": patient("Standalone", {}),
    "all pooled": patient("Central", {}),
}


SEALED: dict[str, Any] = {"privacy": Privacy(sealed=True)}

SECURE: dict[str, Any] = {"privacy": Privacy(secure=True)}

BOTH: dict[str, Any] = {"privacy": Privacy(sealed=True, secure=True)}

HIDDEN: dict[str, Plan] = {
    "sealed": plan_of(settings={**CHAIN, **SEALED}, evaluate_every=2),
    "sealed, with moments": plan_of(settings={**CHAIN, **SEALED}, recipe=ADAM),
    "sealed trees": plan_of(settings={**CHAIN, **SEALED, "tree": Tree(travel="trees", drop=0.2)}, recipe=ADAM),
    "sums": plan_of(settings={**CHAIN, **SECURE}, evaluate_every=2),
    "both": plan_of(settings={**CHAIN, **BOTH}, recipe=RESET),
    "weighted sums": plan_of(settings={**CHAIN, **BOTH, "weighted": True}),
    "sums over some": plan_of("SCAFFOLD", {"aggregate_every": 2, "fraction": 0.6, **SECURE}),
    "sums of blurred models": plan_of(
        settings={**CHAIN, "privacy": Privacy(blur=1.0, sealed=True, secure=True)}, evaluate_every=2
    ),
    "sums under patient-level privacy": plan_of(
        settings={**CHAIN, "privacy": Privacy(level="patient", clip=0.5, epsilon=3.0, lot=4, secure=True)}
    ),
    "sums of groups": plan_of("TravellingGroups", {"groups": 2, **BOTH}, sites=7),
    "routes from a seed of their own": plan_of(settings={**CHAIN, **SEALED}, route_seed=11),
}


ROUNDED: dict[str, Plan] = {
    "FedDC, half": plan_of(settings={**CHAIN, "wire": "half"}, evaluate_every=3),
    "FedDC, 8 bits": plan_of(settings={**CHAIN, "wire": "int8"}, evaluate_every=3),
    "FedAvg": plan_of("FedAvg", {"aggregate_every": 2, "wire": "int8"}, evaluate_every=1),
    "momentum travels": plan_of(settings={**CHAIN, "wire": "int8"}, recipe=MOMENTUM),
    "Adam travels": plan_of(settings={**CHAIN, "wire": "int8"}, recipe=ADAM),
    "afresh": plan_of(settings={**CHAIN, "wire": "int8"}, recipe=RESET),
    "some of the sites": plan_of(settings={**CHAIN, "wire": "int8", "fraction": 0.6}, evaluate_every=3),
    "starting apart": plan_of(settings={**CHAIN, "wire": "int8"}, initial_models="independent"),
    "groups": plan_of("TravellingGroups", {"aggregate_every": 2, "groups": 2, "wire": "int8"}),
    "SCAFFOLD": plan_of("SCAFFOLD", {"aggregate_every": 2, "wire": "int8"}),
    "proximal": plan_of("FedProx", {**SETTINGS["FedProx"], "wire": "int8"}),
    "a server's momentum": plan_of("FedAvgM", {"aggregate_every": 2, "wire": "int8"}),
    "medians": plan_of(settings={**CHAIN, "wire": "int8", "aggregator": "median"}),
    "blur": plan_of(settings={**CHAIN, "wire": "int8", "privacy": Privacy(blur=1.0)}),
    "clip and noise": plan_of(settings={**CHAIN, "wire": "int8", "privacy": Privacy(clip=0.1, noise=2.0)}),
    "trees that travel": plan_of(
        settings={**CHAIN, "wire": "int8", "tree": Tree(travel="trees", drop=0.2)}, recipe=ADAM
    ),
    "FedDC, a tenth": plan_of(settings={**CHAIN, "wire": "top10%"}, evaluate_every=3),
    "FedAvg, a tenth": plan_of("FedAvg", {"aggregate_every": 2, "wire": "top10%"}, evaluate_every=1),
    "a third, Adam travels": plan_of(settings={**CHAIN, "wire": "top30%"}, recipe=ADAM),
    "a tenth, some of the sites": plan_of(settings={**CHAIN, "wire": "top10%", "fraction": 0.6}, evaluate_every=3),
    "a tenth, SCAFFOLD": plan_of("SCAFFOLD", {"aggregate_every": 2, "wire": "top10%"}),
    "a tenth, proximal": plan_of("FedProx", {**SETTINGS["FedProx"], "wire": "top10%"}),
    "a tenth, a server's momentum": plan_of("FedAvgM", {"aggregate_every": 2, "wire": "top10%"}),
    "a tenth, clip and noise": plan_of(
        settings={**CHAIN, "wire": "top10%", "privacy": Privacy(clip=0.1, noise=2.0)}, evaluate_every=1
    ),
    "a tenth, trees that travel": plan_of(
        settings={**CHAIN, "wire": "top10%", "tree": Tree(travel="trees", drop=0.2)}, recipe=ADAM
    ),
    "a tenth, running statistics": plan_of(
        task="digits",
        model="cnn",
        model_options={"norm": "batch"},
        rounds=3,
        sites=3,
        settings={**CHAIN, "wire": "top10%"},
    ),
    "a tenth, patients": plan_of(settings={**CHAIN, **PATIENTS, "wire": "top10%"}, recipe=SGD),
    "a tenth, one model": plan_of("TravellingModel", {"wire": "top10%"}, rounds=13),
    "a tenth, blur over some": plan_of(
        settings={**CHAIN, "wire": "top10%", "fraction": 0.6, "privacy": Privacy(blur=1.0)}
    ),
    "running statistics": plan_of(
        task="digits",
        model="cnn",
        model_options={"norm": "batch"},
        rounds=3,
        sites=3,
        settings={**CHAIN, "wire": "int8"},
    ),
}


NEVER, ALWAYS = 1e300, 1e-300

BETWEEN = 0.02

STAY = Recipe(lr=0.05, momentum=0.5, optimizer_state="stay")


def dynamic(divergence: float | None, every: int = 1, settings: dict[str, Any] | None = None, **changes: Any):
    return plan_of("FedAvg", {"aggregate_every": every, "divergence": divergence, **(settings or {})}, **changes)


DYNAMIC: dict[str, Plan] = {
    "looked at every round": dynamic(BETWEEN, rounds=24),
    "looked at every third round": dynamic(0.08, 3, rounds=24),
    "judged in between": dynamic(0.08, 3, rounds=12, evaluate_every=1),
    "no distance allowed": dynamic(ALWAYS, 2),
    "every distance allowed": dynamic(NEVER, 2),
    "weighted": dynamic(BETWEEN, settings={"weighted": True}, partition={"sizes": "skewed"}, rounds=12),
    "moments that stay": dynamic(BETWEEN, recipe=STAY, rounds=12, evaluate_every=2),
    "moments that start afresh": dynamic(BETWEEN, recipe=RESET, rounds=12),
    "running statistics": dynamic(0.5, task="digits", model="cnn", model_options={"norm": "batch"}, rounds=3, sites=3),
    "a seed of its own for who is asked": dynamic(BETWEEN, rounds=12, route_seed=7),
}


LOSSY = {"by": "gossip", "loss": 0.3, "delay": 1, "tries": 1}
NO_SERVER: dict[str, Plan] = {
    "gossip": plan_of(settings={**CHAIN, "topology": "gossip"}),
    "lossy and late": plan_of(settings={**CHAIN, "topology": LOSSY}),
    "ring": plan_of(settings={**CHAIN, "topology": "ring"}, recipe=MOMENTUM),
    "regions": plan_of(settings={**CHAIN, "regions": 2}, sites=6),
}
FAMILIES: dict[str, dict[str, Plan]] = {
    "method": {name: plan_for(name, evaluate_every=4) for name in METHODS},
    "ordinary": ORDINARY,
    "groups": IN_GROUPS,
    "routes": BY_ROUTES,
    "folds": BY_FOLDS,
    "stopping": STOPPING,
    "hidden": HIDDEN,
    "rounded": ROUNDED,
    "dynamic": DYNAMIC,
    "no server": NO_SERVER,
}
PLANS = {f"{family}: {case}": plan for family, cases in FAMILIES.items() for case, plan in cases.items()}
