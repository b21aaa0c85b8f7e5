"""A run over split columns on a terminal and as a page: a row for each method, what it took, what each party learns."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich.console import Console

from fedsmall.clients.shelf import Shelf
from fedsmall.evaluation.metrics import by_digits
from fedsmall.evaluation.statistics import interval
from fedsmall.extensions.columns.boosting import with_splits
from fedsmall.extensions.columns.plan import Boosting, ColumnPlan
from fedsmall.extensions.columns.simulation import METHODS, SAVES_TIME, Done, World
from fedsmall.extensions.columns.site import PART, WORTH, Notebook, describe
from fedsmall.sim.cli.options import grid
from fedsmall.sim.report.sentences import amount, metric_name
from fedsmall.sim.report.style import style_sheet
from fedsmall.sim.runs.files import write

TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
HEADS = {"accuracy": "accuracy", "auc": "AUC", "log_loss": "log loss", "r2": "R²", "mae": "mean error"}


class Learnt(NamedTuple):
    """One party: what it learns, and what it does not."""

    party: str
    learns: str
    not_learnt: str


class Facts(NamedTuple):
    """What it depends on: parties, the active one first, common patients, splits, ``sums`` read (None: not told)."""

    parties: tuple[str, ...]
    common: int
    splits: Mapping[str, int]
    settings: Boosting
    sums: int | None = None
    sealed: bool = False


def knowledge_of(facts: Facts, *, is_prediction: bool = False) -> list[Learnt]:
    """What every party, and the one who carries messages, learns where a forest is grown, or asked of new patients."""
    text = TEMPLATES.get_template("knowledge.txt").render(facts=facts, is_prediction=is_prediction)
    return [Learnt(*lines) for lines in zip(*[iter(text.splitlines())] * 3, strict=True)]


def knowledge_lines(parties: Sequence[Learnt]) -> list[str]:
    """What each party learns and does not, in two lines each."""
    return [line for who in parties for line in (f"{who.party}: {who.learns}.", f"  not: {who.not_learnt}.")]


def _by_label(done: Sequence[Done]) -> dict[str, list[Done]]:
    labels = dict.fromkeys(run.plan.label for run in done)
    return {label: [run for run in done if run.plan.label == label] for label in labels}


def _table(done: Sequence[Done]) -> tuple[list[str], list[list[str]]]:
    metrics = [name for name in HEADS if any(name in run.metrics for run in done)]
    rows = []
    for label, runs in _by_label(done).items():
        worth = [_mean([run.metrics[name] for run in runs if name in run.metrics], name) for name in metrics]
        cost = [(run.seconds, run.messages.total(), run.bytes.total()) for run in runs]
        seconds, messages, sent = (sum(numbers) / len(runs) for numbers in zip(*cost, strict=True))
        rows.append([label, *worth, f"{seconds:.3g}", f"{messages:.0f}", amount(sent) if sent else "nothing"])
    return ["method", *(HEADS[name] for name in metrics), "seconds a forest", "messages", "sent"], rows


def _mean(values: Sequence[float], name: str) -> str:
    if not values:
        return "-"
    known = interval(values, scale="share" if name in ("accuracy", "auc") else "plain")
    return f"{known.mean:.3f}" if len(values) == 1 else f"{known.mean:.3f} ({known.low:.3f} to {known.high:.3f})"


def _same_trees(done: Sequence[Done]) -> list[str]:
    central = {run.plan.seed: run for run in done if run.plan.name == "Central"}
    lines = []
    for label, runs in _by_label(done).items():
        pairs = [(run, central.get(run.plan.seed)) for run in runs if METHODS[run.plan.name].apart]
        if known := [(a, b) for a, b in pairs if b is not None and _settings_of(a) == _settings_of(b)]:
            equal = sum(with_splits(a.trees, a.records) == with_splits(b.trees, b.records) for a, b in known)
            of_seeds = f"{equal} of {len(known)} seeds"
            lines.append(f"{label} made the trees of joined columns (Central), every split and every leaf: {of_seeds}.")
    return lines


def _settings_of(run: Done) -> dict[str, Any]:
    return run.plan.settings.model_dump(exclude=set(SAVES_TIME))


def _knowledge_by_method(world: World, done: Sequence[Done]) -> dict[str, list[Learnt]]:
    names = tuple(party.name for party in world.parties)
    return {
        label: knowledge_of(Facts(names, world.common, runs[0].splits, runs[0].plan.settings, runs[0].sums_read))
        for label, runs in _by_label(done).items()
        if METHODS[runs[0].plan.name].apart
    }


def print_done(console: Console, world: World, done: Sequence[Done]) -> None:
    """The table, whether trees are those of joined columns, and what each party learns."""
    names = ", ".join(f"{party.name} ({len(party.table.columns)} columns)" for party in world.parties)
    console.print(f"[bold]{world.scenario.name}[/bold]: {world.common} patients are at all parties: {names}")
    heads, rows = _table(done)
    console.print(grid(heads, rows, heads[1:]))
    for line in _same_trees(done):
        console.print(line, markup=False)
    for label, parties in _knowledge_by_method(world, done).items():
        console.print(f"\n[bold]{label}[/bold]: what each party learns")
        for line in knowledge_lines(parties):
            console.print(f"  {line}", markup=False)


def write_page(world: World, done: Sequence[Done], folder: Path) -> Path:
    """Write report.html into the run's folder; returns the file."""
    (heads, rows), work = _table(done), {}
    for label, runs in _by_label(done).items():
        if kinds := {kind for run in runs for kind in run.work}:
            work[label] = {kind: sum(run.work.get(kind, 0.0) for run in runs) / len(runs) for kind in sorted(kinds)}
    words = {"world": world, "heads": heads, "rows": rows, "same": _same_trees(done), "work": work}
    return _write(folder, "columns.html", **words, learnt=_knowledge_by_method(world, done))


def write_real_page(folder: Path, **words: Any) -> Path:
    """Write report.html into the folder of a run over real sites; returns the file."""
    return _write(folder, "real.html", **words, heads=HEADS, amount=amount)


def _write(folder: Path, template: str, **words: Any) -> Path:
    text = TEMPLATES.get_template(template).render(css=style_sheet(), **words)
    write(folder / "report.html", text.encode())
    return folder / "report.html"


class SitePart(NamedTuple):
    """A forest on a hospital's own page: its ``part`` of it, and what the forest is ``worth`` where the labels are."""

    part: Markup
    worth: Markup


def site_part(folder: Path, site: str) -> SitePart | None:
    """What the folder of a run at a site holds of a forest; None where nothing was to be learnt."""
    if (text := Notebook(folder).plan()) is None or (plan := ColumnPlan.model_validate_json(text)).of is not None:
        return None
    part, worth = (json.loads(Shelf(folder).read(name) or "{}") for name in (PART, WORTH))
    taken = [column for column, _ in part.get("records", [])]
    cuts = [(name, taken.count(k)) for k, name in enumerate(part.get("columns", []))]
    macros = TEMPLATES.get_template("site.html").module
    return SitePart(
        macros.part(describe(plan, site), cuts, is_over=bool(part)),  # type: ignore[attr-defined]
        macros.worth(worth, metric_name, by_digits),  # type: ignore[attr-defined]
    )
