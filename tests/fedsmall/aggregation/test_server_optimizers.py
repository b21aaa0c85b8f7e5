"""Server steps, and what they are for: quadratic problems with a known optimum and heterogeneous sites."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from fedsmall.aggregation.server_optimizers import SERVERS, Updates, normalisers, server_step
from fedsmall.errors import PlanError

LR = 0.05


@dataclass
class Quadratics:
    """Sites with losses (w - b_i)' A_i (w - b_i) / 2, trained by exact gradient steps with a local rule."""

    curvature: np.ndarray  # (sites, size, size)
    centre: np.ndarray  # (sites, size)
    steps: np.ndarray  # (sites,)
    alpha: float = 0.0
    control: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def optimum(self) -> np.ndarray:
        pulls = np.einsum("kij,kj->i", self.curvature, self.centre)
        return np.linalg.solve(self.curvature.sum(axis=0), pulls)

    def descend(self, site: int, x: np.ndarray, correction: np.ndarray, alpha: float = 0.0) -> np.ndarray:
        w = x.copy()
        for _ in range(self.steps[site]):
            w -= LR * (self.curvature[site] @ (w - self.centre[site]) + correction + alpha * (w - x))
        return w

    def train(self, x: np.ndarray, server: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Every site's model and the change of its control: SCAFFOLD with ``server``, FedDyn with ``alpha``."""
        models, changes = [], []
        for site in range(len(self.steps)):
            own = self.control.get(site, np.zeros_like(x))
            shift = -own if server is None else server - own
            w = self.descend(site, x, shift, self.alpha)
            if server is not None:
                after = own - server + (x - w) / (self.steps[site] * LR)
            else:
                after = own - self.alpha * (w - x)
            changes.append(after - own)
            self.control[site] = after
            models.append(w)
        return np.array(models), np.array(changes)


def names_of(sites: int) -> tuple[str, ...]:
    return tuple(f"site-{number:02d}" for number in range(sites))


def problem(seed: int = 0, sites: int = 3, size: int = 4, steps: list[int] | None = None) -> Quadratics:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(sites, size, size))
    curvature = np.einsum("kij,klj->kil", roots, roots) / size + 0.5 * np.eye(size)
    return Quadratics(curvature, 3 * rng.normal(size=(sites, size)), np.array(steps or [10] * sites))


def run(sites: Quadratics, server: str, rounds: int, controls: bool = False, **options: float) -> np.ndarray:
    """The global model after so many rounds with all sites."""
    x, memory = np.zeros(sites.centre.shape[1]), {}
    count = len(sites.steps)
    for _ in range(rounds):
        models, changes = sites.train(x, memory.get("server/w", np.zeros_like(x)) if controls else None)
        updates = Updates(
            names_of(count),
            {"w": models},
            None,
            sites.steps,
            {"control/w": changes},
            aggregate={"w": models.mean(axis=0)},
        )
        moved, memory = server_step(server, {"w": x}, memory, updates, options)
        x = moved["w"]
    return x


def error(sites: Quadratics, x: np.ndarray) -> float:
    return float(np.linalg.norm(x - sites.optimum))


@pytest.mark.parametrize("seed", range(3))
def test_fedavg_stalls_at_a_bias_that_more_rounds_do_not_remove(seed):
    early, late = (error(problem(seed), run(problem(seed), "none", rounds)) for rounds in (150, 300))

    assert late > 0.05
    assert abs(early - late) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_scaffold_reaches_the_optimum(seed):
    assert error(problem(seed), run(problem(seed), "scaffold", 500, controls=True)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_scaffold_reaches_the_optimum_with_unequal_steps(seed):
    sites = problem(seed, steps=[2, 10, 25])

    assert error(sites, run(sites, "scaffold", 600, controls=True)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_feddyn_reaches_the_optimum(seed):
    sites = problem(seed, steps=[100] * 3)
    sites.alpha = 1.0

    assert error(sites, run(sites, "feddyn", 150, alpha=1.0)) < 1e-6


def flat(seed: int, curvature: float) -> Quadratics:
    """Sites of equal curvature, so that all of FedAvg's bias comes from their unequal steps."""
    sites = problem(seed, steps=[1, 5, 40])
    sites.curvature[:] = curvature * np.eye(4)
    return sites


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_fednova_removes_the_bias_of_unequal_steps(seed):
    fedavg, fednova = (error(flat(seed, 0.04), run(flat(seed, 0.04), server, 600)) for server in ("none", "fednova"))

    assert fedavg > 1
    assert fednova < fedavg / 20


@pytest.mark.thorough
def test_what_bias_fednova_leaves_is_the_curvature_along_a_sites_way():
    errors = [error(flat(0, c), run(flat(0, c), "fednova", int(24 / c))) for c in (0.04, 0.02)]

    assert 1.8 < errors[0] / errors[1] < 2.2  # FedAvg's bias would not change


def test_fednova_weighs_a_long_way_down_as_in_the_paper():
    # by hand: x = 0, steps 1 and 3, moves 1 and 6: d = 1 and 2, tau_eff = 2, so x = 2 * (1 + 2) / 2 = 3
    models = {"w": np.array([[1.0], [6.0]])}
    updates = Updates(names_of(2), models, None, np.array([1, 3]), aggregate={"w": np.array([3.5])})

    moved, _ = server_step("fednova", {"w": np.zeros(1)}, {}, updates)

    np.testing.assert_allclose(moved["w"], [3.0])


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_normaliser_is_what_a_constant_gradient_moves_a_model_by(rho):
    def way(steps: int) -> float:
        velocity = moved = 0.0
        for _ in range(steps):
            velocity = rho * velocity + 1
            moved += velocity
        return moved

    np.testing.assert_allclose(normalisers(np.array([1, 2, 7]), rho), [way(1), way(2), way(7)])


def random_updates(rng: np.random.Generator, sites: int = 4, steps: int = 5) -> tuple[dict[str, np.ndarray], Updates]:
    global_model = {
        "w": rng.normal(size=(3, 2)),
        "norm.running_mean": rng.normal(size=2),
        "norm.num_batches_tracked": np.array(3),
    }
    models = {
        "w": rng.normal(size=(sites, 3, 2)),
        "norm.running_mean": rng.normal(size=(sites, 2)),
        "norm.num_batches_tracked": np.full(sites, 9),
    }
    mean = {"w": models["w"].mean(axis=0), "norm.running_mean": models["norm.running_mean"].mean(axis=0)}
    mean["norm.num_batches_tracked"] = np.array(9)
    rule = {"control/w": np.zeros((sites, 3, 2))}
    return global_model, Updates(names_of(sites), models, None, np.full(sites, steps), rule, aggregate=mean)


@pytest.mark.parametrize(
    ("server", "options"),
    [
        ("none", {}),
        ("fednova", {}),
        ("fednova", {"momentum": 0.9}),
        ("feddyn", {"alpha": 0.0}),
        ("momentum", {"beta": 0.0}),
        ("scaffold", {}),
    ],
)
def test_what_reduces_to_fedavg_is_fedavg(server, options):
    global_model, updates = random_updates(np.random.default_rng(0))

    moved, _ = server_step(server, global_model, {}, updates, options)

    np.testing.assert_allclose(moved["w"], updates.stack["w"].mean(axis=0), rtol=1e-13)


def test_scaffold_with_one_site_is_gradient_descent():
    sites = problem(1, sites=1)

    x = run(sites, "scaffold", 7, controls=True)

    plain = problem(1, sites=1, steps=[70])
    np.testing.assert_allclose(x, plain.descend(0, np.zeros(4), np.zeros(4)), rtol=1e-12)


def test_scaffold_counts_silent_sites_in_its_control_but_not_in_its_model():
    sent, mean = {"control/w": np.array([[8.0]])}, {"w": np.array([2.0])}
    updates = Updates(names_of(1), {"w": np.array([[2.0]])}, None, np.ones(1), sent, sites_in_all=4, aggregate=mean)

    moved, memory = server_step("scaffold", {"w": np.zeros(1)}, {}, updates)

    assert moved["w"] == 2
    assert memory["server/w"] == 8 / 4


@pytest.mark.parametrize("server", list(SERVERS))
def test_only_float_parameters_are_moved_and_dtypes_are_kept(server):
    global_model, updates = random_updates(np.random.default_rng(0))
    global_model = {k: v.astype("float32") if v.dtype.kind == "f" else v for k, v in global_model.items()}
    aggregate = {k: v.astype("float32") if v.dtype.kind == "f" else v for k, v in updates.aggregate.items()}
    updates = replace(updates, aggregate=aggregate)

    moved, memory = server_step(server, global_model, {}, updates)

    assert list(moved) == list(global_model)
    assert {name: array.dtype for name, array in moved.items()} == {
        name: array.dtype for name, array in global_model.items()
    }
    assert (moved["norm.running_mean"] == updates.aggregate["norm.running_mean"]).all()
    assert moved["norm.num_batches_tracked"] == 9
    assert not any("running_mean" in name for name in memory)


@pytest.mark.parametrize("server", list(SERVERS))
def test_a_server_that_restarts_from_its_memory_goes_on_as_if_it_had_not(server):
    rng = np.random.default_rng(0)
    rounds = [random_updates(rng)[1] for _ in range(4)]
    start = random_updates(rng)[0]

    def go(global_model, memory, updates):
        for each in updates:
            global_model, memory = server_step(server, global_model, memory, each)
        return global_model, memory

    whole, _ = go(start, {}, rounds)
    global_model, memory = go(start, {}, rounds[:2])
    again, _ = go(global_model, {name: np.array(array.tolist()) for name, array in memory.items()}, rounds[2:])

    assert all((whole[name] == again[name]).all() for name in whole)


@pytest.mark.parametrize(
    ("server", "options", "theirs"),
    [
        ("adam", {"lr": 0.3}, lambda: FedAdam(eta=0.3)),
        ("yogi", {"lr": 0.3, "beta2": 0.9}, lambda: FedYogi(eta=0.3, beta_2=0.9)),
        ("adagrad", {"tau": 0.01}, lambda: FedAdagrad(tau=0.01)),
        ("momentum", {"lr": 0.5}, lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9)),
    ],
)
def test_server_optimizers_give_flowers_numbers(monkeypatch, server, options, theirs: Callable[[], FedAvg]):
    strategy = theirs()
    rng = np.random.default_rng(1)
    x, memory = {"w": rng.normal(size=5)}, {}
    their_x = ArrayRecord({"w": Array(x["w"])})

    for t in range(1, 5):
        mean = {"w": x["w"] + rng.normal(size=5)}
        updates = Updates(names_of(1), {}, None, np.ones(1), aggregate=mean)
        monkeypatch.setattr(
            FedAvg, "aggregate_train", lambda *_, mean=mean: (ArrayRecord({"w": Array(mean["w"].copy())}), None)
        )
        monkeypatch.setattr(FedAvg, "configure_train", lambda *_: [])
        strategy.configure_train(t, their_x, None, None)
        their_x, _ = strategy.aggregate_train(t, [])
        x, memory = server_step(server, x, memory, updates, options)

        np.testing.assert_allclose(x["w"], their_x["w"].numpy(), rtol=1e-12)


def test_second_moments_are_vectors():
    global_model, updates = random_updates(np.random.default_rng(0))

    _, memory = server_step("adam", global_model, {}, updates)

    assert memory["second/w"].shape == (3, 2)
    assert len(np.unique(memory["second/w"])) == 6


def test_an_unknown_setting_names_those_there_are():
    global_model, updates = random_updates(np.random.default_rng(0))

    with pytest.raises(PlanError, match="'adam' has no setting 'eta_l'; it has lr, beta1, beta2, tau"):
        server_step("adam", global_model, {}, updates, {"eta_l": 1.0})


@pytest.mark.parametrize(
    ("server", "ours", "flowers"),
    [
        ("adam", {"lr": 0.3, "beta1": 0.8}, {"eta": 0.3, "beta_1": 0.8}),
        ("momentum", {"lr": 0.5, "beta": 0.1}, {"server_learning_rate": 0.5, "server_momentum": 0.1}),
    ],
)
def test_a_setting_may_have_flowers_name(server, ours, flowers):
    global_model, updates = random_updates(np.random.default_rng(0))

    one, other = (server_step(server, global_model, {}, updates, options)[0] for options in (ours, flowers))

    assert all((one[name] == other[name]).all() for name in one)
