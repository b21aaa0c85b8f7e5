"""Which samples are held out, lie in which fold and go to which site; those that are kin stay on one side."""

import warnings
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from fedsmall.data.federation import Samples
from fedsmall.data.sources.pool import Part
from fedsmall.entry_points import import_extra
from fedsmall.errors import PlanError
from fedsmall.methods import check_known
from fedsmall.randomness import rng_for

COARSE = 4  # samples for each different one, from which on equal samples are different patients who happen to be alike


def kin_of(part: Samples | Part) -> np.ndarray | None:
    """The group of each sample, (samples,): a patient's rows, and equal samples unless coarse; None for no groups."""
    groups = twins(part.x)
    groups = np.arange(len(groups)) if coarse(groups) else groups
    if part.patients is not None:
        groups = _join_groups(groups, np.unique(part.patients, return_inverse=True)[1])
    return groups if groups.max(initial=-1) + 1 < len(groups) else None


def twins(x: np.ndarray) -> np.ndarray:
    """The group of each sample of ``x`` (samples, *shape), those that are equal together; groups by first sample."""
    first: dict[bytes, int] = {}
    group = [first.setdefault(_digest(sample), row) for row, sample in enumerate(x)]
    return np.asarray(np.unique(group, return_inverse=True)[1])


def _digest(sample: np.ndarray) -> bytes:
    if sample.dtype.kind == "f":
        sample = np.where(np.isnan(sample), np.nan, sample + 0.0)  # one zero and one NaN
    return blake2b(sample.tobytes(), digest_size=32).digest()


def coarse(groups: np.ndarray) -> bool:
    """Whether so few samples are different that equal ones are no copies."""
    return bool((groups.max(initial=-1) + 1) * COARSE < len(groups))


def representatives(groups: np.ndarray) -> np.ndarray:
    """The first sample of every group, in ascending order."""
    return np.sort(np.unique(groups, return_index=True)[1])


def deal_patients(samples: Samples | Part, rng: np.random.Generator) -> np.ndarray:
    """A number for each sample, (samples,), in random order: its patient's, or its own where nobody says whose."""
    patients = np.arange(len(samples)) if samples.patients is None else samples.patients
    names, whose = np.unique(patients, return_inverse=True)
    return np.asarray(rng.permutation(len(names))[whose])


def drop_kin_of(rows: np.ndarray, taken: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Those of ``rows`` that have no kin among the ``taken`` rows."""
    return rows if groups is None else rows[~np.isin(groups[rows], groups[taken])]


def _join_groups(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = int(first.max()) + int(second.max()) + 2
    edges = coo_matrix((np.ones(len(first)), (first, second + first.max() + 1)), shape=(size, size))
    labels = connected_components(edges, directed=False)[1][first]
    return np.asarray(np.unique(labels, return_inverse=True)[1])


def hold_out(
    y: np.ndarray, test: int | float, rng: np.random.Generator, kin: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and indices held out, ascending: ``test`` samples, or that share of every class.

    Groups of ``kin`` (:func:`kin_of`) stay whole: then as many of each class as whole groups make.
    """
    classes = classes_of(y)
    labels, sizes = np.unique(classes, return_counts=True)
    counts = [int(test * size + 0.5) for size in sizes] if isinstance(test, float) else _by_largest_rest(test, sizes)
    orders = [rng.permutation(np.flatnonzero(classes == label)) for label in labels]
    chosen = [order[:count] for order, count in zip(orders, counts, strict=True)]
    if kin is not None:
        others = [order[count:] for order, count in zip(orders, counts, strict=True)]
        wanted = Counter(dict(zip(labels.tolist(), counts, strict=True)))
        chosen = [_whole_groups(np.concatenate([*chosen, *others]), classes, wanted, kin)]
    out = np.sort(np.concatenate([np.arange(0), *chosen]))
    return np.setdiff1d(np.arange(len(y)), out), out


def _whole_groups(order: np.ndarray, classes: np.ndarray, wanted: Counter[int], kin: np.ndarray) -> np.ndarray:
    first = np.zeros(len(classes), dtype=bool)
    first[representatives(kin)] = True
    members = np.split(np.argsort(kin, kind="stable"), np.cumsum(np.bincount(kin))[:-1])
    left, taken = Counter(wanted), [np.arange(0)]
    for row in order[first[order]].tolist():
        group = Counter(classes[members[kin[row]]].tolist())
        if sum(abs(left[label] - count) - abs(left[label]) for label, count in group.items()) < 0:
            left.subtract(group)
            taken.append(members[kin[row]])
    return np.concatenate(taken)


def _by_largest_rest(count: int, sizes: np.ndarray) -> list[int]:
    """``count`` in whole parts in the proportions of ``sizes`` (Hamilton's method)."""
    exact = count * sizes / sizes.sum()
    parts = np.floor(exact).astype(int)
    parts[np.argsort(parts - exact, kind="stable")[: count - parts.sum()]] += 1
    return [int(part) for part in parts]


def classes_of(y: np.ndarray) -> np.ndarray:
    """What to stratify by, of shape (samples,): ``y`` itself where it holds classes, else one class for all."""
    return y if y.ndim == 1 and y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)


def stratified_folds(
    y: np.ndarray, folds: int, seed: int, kin: np.ndarray | None = None, each: bool = True
) -> tuple[np.ndarray, ...]:
    """``folds`` disjoint sets of ascending indices into ``y``, (samples,), that together are all of it.

    Each holds every class in its share to within one sample or group of ``kin``. PlanError where a class has too few
    for ``each``; a site of its own does not ask that, or plans of more folds would tell how many it has.
    """
    classes = classes_of(y)
    indices = np.arange(len(classes)) if kin is None else representatives(kin)
    for value, count in zip(*np.unique(classes[indices], return_counts=True), strict=True):
        if each and count < folds:
            what = "samples" if kin is None else "patients or different samples"
            raise PlanError(
                f"{folds} stratified folds need at least {folds} {what} of every class; class {value} has {count}. "
                "Take fewer folds, or more samples."
            )
    rng = rng_for(seed, "folds")
    return tuple(_deal_round(indices[rng.permutation(len(indices))], classes, folds, kin))


def _class_by_class(rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return rows[np.argsort(classes[rows], kind="stable")]


def _deal_round(rows: np.ndarray, classes: np.ndarray, parts: int, kin: np.ndarray | None) -> list[np.ndarray]:
    """``rows`` in so many ascending parts, dealt class by class like cards, each with all the kin of its rows."""
    dealt = _class_by_class(rows, classes)
    shares = [dealt[part::parts] for part in range(parts)]
    return [np.sort(share) if kin is None else np.flatnonzero(np.isin(kin, kin[share])) for share in shares]


def fold_split(
    y: np.ndarray, folds: int, fold: int, sites: int, seed: int, kin: np.ndarray | None = None, each: bool = True
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Which samples each site trains on, and which all models are tested on, when ``fold`` is the test set.

    With ``sites`` = ``folds`` - 1 site i holds the fold i + 1 places after the tested one; else stratified parts.
    """
    if not 0 <= fold < folds:
        raise PlanError(f"fold = {fold} is none of the folds 0 to {folds - 1}; choose one of those.")
    parts = stratified_folds(y, folds, seed, kin, each)
    others = [parts[(fold + 1 + place) % folds] for place in range(folds - 1)]
    if sites != folds - 1:
        others = _deal(y, np.concatenate(others), sites, kin)
    return tuple(others), parts[fold]


def _deal(y: np.ndarray, indices: np.ndarray, sites: int, kin: np.ndarray | None) -> list[np.ndarray]:
    if kin is not None:
        indices = indices[np.sort(np.unique(kin[indices], return_index=True)[1])]
    if len(indices) < sites:
        shared = f"{sites} sites cannot share the {len(indices)} training samples of a fold"
        raise PlanError(f"{shared}; take fewer sites or more samples.")
    return _deal_round(indices, classes_of(y), sites, kin)


def fold_pool(
    y: np.ndarray, folds: int, sites: int, samples_per_site: int, seed: int, kin: np.ndarray | None = None
) -> np.ndarray:
    """A stratified draw from ``y``, just large enough that every site gets ``samples_per_site`` in every fold.

    Ceil(sites * samples_per_site * folds / (folds - 1)) ascending indices, of ``kin`` one; PlanError for too few.
    """
    size = -(-sites * samples_per_site * folds // (folds - 1))
    if size > len(y):
        raise PlanError(
            f"{folds} folds with {sites} sites of {samples_per_site} samples take {size}; the data have {len(y)}. "
            "Take fewer samples per site, or fewer sites."
        )
    dealt = _class_by_class(rng_for(seed, "pool").permutation(len(y)), classes_of(y))
    # equally spaced places in an order sorted by class take every class in its share
    pool = np.sort(dealt[(np.arange(size) * len(y)) // size])
    return pool if kin is None else _one_of_each(pool, classes_of(y), kin, rng_for(seed, "pool", "others"))


def _one_of_each(pool: np.ndarray, classes: np.ndarray, kin: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    kept = pool[np.sort(np.unique(kin[pool], return_index=True)[1])]
    others = drop_kin_of(representatives(kin), kept, kin)
    if len(others) < len(pool) - len(kept):
        raise PlanError(f"of {len(kin)} samples only {len(kept) + len(others)} differ; take fewer samples per site")
    for row in np.setdiff1d(pool, kept):
        drawn = rng.permutation(others)
        alike = drawn[classes[drawn] == classes[row]]
        chosen = alike[0] if len(alike) else drawn[0]
        kept, others = np.append(kept, chosen), others[others != chosen]
    return np.sort(kept)


def keep_back(y: np.ndarray, share: float, rng: np.random.Generator, kin: np.ndarray | None = None) -> np.ndarray:
    """Which of a site's training samples with targets ``y`` it keeps back, ascending: a share, and half at most.

    Every class gives its share to within one sample: systematic sampling, from a random start, in order of class. With
    ``kin`` the share is of whole groups, by the class of their first.
    """
    whose = np.arange(len(y)) if kin is None else kin
    _, first, group = np.unique(whose, return_index=True, return_inverse=True)
    count = min(int(share * len(first) + 0.5), len(first) // 2)
    dealt = _class_by_class(rng.permutation(len(first)), classes_of(y)[first])
    places = ((np.arange(count) + rng.random()) * len(first) / max(count, 1)).astype(np.int64)
    return np.flatnonzero(np.isin(group, dealt[places]))


Shares = list[np.ndarray]
Spec = str | dict[str, Any]
KINDS = {"iid": "", "classes_per_site": "2", "dirichlet": "0.3", "sizes": '"skewed"', "natural": '"column"'}
BY_CLASS = ("classes_per_site", "dirichlet")


def partition(y: np.ndarray, spec: Spec, sites: int | None, per_site: int | None, rng: np.random.Generator) -> Shares:
    """The samples of every site, as indices into ``y``; PlanError where the partition cannot be had."""
    kind, value = read_spec(spec)
    if kind == "sizes" and not isinstance(value, str):
        return _given_sizes(len(y), value, sites, rng)
    if sites is None:
        raise PlanError("this task has no sites of its own: say how many there are, as in sites = 10")
    if kind == "natural":
        raise PlanError(f'this task has no sites by {value!r}; choose another partition, such as "iid"')
    _need_at_most(len(y), sites * (per_site or 1))
    if kind == "iid":
        return iid(len(y), sites, per_site, rng)
    if kind == "sizes":
        return _by_sizes(skewed_sizes(sites * per_site if per_site else len(y), sites), len(y), rng)
    if y.ndim != 1:
        raise PlanError(f'partition {kind!r} goes by classes and this task has none; choose "iid" or sizes')
    _check_value(kind, value, len(np.unique(y)))
    if per_site is None:
        return _by_flower(kind, value, y, sites, rng)
    deal = dirichlet if kind == "dirichlet" else few_classes
    return deal(y, value, sites, per_site, rng)


def read_spec(spec: Spec) -> tuple[str, Any]:
    """The kind of a partition and its value; PlanError where there is no such kind."""
    if isinstance(spec, dict) and len(spec) != 1:
        raise PlanError(f"a partition is one thing, as in {{dirichlet = 0.3}}; this one names {len(spec)}")
    kind, value = (spec, None) if isinstance(spec, str) else next(iter(spec.items()))
    check_known(kind, KINDS, f"There is no partition {kind!r}")
    if kind != "iid" and value is None:
        raise PlanError(f"partition {kind!r} needs a value, as in {{{kind} = {KINDS[kind]}}}")
    if kind == "sizes" and isinstance(value, str) and value not in ("equal", "skewed"):
        raise PlanError(f'sizes are "equal", "skewed" or a list of numbers; not {value!r}')
    return ("iid", None) if value == "equal" else (kind, value)


def _need_at_most(available: int, asked: int) -> None:
    if asked > available:
        raise PlanError(f"the sites ask for {asked} training samples and there are {available}; ask for fewer")


def iid(available: int, sites: int, per_site: int | None, rng: np.random.Generator) -> Shares:
    """Samples at random: ``per_site`` each, or all in equal shares (flwr-datasets' IidPartitioner)."""
    order = rng.permutation(available)
    return np.array_split(order if per_site is None else order[: sites * per_site], sites)


def _by_sizes(sizes: Sequence[int], available: int, rng: np.random.Generator) -> Shares:
    _need_at_most(available, sum(sizes))
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
    return _by_sizes(sizes, available, rng)


def few_classes(y: np.ndarray, classes: int, sites: int, per_site: int, rng: np.random.Generator) -> Shares:
    """``classes`` classes at every site, in equal numbers to within one, drawn by how many of their samples remain."""
    members = _members(y, rng)
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


def _by_flower(kind: str, value: Any, y: np.ndarray, sites: int, rng: np.random.Generator) -> Shares:
    """All samples dealt by flwr-datasets, at least one sample a site."""
    library, tables = import_extra("data", "flwr_datasets.partitioner"), import_extra("data", "datasets")
    seed = int(rng.integers(2**32))
    if kind == "dirichlet":
        partitioner = library.DirichletPartitioner(sites, "y", float(value), min_partition_size=1, seed=seed)
    else:
        partitioner = library.PathologicalPartitioner(sites, "y", value, "first-deterministic", seed=seed)
    partitioner.dataset = tables.Dataset.from_dict({"row": np.arange(len(y)), "y": y})
    with warnings.catch_warnings(action="ignore"):  # on samples it cannot place; the error below says it shorter
        try:
            parts = [partitioner.load_partition(site)["row"] for site in range(sites)]
        except ValueError as wrong:
            raise PlanError(f"this partition leaves a site without samples; take fewer sites ({wrong})") from wrong
    return [np.asarray(part, dtype=np.int64) for part in parts]


def _members(y: np.ndarray, rng: np.random.Generator) -> Shares:
    return [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]


def _take(members: Shares, counts: dict[int, int]) -> np.ndarray:
    taken = [members[place][:count] for place, count in counts.items()]
    for place, count in counts.items():
        members[place] = members[place][count:]
    return np.concatenate(taken)


def _check_value(kind: str, value: Any, classes: int) -> None:
    if kind == "classes_per_site" and (type(value) is not int or not 1 <= value <= classes):
        raise PlanError(f"classes_per_site is a whole number from 1 to the task's {classes} classes; not {value!r}")
    if kind == "dirichlet" and (not isinstance(value, int | float) or not value > 0):
        raise PlanError(f"dirichlet is a number above 0 (small: few classes at a site; large: alike); not {value!r}")


def partition_of_patients(
    y: np.ndarray, patients: np.ndarray, spec: Spec, sites: int | None, per_site: int | None, rng: np.random.Generator
) -> Shares:
    """As :func:`partition`, but all samples of a patient, ``patients`` (samples,), go to one site.

    Patients count by their commonest class, and are drawn until a site has its samples; the last one's rest is unused.
    """
    of = np.unique(patients, return_inverse=True)[1]
    kind, value = read_spec(spec)
    listed = kind == "sizes" and not isinstance(value, str)
    if kind in BY_CLASS and per_site is not None:
        kept = f"patient keeps a patient's samples together, so {kind} cannot give every site exactly {per_site}"
        raise PlanError(f"{kept}; leave samples_per_site out")
    if listed or (per_site is not None and sites is not None):
        partition(y, spec, sites, per_site, rng)  # says what is wrong with it
        sizes = list(value) if listed else [per_site or 1] * (sites or 1)
        if kind == "sizes" and not listed:
            sizes = skewed_sizes(sum(sizes), len(sizes))
        return _fill_sites(of, sizes, rng)
    shares = partition(_commonest_classes(y, of), spec, sites, per_site, rng)
    return [np.flatnonzero(np.isin(of, share)) for share in shares]


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
