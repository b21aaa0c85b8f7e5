"""The compiled kernel against torch, its oracle: every loss, optimizer and rule, threads, and who it does not train."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.training import kernel
from fedsmall.training.cohort import Cohort
from fedsmall.training.device import check_device, threads_of_kernel
from fedsmall.training.kernel.build import build
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import Phase, TrainInput, TrainResult
from fedsmall.wire import ModelState

CLOSE = 1e-5  # of float32 after 200 rounds; both are as far from float64
SIZES = [10, 3, 1, 7]
WIDTHS = {"logistic": 2, "soft_logistic": 2, "hinge": 2, "mse": 1, "l1": 1}  # classes; 4 elsewhere
OPTIMIZERS = {
    "sgd": {},
    "weight decay": {"weight_decay": 0.05},
    "momentum": {"momentum": 0.9},
    "momentum from rest": {"momentum": 0.9, "optimizer_state": "reset", "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "epsilon": 1e-3},
    "adam from rest": {"optimizer": "adam", "epsilon": 1e-3, "optimizer_state": "reset", "weight_decay": 0.01},
}
RULES = ["none", "proximal", "scaffold", "feddyn"]


@pytest.fixture(params=["not built", "for another machine"])
def absent(request, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "LIBRARY", tmp_path / "kernel.so")
    if request.param != "not built":
        kernel.LIBRARY.write_bytes(b"\x7fELF of some other machine")
    kernel.library.cache_clear()
    yield
    kernel.library.cache_clear()


def task_of(loss: str) -> Task:
    return Task("table", (6,), WIDTHS.get(loss, 4), loss)


def samples_of(task: Task, sizes: list[int]) -> tuple[list[str], list[Samples]]:
    rng = np.random.default_rng(3)

    def targets(n: int) -> np.ndarray:
        if task.loss in ("mse", "l1", "huber"):
            return 2 * rng.normal(size=(n, task.outputs))
        if task.loss == "binary_cross_entropy":
            return rng.integers(0, 2, (n, task.outputs)).astype(float)
        if task.loss == "hazard":
            return np.stack([rng.integers(0, task.classes + 1, n), rng.integers(0, 2, n)], axis=1).astype(float)
        if task.loss.startswith("soft"):
            shares = rng.random((n, task.outputs))
            return shares / (shares.sum(1, keepdims=True) if task.outputs > 1 else 1)
        return rng.integers(0, task.classes, n)

    drawn = [Samples(rng.normal(size=(n, 6)).astype(np.float32), targets(n)) for n in sizes]
    return [f"site-{number}" for number in range(len(sizes))], drawn


def plan_of(rounds: int = 200, rule: str = "none", hidden: tuple[int, ...] = (7, 5), **recipe: Any) -> Plan:
    dtype = recipe.pop("dtype", "float32")
    method = Method(name="FedDC", rule=rule, proximal_mu=0.3, feddyn_alpha=0.2, permute_every=1, aggregate_every=rounds)
    return Plan(
        name="test", task="table", model="mlp" if hidden else "linear",
        model_options={"hidden": list(hidden)} if hidden else {}, recipe=Recipe(**({"lr": 0.003} | recipe)),
        method=method, rounds=rounds, dtype=dtype, initial_models="independent",
    )  # fmt: skip


def walked(
    plan: Plan, task: Task, device: str, sizes: list[int] = SIZES, instructions: int | None = None
) -> tuple[Stack, TrainResult]:
    """Models that go round the sites, through two walks of half the plan's rounds."""
    names, samples = samples_of(task, sizes)
    cohort = Cohort(plan, task, names, samples, device=device)
    assert (cohort.path == "kernel") == (device != "cpu"), cohort.unmet_need
    if instructions is not None:
        assert cohort._kernel is not None
        cohort._kernel.set = instructions
    stack = cohort.stack([ModelState(initial_model(plan, task, name)) for name in names])
    phases = [Phase((np.arange(len(names)) + t) % len(names), t, 1) for t in range(1, plan.rounds + 1)]
    half, common = plan.rounds // 2, [row % 2 == 0 for row in range(len(names))]
    first = cohort.walk(stack, phases[:half], TrainInput([True] * len(names)))
    return stack, cohort.walk(
        stack, [*phases[half:-1], phases[-1]._replace(closes=True)], TrainInput(common, memory=first.memory)
    )


def assert_alike(plan: Plan, task: Task, **options: Any) -> None:
    slow, told_by_torch = walked(plan, task, "cpu")
    fast, told = walked(plan, task, "kernel", **options)
    for name, tensor in (slow.state | slow.optimizer).items():
        np.testing.assert_allclose((fast.state | fast.optimizer)[name], tensor, atol=CLOSE, rtol=CLOSE, err_msg=name)
    np.testing.assert_allclose(told.loss, told_by_torch.loss, rtol=1e-4, atol=CLOSE)
    for part, known in (("rule", told_by_torch.rule), ("memory", told_by_torch.memory)):
        for name, array in known.items():
            np.testing.assert_allclose(getattr(told, part)[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("loss", kernel.LOSSES)
def test_every_loss_is_torch_s_after_200_rounds(compiled, loss):
    assert_alike(plan_of(), task_of(loss))


@pytest.mark.parametrize("recipe", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_is_torch_s_after_200_rounds(compiled, recipe):
    assert_alike(plan_of(batch=4, local_steps=3, **recipe), task_of("cross_entropy"))


@pytest.mark.parametrize("rule", RULES)
def test_every_local_rule_is_torch_s(compiled, rule):
    assert_alike(plan_of(60, rule, local_epochs=1, batch=2), task_of("cross_entropy"))


def test_batches_of_like_size_are_torch_s(compiled):
    assert_alike(plan_of(60, local_epochs=2, batch=4, even_batches=True), task_of("cross_entropy"))


COMBINED = [(loss, name, "none") for loss in kernel.LOSSES for name in OPTIMIZERS]
COMBINED += [("cross_entropy", name, rule) for name in OPTIMIZERS for rule in RULES[1:]]


@pytest.mark.thorough
@pytest.mark.parametrize(("loss", "optimizer", "rule"), COMBINED)
def test_every_loss_and_rule_with_every_optimizer_is_torch_s(compiled, loss, optimizer, rule):
    task, plan = task_of(loss), plan_of(rule=rule, **OPTIMIZERS[optimizer])
    exact, float32 = (
        walked(plan.model_copy(update={"dtype": dtype}), task, "cpu")[0] for dtype in ("float64", "float32")
    )
    if any(float((exact.state[name] - tensor).abs().max()) > CLOSE for name, tensor in float32.state.items()):
        pytest.skip("a tie at a ReLU, where float32 parts from float64")

    assert_alike(plan, task)


@pytest.mark.parametrize("instructions", range(len(kernel.SETS)), ids=kernel.SETS)
@pytest.mark.parametrize("hidden", [(), (1,), (20, 50, 16), (3, 64, 2, 17)], ids=str)
def test_every_set_of_instructions_does_the_same_to_every_shape(compiled, instructions, hidden):
    if not compiled.has(instructions):
        pytest.skip(f"this processor has no {kernel.SETS[instructions]}")
    plan = plan_of(40, hidden=hidden, momentum=0.5, lr_schedule="cosine")

    assert_alike(plan, task_of("cross_entropy"), instructions=instructions)


def test_a_processor_has_the_set_that_is_fastest_on_it_and_every_processor_the_plain_one(compiled):
    assert compiled.has(0)
    assert compiled.has(compiled.best())
    assert kernel.describe_kernel() == f"{kernel.VERSION} ({kernel.SETS[compiled.best()]})"


def test_weights_of_classes_count_as_in_torch(compiled):
    assert_alike(plan_of(class_weights=(0.5, 2.0, 1.0, 3.0)), task_of("cross_entropy"))


def test_the_kernel_is_nearer_to_float64_than_float32_need_be(compiled):
    task, plan = task_of("cross_entropy"), plan_of()
    exact, _ = walked(plan.model_copy(update={"dtype": "float64"}), task, "cpu")

    stack, _ = walked(plan, task, "kernel")

    for name, tensor in exact.state.items():
        np.testing.assert_allclose(stack.state[name], tensor, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("recipe", [{}, {"optimizer": "adam", "batch": 2, "local_epochs": 1}], ids=["still", "drawn"])
def test_the_number_of_threads_and_of_calls_changes_no_bit(compiled, recipe, monkeypatch):
    plan, task, sizes = plan_of(30, **recipe), task_of("cross_entropy"), [5, 1, 2, 8, 3, 3, 9]
    alone, told = walked(plan, task, "kernel", sizes)
    monkeypatch.setattr(kernel, "NUMBERS", 7)
    monkeypatch.setattr(kernel, "SHORT", 0)  # else such walks are too short for a second thread

    together, again = walked(plan, task, "kernel:3", sizes)

    for name, tensor in (alone.state | alone.optimizer).items():
        assert torch.equal(tensor, (together.state | together.optimizer)[name])
    assert told.loss.tobytes() == again.loss.tobytes()


def test_a_model_trains_to_the_same_bits_alone_as_in_company(compiled):
    task, plan = task_of("cross_entropy"), plan_of(20)
    names, samples = samples_of(task, SIZES)
    many = Cohort(plan, task, names, samples, device="kernel")
    stack = many.stack([ModelState(initial_model(plan, task, name)) for name in names])
    many.train(stack, range(4), 20, 20)

    for site, (name, own) in enumerate(zip(names, samples, strict=True)):
        single = Cohort(plan, task, [name], [own], device="kernel")
        alone = single.stack([ModelState(initial_model(plan, task, name))])
        single.train(alone, [0], 20, 20)
        assert all(torch.equal(tensor[0], stack.state[key][site]) for key, tensor in alone.state.items())


def test_rows_that_are_no_single_block_of_memory_train_in_place(compiled):
    task, plan = task_of("cross_entropy"), plan_of(5)
    names, samples = samples_of(task, SIZES)
    cohort = Cohort(plan, task, names, samples, device="kernel")
    whole, apart = (cohort.stack([ModelState(initial_model(plan, task, name)) for name in names]) for _ in range(2))
    apart.parameters = {
        name: tensor.movedim(0, -1).contiguous().movedim(-1, 0) for name, tensor in apart.parameters.items()
    }
    assert not apart.parameters["0.weight"].is_contiguous()

    for stack in (whole, apart):
        cohort.train(stack, range(4), 5, 5)

    assert all(torch.equal(tensor, apart.parameters[name]) for name, tensor in whole.parameters.items())


def test_a_model_that_diverges_is_not_finite_and_spoils_no_other(compiled):
    task, plan = task_of("mse"), plan_of(60, lr=0.05)
    names, samples = samples_of(task, SIZES)
    samples[1] = Samples(samples[1].x * 1e10, samples[1].y)
    cohort = Cohort(plan, task, names, samples, device="kernel")
    stack = cohort.stack([ModelState(initial_model(plan, task, name)) for name in names])

    cohort.train(stack, range(4), 60, 60)

    assert [bool(torch.isfinite(tensor).all()) for tensor in stack.parameters["0.weight"]] == [True, False, True, True]


OF_ANOTHER_KIND: dict[str, tuple[dict[str, Any], str]] = {
    "float64": ({"dtype": "float64"}, "numbers in float32"),
    "dropout": ({"model_options": {"hidden": [4], "dropout": 0.2}}, "linear layers and ReLUs"),
    "nine layers": ({"model_options": {"hidden": [2] * 8}}, "linear layers and ReLUs"),
    "moments that stay": ({"recipe": Recipe(momentum=0.9, optimizer_state="stay")}, "moments that go with their model"),
    "option I": ({"method": Method(name="s", rule="scaffold", scaffold_option=1, aggregate_every=1)}, "no gradient"),
}


@pytest.mark.parametrize(("change", "need"), OF_ANOTHER_KIND.values(), ids=OF_ANOTHER_KIND)
def test_torch_trains_a_plan_of_another_kind_and_says_why(compiled, change, need):
    task = task_of("cross_entropy")
    plan = plan_of().model_copy(update=change)

    cohort = Cohort(plan, task, *samples_of(task, SIZES), device="kernel")

    assert cohort.path == "mlp"
    assert cohort.unmet_need.startswith(need)


def test_torch_trains_where_the_kernel_has_not_been_built(absent):
    task = task_of("cross_entropy")

    cohort = Cohort(plan_of(), task, *samples_of(task, SIZES), device="kernel")

    assert cohort.path == "mlp"
    assert cohort.unmet_need == "to have been built here, in this version"
    assert kernel.describe_kernel() == ""


def test_a_kernel_of_another_version_is_as_good_as_none(compiled, monkeypatch):
    monkeypatch.setattr(kernel, "VERSION", kernel.VERSION + 1)
    kernel.library.cache_clear()

    assert kernel.library() is None


def test_torch_trains_unless_the_kernel_is_asked_for(compiled):
    task = task_of("cross_entropy")

    assert [Cohort(plan_of(), task, *samples_of(task, SIZES), device=at).path for at in ("cpu", "auto")] == [
        "mlp",
        "mlp",
    ]


def test_the_structure_is_as_long_in_python_as_in_c(compiled):
    assert ctypes.sizeof(kernel._Walk) == compiled.size_of_walk()


@pytest.mark.parametrize(("word", "threads"), [("kernel", 1), ("kernel:4", 4), ("cpu", 0), ("cuda:1", 0)])
def test_a_device_says_how_many_threads_the_kernel_has(word, threads):
    assert threads_of_kernel(word) == threads


def test_no_threads_are_refused():
    with pytest.raises(
        PlanError,
        match='device = "kernel:0": a device is "auto", "cpu", "cuda", "cuda:1", "mps", "kernel" or "kernel:4"',
    ):
        check_device("kernel:0")


def test_a_run_names_the_kernel_and_comes_to_torch_s_numbers(compiled, monkeypatch):
    plan = plan_of(6, hidden=(5,)).model_copy(update={"task": "synthetic", "sites": 4, "samples_per_site": 5})
    federation = build_federation(plan)

    by_torch, by_kernel = (
        run_plan(plan, federation, "cohort", options={"device": device}) for device in ("cpu", "kernel:2")
    )

    assert (by_torch.path, by_kernel.path) == ("mlp", "kernel")
    assert by_kernel.versions["kernel"] == f"{kernel.VERSION} ({kernel.SETS[compiled.best()]})"
    for name, array in by_torch.model.items():
        np.testing.assert_allclose(by_kernel.model[name], array, atol=CLOSE)


def test_a_compiler_that_is_not_there_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")

    with pytest.raises(FileNotFoundError, match="no-such-compiler"):
        build(tmp_path / "kernel.so")
    assert not list(tmp_path.iterdir())


def run_of(plan: Plan, device: str, samples: list[Samples] | None = None, **options: Any) -> Outcome:
    task = task_of("cross_entropy")
    names, own = samples_of(task, SIZES)
    trainer = Cohort(plan, task, names, samples or own, device=device)
    assert trainer.averages == (device != "cpu")
    return run_rounds(plan, trainer, lambda site: initial_model(plan, task, site), **options)


def averaging(rounds: int = 200, recipe: dict[str, Any] | None = None, every: int = 1, **method: Any) -> Plan:
    plan = plan_of(rounds, **(recipe or {}))
    parts = {"name": "FedAvg", "aggregate_every": every} | method
    return plan.model_copy(update={"method": Method(**parts), "initial_models": "common"})


AVERAGES: dict[str, Plan] = {
    "FedAvg": averaging(),
    "weights": averaging(weighted=True),
    "FedDC": averaging(name="FedDC", permute_every=1, every=7),
    "FedProx": averaging(60, {"local_epochs": 2, "batch": 2}, rule="proximal", proximal_mu=0.3, every=2),
    "server momentum": averaging(60, server="momentum", server_options={"lr": 0.5}),
    "server Adam": averaging(60, server="adam", server_options={"lr": 0.001}),
    "some sites": averaging(fraction=0.5),
    "a mean of models": averaging(60, ema=0.8),
    "momentum from rest": averaging(60, {"momentum": 0.9, "optimizer_state": "reset", "local_epochs": 2}),
    "Adam from rest": averaging(
        60, {"optimizer": "adam", "epsilon": 1e-3, "optimizer_state": "reset", "weight_decay": 0.01, "batch": 3}
    ),
}


@pytest.mark.parametrize("plan", AVERAGES.values(), ids=AVERAGES)
def test_a_run_from_mean_to_mean_is_torch_s_and_costs_the_same(compiled, plan):
    slow, fast = run_of(plan, "cpu"), run_of(plan, "kernel")

    for name, array in slow.model.items():
        np.testing.assert_allclose(fast.model[name], array, atol=CLOSE, rtol=CLOSE, err_msg=name)
    for count in ("rounds", "comm_rounds", "client_updates", "bytes_sent", "events"):
        assert getattr(fast, count) == getattr(slow, count)


def bits(outcome: Outcome) -> bytes:
    return b"".join(array.tobytes() for array in outcome.model.values())


@pytest.mark.parametrize("name", ["weights", "FedDC", "FedProx", "server Adam", "momentum from rest"])
def test_who_looks_or_goes_on_later_and_the_threads_change_no_bit(compiled, name, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "SHORT", 0)
    plan = AVERAGES[name].model_copy(update={"rounds": 36, "evaluate_every": 5})
    whole = run_of(plan, "kernel")

    seen, looked = [], lambda result: seen.append(result.models())
    threads = run_of(plan, "kernel:3", evaluator=looked)
    stops = iter([False, False, True])
    run_of(plan, "kernel", evaluator=looked, journal=FileJournal(tmp_path), stop=lambda: next(stops))
    resumed = run_of(plan, "kernel", evaluator=looked, journal=FileJournal(tmp_path))

    assert bits(whole) == bits(threads) == bits(resumed)
    assert len(seen) == 2 * 8
    assert all(len(array) == len(SIZES) for models in seen for array in models.values())


def test_moments_are_few_where_nobody_looks_and_one_for_each_look(compiled):
    plan = averaging(40).model_copy(update={"evaluate_every": 10})
    moments: list[int] = []

    run_of(plan, "kernel", progress=lambda t, rounds: moments.append(t))
    alone = list(moments)
    moments.clear()
    run_of(plan, "kernel", evaluator=lambda result: None, progress=lambda t, rounds: moments.append(t))

    assert alone == [40]
    assert moments == [9, 10, 19, 20, 29, 30, 39, 40]


def test_a_model_that_is_set_aside_is_set_aside_as_torch_does(compiled):
    plan = averaging(30)
    _, samples = samples_of(task_of("cross_entropy"), SIZES)
    samples[1] = Samples(samples[1].x * 1e18, samples[1].y)

    slow, fast = run_of(plan, "cpu", samples), run_of(plan, "kernel", samples)

    assert slow.events
    assert fast.events == slow.events
    assert fast.bytes_sent == slow.bytes_sent
    for name, array in slow.model.items():
        np.testing.assert_allclose(fast.model[name], array, atol=CLOSE, rtol=CLOSE, err_msg=name)


def test_a_compiler_without_openmp_makes_a_kernel_of_one_thread_and_the_same_bits(compiled, tmp_path, monkeypatch):
    compiler, plan = tmp_path / "cc", averaging(20)
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(kernel, "SHORT", 0)
    by_two = run_of(plan, "kernel:2")

    build(tmp_path / "kernel.so")
    monkeypatch.setattr(kernel, "LIBRARY", tmp_path / "kernel.so")
    kernel.library.cache_clear()

    assert kernel.library() is not None
    assert bits(run_of(plan, "kernel:2")) == bits(by_two)


@pytest.mark.parametrize("slow", [1, 2])
def test_short_walks_have_as_many_threads_as_are_faster_and_the_others_are_tried_again(compiled, slow, monkeypatch):
    """Beside other programs two threads wait for each other: rounds of a millisecond took ten times as long."""
    plan, plainly, taken, clock = averaging(200), kernel.share_out, [], [0.0]

    def share_out(name, of, parts, threads, several=1):
        taken.append(threads)
        clock[0] += 3.0 if threads == slow else 1.0
        plainly(name, of, parts, threads, several)

    monkeypatch.setattr(kernel, "share_out", share_out)
    monkeypatch.setattr(kernel, "perf_counter", lambda: clock[0])

    result = run_of(plan, "kernel:2")

    assert len(taken) == 200
    assert 2 <= taken.count(slow) <= 5  # at first, and after every 64
    assert bits(result) == bits(run_of(plan, "kernel"))
