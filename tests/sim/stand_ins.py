"""Made data in the form of every file that a scenario reads: right in shape, few in number, and no real patient's."""

from pathlib import Path

import numpy as np
from PIL import Image

CIFAR_IMAGES = 16_000  # as many as Fig. 3 of FedDC deals, 250 sites of 64


def make(root: Path) -> Path:
    """Write them all into ``root``, the data root of every scenario that comes along."""
    rng = np.random.default_rng(0)
    cifar10(root, rng)
    mnist(root, rng)
    for flag, classes in (("pneumoniamnist", 2), ("organcmnist", 11)):
        medmnist(root / f"{flag}.npz", classes, rng)
    susy(root, rng)
    heart_disease(root / "heart_disease", rng)
    hospitals(root / "hospital.csv", rng)
    scans(root / "brain_tumor_dataset", {"no": 98, "yes": 155}, 40, rng)
    for half, each in (("train", 600), ("test", 12)):
        scans(root / "chest_xray" / half, {"NORMAL": each, "PNEUMONIA": each}, 24, rng)
    return root


def cifar10(root: Path, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, (CIFAR_IMAGES, 32, 32, 3), dtype=np.uint8)
    test = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    np.savez(root / "cifar10.npz", x=x, y=np.arange(CIFAR_IMAGES) % 10, x_test=test, y_test=np.arange(20) % 10)


def mnist(root: Path, rng: np.random.Generator) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in {"train": 240, "t10k": 20}.items():
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = bytes(row % 10 for row in range(count))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(_idx_head(3, count, 28, 28) + pixels.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(_idx_head(1, count) + labels)


def _idx_head(kind: int, *sizes: int) -> bytes:
    return bytes([0, 0, 8, kind]) + b"".join(size.to_bytes(4, "big") for size in sizes)


def medmnist(path: Path, classes: int, rng: np.random.Generator) -> None:
    arrays = {}
    for split, count in (("train", 1210), ("test", 22)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % classes)[:, None]
    np.savez(path, **arrays)


def susy(root: Path, rng: np.random.Generator) -> None:
    table = np.hstack([rng.integers(0, 2, (1500, 1)), rng.normal(size=(1500, 18))])
    np.savetxt(root / "SUSY.csv", table, delimiter=",", fmt="%.4f")
    (root / "susy").mkdir()
    for split, count in (("train", 300), ("test", 20)):
        np.savetxt(root / "susy" / f"susy_10Kn_{split}.csv", rng.normal(size=(count, 8)), delimiter=",")
        np.savetxt(root / "susy" / f"susy_10Kn_{split}_label.csv", rng.choice([-1, 1], count))


def heart_disease(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        codes = [
            rng.choice(values, 40) for values in ((0, 1), (1, 2, 3, 4), (0, 1, 2), (1, 2, 3), (3, 6, 7), (0, 1, 2))
        ]
        sex, cp, restecg, slope, thal, disease = codes
        numbers = rng.integers(40, 90, (40, 7))
        columns = [numbers[:, 0], sex, cp, *numbers[:, 1:4].T, restecg, *numbers[:, 4:7].T, slope, sex, thal, disease]
        np.savetxt(folder / f"processed.{hospital}.data", np.stack(columns, axis=1), delimiter=",", fmt="%d")


def hospitals(folder: Path, rng: np.random.Generator) -> None:
    """One table for each hospital: what a consortium's sites hold under the name that the scenario says."""
    folder.mkdir()
    for name in ("essen", "graz", "liege"):
        rows = [f"{a:.3f},{b:.3f},{'malignant' if a < 0 else 'benign'}" for a, b in rng.normal(size=(24, 2))]
        (folder / f"{name}.csv").write_text("\n".join(["radius,texture,diagnosis", *rows]))


def scans(folder: Path, counts: dict[str, int], side: int, rng: np.random.Generator) -> None:
    for label, count in counts.items():
        (folder / label).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 256, (side, side), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index}.png")
