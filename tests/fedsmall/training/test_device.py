"""Where models train: what a word gives, what is refused, and that the tests' second device is as strict as a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedsmall.errors import PlanError
from fedsmall.training import device as devices
from fedsmall.training.cohort import Cohort
from fedsmall.training.device import WORTH_ALONE, WORTH_TOGETHER, check_device, choose_device, process_context
from fedsmall.training.stack import Rows
from tests.fedsmall.training.cohorts import TABLE, plan_for, samples_for
from tests.fedsmall.training.second_device import PLACE, second_device


@pytest.fixture
def one_gpu(monkeypatch):
    """A torch that says it sees one GPU; nothing may be put there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a GPU")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(
    ("parameters", "together", "kind"),
    [
        (WORTH_ALONE - 1, 1, "cpu"),
        (WORTH_ALONE, 1, "cuda"),
        (WORTH_TOGETHER // 50 - 1, 50, "cpu"),
        (WORTH_TOGETHER // 50, 50, "cuda"),
    ],
)
def test_auto_takes_a_gpu_that_the_models_are_worth(one_gpu, parameters, together, kind):
    assert choose_device("auto", parameters, together).type == kind


def test_auto_is_the_cpu_where_there_is_no_gpu_and_never_mps(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    assert choose_device("auto", 10**9, 100).type == "cpu"


def test_a_cohort_counts_the_models_that_take_a_step_together(one_gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedsmall.training.cohort.choose_device", lambda *words: asked.append(words) or torch.device("cpu")
    )
    names, samples = samples_for(TABLE, [4] * 7)
    for path in ("mlp", "loop"):
        Cohort(plan_for(), TABLE, names, samples, path=path, device="auto")

    assert [(word, together, dtype) for word, _, together, dtype in asked] == [
        ("auto", 7, "float64"),
        ("auto", 1, "float64"),
    ]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("cuda", 'device = "cuda": not here; this machine has cpu'),
        ("cuda:1", 'device = "cuda:1": not here; this machine has cpu'),
        ("mps", 'device = "mps": not here; this machine has cpu'),
        ("gpu", 'device = "gpu": a device is "auto", "cpu", "cuda", "cuda:1", "mps", "kernel" or "kernel:4"'),
        ("cuda:", 'device = "cuda:": a device is'),
    ],
)
def test_a_device_that_is_not_here_is_one_line_with_what_is(no_gpu, monkeypatch, asked, line):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    with pytest.raises(PlanError) as refused:
        choose_device(asked, 10)

    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_gpu_is_counted_from_zero_and_named(one_gpu):
    check_device("cuda:0")
    with pytest.raises(PlanError, match=r"this machine has cpu, cuda:0 \(a GPU\)"):
        check_device("cuda:1")
    assert devices.describe_device(torch.device("cuda")) == "cuda:0 (a GPU)"


def test_a_plan_in_float64_is_refused_on_mps(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    assert choose_device("mps", 10).type == "mps"
    with pytest.raises(PlanError, match='"mps" has no float64; set dtype = "float32", or device = "cpu"'):
        choose_device("mps", 10, dtype="float64")


def test_a_gpu_is_asked_for_the_same_numbers_each_time(one_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    choose_device("cuda", 10)

    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32) == (True, False)


MIXING = {
    "a sum": lambda there, here: there + here,
    "a write": lambda there, here: there.add_(here),
    "an index": lambda there, here: there[here.long()],
    "a write at an index": lambda there, here: there.index_put_((here.long().to(PLACE),), here),
    "numbers not brought back": lambda there, here: there.numpy(),
    "the other way round": lambda there, here: here.mul(there),
}


@pytest.mark.parametrize("mixing", MIXING)
def test_the_second_device_refuses(mixing):
    with second_device() as place:
        there, here = torch.zeros(3, device=place), torch.zeros(3)

        with pytest.raises((RuntimeError, TypeError)):
            MIXING[mixing](there, here)


def test_the_second_device_computes_what_the_cpu_does():
    with second_device() as place:
        x = torch.from_numpy(np.arange(6.0)).to(place).reshape(2, 3)
        x[0] = torch.tensor([5.0, 5.0, 5.0], dtype=torch.float64)  # a copy, which goes across
        x[1:] *= 2

        assert x.device == place
        assert x.cpu().numpy().tolist() == [[5.0, 5.0, 5.0], [6.0, 8.0, 10.0]]


def test_models_that_a_device_cannot_hold_are_one_line_with_what_it_has(one_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * 10**9, 140 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 10**9)
    gpu = torch.device("cuda")

    devices.check_room(gpu, 400, 100_000_000)  # 40 GB: what is free, and what torch keeps for the next

    with pytest.raises(PlanError) as caught:
        devices.check_room(gpu, 5000, 89_400_000)
    assert str(caught.value) == (
        "5,000 models of 89.4 MB, moments included, take 447.0 GB, and cuda:0 (a GPU) has 40.0; take fewer sites, "
        "fewer models that travel (models = ...), or a smaller model"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_gpu_finds_the_model_that_is_not_finite(odd):
    """A product with zeros finds it, which a library may leave out where it sees the zeros."""
    numbers = torch.ones(3, 1000, device="cuda")
    numbers[1, 500] = odd

    assert Rows({"a": numbers, "b": torch.ones(3, 2, device="cuda")}).finite().tolist() == [True, False, True]


@pytest.mark.gpu
def test_what_is_free_on_a_gpu_is_what_it_can_hold():
    room = devices.room_of(torch.device("cuda"))

    assert 0 < room <= torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(PlanError, match=r"and cuda:0 \(.*\) has"):
        devices.check_room(torch.device("cuda"), 2, room)


@pytest.mark.parametrize(
    ("system", "asked", "method"),
    [
        ("linux", "cpu", "fork"),
        ("linux", "kernel:2", "fork"),
        ("linux", "cuda:1", "spawn"),
        ("linux", "auto", "spawn"),
        ("darwin", "cpu", "spawn"),
    ],
)
def test_processes_are_forks_but_on_macos_and_for_a_gpu(monkeypatch, system, asked, method):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(devices, "has_threads", lambda: False)

    assert process_context(asked, [__name__]).get_start_method() == method


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes begin afresh")
@pytest.mark.thorough
@pytest.mark.parametrize("thread", ["", "python", "library"])
def test_a_process_with_threads_is_not_forked_and_one_without_is(thread):
    begin = {
        "": "",
        "python": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "library": "torch.set_num_threads(3); torch.ones(1000, 1000).exp()",  # OpenMP's, which no child would have
    }
    lines = (
        "import os, threading, time, torch, fedsmall.sim.runs.execute, sklearn.linear_model, pandas",
        "from fedsmall.training.device import process_context",
        begin[thread],
        "print(process_context('cpu', []).get_start_method())",
    )
    environ = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1", "NUMEXPR_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environ, capture_output=True, text=True)

    assert told.stdout.strip() == ("forkserver" if thread else "fork"), told.stderr
