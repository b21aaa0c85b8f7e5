"""The rows of convolutional networks: two paths to one loss, and a line for what cannot be measured."""

import math
import re

import numpy as np
import pytest
import torch
from rich.console import Console

from fedsmall.errors import PlanError
from fedsmall.research.bench import images
from fedsmall.research.bench.command import _left_out, _pictured
from fedsmall.research.bench.images import ImageRow, Pictures, federation_of, image_plan, image_rows, pictures


@pytest.fixture
def few(monkeypatch) -> Pictures:
    """Little images, and rows that are measured in this process."""
    rng = np.random.default_rng(0)
    halves = [
        images.Samples(rng.normal(size=(n, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, n)) for n in (80, 9)
    ]
    found = Pictures(*halves, "generated")
    monkeypatch.setattr(images, "pictures", lambda root: found)
    monkeypatch.setattr(images, "_apart", lambda *asked: images.measured(*asked))
    return found


@pytest.mark.thorough
def test_the_batched_path_and_the_loop_come_to_one_loss(few):
    conv, loop = image_rows("cpu", None, models=("cnn",), sites=(2,))

    assert (conv.path, loop.path, conv.missing, loop.missing) == ("conv", "loop", "", "")
    assert conv.loss == pytest.approx(loop.loss, abs=1e-4)
    assert min(conv.rate, loop.rate, conv.peak_bytes) > 0


@pytest.mark.thorough
def test_paths_that_do_not_come_to_one_loss_are_not_compared(few, monkeypatch):
    true = images.pooled_loss
    monkeypatch.setattr(images, "pooled_loss", lambda *given: true(*given) + next(off))
    off = iter((0.0, 0.01))

    with pytest.raises(ValueError, match=r"cnn at 2 sites: the paths come to other losses \(conv .*, loop .*\)"):
        list(image_rows("cpu", None, models=("cnn",), sites=(2,)))


@pytest.mark.thorough
def test_models_that_do_not_fit_the_memory_are_a_line_and_the_others_are_measured(few, monkeypatch, capsys):
    monkeypatch.setattr("fedsmall.training.device.room_of", lambda device: 60_000_000)  # one ResNet-18 is 45 MB

    rows = _pictured(Console(width=200), "cpu", None, [2])

    assert [bool(row.missing) for row in rows] == [False, False, True, True]
    told = r"resnet18, 2 sites, conv: not measured: 2 models of \d+\.\d MB, moments included, take 0\.2 GB"
    assert re.search(told, capsys.readouterr().out)


def test_every_site_draws_images_of_its_own_and_none_twice(few):
    federation = federation_of(few, 3, images=30)

    first, second = federation.train[:2]
    assert [len(one) for one in federation.train] == [30] * 3
    assert len(np.unique(first.x, axis=0)) == 30
    assert not np.array_equal(first.x, second.x)
    assert np.array_equal(federation_of(few, 1, images=30).train[0].x, first.x)


@pytest.mark.thorough
def test_images_are_those_of_cifar_10_where_they_are_at_hand_and_none_is_downloaded(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8), np.arange(6) % 10
    (tmp_path / "with").mkdir()
    np.savez(tmp_path / "with" / "cifar10.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])

    there, nowhere, without = pictures(tmp_path / "with"), pictures(None), pictures(tmp_path)

    assert (there.name, len(there.train), len(there.test)) == ("CIFAR-10", 6, 2)
    np.testing.assert_allclose(there.train.x, np.moveaxis(x, -1, 1) / 127.5 - 1, atol=1e-6)
    assert (nowhere.name, without.name, len(without.train), len(without.test)) == (
        "generated",
        "generated",
        15_000,
        3_000,
    )


def test_the_models_are_trained_as_the_page_says():
    plan = image_plan("resnet18")

    assert (plan.method.permute_every, plan.method.aggregate_every, plan.recipe.batch) == (1, plan.rounds, None)
    assert images.SITES == (50, 500, 5000)
    assert math.isnan(ImageRow("cnn", 50, "conv", "CIFAR-10").rate)


def test_who_trains_on_the_cpu_alone_is_left_out_on_a_gpu():
    assert _left_out(True, "cpu") == []
    assert _left_out(False, "cpu") == ["Flower + Ray"]
    ours = {"kernel", "kernel, two threads", "one by one"}
    assert set(_left_out(True, "cuda")) == ours | {"JAX", "FedLab", "pfl-research", "Flower + Ray"}


def test_a_plan_error_of_the_engine_is_the_row_s_line(few, monkeypatch):
    def refused(*given):
        raise PlanError("no room\nand more")

    monkeypatch.setattr(images, "by_cohort", refused)

    assert images.measured("cnn", 2, "conv", "cpu", None).missing == "no room"


@pytest.mark.gpu
@pytest.mark.parametrize("path", images.PATHS)
def test_a_row_on_a_gpu_comes_to_the_loss_of_the_cpu(few, path):
    here, there = (images.measured("cnn", 3, path, device, None) for device in ("cpu", "cuda"))

    assert there.loss == pytest.approx(here.loss, abs=1e-4)
    assert there.peak_bytes > torch.cuda.max_memory_allocated() > 0
