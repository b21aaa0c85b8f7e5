"""Patients with several samples each: all of one patient's go to one site."""

import numpy as np

from fedsmall.data.folds import classes_of
from fedsmall.data.partition import BY_CLASS, Shares, Spec, partition, read_spec, skewed_sizes
from fedsmall.errors import PlanError


def partition_of_patients(
    y: np.ndarray, patients: np.ndarray, spec: Spec, sites: int | None, per_site: int | None, rng: np.random.Generator
) -> Shares:
    """The samples of every site, as indices into ``y``, where ``patients`` (samples,) says whose each is.

    Patients are dealt as :func:`~fedsmall.data.partition.partition` deals samples, each by the class that most of their
    samples have. Where a site gets so many samples, patients are drawn until it has them, and what the last one has
    beyond that is used nowhere.

    Raises PlanError where that cannot be had.
    """
    of = np.unique(patients, return_inverse=True)[1]
    kind, value = read_spec(spec)
    listed = kind == "sizes" and not isinstance(value, str)
    if kind in BY_CLASS and per_site is not None:
        raise PlanError(
            f"patient keeps a patient's samples together, so {kind} cannot give every site exactly {per_site}; "
            "leave samples_per_site out"
        )
    if listed or (per_site is not None and sites is not None):
        partition(y, spec, sites, per_site, rng)  # says what is wrong with it
        sizes = list(value) if listed else _sizes(kind, sites or 1, per_site or 1)
        return _filled(of, sizes, rng)
    shares = partition(_classes(y, of), spec, sites, per_site, rng)
    return [np.flatnonzero(np.isin(of, share)) for share in shares]


def _sizes(kind: str, sites: int, per_site: int) -> list[int]:
    return skewed_sizes(sites * per_site, sites) if kind == "sizes" else [per_site] * sites


def _filled(of: np.ndarray, sizes: list[int], rng: np.random.Generator) -> Shares:
    """Patients at random, whole, until site i has ``sizes[i]`` samples."""
    order = rng.permutation(int(of.max()) + 1)
    rows = np.argsort(np.argsort(order)[of], kind="stable")  # patient by patient
    ends = np.cumsum(np.bincount(of)[order])
    shares, begin = [], 0
    for place, size in enumerate(sizes):
        last = int(np.searchsorted(ends, begin + size))
        if last == len(ends):
            raise PlanError(
                f"whole patients fill {place} of {len(sizes)} sites: {len(order)} patients have {len(of)} samples to "
                f"train on, and the sites ask for {sum(sizes)}; ask for fewer"
            )
        shares.append(rows[begin : begin + size])
        begin = int(ends[last])
    return shares


def _classes(y: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The commonest class of each patient, (patients,)."""
    labels, places = np.unique(classes_of(y), return_inverse=True)
    counts = np.zeros((int(of.max()) + 1, len(labels)), dtype=int)
    np.add.at(counts, (of, places), 1)
    return np.asarray(labels[counts.argmax(axis=1)])
