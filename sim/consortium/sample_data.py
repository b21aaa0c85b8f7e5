"""Data to try a consortium with: scikit-learn's breast cancer patients as one CSV file for each hospital."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedsmall.randomness import rng_for


def write(files: Sequence[Path], seed: int = 0) -> None:
    """Deal the 569 patients over the files at random, as evenly as can be, with the columns' names as a header."""
    bunch = load_breast_cancer()
    names = [str(bunch.target_names[label]) for label in bunch.target]
    order = rng_for(seed, "trial-data").permutation(len(names))
    for path, rows in zip(files, np.array_split(order, len(files)), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*bunch.feature_names, "diagnosis"])
            table.writerows([*map(repr, map(float, bunch.data[row])), names[row]] for row in rows)


if __name__ == "__main__":
    write([Path(word) for word in sys.argv[1:]])
