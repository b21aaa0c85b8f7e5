"""MONAI's networks as models of one's own: their size, seconds for a step, and how well they do on few images.

    pip install --no-deps monai                                   # it needs torch and numpy, and replaces neither
    python -m examples.monai_networks --data-root DATA [--seeds 3] # DATA holds pneumoniamnist.npz

``model = "examples.monai_networks:densenet121"`` trains one; a function like it in a file of your own does the same.
Ten sites of eight chest X-rays, 64 x 64; every network trains for as many rounds by FedDC, with Adam at one rate.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.models.registry import build_model
from fedsmall.training.gradients import LOSSES, Batch, LoopGradients
from fedsmall.training.gradients.layers import prepare_model

HERE = "examples.monai_networks"
NORMS: dict[str, Any] = {"batch": "batch", "group": ("group", {"num_groups": 8})}
BATCH, SIDE = 8, 64
FLAT: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("cnn", {}),
    "cnn, batch": ("cnn", {"norm": "batch"}),
    "resnet18_cropped, batch": ("resnet18_cropped", {"norm": "batch"}),
    "resnet18_cropped, batch, stem imagenet": ("resnet18_cropped", {"norm": "batch", "stem": "imagenet"}),
    "torchvision:densenet121": ("torchvision:densenet121", {}),
    "MONAI DenseNet121": (f"{HERE}:densenet121", {"norm": "batch"}),
    "MONAI DenseNet121, group": (f"{HERE}:densenet121", {"norm": "group"}),
    "MONAI UNet": (f"{HERE}:unet", {}),
}
DEEP: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn3d": ("cnn3d", {}),
    "MONAI DenseNet121, group": (f"{HERE}:densenet121", {"norm": "group"}),
}
TRIED = ("cnn", "cnn, batch", "MONAI DenseNet121, group", "MONAI DenseNet121", "resnet18_cropped, batch, stem imagenet")


def densenet121(task: Task, *, norm: str = "group") -> nn.Module:
    """MONAI's DenseNet121 for images or volumes, normalised over groups of channels or over the batch."""
    from monai.networks.nets import DenseNet121

    channels, *sides = task.input_shape
    network: nn.Module = DenseNet121(len(sides), channels, task.outputs, norm=NORMS[norm])
    return network


def unet(task: Task) -> nn.Module:
    """MONAI's UNet with the mean of what it says of each place as its answer."""
    from monai.networks.nets import UNet

    channels, *sides = task.input_shape
    body = UNet(len(sides), channels, task.outputs, channels=(16, 32, 64, 128), strides=(2, 2, 2), norm=NORMS["group"])
    pool = nn.AdaptiveAvgPool2d(1) if len(sides) == 2 else nn.AdaptiveAvgPool3d(1)
    return nn.Sequential(body, pool, nn.Flatten())


class Cost(NamedTuple):
    """What a network weighs: its parameters, its buffers (running statistics), and seconds for a step on eight."""

    parameters: int
    buffers: int
    step_s: float


def cost(model: str, options: dict[str, Any], shape: tuple[int, ...]) -> Cost:
    """The cost of a model for samples of ``shape``, on one core and by the loop, which all large networks take."""
    built = prepare_model(build_model(model, Task("scans", shape, 2), options, np.random.default_rng(0)))
    parameters = {name: tensor.detach()[None].clone() for name, tensor in built.named_parameters()}
    buffers = {name: tensor[None].clone() for name, tensor in built.named_buffers() if not name.endswith(".mask")}
    batch = Batch(torch.randn(1, BATCH, *shape), torch.arange(BATCH)[None] % 2, None, {})
    gradients = LoopGradients(built, LOSSES["cross_entropy"])
    took = []
    for _ in range(4):  # the first warms up
        begun = time.process_time()
        gradients(parameters, buffers, batch)
        took.append(time.process_time() - begun)
    return Cost(sum(tensor.numel() for tensor in parameters.values()), len(buffers), min(took[1:]))


def accuracy(data: Path, model: str, options: dict[str, Any], seed: int, rounds: int) -> float:
    """Accuracy of the global model on 200 X-rays that nobody trains on."""
    from fedsmall.methods import method
    from fedsmall.parts import Recipe
    from fedsmall.plan import Plan
    from fedsmall.planning.tasks import build_federation
    from fedsmall.sim.engines.run import run_plan

    plan = Plan(
        name="xrays",
        task={"npz": str(data)},
        sites=10,
        samples_per_site=8,
        seed=seed,
        rounds=rounds,
        evaluate_every=rounds,
        model=model,
        model_options=options,
        recipe=Recipe(optimizer="adam", lr=0.001, batch=BATCH, local_steps=1),
        method=method("FedDC", permute_every=1, aggregate_every=5),
    )
    record = run_plan(plan, build_federation(plan), "cohort")
    return float((record.evaluations[-1].common or {})["accuracy"])


def xrays(root: Path, out: Path) -> Path:
    """Chest X-rays of MedMNIST, enlarged to 64 x 64: 2,000 to train on, 100 of each class to judge by."""
    from PIL import Image

    def enlarged(images: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(Image.fromarray(image).resize((SIDE, SIDE))) for image in images])

    with np.load(root / "pneumoniamnist.npz") as held:
        labels = held["test_labels"].ravel()
        judged = np.concatenate([np.flatnonzero(labels == label)[:100] for label in (0, 1)])
        arrays = {"x": enlarged(held["train_images"][:2000]), "y": held["train_labels"][:2000].ravel()}
        np.savez(out, x_test=enlarged(held["test_images"][judged]), y_test=labels[judged], **arrays)
    return out


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--data-root", type=Path)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--rounds", type=int, default=20)
    words = asked.parse_args()
    torch.set_num_threads(1)
    for shape, models in (((1, SIDE, SIDE), FLAT), ((1, 32, 32, 32), DEEP)):
        for name, (model, options) in models.items():
            told = cost(model, options, shape)
            sides = " x ".join(map(str, shape[1:]))
            print(f"{sides:12s} {name:32s} {told.parameters:>11,} {told.buffers:4d} {told.step_s:7.3f} s", flush=True)
    if words.data_root is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        data = xrays(words.data_root, Path(folder) / "xrays.npz")
        for name in TRIED:
            begun = time.process_time()
            for seed in range(words.seeds):
                found = accuracy(data, *FLAT[name], seed, words.rounds)
                print(f"{name:32s} seed {seed} {found:.3f} {time.process_time() - begun:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
