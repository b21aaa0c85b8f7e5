"""Cross-validation as RepTreeFL does it: one fold is the common test set, the others rotate over the sites.

Source: Ghilea and Rekik, "Replica Tree-based Federated Learning using Limited Data", section 4: four folds, three
sites; every fold is the test set once. The folds depend on the seed alone, never on which of them is tested, so that no
test sample is in any site's training data (the authors' script draws them anew and leaks about 13%).
"""

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for


def classes_of(y: np.ndarray) -> np.ndarray:
    """What to stratify by, of shape (samples,): ``y`` itself where it holds classes, else one class for all."""
    return y if y.ndim == 1 and y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)


def stratified_folds(y: np.ndarray, folds: int, seed: int) -> tuple[np.ndarray, ...]:
    """``folds`` disjoint sets of indices into ``y``, in ascending order, that together are all of it.

    Each holds every class in its share to within one sample, and no two differ in size by more than one. ``y`` has
    shape (samples,) with integer classes; targets of any other shape (graphs) count as one class.

    Raises PlanError where a class has fewer samples than there are folds.
    """
    classes = classes_of(y)
    for value, count in zip(*np.unique(classes, return_counts=True), strict=True):
        if count < folds:
            raise PlanError(
                f"{folds} stratified folds need at least {folds} samples of every class; class {value} has {count}. "
                "Take fewer folds, or more samples."
            )
    rng = rng_for(seed, "folds")
    shuffled = rng.permutation(len(classes))
    dealt = shuffled[np.argsort(classes[shuffled], kind="stable")]  # class by class, shuffled within
    return tuple(np.sort(dealt[fold::folds]) for fold in range(folds))


def fold_split(
    y: np.ndarray, folds: int, fold: int, sites: int, seed: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Which samples each site trains on, and which all models are tested on, when ``fold`` is the test set.

    With ``sites`` = ``folds`` - 1, the papers' setting, site i holds the fold i + 1 places after the tested one, in a
    circle. With any other number of sites, the folds in that order are cut into ``sites`` stratified parts that differ
    in size by at most one. Every array holds ascending indices into ``y``; together they are all of it.

    Raises PlanError where ``fold`` is not one of the folds or a site would be empty.
    """
    if not 0 <= fold < folds:
        raise PlanError(f"fold = {fold} is none of the folds 0 to {folds - 1}; choose one of those.")
    parts = stratified_folds(y, folds, seed)
    others = [parts[(fold + 1 + place) % folds] for place in range(folds - 1)]
    if sites != folds - 1:
        others = _deal(y, np.concatenate(others), sites)
    return tuple(others), parts[fold]


def _deal(y: np.ndarray, indices: np.ndarray, sites: int) -> list[np.ndarray]:
    """The samples in ``indices`` dealt to ``sites`` sites, class by class."""
    if len(indices) < sites:
        raise PlanError(
            f"{sites} sites cannot share the {len(indices)} training samples of a fold; "
            "take fewer sites or more samples."
        )
    dealt = indices[np.argsort(classes_of(y)[indices], kind="stable")]
    return [np.sort(dealt[site::sites]) for site in range(sites)]


def fold_pool(y: np.ndarray, folds: int, sites: int, samples_per_site: int, seed: int) -> np.ndarray:
    """A stratified draw from ``y``, just large enough that every site gets ``samples_per_site`` in every fold.

    The pool holds ceil(sites * samples_per_site * folds / (folds - 1)) ascending indices into ``y``: 800 for the
    papers' three sites of 200 in four folds. What is left over was never trained on, whatever the fold: an
    independent test set, far larger than a fold.

    Raises PlanError where ``y`` is too short.
    """
    size = -(-sites * samples_per_site * folds // (folds - 1))
    if size > len(y):
        raise PlanError(
            f"{folds} folds with {sites} sites of {samples_per_site} samples take {size}; the data have {len(y)}. "
            "Take fewer samples per site, or fewer sites."
        )
    shuffled = rng_for(seed, "pool").permutation(len(y))
    dealt = shuffled[np.argsort(classes_of(y)[shuffled], kind="stable")]
    # equally spaced places in an order sorted by class take every class in its share
    return np.sort(dealt[(np.arange(size) * len(y)) // size])
