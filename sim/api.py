"""fedsmall in Python, for notebooks: three lines from arrays to a table."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from rich.console import Console

from fedsmall.data.federation import Task
from fedsmall.data.sources.arrays import is_table
from fedsmall.data.sources.pool import NOWHERE
from fedsmall.entry_points import load_extension
from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.models.registry import name_of
from fedsmall.package.record import GLOBAL, Architecture, members_in
from fedsmall.planning.tasks import TABLES, build_federation, federation_from_arrays
from fedsmall.sim.report.facts import stop_sentences
from fedsmall.sim.report.sentences import sentences
from fedsmall.sim.report.tables import table
from fedsmall.sim.runs.execute import Build, execute
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.sim.runs.progress import watcher
from fedsmall.sim.runs.scenario import Scenario, Settings, build, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch.nn import Module

    from fedsmall.package.predictor import Classifier, Labeller, Regressor, SurvivalModel

Sites = Mapping[str, tuple[Any, ...]]  # (x, y), or (x, time, event), arrays or pandas tables
METHODS = ("Standalone", "FedAvg", "FedDC", "Central")


class Animation(NamedTuple):
    """A picture that moves: ``svg`` is the text of a file of its own, for browsers and pages."""

    svg: str

    def __repr__(self) -> str:
        return f"Animation of {len(self.svg)} letters; its svg is a file of its own"

    def _repr_svg_(self) -> str:
        return self.svg


class Result:
    """The results of a run: numbers, figures, models and the report; printing it gives the table.

    Parameters
    ----------
    run
        The run in full, as its folder holds it.

    Examples
    --------
    >>> import fedsmall
    >>> result = fedsmall.run(task="breast_cancer", sites=4, rounds=20, methods=["FedAvg", "Ridge"], progress=False)
    >>> result.table()["runs"].to_dict()["Ridge"]
    1
    >>> result.predict(rows, method="Ridge")["class"].tolist()
    ['malignant', 'malignant', 'benign']
    >>> result.report(folder / "report.html").name
    'report.html'
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def table(self, metric: str | None = None) -> "DataFrame":
        """A row for each method: the global model and the sites' own, with 95% intervals, unless all runs agree.

        First is the trivial predictor. "lead" is the first chaining (or else non-averaging) method minus this one.
        """
        import pandas

        rows = {}
        for row in table(self.run, metric).rows:
            ends = {"global": row.common, "sites": row.sites, "lead": row.lead.difference if row.lead else None}
            cells: dict[str, Any] = {}
            for name, mean in ends.items():
                low, high = (mean.low, mean.high) if mean and not mean.flat else (None, None)
                cells |= {name: mean and mean.mean, f"{name}_low": low, f"{name}_high": high}
            cells |= {"sites_sd": row.spread, "runs": row.runs}
            rows[row.label] = cells | {"communication_rounds": row.comm_rounds, "bytes_sent": row.bytes_sent}
        return pandas.DataFrame.from_dict(rows, orient="index")

    def figure(self, kind: str = "curves") -> "Figure":
        """A matplotlib figure: "curves" (the course of the run), or "overview" (its end)."""
        from fedsmall.sim.report import figures

        known = {"curves": figures.curves, "overview": figures.overview}
        if kind not in known:
            raise PlanError(f"There is no figure {kind!r}. Known: {', '.join(known)}.")
        made = known[kind](self.run)
        made._repr_png_ = partial(_png, made)  # type: ignore[attr-defined]  # a cell shows it without %matplotlib inline
        return made

    def animation(self) -> "Animation":
        """The models of the main method on their way through the sites, for a cell; PlanError where none travel."""
        drawn = load_extension("fedsmall.pages", "travels").file_of(self.run)
        if drawn is None:
            raise PlanError("no method of this run hands over models, so there is nothing to watch")
        return Animation(drawn)

    @property
    def models(self) -> dict[tuple[str, int], dict[str, np.ndarray]]:
        """The global models at the end, as arrays by name, by method and seed."""
        models = {(plan_run.label, plan_run.plan.seed): self.run.model_of(plan_run) for plan_run in self.run.done}
        return {key: model for key, model in models.items() if model is not None}

    @property
    def model(self) -> "Module":
        """The global model of the main method (see :meth:`table`) with its first seed, in eval mode.

        It takes samples as sites saw them, standardised over the federation; :meth:`predict` takes raw rows.
        """
        for plan_run in sorted(self.run.done, key=lambda plan_run: plan_run.label != self.run.reference):
            if self.run.model_of(plan_run) is not None:
                return module(self.run, plan_run)
        raise PlanError("no method of this run ends with a global model")

    def predictor(
        self, method: str | None = None, seed: int | None = None, site: str | None = None
    ) -> "Classifier | Regressor | SurvivalModel | Labeller":
        """The models of a method, by default of the main one, as an estimator in the sense of scikit-learn.

        It takes rows as they were before training: a pandas table, an array, or a file. All seeds answer with their
        mean, unless one is named; ``site`` asks for that site's own model, which ``keep="sites"`` keeps.
        """
        from fedsmall.package.predictor import predictor_of
        from fedsmall.sim.runs.folder import choose_packages

        return predictor_of(choose_packages(self.run, method, seed, site))

    def predict(
        self, rows: Any, method: str | None = None, seed: int | None = None, *, sheet: str | None = None
    ) -> "DataFrame":
        """The class and the probability of each class of new rows, or the number, or the curve; see :meth:`predictor`.

        "spread" is how far the models of several seeds are apart, "notes" what a reader should know of a row.
        ``sheet`` is the sheet of an Excel workbook, where several hold something.
        """
        import pandas

        from fedsmall.evaluation.survival import mean_time

        model = self.predictor(method, seed)
        package, answers = model.package, model.answers(rows, sheet=sheet)
        values = answers.together.reshape(len(answers.together), -1)
        table = pandas.DataFrame(values, columns=list(package.columns) or None)
        if package.kind == "classes":
            table.insert(0, "class", np.array(package.class_names)[answers.named])
        if package.kind == "times":
            table.insert(0, f"mean_{package.target}", mean_time(values, np.array(package.cuts)))
        if len(answers.each) > 1:
            table["spread"] = answers.spread
        return table.assign(notes=["; ".join(notes) for notes in answers.rows.notes])

    @property
    def summary(self) -> list[dict[str, Any]]:
        """The rows of summary.json."""
        return [plan_run.row for plan_run in self.run.done]

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the report, one HTML file, to ``path``; PlanError where there is a file already."""
        from fedsmall.sim.report.html import page
        from fedsmall.sim.runs.files import write

        made = _unwritten(path)
        write(made, page([self.run], self.run.scenario.name).encode())
        return made

    def save(self, path: Path | str, method: str | None = None, seed: int | None = None) -> Path:
        """Write one model, by default the main method's of the first seed, as a package for :func:`fedsmall.load`.

        ``path`` is a folder, or ends in .zip, .onnx or .pt (TorchScript). PlanError where it is there already.
        """
        from fedsmall.package import export, store

        made, stored = _unwritten(path), self.predictor(method, seed).stored[0]
        form = next((form for form, ending in export.ENDINGS.items() if ending == made.suffix), None)
        if form is None:
            store.save(made, *stored)
        else:
            export.export(stored, made, form)
        return made

    def __repr__(self) -> str:
        return f"Result of {self.run.scenario.name}: {len(self.run.done)} of {len(self.run.plans)} plans"

    def __str__(self) -> str:
        from fedsmall.sim.report.terminal import print_run

        text = StringIO()
        print_run(Console(width=120, file=text, soft_wrap=True), self.run)
        return text.getvalue()

    def _repr_html_(self) -> str:
        from fedsmall.sim.report.figures import svg
        from fedsmall.sim.report.html import table_of
        from fedsmall.sim.report.terminal import failures, note_lines

        lines = [*sentences(self.run), *stop_sentences(self.run), *note_lines(self.run), *failures(self.run)]
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in lines)
        if not self.run.done:
            return words
        drawn = svg(self.figure("overview"), "every method")
        return f'{table_of(table(self.run))}<div style="--rule: #8888">{drawn}</div>{words}'

    def _repr_png_(self) -> bytes | None:
        return _png(self.figure("overview")) if self.run.done else None


def run(
    scenario: Scenario | Mapping[str, Any] | Path | str | None = None,
    *,
    sites: Sites | int | None = None,
    data: Any = None,
    label: str | int | None = None,
    site: str | int | None = None,
    test: tuple[Any, ...] | None = None,
    methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = METHODS,
    out: Path | str | None = None,
    engine: str | None = None,
    data_root: Path | str | None = None,
    progress: bool = True,
    **settings: Unpack[Settings],
) -> Result:
    """Run a scenario, or ``methods`` on samples of one's own.

    Parameters
    ----------
    scenario
        A record, a TOML file, or a table of its keys; none where ``sites``, ``data`` or a ``task`` are given.
    sites
        Every site's samples and targets by its name, (x, y): x is a pandas table, (samples, features), or images,
        (samples, channels, height, width); an array's columns stand in one order at all sites. (x, time, event) is
        survival, y of more than 20 different numbers that are not whole is regression, any other y are classes. Beside
        a task, a number.
    data
        One table, or the path of a CSV; all else about it stands in ``task``: {"categorical": ["sex"], "drop": ["id"]}.
    label
        The column of ``data`` that is predicted.
    site
        The column of ``data`` that names the hospital; without it rows are dealt.
    test
        A common test set, (x, y); without it each site holds out a quarter.
    methods
        A name, or a table of a method's keys, or several.
    out
        A folder, written as on the command line.
    engine
        "cohort" (the default), "inprocess" or "ray".
    data_root
        Where data files lie.
    progress
        Whether progress is shown.
    **settings
        Keys of a scenario (``rounds``, ``seeds``, ``recipe``, ``task``, ...). ``model`` may be a torch module, or a
        function from a task to one; ``csv`` in ``task`` a pandas table, or one for each site by its name.

    Returns
    -------
    Result
        Numbers, figures, models and the report.

    Raises
    ------
    PlanError, DataError
        Before anything trains, for what cannot be run.

    Examples
    --------
    >>> import fedsmall
    >>> result = fedsmall.run(data=frame, label="state", site="hospital", methods=["Ridge"], rounds=20, progress=False)
    >>> len(result.run.done)
    1
    """
    keys: dict[str, Any] = {**settings}
    if "model" in keys:
        keys["model"] = name_of(keys["model"])
    if data is not None or label is not None or site is not None:
        keys = _of_table(data, label, site, keys)
    asked, built = _scenario_from(scenario, sites, test, methods, keys)
    console, folder = Console(stderr=True, highlight=False), Path(out) if out is not None else None
    shown = watcher(console, asked.plans(), asked.name) if progress else None
    root = Path(data_root) if data_root is not None else None
    made = execute(asked, folder, engine=engine, data_root=root, watcher=shown, data=built)
    for failure in made.failed:
        warnings.warn(f"{failure['label']}, seed {failure['seed']}, failed: {failure['reason']}", stacklevel=2)
    if folder is not None:
        from fedsmall.sim.report.html import write_report

        write_report(folder, [made], asked.name)
    return Result(made)


def _unwritten(path: Path | str) -> Path:
    if Path(path).exists():
        raise PlanError(f"{path} is there already; it is not written over")
    return Path(path)


def _of_table(data: Any, label: Any, site: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a scenario whose task is one table with a label, and maybe a column of sites."""
    if data is None:
        raise PlanError('label = "..." and site = "..." name columns of a table: data = frame')
    if isinstance(label, list | tuple):
        raise PlanError(f'label is one column; several of 0 and 1 are task = {{"targets": {[*map(str, label)]}}}')
    named = {key: str(name) for key, name in (("label", label), ("site_column", site)) if name is not None}
    known = list(map(str, data.columns)) if is_table(data) else list(named.values())
    if missing := [name for name in named.values() if name not in known]:
        raise PlanError(f"data has no column {missing[0]!r}. {nearest(missing[0], known)}")
    dealt: dict[str, Any] = {"partition": {"natural": "site"}} if site is not None else {}
    return {**dealt, **settings, "task": {**(settings.get("task") or {}), "csv": data, **named}}


def _png(figure: "Figure") -> bytes:
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120, facecolor="white")
    return picture.getvalue()


def module(run: Run, plan_run: PlanRun) -> "Module":
    """The global model of a plan, groups together, as a torch module in eval mode; PlanError for one shared in part."""
    from fedsmall.package.predictor import build

    if plan_run.plan.has_own_models:
        raise PlanError("sites have models of their own here; `models` holds the arrays of the layers that they share")
    facts = run.about["task"].items()
    fields: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts}
    plan, weights = plan_run.plan, run.model_of(plan_run) or {}
    members, together = members_in(plan, GLOBAL, weights), plan.method.together
    design = Architecture(model=plan.model, options=plan.model_options, together=together, members=members)
    return build(design, Task(**fields), weights, plan.dtype)


def _scenario_from(
    scenario: Any, sites: Any, test: Any, methods: Any, settings: Mapping[str, Any]
) -> tuple[Scenario, Build | None]:
    """The scenario, and what builds its data where that is given in Python."""
    every = [methods] if isinstance(methods, str | Mapping) else methods
    named = [{"name": method} if isinstance(method, str) else dict(method) for method in every]
    settings = {key: list(value) if isinstance(value, range) else value for key, value in settings.items()}
    if isinstance(sites, int):
        sites, settings = None, {**settings, "sites": sites}
    if sites is None and (isinstance(scenario, Mapping) or (scenario is None and "task" in settings)):
        return _with_tables({"name": "python", "method": named, **(scenario or {}), **settings})
    if (scenario is None) == (sites is None) or not isinstance(scenario, Scenario | str | Path | None):
        raise PlanError("run() takes a scenario or sites={name: (x, y), ...}, one of the two")
    if scenario is None:
        asked = build({"name": "arrays", "task": "arrays", **settings, "method": named})
        return asked, partial(federation_from_arrays, sites=sites, test=test)
    asked = scenario if isinstance(scenario, Scenario) else load(scenario)
    return _with_tables({**asked.model_dump(exclude_defaults=True), **settings}) if settings else (asked, None)


def _with_tables(settings: Mapping[str, Any]) -> tuple[Scenario, Build | None]:
    """The scenario of these keys, whose task may hold pandas tables in place of a file's name."""
    task = settings.get("task")
    given = task.get("csv") if isinstance(task, Mapping) else None
    if given is None or isinstance(given, str | Path):
        return build(settings), None
    tables = {NOWHERE: given} if is_table(given) else given
    if not isinstance(tables, Mapping) or not tables or not all(map(is_table, tables.values())):
        raise PlanError(
            f"csv is a file, a folder, a pandas table, or one for each site by its name; got {type(given).__name__}"
        )
    tables = {str(name): table for name, table in tables.items()}
    asked = build({**settings, "task": {**(task or {}), "csv": TABLES}})
    return asked, partial(build_federation, tables=tables)
