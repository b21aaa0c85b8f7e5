"""A plan that fails is a row with its reason; all others run, and are reported."""

import errno
import json
from dataclasses import replace

import pytest

from fedsmall.files import DiskFullError
from fedsmall.sim import Result
from fedsmall.sim.report.html import page
from fedsmall.sim.report.terminal import failures
from fedsmall.sim.runs.execute import Failed, attempt, execute, reason_of
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.merge import merge
from fedsmall.sim.runs.scenario import load
from tests.sim.runs.scenarios import SMALL, write

WILD = SMALL + '[[method]]\nname = "FedDC"\nlabel = "Wild"\nrecipe = {lr = 1e38}\n'

OWN_MODEL = """
import os
import torch

class Moody(torch.nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls > 3 and not self.training:
            WHAT
        return super().forward(x)

def moody(task):
    return Moody(task.input_shape[0], task.outputs)
"""


DEADLY = """
import os
import torch

class Deadly(torch.nn.Linear):
    def forward(self, x):
        if self.weight.abs().max() > 50:
            os._exit(9)
        return super().forward(x)

def deadly(task):
    return torch.nn.Sequential(torch.nn.BatchNorm1d(task.input_shape[0]), Deadly(task.input_shape[0], task.outputs))
"""


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wild")
    return execute(load(write(folder, WILD)), folder / "run")


@pytest.mark.thorough
def test_a_method_that_diverges_is_a_row_and_the_others_are_reported(wild, small_run):
    run = read(wild.folder)

    assert [(each["label"], each["seed"]) for each in run.failed] == [("Wild", 0), ("Wild", 1)]
    assert "finite" in run.failed[0]["reason"]
    assert run.not_run == []
    assert len(run.done) == len(small_run.done) == 10
    text = page([run], "wild")
    assert "Some plans failed" in text
    assert text.count(run.failed[0]["reason"].replace("'", "&#39;")) == 2
    assert "This run is partial" not in text
    assert failures(run)[0].startswith("Wild failed (seeds 0, 1): ")
    assert [each["label"] for each in merge([run])[0].failed] == ["Wild", "Wild"]


def test_a_notebook_is_told_too(wild):
    result = Result(read(wild.folder))

    assert "Wild failed (seeds 0, 1)" in str(result)
    assert "Wild failed (seeds 0, 1)" in result._repr_html_()


def test_the_others_have_the_numbers_that_they_have_alone(wild, tmp_path):
    alone = execute(load(write(tmp_path, SMALL)))

    assert [(one.label, one.evaluations) for one in wild.done] == [(one.label, one.evaluations) for one in alone.done]


@pytest.mark.thorough
def test_the_exit_code_says_that_something_failed_and_the_report_is_made(fedsmall, tmp_path):
    two = SMALL.partition("[[method]]")[0] + '[[method]]\nname = "FedAvg"\n' + WILD.removeprefix(SMALL)
    code, said, _ = fedsmall("run", write(tmp_path, two), "--out", "out")

    assert code == 1
    assert "Wild failed (seeds 0, 1)" in said
    assert (tmp_path / "out" / "report.html").exists()
    again, said, _ = fedsmall("report", "out")
    assert again == 0
    assert "Wild failed" in said


def test_where_all_plans_fail_there_is_a_report_of_that(fedsmall, tmp_path):
    text = SMALL.partition("[[method]]")[0] + '[[method]]\nname = "FedDC"\nrecipe = {lr = 1e38}\n'

    code, _, complained = fedsmall("run", write(tmp_path, text), "--out", "out")

    assert (code, "Traceback" in complained) == (1, False)
    assert "Some plans failed" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_in_a_model_of_ones_own_is_told_with_its_place(fedsmall, tmp_path, processes):
    (tmp_path / "moody.py").write_text(OWN_MODEL.replace("WHAT", 'raise KeyError("mood")'))
    text = SMALL.replace('model = "linear"', 'model = "moody:moody"').replace("rounds = 6", "rounds = 4")

    code, said, _ = fedsmall("run", write(tmp_path, text), "--out", "out", "--processes", str(processes))

    assert code == 1
    assert "KeyError: 'mood' (moody.py, line 12)" in said
    assert "Traceback" in json.loads((tmp_path / "out" / "run.json").read_text())["failed"][0]["traceback"]


@pytest.mark.slow
def test_a_process_that_is_killed_takes_only_its_own_plan_with_it(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = SMALL.replace('model = "linear"', 'model = "deadly:deadly"')
    text += '[[method]]\nname = "FedAvg"\nlabel = "Deadly"\nrecipe = {lr = 3000.0}\n'

    run = execute(load(write(tmp_path, text)), tmp_path / "out", processes=2)

    assert {each["label"] for each in run.failed} == {"Deadly"}
    assert "killed" in run.failed[0]["reason"]
    assert len(run.done) == 10


def test_a_loss_that_is_not_finite_at_the_end_is_a_failure(monkeypatch, tmp_path):
    import fedsmall.sim.runs.execute as engines

    real = engines.run_plan

    def infinite(plan, *args, **options):
        record = real(plan, *args, **options)
        last = record.evaluations[-1]
        if plan.method.label == "Central":
            record.evaluations[-1] = replace(last, common={**last.common, "loss": float("inf")})
        return record

    monkeypatch.setattr(engines, "run_plan", infinite)

    run = execute(load(write(tmp_path)))

    assert {each["label"] for each in run.failed} == {"Central"}
    assert "it diverged" in run.failed[0]["reason"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "out of memory: CUDA out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory: Default"),
        (ValueError("two\nlines"), "two lines"),
    ],
)
def test_reasons_are_one_line(error, words):
    assert reason_of(error).startswith(words)


def test_a_disk_without_room_is_no_failure_of_a_plan():
    def fill():
        raise DiskFullError(errno.ENOSPC, "the disk is full: there is no room to write summary.json")

    with pytest.raises(DiskFullError):
        attempt(fill)
    assert isinstance(attempt(lambda: 1 / 0), Failed)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the disk is read-only")]
)
def test_a_full_or_read_only_disk_is_one_line(fedsmall, tmp_path, monkeypatch, number, words):
    def refuse(*args, **options):
        raise OSError(number, "no", "out/summary.json")

    monkeypatch.setattr("fedsmall.files._write", refuse)

    code, _, complained = fedsmall("run", write(tmp_path), "--out", "out")

    assert code == 2
    lines = [line for line in complained.splitlines() if line.startswith("fedsmall:")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in complained
