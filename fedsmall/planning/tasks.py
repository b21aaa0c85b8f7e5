"""The federation that a plan describes, from its source to the samples of every site.

A scenario's ``task`` is a name of :data:`fedsmall.data.sources.registry.TASKS`, or a table whose first word says the
source: ``{csv = "data.csv", label = "outcome"}``, ``{images = "folder"}``, ``{npz = "data.npz"}``, ``{medmnist =
"pneumoniamnist"}``, ``{name = "digits"}``, or ``{source = "module:function"}`` of one's own. Every table takes
``loss``: "cross_entropy", with two classes "logistic" or "hinge", with three or more in an order "ordinal".
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data.federation import Federation, Task
from fedsmall.data.outcomes import ORDINAL, kind_of
from fedsmall.data.raw_site import RawSite, agreed, deal, dealing_notes, natural_site, prepare, task_with
from fedsmall.data.sources.pool import NOWHERE, Part, Pool, preparation_of
from fedsmall.data.sources.registry import TASKS, read_own, read_pool, read_task, with_loss
from fedsmall.data.splits import read_spec
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import GRADED, OF_CLASSES, OF_KIND, known_metric
from fedsmall.methods import check_known
from fedsmall.plan import Plan
from fedsmall.planning.description import describe, suspicions

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = "tables in Python"  # what stands for them in a plan
CLASS_METRICS = tuple(name for name in OF_CLASSES if name not in ("average_precision", "brier"))  # always told
GRAPH_METRICS = ("mae", "loss")  # of numbers that have no unit


def is_of_python(task: str | Mapping[str, Any]) -> bool:
    """Whether a plan's data are arrays or tables of the program that runs it, which no other process can build."""
    named = {"name": task} if isinstance(task, str) else task
    return named.get("csv") == TABLES or ("name" in named and named["name"] not in TASKS)


def build_federation(
    plan: Plan, data_root: Path | None = None, tables: "Mapping[str, DataFrame] | None" = None
) -> Federation:
    """The sites of ``plan`` and their samples, the same bits every time for the same :attr:`Plan.data_key`.

    ``data_root`` is the folder of data files (else the environment variable FEDSMALL_DATA); ``tables`` are pandas
    tables in place of the files of a task "csv", by site or one under the empty name. Without a test set, or as
    ``plan.test`` says, a quarter (or that) is held out, of all classes: at each site where sites are the source's own,
    else before samples are dealt. Equal samples, and a patient's, are on one side and at one site.

    Raises PlanError for a plan that these data cannot serve, and DataError for data that cannot be used.
    """
    source = read_task(plan.task)
    source = source if tables is None else source._replace(values=(tables,))
    return _federation(plan, source.name, read_pool(source, read_spec(plan.partition), plan.seed, data_root))


def federation_from_arrays(
    plan: Plan,
    sites: Mapping[str, tuple[Any, ...]],
    test: tuple[Any, ...] | None = None,
    patients: Mapping[str, np.ndarray] | None = None,
) -> Federation:
    """A federation of one's own arrays or pandas tables: (x, y) of every site by its name, and a common test set.

    Arrays have the shapes of an .npz (:func:`fedsmall.data.sources.arrays.npz`). Tables are aligned by column names and
    prepared as those of files are (:func:`fedsmall.data.sources.tables.csv`). Without ``test`` a quarter is held out at
    each site. (x, time, event) is survival. y are classes, unless more than 20 of their different values are numbers
    that are not whole, or the plan's ``task``, any name or a table as of a CSV with a ``name``, says so. ``patients``
    says by site whose each sample is, (samples,) of numbers or words. PlanError and DataError name the site.
    """
    from fedsmall.data.sources.arrays import TEST, given_samples, is_table, pool_of_arrays, tables_of, with_outcome
    from fedsmall.data.sources.labels import patients_listed

    options = {"name": plan.task} if isinstance(plan.task, str) else {"name": "arrays", **plan.task}
    given = given_samples(sites, test)
    options, notes = with_outcome(options, given)
    if "time" in options or is_table(next(iter(given.values()))[0]):
        source = read_task({"csv": TABLES, **{key: value for key, value in options.items() if key != "name"}})
        pool = read_pool(source._replace(values=(tables_of(options, given),)), ("", None), plan.seed, None)
    else:
        pool = pool_of_arrays(options, given)
        pool = with_loss(pool, options["loss"]) if "loss" in options else pool
    train = dict(pool.train)
    common = train.pop(TEST, None)
    whose = {str(name): [np.asarray(names)] for name, names in (patients or {}).items()}
    pool = patients_listed(replace(pool, train=train, notes=(*pool.notes, *notes)), whose)
    plan = plan.model_copy(update={"partition": {"natural": "site"}})  # samples come with their sites
    return _federation(plan, str(options["name"]), pool, common)


def load_site(plan: Plan, site: str, path: Path | None = None) -> RawSite:
    """The samples of one real site, read from its own file or folder at ``path`` and split, and not yet scaled.

    For a task of files that every site holds itself the scenario must fix the classes; for any other ``path`` is the
    data root, and the site takes its share of the partition. Equals that site in :func:`build_federation` to the bit.
    """
    source, by = read_task(plan.task), read_spec(plan.partition)
    pool = read_own(source, by, plan.seed, path) if path is not None else None
    if pool is not None:
        return natural_site(plan, _task(source.name, pool, plan.metric), pool, site, NOWHERE)
    sites = {raw.name: raw for raw in raw_sites(plan, path)}
    check_known(site, sites, f"There is no site {site!r}")
    return sites[site]


def federation_at(plan: Plan, site: str, path: Path) -> Federation:
    """One real site's own file as a federation of it alone, split as in :func:`load_site` and scaled by itself."""
    source = read_task(plan.task)
    pool = read_own(source, read_spec(plan.partition), plan.seed, path)
    if pool is None:
        raise PlanError("its samples are a share of a task, and no file of its own")
    alone = plan.model_copy(update={"sites": None})
    return _federation(alone, source.name, replace(pool, train={site: pool.train[NOWHERE]}))


def raw_sites(plan: Plan, data_root: Path | None = None) -> list[RawSite]:
    """The sites of :func:`build_federation` in the order of their names, as they were read and split."""
    source = read_task(plan.task)
    pool = read_pool(source, read_spec(plan.partition), plan.seed, data_root)
    return deal(plan, _task(source.name, pool, plan.metric), pool)[0]


def _federation(plan: Plan, name: str, pool: Pool, common: Part | None = None) -> Federation:
    task = _task(name, pool, plan.metric)
    sites, test, extra = deal(plan, task, pool, common)
    scaling = agreed(sites)
    samples = [site.samples(scaling) for site in sites]
    prepared = preparation_of(pool, plan.dtype).with_scaling(scaling)
    return Federation(
        task_with(task, prepared),
        names=tuple(site.name for site in sites),
        train=tuple(train for train, _ in samples),
        test=prepare(test, prepared),
        held_out=tuple(held for _, held in samples),
        extra=tuple((name, prepare(part, prepared)) for name, part in extra.items() if len(part)),
        notes=(*pool.notes, *suspicions(pool), *dealing_notes(plan, sites, test, pool, common is not None)),
        description=describe(pool),
        preparation=prepared,
        class_sums=() if task.kind != "classes" else tuple(site.class_sums() for site in sites),
        kept_back=tuple(kept for site in sites if (kept := site.samples_kept_back(scaling)) is not None),
    )


def _task(name: str, pool: Pool, metric: str | None) -> Task:
    asked = [known_metric(metric, pool.loss)] if metric is not None else []
    part = pool.train[min(pool.train)]
    classes = kind_of(pool.loss) == "classes"
    of_classes = (*GRADED, *CLASS_METRICS) if pool.loss == ORDINAL else CLASS_METRICS
    usual = of_classes if classes else GRAPH_METRICS if pool.outcome is None else OF_KIND[kind_of(pool.loss)]
    width = int(np.prod(part.y.shape[1:]))
    if pool.outcome is not None:
        width = len(pool.outcome.cuts if pool.outcome.kind == "survival" else pool.outcome.columns)
    return Task(
        name,
        input_shape=part.x.shape[1:],
        classes=len(pool.class_names) if classes else width,
        loss=pool.loss,
        metrics=tuple(dict.fromkeys([*usual, *asked])),
        class_names=pool.class_names,
        feature_names=pool.feature_names,
        target=pool.outcome.name if pool.outcome is not None else None,
    )
