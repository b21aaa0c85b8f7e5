"""torchvision's networks from weights in a file; their heads train as linear models do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression

from fedsmall.data.federation import Samples, Task
from fedsmall.data.sources.public import import_torchvision
from fedsmall.errors import PlanError
from fedsmall.models.networks import frozen_names
from fedsmall.models.registry import build_model, build_network, initial_model
from fedsmall.sim import run
from fedsmall.training.cohort import Cohort
from fedsmall.training.gradients.layers import halves
from fedsmall.wire import ModelState
from tests.fedsmall.training.cohorts import plan_for

NAME = "shufflenet_v2_x0_5"  # the smallest
GREY = Task("grey", (1, 32, 32), 3)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of weights as somebody else has trained them: here drawn, with statistics of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = import_torchvision().models.get_model(NAME)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
    path = tmp_path_factory.mktemp("weights") / "network.safetensors"
    save_file(network.state_dict(), path)
    return str(path)


def _images(task: Task, count: int) -> Samples:
    rng = np.random.default_rng(2)
    y = np.arange(count) % task.classes
    x = rng.uniform(-1, 1, (count, *task.input_shape))
    for label in range(task.classes):
        x[y == label, :, : 8 + 8 * label] += 0.7  # a bright band, wider with the class
    return Samples(x.clip(-1, 1).astype(np.float32), y)


@pytest.mark.thorough
def test_the_network_is_torchvisions_but_for_its_head(weights: str) -> None:
    task = Task("colour", (3, 32, 32), 1000)
    model = build_model(f"torchvision:{NAME}", task, {"weights": weights}, np.random.default_rng(0)).eval()
    theirs = import_torchvision().models.get_model(NAME).eval()
    state = {name.removeprefix("network."): t for name, t in model.state_dict().items() if "rescale" not in name}
    theirs.load_state_dict(state)
    pixels = torch.rand(2, 3, 32, 32)
    normalised = import_torchvision().transforms.functional.normalize(
        pixels, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )

    np.testing.assert_allclose(model(pixels * 2 - 1).detach(), theirs(normalised).detach(), atol=1e-4)


def test_grey_images_are_colour_images_of_equal_channels(weights: str) -> None:
    options = {"weights": weights}
    grey = build_model(f"torchvision:{NAME}", GREY, options, np.random.default_rng(0)).eval()
    colour = build_model(f"torchvision:{NAME}", Task("c", (3, 32, 32), 3), options, np.random.default_rng(0)).eval()
    x = torch.rand(2, 1, 32, 32)

    np.testing.assert_allclose(grey(x).detach(), colour(x.expand(-1, 3, -1, -1)).detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("train", "free"),
    [
        ("head", {"fc"}),
        ("last_block", {"fc", "conv5"}),
        (["stage4"], {"fc", "stage4"}),
    ],
)
def test_what_trains_is_what_is_asked_for(weights: str, train: Any, free: set[str]) -> None:
    plan = plan_for(f"torchvision:{NAME}", {"weights": weights, "train": train}, dtype="float32")

    assert {name.split(".")[1] for name in initial_model(plan, GREY)} == free
    assert halves(plan, GREY).body is not None


def test_last_block_of_a_network_within_a_network() -> None:
    for name, block in {"resnet18": "layer4", "densenet121": "features.denseblock4", "vgg11": "features.18"}.items():
        from fedsmall.models.pretrained import _head, _last_block

        with torch.device("meta"):
            network = import_torchvision().models.get_model(name)

        assert _last_block(network, _head(name, network))[0] == block


@pytest.mark.thorough
def test_a_head_is_scikit_learns_logistic_regression_on_the_features(weights: str) -> None:
    """Both penalise all weights and biases by the same term, so that there is one solution."""
    decay, mine = 0.02, _images(GREY, 30)
    options = {"weights": weights, "train": "head"}
    recipe = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": decay, "local_steps": 1, "batch": None}
    plan = plan_for(f"torchvision:{NAME}", options, rounds=1500, dtype="float64", **recipe)
    mine = Samples(mine.x.astype(np.float64), mine.y)
    features = halves(plan, GREY).seen(mine.x)
    flat = np.hstack([features.reshape(len(features), -1), np.ones((30, 1))])
    oracle = LogisticRegression(C=1 / (30 * decay), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(flat, mine.y)

    cohort = Cohort(plan, GREY, ["essen"], [mine])
    stack = cohort.stack([ModelState(initial_model(plan, GREY))])
    cohort.train(stack, [0], plan.rounds, plan.rounds)

    assert cohort.path == "mlp"
    probabilities = torch.softmax(torch.from_numpy(cohort.predict(stack, mine.x)[0]), -1)
    np.testing.assert_allclose(probabilities, oracle.predict_proba(flat), atol=1e-3)


@pytest.mark.thorough
def test_a_run_trains_a_head_and_its_package_needs_no_file(weights: str, tmp_path: Path) -> None:
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(Path(weights).read_bytes())
    images = _images(GREY, 36)
    sites = {name: (images.x[k::3], images.y[k::3]) for k, name in enumerate(("essen", "graz", "ulm"))}

    result = run(
        sites=sites,
        methods=["FedAvg", "FedDC"],
        model=f"torchvision:{NAME}",
        model_options={"weights": str(moved), "train": "head"},
        rounds=4,
        seeds=[0],
    )
    plan = result.run.done[0].plan
    body = build_network(plan, GREY)
    moved.unlink()

    held = result.model.state_dict()
    assert frozen_names(body)
    for name in frozen_names(body):
        np.testing.assert_array_equal(held[name], body.state_dict()[name])


@pytest.mark.parametrize(
    ("model", "options", "line"),
    [
        ("resnet19", {}, r"torchvision has no network 'resnet19' for classes\. .*resnet18"),
        (NAME, {"train": "head"}, r"train = 'head' freezes layers that nobody has trained; give weights"),
        (NAME, {"weights": "WEIGHTS", "train": "haed"}, r"train is one of all, last_block, head"),
        (NAME, {"weights": "WEIGHTS", "train": ["stage5"]}, r"train names 'stage5', which is no layer"),
        (NAME, {"weights": "WEIGHTS", "treat": "head"}, r"has no option 'treat'\. .*train"),
        (NAME, {"weights": "none.safetensors"}, r"there is no file or folder 'none.safetensors' here"),
        (
            NAME,
            {"weights": "WEIGHTS", "sha256": "0" * 64},
            "network.safetensors: its sha256 is not that of the scenario, 0{64}; fetch the file again$",
        ),
        (NAME, {"sha256": "0" * 64}, "sha256 is that of a file"),
        (NAME, {"weights": "BROKEN"}, r"broken.safetensors: no weights can be read from it"),
        (
            "resnet18",
            {"weights": "WEIGHTS"},
            r"the weights are not those of resnet18: \d+ of its 120",
        ),
        ("squeezenet1_0", {}, r"the last layer of squeezenet1_0 is not linear"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_line(
    model: str, options: dict[str, Any], line: str, weights: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    paths = {"WEIGHTS": weights, "BROKEN": str(tmp_path / "broken.safetensors")}
    options = {key: paths.get(str(value), value) for key, value in options.items()}

    with pytest.raises(PlanError, match=line):
        build_model(f"torchvision:{model}", GREY, options, np.random.default_rng(0))
