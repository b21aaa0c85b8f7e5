"""How the global model moves at an aggregation: pure steps on named arrays, one row of a table each.

A step takes the global model that the sites started from, the server's memory (``{"word/parameter": array}``, empty at
the start) and the sites' :class:`Updates`; it gives the next global model and memory. It moves float parameters only:
running statistics are the aggregate's, and integers are carried. Computed in float64; dtypes are kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.wire import Arrays, is_buffer

Options = Mapping[str, float]


@dataclass(frozen=True)
class Updates:
    """What counts in one aggregation, in the order of the sites' names.

    ``stack`` is {name: (models, ...)}; ``weights`` (models,) or None for equal ones; ``steps`` (models,) the local
    optimizer steps of the last communication round; ``rule`` {"word/parameter": (models, ...)} what the local rule
    sent; ``sites_in_all`` counts the sites of the federation, 0 for those that are here (a share of a site where a row
    is the mean of several). In secure sums there is their ``total`` instead of a stack
    (:mod:`fedsmall.aggregation.sums`). ``aggregate`` is what the aggregator has made of them, before the server's step.
    """

    sites: tuple[str, ...]
    stack: Arrays
    weights: np.ndarray | None
    steps: np.ndarray
    rule: Arrays = field(default_factory=dict)
    sites_in_all: float = 0
    total: np.ndarray | None = None
    aggregate: Arrays = field(default_factory=dict)

    @property
    def among(self) -> float:
        """How many sites there are, silent ones among them."""
        return self.sites_in_all or len(self.sites)

    @property
    def shares(self) -> np.ndarray:
        """The weights, (models,), which sum to one."""
        weights = np.ones(len(self.sites)) if self.weights is None else self.weights
        return np.asarray(weights / weights.sum())


Step = Callable[[Arrays, Arrays, Updates, Options], tuple[Arrays, Arrays]]


def parameters_of(model: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """The names of the float parameters of a model, in its order."""
    return tuple(name for name, array in model.items() if array.dtype.kind == "f" and not is_buffer(name))


def plain(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
    """The aggregate is the global model (FedAvg, McMahan et al. 2017)."""
    return updates.aggregate, memory


def momentum(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
    """Server momentum, FedAvgM (Hsu, Qi and Brown 2019): v <- beta v + delta, x <- x + lr v."""
    moved, remembered = {}, {}
    for name, x, delta in _deltas(global_model, updates):
        v = options["beta"] * memory.get(f"momentum/{name}", np.zeros_like(delta)) + delta
        moved[name], remembered[f"momentum/{name}"] = x + options["lr"] * v, v
    return _with(updates, moved), remembered


Second = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
SECOND: dict[str, Second] = {  # the next v, of v, the square of delta and beta2
    "adagrad": lambda v, square, beta: v + square,
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * np.sign(v - square),
}


def _adaptive(second: Second, corrected: bool = False) -> Step:
    """Reddi et al. 2021, Algorithm 2: m <- beta1 m + (1 - beta1) delta, x <- x + lr m / (sqrt(v) + tau).

    v starts at zero; ``corrected`` scales lr by Adam's correction, its exponent one ahead of aggregations, as Flower's.
    """

    def step(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
        beta1, beta2 = options.get("beta1", 0.0), options.get("beta2", 0.0)
        count = float(memory.get("count", np.zeros(())).item()) + 1
        scale = np.sqrt(1 - beta2 ** (count + 1)) / (1 - beta1 ** (count + 1)) if corrected else 1.0
        moved: Arrays = {}
        remembered: Arrays = {"count": np.asarray(count)}
        for name, x, delta in _deltas(global_model, updates):
            first, squares = (memory.get(f"{word}/{name}", np.zeros_like(delta)) for word in ("first", "second"))
            m = beta1 * first + (1 - beta1) * delta
            v = second(squares, delta**2, beta2)
            moved[name] = x + options["lr"] * scale * m / (np.sqrt(v) + options["tau"])
            remembered |= {f"first/{name}": m, f"second/{name}": v}
        return _with(updates, moved), remembered

    return step


def fednova(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
    """FedNova (Wang et al. 2020, eq. 6): x <- x - tau_eff sum(p_i d_i) with d_i = (x - y_i) / a_i.

    tau_eff = sum(p_i a_i); a_i is the number of local steps, or with heavy-ball momentum rho ("momentum"), started
    anew at every aggregation, (tau - rho (1 - rho**tau) / (1 - rho)) / (1 - rho) (ibid., section 4).
    """
    amounts = normalisers(updates.steps, options.get("momentum", 0.0))
    coefficients = updates.shares * (updates.shares @ amounts) / amounts  # (k,)
    moved = {}
    for name in parameters_of(global_model):
        x = global_model[name].astype(np.float64)
        moved[name] = x + np.tensordot(coefficients, updates.stack[name].astype(np.float64) - x, axes=1)
    return _with(updates, moved), memory


def normalisers(steps: np.ndarray, rho: float) -> np.ndarray:
    """FedNova's a_i for sites that took ``steps`` (k,) steps of SGD with momentum ``rho``; at least one step each."""
    tau = np.maximum(np.asarray(steps, dtype=np.float64), 1)
    return np.asarray((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))


def scaffold(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, lines 16-17): x <- x + lr delta, c <- c + sum(dc_i) / N.

    Sites send dc_i = c_i+ - c_i as "control/<parameter>"; c goes out as "server/<parameter>". N counts the silent too.
    """
    moved, remembered = {}, {}
    for name, x, delta in _deltas(global_model, updates):
        moved[name] = x + options["lr"] * delta
        change = updates.rule[f"control/{name}"].astype(np.float64).sum(axis=0) / updates.among
        # c goes out with every order, so it is kept as it travels: in the model's own dtype
        remembered[f"server/{name}"] = (memory.get(f"server/{name}", 0.0) + change).astype(global_model[name].dtype)
    return _with(updates, moved), remembered


def feddyn(global_model: Arrays, memory: Arrays, updates: Updates, options: Options) -> tuple[Arrays, Arrays]:
    """FedDyn (Acar et al. 2021, Algorithm 1): h <- h - alpha sum(y_i - x) / m, x <- aggregate - h / alpha.

    m counts the sites that stayed silent too. With alpha = 0 it is FedAvg, as the limit of a pull that fades.
    """
    alpha = options["alpha"]
    if alpha == 0:
        return updates.aggregate, memory
    moved, remembered = {}, {}
    for name in parameters_of(global_model):
        x = global_model[name].astype(np.float64)
        drift = (updates.stack[name].astype(np.float64) - x).sum(axis=0) / updates.among
        h = memory.get(f"history/{name}", np.zeros_like(x)) - alpha * drift
        moved[name] = updates.aggregate[name].astype(np.float64) - h / alpha
        remembered[f"history/{name}"] = h
    return _with(updates, moved), remembered


@dataclass(frozen=True)
class ServerRow:
    """A server optimizer: its step, its settings, what goes into orders, and ``half_of`` which method clients do."""

    step: Step
    defaults: Mapping[str, float] = field(default_factory=dict)
    orders: Callable[[Arrays], Arrays] = lambda memory: {}
    half_of: str = ""


# Defaults are Flower's, and where it has none the paper's.
SERVERS: dict[str, ServerRow] = {
    "none": ServerRow(plain),
    "momentum": ServerRow(momentum, {"lr": 1.0, "beta": 0.9}),
    "adagrad": ServerRow(_adaptive(SECOND["adagrad"]), {"lr": 0.1, "tau": 1e-3}),
    "adam": ServerRow(_adaptive(SECOND["adam"], corrected=True), {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
    "yogi": ServerRow(_adaptive(SECOND["yogi"]), {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
    "fednova": ServerRow(fednova, {"momentum": 0.0}, half_of="FedNova"),
    "scaffold": ServerRow(scaffold, {"lr": 1.0}, lambda memory: memory, "SCAFFOLD"),
    "feddyn": ServerRow(feddyn, {"alpha": 0.01}, half_of="FedDyn"),
}

CORRECTIONS = {name: row.half_of for name, row in SERVERS.items() if row.half_of}


# Flower's names for the same settings, so that a scenario may use either
ALIASES = {"eta": "lr", "server_learning_rate": "lr", "server_momentum": "beta", "beta_1": "beta1", "beta_2": "beta2"}


def server_step(
    name: str, global_model: Arrays, memory: Arrays, updates: Updates, options: Options | None = None
) -> tuple[Arrays, Arrays]:
    """The next global model and memory by the server optimizer ``name``. PlanError for a setting that it has not."""
    row = SERVERS[name]
    return row.step(global_model, memory, updates, {**row.defaults, **known_options(name, options or {})})


def known_options(name: str, options: Options) -> dict[str, float]:
    """The settings under our names; PlanError for one that the server optimizer ``name`` does not have."""
    known = SERVERS[name].defaults
    renamed = {option if option in known else ALIASES.get(option, option): value for option, value in options.items()}
    for option in renamed:
        if option not in known:
            had = ", ".join(known) or "no settings"
            raise PlanError(f"The server optimizer {name!r} has no setting {option!r}; it has {had}.")
        is_share = option.startswith(("beta", "momentum"))
        if (is_share and not 0 <= renamed[option] < 1) or (option in ("lr", "tau") and not renamed[option] > 0):
            ends = "from 0 to below 1" if is_share else "above 0"
            raise PlanError(f"The server optimizer {name!r}: {option} is {ends}; got {renamed[option]:g}.")
    return renamed


def _deltas(global_model: Arrays, updates: Updates) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, global_model parameter, aggregate minus global_model) for every float parameter, in float64."""
    wide = {name: global_model[name].astype(np.float64) for name in parameters_of(global_model)}
    return [(name, x, updates.aggregate[name].astype(np.float64) - x) for name, x in wide.items()]


def _with(updates: Updates, moved: Arrays) -> Arrays:
    return {
        name: np.asarray(moved[name], dtype=array.dtype) if name in moved else array
        for name, array in updates.aggregate.items()
    }
