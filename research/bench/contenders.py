"""The contenders of ``fedsmall bench``: our engines, and the same federation trained in other ways, to equal losses.

The plain ways share only the samples, the initial model and the routes with the engine, and get their routes before the
clock starts; the engines' times hold everything.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.data.federation import Federation
from fedsmall.models.registry import build_model, initial_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.research.bench.rivals import by_fedlab, by_jax, by_pfl
from fedsmall.research.bench.timing import Clock, Timing
from fedsmall.research.bench.workloads import TWO
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.kernel import library
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action
from fedsmall.wire import Arrays

Contender = Callable[[Plan, Federation, str], Timing]


def by_cohort(plan: Plan, federation: Federation, device: str, path: str = "auto") -> Timing:
    """The cohort engine: schedule, aggregation and all else included."""
    trainer = cohort_for(plan, federation.task, federation.names, federation.train, path=path, device=device)
    clock = Clock("cpu")  # the model comes back as numbers, so a device has finished
    model = run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site)).model
    assert model is not None
    return Timing(*clock.read(), model)


def by_kernel(plan: Plan, federation: Federation, device: str, threads: int = 1) -> Timing:
    """The cohort engine with the compiled kernel."""
    if library() is None:
        raise ImportError("it is not built here: python -m fedsmall.training.kernel.build")
    return by_cohort(plan, federation, f"kernel:{threads}")


def one_by_one(plan: Plan, federation: Federation, device: str) -> Timing:
    """The engine ``inprocess``: a message for every site and communication round."""
    from fedsmall.clients.client_app import app
    from fedsmall.clients.site_data import give_federation
    from fedsmall.sim.engines.inprocess import InProcessGrid

    give_federation(plan, federation)
    return _conducted(plan, federation, InProcessGrid(app, len(federation.names)))


def by_ray(plan: Plan, federation: Federation, device: str) -> Timing:
    """Flower's own simulation runtime at the pace of its later rounds: the start of its actors is not counted."""
    from fedsmall.sim.engines.ray import with_ray_grid

    timing: Timing = with_ray_grid(len(federation.names), lambda grid: _conducted(plan, federation, grid, warm=2))
    return timing


def _conducted(
    plan: Plan, federation: Federation, grid: Grid, warm: int = 0, clock_of: Callable[[str], Clock] = Clock
) -> Timing:
    """Run the plan on a grid; its first ``warm`` communication rounds are taken to have cost what the later ones do."""
    begun = [(0, clock_of("cpu"))]  # the models come back as numbers, so a device has finished

    def progress(t: int, rounds: int) -> None:
        if len(begun) <= warm < rounds:
            begun.append((t, clock_of("cpu")))

    initial = partial(initial_model, plan, federation.task)
    outcome = run_rounds(plan, GridTrainer(plan, grid), initial, progress=progress, in_pieces=False)
    assert outcome.model is not None
    before, clock = begun[-1]
    share = plan.rounds / (plan.rounds - before)
    seconds, processor = clock.read()
    return Timing(share * seconds, share * processor, outcome.model)


def by_modules(plan: Plan, federation: Federation, device: str) -> Timing:
    """A module and a torch optimizer for every site, one site after the other: the loop that everybody writes first."""
    start = {name: torch.from_numpy(array.copy()) for name, array in initial_model(plan, federation.task).items()}
    loss = _loss_of(federation.task.loss)
    models, optimizers = [], []
    for _ in federation.names:
        model = build_model(plan.model, federation.task, plan.model_options, rng_for(0, "bench")).to(device)
        model.load_state_dict(start)
        models.append(model)
        optimizers.append(torch.optim.SGD(model.parameters(), plan.recipe.lr, plan.recipe.momentum))
    x = [torch.from_numpy(samples.x).to(device) for samples in federation.train]
    y = [torch.from_numpy(samples.y).to(device) for samples in federation.train]
    stretches = list(_stretches(plan, federation))
    clock = Clock(device)
    global_model: Arrays = {}
    for sites, merges in stretches:
        for model, optimizer, site in zip(models, optimizers, sites, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(loss(model(x[site]), y[site]))
            optimizer.step()
        if merges:
            global_model = _merged(plan, [models[row].state_dict() for row in np.argsort(sites)])
            for model in models:
                model.load_state_dict({name: torch.from_numpy(array) for name, array in global_model.items()})
    return Timing(*clock.read(), global_model)


def by_bare_loop(plan: Plan, federation: Federation, device: str) -> Timing:
    """Stacked matrix products and a backward pass by hand for linear layers and ReLUs, with nothing around them."""
    x, y, weights, biases = _stacked(plan, federation, device)
    samples, lr = x.shape[1], plan.recipe.lr
    stretches = [(torch.from_numpy(sites).to(device), merges) for sites, merges in _stretches(plan, federation)]
    slope_of = _slope_of(federation.task.loss)
    names = list(initial_model(plan, federation.task))
    clock = Clock(device)
    global_model: Arrays = {}
    for sites, merges in stretches:
        inputs = [x.index_select(0, sites)]
        for weight, bias in zip(weights, biases, strict=True):
            inputs.append(torch.baddbmm(bias[:, None], inputs[-1], weight.mT))
            if weight is not weights[-1]:
                inputs[-1].relu_()
        slope = slope_of(inputs.pop(), y.index_select(0, sites)).mul_(1 / samples)
        for weight, bias in zip(reversed(weights), reversed(biases), strict=True):
            before, behind = inputs.pop(), slope
            if inputs:
                slope = torch.ops.aten.threshold_backward(torch.bmm(slope, weight), before, 0)
            weight.baddbmm_(behind.mT, before, alpha=-lr)
            bias.sub_(behind.sum(1), alpha=lr)
        if merges:
            tensors = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
            global_model = _merged_rows(plan, dict(zip(names, tensors, strict=True)), sites)
            for tensor, array in zip(tensors, global_model.values(), strict=True):
                tensor.copy_(torch.from_numpy(array))
    return Timing(*clock.read(), global_model)


def by_vmap(plan: Plan, federation: Federation, device: str) -> Timing:
    """``torch.func.vmap`` over the gradient of a functional call, as the PyTorch documentation teaches it."""
    from torch.func import functional_call, grad, vmap

    template = build_model(plan.model, federation.task, plan.model_options, rng_for(0, "bench")).to(device)
    first = initial_model(plan, federation.task)
    stack = {n: torch.from_numpy(np.stack([a] * len(federation.names))).to(device) for n, a in first.items()}
    x = torch.from_numpy(np.stack([s.x for s in federation.train])).to(device)
    y = torch.from_numpy(np.stack([s.y for s in federation.train])).to(device)
    loss = _loss_of(federation.task.loss)
    gradient = vmap(grad(lambda parameters, x, y: loss(functional_call(template, parameters, (x,)), y)))
    stretches = [(torch.from_numpy(sites).to(device), merges) for sites, merges in _stretches(plan, federation)]
    clock = Clock(device)
    global_model: Arrays = {}
    with torch.no_grad():
        for sites, merges in stretches:
            for name, slope in gradient(stack, x[sites], y[sites]).items():
                stack[name].sub_(slope, alpha=plan.recipe.lr)
            if merges:
                global_model = _merged_rows(plan, stack, sites)
                for name, tensor in stack.items():
                    tensor.copy_(torch.from_numpy(global_model[name]))
    return Timing(*clock.read(), global_model)


CONTENDERS: dict[str, Contender] = {
    "cohort": by_cohort,
    "kernel": by_kernel,
    TWO: partial(by_kernel, threads=2),
    "bare loop": by_bare_loop,
    "vmap": by_vmap,
    "modules": by_modules,
    "one by one": one_by_one,
    "JAX": by_jax,
    "FedLab": by_fedlab,
    "pfl-research": by_pfl,
    "Flower + Ray": by_ray,
}
RAY = "Flower + Ray"
CPU_ALONE = ("kernel", TWO, "one by one", "JAX", "FedLab", "pfl-research", RAY)  # which take no device here
# which need not be here, and what they import
KERNEL = "fedsmall.training.kernel"
RIVALS = {"kernel": KERNEL, TWO: KERNEL, "JAX": "jax", "FedLab": "fedlab", "pfl-research": "pfl", RAY: "ray"}


def pooled_loss(plan: Plan, federation: Federation, model: Arrays) -> float:
    """The mean loss of a model over the samples of all sites, by which contenders are found to have done the same."""
    module = build_model(plan.model, federation.task, plan.model_options, rng_for(0, "bench")).eval()
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in model.items()})
    x = torch.from_numpy(np.concatenate([samples.x for samples in federation.train]))
    y = torch.from_numpy(np.concatenate([samples.y for samples in federation.train]))
    with torch.no_grad():
        return float(_loss_of(federation.task.loss)(module(x), y))


def _stretches(plan: Plan, federation: Federation) -> Iterator[tuple[np.ndarray, bool]]:
    """For every round: at which site each model trains, and whether the models are aggregated after it."""
    for comm_round, at in journey(plan, len(federation.names)):
        for left in range(comm_round.rounds, 0, -1):
            yield at, left == 1 and comm_round.action is Action.AGGREGATE


def _stacked(plan: Plan, federation: Federation, device: str) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    x = torch.from_numpy(np.stack([samples.x for samples in federation.train])).flatten(2).to(device)
    y = torch.from_numpy(np.stack([samples.y for samples in federation.train])).to(device)
    arrays = list(initial_model(plan, federation.task).values())
    stacks = [torch.from_numpy(np.stack([array] * len(federation.names))).to(device) for array in arrays]
    return x, y, stacks[::2], stacks[1::2]


def _merged_rows(plan: Plan, stack: dict[str, Tensor], sites: Tensor) -> Arrays:
    arrays = {name: tensor[torch.argsort(sites)].cpu().numpy() for name, tensor in stack.items()}
    return aggregate(arrays, plan.method.aggregator, rng=rng_for(plan.seed, "aggregate", plan.rounds))


def _merged(plan: Plan, states: list[dict[str, Tensor]]) -> Arrays:
    stack = {name: np.stack([state[name].cpu().numpy() for state in states]) for name in states[0]}
    return aggregate(stack, plan.method.aggregator, rng=rng_for(plan.seed, "aggregate", plan.rounds))


def _loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    if name == "cross_entropy":
        return nn.functional.cross_entropy
    return lambda outputs, y: (1 - (2 * y - 1) * outputs[:, 0]).clamp(min=0).mean()


def _slope_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    if name == "cross_entropy":
        return lambda outputs, y: torch.softmax(outputs, -1) - nn.functional.one_hot(y, outputs.shape[-1])
    return lambda outputs, y: torch.where((2 * y - 1) * outputs[..., 0] < 1, 1.0 - 2 * y, 0.0)[..., None]
