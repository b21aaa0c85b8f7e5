"""Connectomes at two resolutions: generated ones that have a relation to learn, and the user's own files.

``task = {connectomes = "generated"}`` or ``{connectomes = "data.npz"}``; the paper's data (SLIM) are confidential.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError, as_data_error
from fedsmall.randomness import rng_for

REGIONS = 35  # of an input graph
FEATURES, TRAITS = 24, 6  # waves over the brain's surface; what makes a subject differ from others
MOST_NUMBERS = 1_000_000_000  # of the graphs of all subjects
NOISE = 0.02  # of the logit of an entry, from one resolution to another


def pairs(regions: int) -> int:
    """The number of entries above the diagonal."""
    return regions * (regions - 1) // 2


def regions_of(entries: int) -> int:
    """The number of regions of a graph with so many entries above the diagonal; ValueError where there is none."""
    regions = (1 + math.isqrt(1 + 8 * entries)) // 2
    if entries < 1 or pairs(regions) != entries:
        raise ValueError(f"no symmetric matrix has {entries} entries above its diagonal; 35 regions have 595")
    return regions


def generate(subjects: int, resolutions: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    """One array of connectomes for each resolution, (subjects, regions, regions): symmetric, in [0, 1], diagonal 1.

    A subject weighs waves over a sphere by its traits; regions are connected as these agree there, at all resolutions.
    """
    if subjects * max(resolutions) ** 2 > MOST_NUMBERS:
        raise DataError(f"{subjects} subjects of {max(resolutions)} regions are more than a machine's memory holds")
    surface = rng_for(seed, "connectomes", "surface")
    frequencies = surface.normal(scale=2.0, size=(3, FEATURES))
    phases = surface.uniform(0, 2 * np.pi, size=FEATURES)
    mixing = surface.normal(size=(TRAITS, FEATURES)) / np.sqrt(TRAITS)
    traits = rng_for(seed, "connectomes", "subjects").normal(size=(subjects, TRAITS))
    weights = np.exp(traits @ mixing)  # (subjects, waves)
    return tuple(_sample(regions, frequencies, phases, weights, seed) for regions in resolutions)


def _sample(regions: int, frequencies: np.ndarray, phases: np.ndarray, weights: np.ndarray, seed: int) -> np.ndarray:
    waves = np.cos(_places(regions) @ frequencies + phases)  # (regions, waves)
    felt = waves * np.sqrt(weights)[:, None, :]  # (subjects, regions, waves)
    felt /= np.linalg.norm(felt, axis=-1, keepdims=True)
    graphs = (1 + felt @ felt.transpose(0, 2, 1)) / 2
    noise = rng_for(seed, "connectomes", "noise", regions).normal(scale=NOISE, size=graphs.shape)
    graphs = np.clip(graphs + (noise + noise.transpose(0, 2, 1)) / 2, 0, 1)
    graphs[:, np.arange(regions), np.arange(regions)] = 1
    return np.asarray(graphs)


def _places(regions: int) -> np.ndarray:
    """Places spread evenly on a sphere (a Fibonacci spiral), (regions, 3), so that no resolution is special."""
    height = 1 - 2 * (np.arange(regions) + 0.5) / regions
    angle = np.pi * (3 - np.sqrt(5)) * np.arange(regions)
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)


def vectors(graphs: np.ndarray) -> np.ndarray:
    """The entries above the diagonal, (subjects, entries), of matrices or of vectors that are already that."""
    if graphs.ndim == 3:
        if graphs.shape[1] != graphs.shape[2] or not np.allclose(graphs, graphs.transpose(0, 2, 1), atol=1e-6):
            raise DataError(f"graphs must be symmetric matrices; these have shape {graphs.shape[1:]} or are lopsided")
        row, column = np.triu_indices(graphs.shape[1], k=1)
        graphs = graphs[:, row, column]
    if graphs.ndim != 2:
        raise DataError(f"graphs come as matrices or as rows of numbers, not in {graphs.ndim} dimensions")
    if not np.isfinite(graphs).all():
        raise DataError("graphs must be complete: some entries are missing or not finite")
    try:
        regions_of(graphs.shape[1])
    except ValueError as wrong:
        raise DataError(str(wrong)) from None
    return np.ascontiguousarray(graphs, dtype=np.float64)


def connectomes(
    root: Path | None, seed: int, value: str = "generated", *, regions: int | Sequence[int] = 160, subjects: int = 279
) -> Pool:
    """A task of graph super-resolution: x (subjects, 595) and y (subjects, entries), both above the diagonal.

    ``value`` is "generated", an .npz with ``source`` and ``target``, or a folder with source.csv and target.csv, a
    subject a row without header. A list of ``regions`` makes a hospital for each of its numbers.
    """
    if not isinstance(regions, int):
        if value != "generated":
            raise DataError("a list of regions is for generated connectomes; a file has the resolution that it has")
        return Pool(_hospitals(seed, regions, subjects), loss="l1")
    if value == "generated":
        source, target = (vectors(graphs) for graphs in generate(subjects, (REGIONS, regions), seed))
    else:
        source, target = _read_files(root / value if root else Path(value))
    if len(source) != len(target):
        raise DataError(f"{len(source)} source graphs and {len(target)} target graphs; every subject needs both")
    return Pool({NOWHERE: Part(source, target)}, loss="l1")


def _hospitals(seed: int, regions: Sequence[int], subjects: int) -> dict[str, Part]:
    if not regions or subjects < len(regions):
        raise DataError(f"{subjects} subjects cannot be at {len(regions)} hospitals; every hospital needs one")
    sizes = tuple(dict.fromkeys([REGIONS, *regions]))
    graphs = dict(zip(sizes, generate(subjects, sizes, seed), strict=True))
    order = np.array_split(rng_for(seed, "hospitals").permutation(subjects), len(regions))
    return {
        f"site-{place:03d}": Part(vectors(graphs[REGIONS][rows]), vectors(graphs[wanted][rows]))
        for place, (rows, wanted) in enumerate(zip(order, regions, strict=True))
    }


def _read_files(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.is_dir():
        files = [path / "source.csv", path / "target.csv"]
        if not all(file.is_file() for file in files):
            raise DataError("a folder of connectomes holds source.csv and target.csv; one is not there")
        words = "a table of connectomes holds numbers only, equally many in every row, no header"
        with as_data_error(words, ValueError):
            source, target = (np.loadtxt(file, delimiter=",", ndmin=2) for file in files)
        return vectors(source), vectors(target)
    if not path.is_file():
        raise DataError("there is no such file or folder of connectomes under the data root")
    with np.load(path, allow_pickle=False) as archive:
        if not {"source", "target"} <= set(archive.files):
            raise DataError(f"an .npz of connectomes holds source and target; this one has {len(archive.files)} others")
        return vectors(archive["source"]), vectors(archive["target"])
