"""Other frameworks for ``fedsmall bench``, where they are installed: see docs/speed.md.

Simulators know one global model, so they are compared on what all can do: FedAvg that averages after every round.
"""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.data.federation import Federation
from fedsmall.data.sources.public import import_torchvision
from fedsmall.models.registry import build_model, initial_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.research.bench.timing import Clock, Timing
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action


def by_fedlab(plan: Plan, federation: Federation, device: str) -> Timing:
    """FedLab's serial trainer and synchronous server, as its standalone pipeline drives them."""
    with _imports():
        import_torchvision()  # FedLab wants it, and beside a CPU build of torch it does not load by itself
        from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
        from fedlab.contrib.algorithm.basic_server import SyncServerHandler

    model, silent = _module(plan, federation), logging.Logger("silent", logging.CRITICAL)
    trainer = SGDSerialClientTrainer(model, len(federation.names), logger=silent)
    trainer.setup_dataset(_Loaders(federation))
    trainer.setup_optim(epochs=1, batch_size=max(map(len, federation.train)), lr=plan.recipe.lr)
    handler = SyncServerHandler(model, plan.rounds, 1.0, logger=silent)
    handler.num_clients = len(federation.names)
    clock = Clock(device)
    while not handler.if_stop:
        trainer.local_process(handler.downlink_package, handler.sample_clients())
        for sent in trainer.uplink_package:
            handler.load(sent)
    return Timing(*clock.read(), {name: t.numpy() for name, t in handler.model.state_dict().items()})


@contextmanager
def _imports() -> Iterator[None]:
    """However a framework's import fails (a package of its own is missing, or too new), it cannot be had here."""
    try:
        yield
    except Exception as error:
        raise ImportError(str(error)) from error


def by_jax(plan: Plan, federation: Federation, device: str) -> Timing:
    """All rounds as one compiled program in JAX, on one thread: scan over rounds, vmap over models.

    Of chains of linear layers and ReLUs with cross entropy. Compiling, about a second for every shape, is not counted.
    """
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    with _imports():
        import jax
        import jax.numpy as jnp

    arrays = initial_model(plan, federation.task)
    x, y = (np.stack([getattr(samples, part) for samples in federation.train]) for part in ("x", "y"))

    def loss(model: list[Any], x: Any, y: Any) -> Any:
        for weight, bias in zip(model[:-2:2], model[1:-2:2], strict=True):
            x = jax.nn.relu(x @ weight.T + bias)
        outputs = x @ model[-2].T + model[-1]
        return (jax.nn.logsumexp(outputs, -1) - jnp.take_along_axis(outputs, y[:, None], 1)[:, 0]).mean()

    def one_round(models: list[Any], moment: Any) -> tuple[list[Any], None]:
        sites, merges = moment
        slopes = jax.vmap(jax.grad(loss))(models, x[sites], y[sites])
        models = [model - plan.recipe.lr * slope for model, slope in zip(models, slopes, strict=True)]
        mean = lambda: [jnp.broadcast_to(model.mean(0), model.shape) for model in models]  # noqa: E731
        return jax.lax.cond(merges, mean, lambda: models), None

    comm_rounds = [
        (comm_round, at, left) for comm_round, at in journey(plan, len(x)) for left in range(comm_round.rounds, 0, -1)
    ]
    way = np.stack([at for _, at, _ in comm_rounds])
    ends = np.array([left == 1 and comm_round.action is Action.AGGREGATE for comm_round, _, left in comm_rounds])
    x, y = jnp.asarray(x.reshape(*x.shape[:2], -1)), jnp.asarray(y)
    start = [jnp.stack([jnp.asarray(array)] * len(x)) for array in arrays.values()]
    whole = jax.jit(lambda *given: jax.lax.scan(one_round, *given)[0]).lower(start, (way, ends)).compile()
    clock = Clock(device)
    models = jax.block_until_ready(whole(start, (way, ends)))
    timing = clock.read()
    return Timing(*timing, {name: np.array(model[0]) for name, model in zip(arrays, models, strict=True)})


class _Loaders:
    def __init__(self, federation: Federation) -> None:
        self._sets = [torch.utils.data.TensorDataset(*pair) for pair in _samples(federation)]

    def get_dataloader(self, site: int, batch_size: int) -> Any:
        """The samples of one site, in batches and in their order."""
        return torch.utils.data.DataLoader(self._sets[site], batch_size)


def by_pfl(plan: Plan, federation: Federation, device: str) -> Timing:
    """pfl-research's simulated backend in one process, evaluating nothing."""
    with _quiet():
        return _by_pfl(plan, federation, device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what is printed and logged from the terminal; pfl sets up the root logger when it is imported."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _by_pfl(plan: Plan, federation: Federation, device: str) -> Timing:
    with _imports():
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

    samples = _samples(federation)
    sites = list(range(len(samples)))
    data = FederatedDataset(
        lambda site: Dataset(list(samples[site]), user_id=str(site)), get_user_sampler("minimize_reuse", sites)
    )
    module = _WithLoss(_module(plan, federation))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    asked = NNAlgorithmParams(
        central_num_iterations=plan.rounds,
        evaluation_frequency=plan.rounds + 1,
        train_cohort_size=len(sites),
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=plan.recipe.lr, local_batch_size=None)
    backend = SimulatedBackend(training_data=data, val_data=data)
    clock = Clock(device)
    FederatedAveraging().run(asked, backend, model, local, NNEvalHyperParams(local_batch_size=None))
    return Timing(*clock.read(), {name: t.detach().numpy() for name, t in module.network.state_dict().items()})


class _WithLoss(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """The mean cross entropy."""
        return nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Any]:
        return {}


def _module(plan: Plan, federation: Federation) -> nn.Module:
    module = build_model(plan.model, federation.task, plan.model_options, rng_for(0, "bench"))
    module.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in initial_model(plan, federation.task).items()})
    return module


def _samples(federation: Federation) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.from_numpy(np.ascontiguousarray(samples.x)), torch.from_numpy(samples.y)) for samples in federation.train
    ]
