"""The sources by name, and how a scenario's ``task`` chooses one."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.outcomes import LABELS, NUMBERS, ORDINAL, TIMES, kind_of
from fedsmall.data.sources import arrays, connectomes, images, public, tables
from fedsmall.data.sources.files import locate, stamp
from fedsmall.data.sources.labels import check_order
from fedsmall.data.sources.pool import Part, Pool, within_ranges
from fedsmall.data.subgroups import add_groups_by_features, read_subgroups
from fedsmall.data.table_files import is_query
from fedsmall.entry_points import Registry, own_code, own_function
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import check_known

TASKS: Mapping[str, Callable[..., Pool]] = Registry(
    "fedsmall.tasks", {read.__name__: read for read in public.DATA_SETS}
)
KINDS: dict[str, Callable[..., Pool]] = {
    "csv": tables.csv,
    "images": images.images,
    "npz": arrays.npz,
    "medmnist": public.medmnist,
    "susy": public.susy,
    "connectomes": connectomes.connectomes,
}
OWN_FILES = ("csv", "images", "npz")  # every site holds its own
LOSSES = ("cross_entropy", "logistic", "hinge", ORDINAL, *NUMBERS, *TIMES, *LABELS)
CURES = {  # for who asks for the loss of another kind than classes
    "numbers": '; the column of a number is named as target = "age" in place of label',
    "labels": '; columns of 0 and 1 are named as targets = ["edema", "effusion"] in place of label',
}


class Source(NamedTuple):
    """What a scenario's ``task`` says: ``name`` of the task, ``kind`` of source, its function and what it is given."""

    name: str
    kind: str
    read: Callable[..., Pool]
    values: tuple[Any, ...]
    options: dict[str, Any]


def read_task(task: str | dict[str, Any]) -> Source:
    """The source that ``task`` names; PlanError for a word that is not known."""
    table = {"name": task} if isinstance(task, str) else dict(task)
    kinds = [word for word in table if word in ("name", "source", *KINDS)]
    if len(kinds) != 1:
        raise PlanError(f"a task table names one source: name, source, {', '.join(KINDS)}; this one names {len(kinds)}")
    kind = kinds[0]
    value = table.pop(kind)
    if kind == "name":
        check_known(value, TASKS, f"There is no task {value!r}")
        return _check_source(Source(value, value, TASKS[value], (), table))
    if kind == "source":
        return _check_source(Source(str(value), kind, own_function(kind, str(value)), (), table))
    if not isinstance(value, str | Path) and kind in OWN_FILES:
        got = " ".join(repr(value).split())[:60]
        raise PlanError(f'{kind} names a file or folder, as in {kind} = "data"; got {got}')
    return _check_source(Source(str(value) if kind == "medmnist" else kind, kind, KINDS[kind], (value,), table))


def read_pool(source: Source, partition: tuple[str, Any], seed: int, root: Path | None) -> Pool:
    """All samples of a source, by its natural sites where ``partition`` asks for such."""
    options, (kind, value) = dict(source.options), partition
    if kind == "natural" and source.kind == "images":
        options["by_site"] = True
    if kind == "natural" and source.kind == "csv":
        options = {"site_column": value, **options}
    return _read_source(source, root, seed, source.values, options)


def check_own_files(source: Source) -> None:
    """Raise PlanError where sites with files of their own could not read these alike by what the task says."""
    if source.kind not in OWN_FILES:
        return
    if not {"classes", "target", "targets", "time"} & set(source.options):
        raise PlanError('sites with files of their own need the classes in the task, as in classes = ["0", "1"]')
    if not isinstance(named := source.options.get("categorical", {}), dict):
        wanted = ", ".join(f'{column} = ["...", "..."]' for column in named)
        raise PlanError(f"sites with files of their own need the values of a category: categorical = {{{wanted}}}")
    if "test" in source.options:
        raise PlanError("sites with files of their own hold out a share of them; take test out of the task")


def read_own(source: Source, partition: tuple[str, Any], seed: int, path: Path) -> Pool | None:
    """The samples of one site in its own file or folder; ``None`` for a task whose samples are not the sites' own."""
    options, (kind, value) = dict(source.options), partition
    options.pop("subgroups", None)  # they are for a simulation's report: no prediction of a patient leaves a site
    if source.kind == "heart_disease":
        return _read_source(source, None, seed, (), {**options, "file": path})
    if source.kind not in OWN_FILES:
        return None
    check_own_files(source)
    if not path.exists():  # its name is the site's own business
        raise DataError("the site's data are not where its program looks")
    if source.kind == "csv":
        options = {"site_column": value if kind == "natural" else None, **options}
    options |= {"own": True} if source.kind in ("csv", "images") else {}
    if is_query(path):
        _last.clear()  # its rows may be others now
    return _read_source(source, None, seed, (str(path),), options)


def _read_source(
    source: Source, root: Path | None, seed: int, values: tuple[Any, ...], options: dict[str, Any]
) -> Pool:
    loss, ranges, divided = options.pop("loss", None), options.pop("ranges", None), options.get("subgroups")
    by_features = source.kind != "csv" and "subgroups" in options
    groups = read_subgroups(options.pop("subgroups")) if by_features else ()
    if source.kind == "source":
        pool = _own_pool(source, root, seed, options)
    elif source.kind in OWN_FILES and isinstance(values[0], str | Path):  # else they are tables in Python
        pool = _read_once(source.read, root, seed, values, options)
    else:
        pool = source.read(root, seed, *values, **options)
    pool = add_groups_by_features(pool, groups) if groups else pool
    pool = pool if ranges is None else within_ranges(pool, ranges)
    pool = pool if loss is None else with_loss(pool, loss)
    if divided and (kind := kind_of(pool.loss)) != "classes":
        raise PlanError(f"subgroups divide a page of classes, and this task predicts {kind}. Leave them out.")
    if pool.loss in ("logistic", "hinge") and len(pool.class_names) != 2:
        raise PlanError(f"the loss {pool.loss!r} tells two classes apart; this task has {len(pool.class_names)}")
    if pool.loss == ORDINAL:
        check_order(pool.class_names, bool({"classes", "order"} & set(source.options)) or source.kind not in OWN_FILES)
    return pool


def with_loss(pool: Pool, loss: str) -> Pool:
    """The pool with another loss for what it holds; PlanError for one that is of something else."""
    y = pool.train[min(pool.train)].y
    holds = "classes" if y.ndim == 1 and y.dtype.kind in "iub" else kind_of(pool.loss)
    if holds != kind_of(loss):
        cure = CURES.get(kind_of(loss), "") if holds == "classes" else ""
        raise PlanError(f"the loss {loss!r} is for {kind_of(loss)}, and this task predicts {holds}{cure}")
    return replace(pool, loss=loss)


def _own_pool(source: Source, root: Path | None, seed: int, options: dict[str, Any]) -> Pool:
    with own_code(f"source {source.name!r}"):
        pool = source.read(root, seed, **options)
    if not isinstance(pool, Pool):
        raise PlanError(f"source {source.name!r} returned {type(pool).__name__}; it must return a Pool")
    if not pool.train:
        raise PlanError(f"source {source.name!r} returned a Pool without samples to train on")
    if kind_of(pool.loss) == "labels" and pool.outcome is None:
        raise PlanError(f"source {source.name!r} gives labels without names: Pool(..., outcome=Findings(names=(...)))")
    for site, part in (*pool.train.items(), *pool.test.items()):
        _check_part(f"source {source.name!r}" + (f", site {site!r}," if site else ""), part, pool)
    return pool


def _check_part(whose: str, part: Any, pool: Pool) -> None:
    if not isinstance(part, Part) or not all(isinstance(array, np.ndarray) for array in (part.x, part.y)):
        raise PlanError(f"{whose} gives samples that are no Part of two arrays, x and y")
    if len(part.x) != len(part.y):
        raise PlanError(f"{whose} gives {len(part.x)} samples and {len(part.y)} labels; there must be one for each")
    classes = part.y.ndim == 1 and part.y.dtype.kind in "iu" and len(part.y) > 0
    if classes and (part.y.min() < 0 or part.y.max() >= len(pool.class_names)):
        raise PlanError(f"{whose} gives labels that are not 0 to {len(pool.class_names) - 1}, the classes it names")


def _check_source(source: Source) -> Source:
    parameters = list(inspect.signature(source.read).parameters.values())
    own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    known = ["loss", "ranges", "subgroups", *own]
    for option in source.options:
        check_known(option, known, f"task {source.name!r} has no option {option!r}")
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    for name in needed[2 + len(source.values) :]:
        if name not in source.options:
            raise PlanError(f"task {source.name!r} needs {name!r}, as in {name} = ...")
    loss = source.options.get("loss", "l1")
    check_known(loss, LOSSES, f"There is no loss {loss!r}")
    return source


_last: dict[str, Pool] = {}  # one pool, by all that decides it


def _read_once(
    read: Callable[..., Pool], root: Path | None, seed: int, values: Sequence[Any], options: Mapping[str, Any]
) -> Pool:
    """What ``read`` gives for files, which does not depend on the seed; the last pool is kept."""
    named = [*values[:1], *([options["test"]] if isinstance(options.get("test"), str) else [])]
    stamps = [stamp(locate(path, root)) for path in named]
    key = repr((read.__module__, read.__qualname__, tuple(values), sorted(options.items()), stamps))
    if key not in _last:
        pool = read(root, seed, *values, **options)
        _last.clear()
        _last[key] = pool
    return _last[key]
