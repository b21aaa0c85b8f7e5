"""Data that come with the libraries: no file, no network."""

from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split

from fedsmall.data.outcomes import ORDINAL, Amount, Findings
from fedsmall.data.sources.pool import NOWHERE, Part, Pool

GRADED_AT = (100, 184)  # the thirds of all 442 patients; 100 and 184 belong to the lower grade


def breast_cancer(root: Path | None, seed: int) -> Pool:
    """569 real patients with 30 features of cell nuclei, malignant or benign (Wisconsin, 1995)."""
    bunch = datasets.load_breast_cancer()
    return Pool(
        {NOWHERE: Part(bunch.data, bunch.target)},
        class_names=tuple(map(str, bunch.target_names)),
        feature_names=tuple(map(str, bunch.feature_names)),
        standardise=True,
    )


def diabetes(root: Path | None, seed: int) -> Pool:
    """442 real patients with 10 features, and how far their diabetes had gone a year later (Efron et al. 2004)."""
    bunch = datasets.load_diabetes(scaled=False)
    return Pool(
        {NOWHERE: Part(bunch.data, bunch.target[:, None])},
        feature_names=tuple(map(str, bunch.feature_names)),
        standardise=True,
        loss="mse",
        outcome=Amount(name="progression"),
    )


def diabetes_grades(root: Path | None, seed: int) -> Pool:
    """The same patients in three grades by how far it had gone: slow, middle and fast, a third of them each."""
    bunch = datasets.load_diabetes(scaled=False)
    return Pool(
        {NOWHERE: Part(bunch.data, np.searchsorted(GRADED_AT, bunch.target))},
        class_names=("slow", "middle", "fast"),
        feature_names=tuple(map(str, bunch.feature_names)),
        standardise=True,
        loss=ORDINAL,
    )


def digits(root: Path | None, seed: int) -> Pool:
    """1,797 handwritten digits as grey images of 8 x 8, every pixel standardised as a feature."""
    bunch = datasets.load_digits()
    images = bunch.images[:, None].astype(np.float64)  # (samples, 1, 8, 8)
    return Pool({NOWHERE: Part(images, bunch.target)}, class_names=tuple(map(str, range(10))), standardise=True)


PROPERTIES = {"even": (0, 2, 4, 6, 8), "above four": (5, 6, 7, 8, 9), "prime": (2, 3, 5, 7)}


def digit_properties(root: Path | None, seed: int) -> Pool:
    """The same digits with three labels each, of which several may be true: even, above four, prime."""
    bunch = datasets.load_digits()
    images = bunch.images[:, None].astype(np.float64)
    y = np.stack([np.isin(bunch.target, digits) for digits in PROPERTIES.values()], axis=1)
    loss, outcome = "binary_cross_entropy", Findings(names=tuple(PROPERTIES))
    return Pool({NOWHERE: Part(images, y.astype(np.float64))}, standardise=True, loss=loss, outcome=outcome)


def synthetic(root: Path | None, seed: int) -> Pool:
    """The generated task of Kamp et al. 2023: 800 samples to train on, 400 to test, 100 features, two classes.

    The one data set of the authors' notebook, whatever the seed: how hard such a task is differs more from draw to draw
    than the methods do. The features are left at the scale of the paper.
    """
    drawn = np.random.RandomState(42)  # the notebook's, used on for the split
    x, y = datasets.make_classification(
        n_samples=1200,
        n_features=100,
        n_informative=20,
        n_redundant=60,
        n_repeated=5,
        n_classes=2,
        n_clusters_per_class=3,
        flip_y=0.02,
        class_sep=1.0,
        shift=1.0,
        scale=3.0,
        random_state=drawn,
    )
    x, x_test, y, y_test = train_test_split(x, y, test_size=400, random_state=drawn)
    return Pool(
        {NOWHERE: Part(x, y.astype(np.int64))},
        class_names=("0", "1"),
        test={NOWHERE: Part(x_test, y_test.astype(np.int64))},
        feature_names=tuple(f"x{index:02d}" for index in range(100)),
    )
