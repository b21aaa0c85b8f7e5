"""The baseline of Flower: its schedules on a few made-up pictures, and what Flower asks of an app."""

import importlib
import re
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from fedsmall.sim.engines.inprocess import InProcessGrid
from tests import ROOT
from tests.flower import local_superlink

BASELINE = ROOT / "examples" / "baseline"
SMALL = {"num-clients": 3, "samples-per-client": 8, "batch-size": 4, "model": "cnn", "num-steps": 4}
SMALL |= {"aggregate-every": 2, "evaluate-every": 2}
MODULES = ("client_app", "server_app", "dataset", "model")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 10
    x = (rng.integers(0, 60, (60, 32, 32, 3)) + 15 * y[:, None, None, None]).astype(np.uint8)
    file = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(file, x=x, y=y, x_test=x[:20], y_test=y[:20])
    return str(file)


@pytest.fixture
def feddc(monkeypatch):
    monkeypatch.syspath_prepend(str(BASELINE))
    yield {name: importlib.import_module(f"feddc.{name}") for name in MODULES}
    for name in ("feddc", *(f"feddc.{name}" for name in MODULES)):
        sys.modules.pop(name, None)


def settings(**given) -> dict:
    told = tomllib.loads((BASELINE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return flatten_dict(told) | SMALL | {name.replace("_", "-"): value for name, value in given.items()}


def judged(feddc, capsys, **given) -> dict[int, float]:
    grid = InProcessGrid(feddc["client_app"].app, given.get("num_clients", 3))
    feddc["server_app"].app(grid, Context(1, 1, {}, RecordDict(), settings(**given)))
    assert not grid.tracebacks
    lines = re.findall(r"step (\d+): accuracy \S+, loss (\S+)", capsys.readouterr().out)
    return {int(t): float(loss) for t, loss in lines}


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["feddc", "daisychain", "fedavg"])
def test_every_algorithm_runs_and_judges_what_is_global(feddc, pictures, capsys, algorithm):
    losses = judged(feddc, capsys, algorithm=algorithm, data=pictures)

    assert set(losses) == ({0, 4} if algorithm == "daisychain" else {0, 2, 4})
    assert all(np.isfinite(loss) for loss in losses.values())


def test_with_an_average_in_every_round_feddc_is_fedavg(feddc, pictures, capsys):
    both = [judged(feddc, capsys, algorithm=name, aggregate_every=1, data=pictures) for name in ("feddc", "fedavg")]

    assert both[0] == both[1]
    assert both[0][4] != both[0][0]


@pytest.mark.thorough
def test_fedavg_is_so_many_steps_at_every_client_and_a_mean(feddc, pictures, capsys):
    from torch.nn.functional import cross_entropy

    given, model = settings(data=pictures), feddc["model"].make_model("cnn", 1)
    global_model = {name: array.clone() for name, array in model.state_dict().items()}
    for first in (0, 2):
        trained = []
        for client in range(3):
            images = feddc["dataset"].load_client(pictures, client, 8, 1)
            model.load_state_dict(global_model)
            for step in (first, first + 1):
                drawn = np.random.default_rng([1, client, step]).permutation(8)[:4]
                model.zero_grad()
                cross_entropy(model(images.x[drawn]), images.y[drawn]).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= given["learning-rate"] * parameter.grad
            trained.append({name: array.clone() for name, array in model.state_dict().items()})
        global_model = {name: torch.stack([one[name] for one in trained]).mean(dim=0) for name in global_model}
    model.load_state_dict(global_model)
    test = feddc["dataset"].load_test(pictures)
    expected = cross_entropy(model(test.x), test.y).item()

    assert judged(feddc, capsys, algorithm="fedavg", data=pictures)[4] == pytest.approx(expected, abs=1e-4)


def test_no_two_clients_share_a_sample_and_too_few_are_said(feddc, pictures):
    load = feddc["dataset"].load_client
    held = [load(pictures, client, 8, 1).x.reshape(8, -1) for client in range(7)]
    rows = {tuple(row.tolist()) for part in held for row in part}

    assert len(rows) == 56
    with pytest.raises(ValueError, match="client 7 has 4 of 8 samples"):
        load(pictures, 7, 8, 1)


@pytest.mark.parametrize(("name", "parameters"), [("cnn", 24_458), ("resnet18", 11_173_962)])
def test_the_networks_are_as_large_as_they_are(feddc, name, parameters):
    model = feddc["model"].make_model(name, 1)

    assert sum(one.numel() for one in model.parameters()) == parameters


@pytest.mark.parametrize("wrong", [{"algorithm": "fedsgd"}, {"model": "vgg"}])
def test_what_is_not_known_is_named(feddc, pictures, capsys, wrong):
    with pytest.raises(ValueError, match=r"is (one of )?(feddc|resnet18)"):
        judged(feddc, capsys, data=pictures, **wrong)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_of_its_page_runs_it(tmp_path, pictures):
    page = (BASELINE / "README.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("flwr run") and "num-clients" in line)
    command = re.sub(r"num-steps=\d+", "num-steps=4", command)
    command = re.sub(r"samples-per-client=\d+", "samples-per-client=4", command)
    command = re.sub(r"data='[^']*'", f"data='{pictures}'", command)
    with local_superlink(tmp_path) as flower:
        app = Path(flower.folder, "baseline")
        shutil.copytree(BASELINE, app, ignore=shutil.ignore_patterns("__pycache__"))
        said = flower.shell(command, app)
        status = flower.ended()

    assert status == "finished:completed", said
    assert re.search(r"step 4: accuracy", said)
