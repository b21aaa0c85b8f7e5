"""Partitions: which samples, or patients, of one data set go to which site."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedsmall.data.splits import classes_of
from fedsmall.errors import PlanError
from fedsmall.methods import nearest

Shares = list[np.ndarray]
Spec = str | dict[str, Any]


def partition(y: np.ndarray, spec: Spec, sites: int | None, per_site: int | None, rng: np.random.Generator) -> Shares:
    """The samples of every site, as indices into ``y``; PlanError where the partition cannot be had."""
    kind, value = read_spec(spec)
    if kind == "sizes" and not isinstance(value, str):
        return _given_sizes(len(y), value, sites, rng)
    if sites is None:
        raise PlanError("this task has no sites of its own: say how many there are, as in sites = 10")
    if kind == "natural":
        raise PlanError(f'this task has no sites by {value!r}; choose another partition, such as "iid"')
    need_at_most(len(y), sites * (per_site or 1))
    if kind == "iid":
        return iid(len(y), sites, per_site, rng)
    if kind == "sizes":
        return by_sizes(skewed_sizes(sites * per_site if per_site else len(y), sites), len(y), rng)
    if y.ndim != 1:
        raise PlanError(f'partition {kind!r} goes by classes and this task has none; choose "iid" or sizes')
    whole, exact = BY_CLASS[kind]
    return whole(y, value, sites, rng) if per_site is None else exact(y, value, sites, per_site, rng)


def read_spec(spec: Spec) -> tuple[str, Any]:
    """The kind of a partition and its value; PlanError where there is no such kind."""
    if isinstance(spec, dict) and len(spec) != 1:
        raise PlanError(f"a partition is one thing, as in {{dirichlet = 0.3}}; this one names {len(spec)}")
    kind, value = (spec, None) if isinstance(spec, str) else next(iter(spec.items()))
    if kind not in KINDS:
        raise PlanError(f"There is no partition {kind!r}. {nearest(kind, list(KINDS))}")
    if kind != "iid" and value is None:
        raise PlanError(f"partition {kind!r} needs a value, as in {{{kind} = {KINDS[kind]}}}")
    if kind == "sizes" and isinstance(value, str) and value not in ("equal", "skewed"):
        raise PlanError(f'sizes are "equal", "skewed" or a list of numbers; not {value!r}')
    return ("iid", None) if value == "equal" else (kind, value)


def need_at_most(available: int, asked: int) -> None:
    """PlanError, with both numbers, where more samples are asked for than there are."""
    if asked > available:
        raise PlanError(f"the sites ask for {asked} training samples and there are {available}; ask for fewer")


def iid(available: int, sites: int, per_site: int | None, rng: np.random.Generator) -> Shares:
    """Samples at random: ``per_site`` each, or all in equal shares (flwr-datasets' IidPartitioner)."""
    order = rng.permutation(available)
    return np.array_split(order if per_site is None else order[: sites * per_site], sites)


def by_sizes(sizes: Sequence[int], available: int, rng: np.random.Generator) -> Shares:
    """Samples at random, ``sizes[i]`` of them at site i."""
    need_at_most(available, sum(sizes))
    return np.split(rng.permutation(available)[: sum(sizes)], np.cumsum(sizes)[:-1])


def skewed_sizes(total: int, sites: int) -> list[int]:
    """Sizes that sum to ``total``, at least 1 each, falling as 1, 1/2, 1/3, ... (Zipf)."""
    shares = 1.0 / np.arange(1, sites + 1)
    edges = np.floor(np.cumsum(shares / shares.sum()) * (total - sites) + 1e-9).astype(int)
    return sorted((1 + int(extra) for extra in np.diff(edges, prepend=0)), reverse=True)


def _given_sizes(available: int, sizes: Any, sites: int | None, rng: np.random.Generator) -> Shares:
    if not isinstance(sizes, list | tuple) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise PlanError('sizes are "equal", "skewed" or a list of whole numbers of at least 1')
    if sites not in (None, len(sizes)):
        raise PlanError(f"sizes are given for {len(sizes)} sites and sites = {sites}; make them agree")
    return by_sizes(sizes, available, rng)


def few_classes(y: np.ndarray, classes: int, sites: int, per_site: int, rng: np.random.Generator) -> Shares:
    """``classes`` classes at every site, in equal numbers to within one.

    A site draws its classes by how many of their samples are left, so that none runs out early.
    """
    members = _members(y, rng)
    _possible_classes(classes, len(members))
    width = min(classes, per_site)
    takes = [len(part) for part in np.array_split(np.arange(per_site), width)]
    shares = []
    for site in range(sites):
        left = np.array([len(rows) for rows in members], dtype=float)
        enough = np.where(left >= takes[0], left, 0.0)
        if np.count_nonzero(enough) < width:
            raise PlanError(
                f"{classes} classes at every site cannot be had: at site {site + 1} of {sites} only "
                f"{np.count_nonzero(enough)} classes have {takes[0]} samples left; ask for fewer samples or sites"
            )
        chosen = rng.choice(len(members), size=width, replace=False, p=enough / enough.sum())
        shares.append(_take(members, dict(zip(chosen.tolist(), takes, strict=True))))
    return shares


def dirichlet(y: np.ndarray, alpha: float, sites: int, per_site: int, rng: np.random.Generator) -> Shares:
    """Class shares of sites from Dirichlet(``alpha`` times the shares of classes not used up) (Hsu et al. 2019)."""
    members = _members(y, rng)
    _possible_alpha(alpha)
    prior = np.array([len(rows) for rows in members]) / len(y)
    shares = []
    for _ in range(sites):
        odds, counts = rng.dirichlet(alpha * len(prior) * prior), np.zeros(len(prior), dtype=int)
        while (missing := per_site - counts.sum()) > 0:
            left = np.array([len(rows) for rows in members]) - counts
            odds_left = np.where(left > 0, odds, 0.0)
            odds_left = odds_left / odds_left.sum() if odds_left.sum() > 0 else left / left.sum()
            counts += np.minimum(rng.multinomial(missing, odds_left), left)
        shares.append(_take(members, dict(enumerate(counts.tolist()))))
    return shares


def few_classes_of_all(y: np.ndarray, classes: int, sites: int, rng: np.random.Generator) -> Shares:
    """``classes`` classes at every site, all samples dealt: flwr-datasets' PathologicalPartitioner."""
    _possible_classes(classes, len(np.unique(y)))
    from flwr_datasets.partitioner import PathologicalPartitioner

    return _by_flower(y, PathologicalPartitioner(sites, "y", classes, "first-deterministic", seed=_seed(rng)))


def dirichlet_of_all(y: np.ndarray, alpha: float, sites: int, rng: np.random.Generator) -> Shares:
    """Every class dealt by shares from a Dirichlet distribution, at least one sample a site: DirichletPartitioner."""
    _possible_alpha(alpha)
    from flwr_datasets.partitioner import DirichletPartitioner

    return _by_flower(y, DirichletPartitioner(sites, "y", float(alpha), min_partition_size=1, seed=_seed(rng)))


Whole = Callable[[np.ndarray, Any, int, np.random.Generator], Shares]
Exact = Callable[[np.ndarray, Any, int, int, np.random.Generator], Shares]
BY_CLASS: dict[str, tuple[Whole, Exact]] = {
    "classes_per_site": (few_classes_of_all, few_classes),
    "dirichlet": (dirichlet_of_all, dirichlet),
}
KINDS = {"iid": "", "classes_per_site": "2", "dirichlet": "0.3", "sizes": '"skewed"', "natural": '"column"'}


def _by_flower(y: np.ndarray, partitioner: Any) -> Shares:
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"row": np.arange(len(y)), "y": y})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice is about samples it cannot place; the error below says it shorter
        try:
            parts = [partitioner.load_partition(site)["row"] for site in range(partitioner.num_partitions)]
        except ValueError as wrong:
            raise PlanError(f"this partition leaves a site without samples; take fewer sites ({wrong})") from wrong
    return [np.asarray(part, dtype=np.int64) for part in parts]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))


def _members(y: np.ndarray, rng: np.random.Generator) -> Shares:
    return [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]


def _take(members: Shares, counts: dict[int, int]) -> np.ndarray:
    taken = [members[place][:count] for place, count in counts.items()]
    for place, count in counts.items():
        members[place] = members[place][count:]
    return np.concatenate(taken)


def _possible_classes(classes: Any, known: int) -> None:
    if type(classes) is not int or not 1 <= classes <= known:
        raise PlanError(f"classes_per_site is a whole number from 1 to the task's {known} classes; not {classes!r}")


def _possible_alpha(alpha: Any) -> None:
    if not isinstance(alpha, int | float) or not alpha > 0:
        raise PlanError(f"dirichlet is a number above 0 (small: few classes at a site; large: alike); not {alpha!r}")


def partition_of_patients(
    y: np.ndarray, patients: np.ndarray, spec: Spec, sites: int | None, per_site: int | None, rng: np.random.Generator
) -> Shares:
    """As :func:`partition`, but all samples of a patient, ``patients`` (samples,), go to one site.

    Patients count by the class of most of their samples. Where sites have sizes, patients are drawn until a site has
    its samples; the rest of the last patient's is unused. Raises PlanError where that cannot be had.
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
        return _fill_sites(of, sizes, rng)
    shares = partition(_commonest_classes(y, of), spec, sites, per_site, rng)
    return [np.flatnonzero(np.isin(of, share)) for share in shares]


def _sizes(kind: str, sites: int, per_site: int) -> list[int]:
    return skewed_sizes(sites * per_site, sites) if kind == "sizes" else [per_site] * sites


def _fill_sites(of: np.ndarray, sizes: list[int], rng: np.random.Generator) -> Shares:
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


def _commonest_classes(y: np.ndarray, of: np.ndarray) -> np.ndarray:
    labels, places = np.unique(classes_of(y), return_inverse=True)
    counts = np.zeros((int(of.max()) + 1, len(labels)), dtype=int)
    np.add.at(counts, (of, places), 1)
    return np.asarray(labels[counts.argmax(axis=1)])
