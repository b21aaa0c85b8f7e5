"""Cross-validation as RepTreeFL does it: one fold is the common test set, the others rotate over the sites.

Source: Ghilea and Rekik, "Replica Tree-based Federated Learning using Limited Data", section 4: four folds, three
sites; every fold is the test set once. The folds depend on the seed alone, never on which of them is tested, so that no
test sample is in any site's training data (the authors' script draws them anew and leaks about 13%).
"""

import numpy as np

from fedsmall.data.kin import apart, representatives
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for


def classes_of(y: np.ndarray) -> np.ndarray:
    """What to stratify by, of shape (samples,): ``y`` itself where it holds classes, else one class for all."""
    return y if y.ndim == 1 and y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)


def stratified_folds(y: np.ndarray, folds: int, seed: int, kin: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """``folds`` disjoint sets of indices into ``y``, in ascending order, that together are all of it.

    Each holds every class in its share to within one sample, and no two differ in size by more than one. ``y`` has
    shape (samples,) with integer classes; targets of any other shape (graphs) count as one class. Where there are
    ``kin``, (samples,) with the group of each, this holds of the groups' first samples, and the others follow them.

    Raises PlanError where a class has fewer samples than there are folds.
    """
    classes = classes_of(y)
    there = np.arange(len(classes)) if kin is None else representatives(kin)
    for value, count in zip(*np.unique(classes[there], return_counts=True), strict=True):
        if count < folds:
            what = "samples" if kin is None else "patients or different samples"
            raise PlanError(
                f"{folds} stratified folds need at least {folds} {what} of every class; class {value} has {count}. "
                "Take fewer folds, or more samples."
            )
    rng = rng_for(seed, "folds")
    shuffled = there[rng.permutation(len(there))]
    dealt = shuffled[np.argsort(classes[shuffled], kind="stable")]  # class by class, shuffled within
    return tuple(with_kin(dealt[fold::folds], kin) for fold in range(folds))


def with_kin(rows: np.ndarray, kin: np.ndarray | None) -> np.ndarray:
    """``rows`` and all their kin, ascending."""
    return np.sort(rows) if kin is None else np.flatnonzero(np.isin(kin, kin[rows]))


def fold_split(
    y: np.ndarray, folds: int, fold: int, sites: int, seed: int, kin: np.ndarray | None = None
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Which samples each site trains on, and which all models are tested on, when ``fold`` is the test set.

    With ``sites`` = ``folds`` - 1, the papers' setting, site i holds the fold i + 1 places after the tested one, in a
    circle. With any other number of sites, the folds in that order are cut into ``sites`` stratified parts that differ
    in size by at most one. Every array holds ascending indices into ``y``; together they are all of it. Groups of
    ``kin`` stay whole, in folds and at sites.

    Raises PlanError where ``fold`` is not one of the folds or a site would be empty.
    """
    if not 0 <= fold < folds:
        raise PlanError(f"fold = {fold} is none of the folds 0 to {folds - 1}; choose one of those.")
    parts = stratified_folds(y, folds, seed, kin)
    others = [parts[(fold + 1 + place) % folds] for place in range(folds - 1)]
    if sites != folds - 1:
        others = _deal(y, np.concatenate(others), sites, kin)
    return tuple(others), parts[fold]


def _deal(y: np.ndarray, indices: np.ndarray, sites: int, kin: np.ndarray | None) -> list[np.ndarray]:
    """The samples in ``indices`` dealt to ``sites`` sites, class by class."""
    if kin is not None:
        indices = indices[np.sort(np.unique(kin[indices], return_index=True)[1])]
    if len(indices) < sites:
        raise PlanError(
            f"{sites} sites cannot share the {len(indices)} training samples of a fold; "
            "take fewer sites or more samples."
        )
    dealt = indices[np.argsort(classes_of(y)[indices], kind="stable")]
    return [with_kin(dealt[site::sites], kin) for site in range(sites)]


def fold_pool(
    y: np.ndarray, folds: int, sites: int, samples_per_site: int, seed: int, kin: np.ndarray | None = None
) -> np.ndarray:
    """A stratified draw from ``y``, just large enough that every site gets ``samples_per_site`` in every fold.

    The pool holds ceil(sites * samples_per_site * folds / (folds - 1)) ascending indices into ``y``: 800 for the
    papers' three sites of 200 in four folds. What is left over was never trained on, whatever the fold: an
    independent test set, far larger than a fold. Of a group of ``kin`` one sample at most is drawn.

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
    pool = np.sort(dealt[(np.arange(size) * len(y)) // size])
    return pool if kin is None else _one_of_each(pool, classes_of(y), kin, rng_for(seed, "pool", "others"))


def _one_of_each(pool: np.ndarray, classes: np.ndarray, kin: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """``pool`` with another sample in place of each whose kin is in it, of the same class where there is one."""
    kept = pool[np.sort(np.unique(kin[pool], return_index=True)[1])]
    others = apart(representatives(kin), kept, kin)
    if len(others) < len(pool) - len(kept):
        raise PlanError(f"of {len(kin)} samples only {len(kept) + len(others)} differ; take fewer samples per site")
    for row in np.setdiff1d(pool, kept):
        drawn = rng.permutation(others)
        alike = drawn[classes[drawn] == classes[row]]
        chosen = alike[0] if len(alike) else drawn[0]
        kept, others = np.append(kept, chosen), others[others != chosen]
    return np.sort(kept)
