"""A run over split columns on a terminal and as a page: a row for each method, what it took, what each party learns."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from fedsmall.clients.shelf import Shelf
from fedsmall.evaluation.statistics import interval
from fedsmall.extensions.columns.boosting import with_splits
from fedsmall.extensions.columns.plan import Boosting, ColumnPlan
from fedsmall.extensions.columns.simulation import METHODS, SAVES_TIME, Done, World
from fedsmall.extensions.columns.site import PART, WORTH, Notebook, describe
from fedsmall.sim.report.sentences import amount, metric_name
from fedsmall.sim.report.style import style_sheet
from fedsmall.sim.runs.files import write

TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
HEADS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "mae": "mean error",
}


class Learnt(NamedTuple):
    """One party: what it learns, and what it does not."""

    party: str
    learns: str
    not_learnt: str


class Facts(NamedTuple):
    """What it depends on: the parties, the active one first, their common patients, and each one's splits.

    ``sums``: how many the active party has read, None where that is not told; ``sealed``: whether parties write
    letters.
    """

    parties: tuple[str, ...]
    common: int
    splits: Mapping[str, int]
    settings: Boosting
    sums: int | None = None
    sealed: bool = False


def knowledge_of(facts: Facts, *, is_prediction: bool = False) -> list[Learnt]:
    """What every party, and the one who carries messages, learns where a forest is grown, or asked of new patients."""
    active, *passives = facts.parties
    if not is_prediction:
        return [_active(facts), *(_passive(facts, party) for party in passives), _carrier(facts)]
    common = f"which {facts.common} new patients all parties have"
    at_active = Learnt(
        f"{active} (has the labels)",
        f"{common}, and what the forest says of them; which of them go left at the splits of other parties that they "
        "come to",
        "a value, a name or a cut of another party's columns",
    )
    at_passives = [
        Learnt(
            party,
            f"{common}; which of them come to which of its splits",
            "what the forest says of them; another party's columns, cuts and values",
        )
        for party in passives
    ]
    return [at_active, *at_passives, _carrier(facts)]


def _active(facts: Facts) -> Learnt:
    others = sum(count for party, count in facts.splits.items() if party != facts.parties[0])
    least = facts.settings.least_samples
    alone = "of one patient where a side holds no more" if least == 1 else f"each of {least} patients or more"
    sums = "sums" if facts.sums is None else f"{facts.sums:,} sums"
    return Learnt(
        f"{facts.parties[0]} (has the labels)",
        f"which {facts.common} patients all parties have; {sums} of its own gradients, each over the patients on one "
        f"side of a cut that it does not know, {alone}; which patients go left at {others} splits of other parties: "
        "so something of the order of patients in columns that it has no name for",
        "a value, a name or a cut of another party's columns; which column a sum or a split is of",
    )


def _passive(facts: Facts, party: str) -> Learnt:
    settings = facts.settings
    nodes = {
        "joint": "which patients are together at every node of every tree",
        "mixed": "which patients are together at the nodes of the trees that are grown on its columns",
        "layered": f"which patients are together at the first {settings.passive_levels} levels of every tree",
    }[settings.trees]
    drawn = "; which patients a tree is grown on, of which some have large gradients" if settings.goss else ""
    return Learnt(
        party,
        f"which {facts.common} patients all parties have; {nodes}, which says that they are alike in the label and not "
        f"which label; which {facts.splits.get(party, 0)} of its own cuts were taken{drawn}",
        "a label, a gradient, a leaf's weight, a prediction; another party's columns, cuts and values",
    )


def _carrier(facts: Facts) -> Learnt:
    pairs = ", and how many patients any of them have in common" if len(facts.parties) > 2 else ""
    if facts.sealed:
        return Learnt(
            "who carries messages",
            f"how many rows each party has, and how many patients all have{pairs}; how many messages go between which "
            "parties, when, and how large; how many splits each party has",
            "which row numbers are together or go left anywhere, or what any message between parties says",
        )
    return Learnt(
        "who carries messages",
        f"how many rows each party has{pairs}; which row numbers are together at which nodes, and which go left there",
        "an identifier, a label, a gradient, a value, a cut",
    )


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
        known = [(a, b) for a, b in pairs if b is not None and _settings_of(a) == _settings_of(b)]
        if known:
            equal = sum(with_splits(a.trees, a.records) == with_splits(b.trees, b.records) for a, b in known)
            lines.append(
                f"{label} made the trees of joined columns (Central), every split and every leaf: "
                f"{equal} of {len(known)} seeds."
            )
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
    grid = Table(header_style="dim", box=None, pad_edge=False)
    heads, rows = _table(done)
    for place, head in enumerate(heads):
        grid.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    for line in _same_trees(done):
        console.print(line, markup=False)
    for label, parties in _knowledge_by_method(world, done).items():
        console.print(f"\n[bold]{label}[/bold]: what each party learns")
        for line in knowledge_lines(parties):
            console.print(f"  {line}", markup=False)


def write_page(world: World, done: Sequence[Done], folder: Path) -> Path:
    """Write report.html into the run's folder; returns the file."""
    heads, rows = _table(done)
    words = {"world": world, "heads": heads, "rows": rows, "same": _same_trees(done), "work": _work_of(done)}
    return _write(folder, "columns.html", **words, learnt=_knowledge_by_method(world, done))


def write_real_page(folder: Path, **words: Any) -> Path:
    """Write report.html into the folder of a run over real sites; returns the file."""
    return _write(folder, "real.html", **words, heads=HEADS, amount=amount)


def _write(folder: Path, template: str, **words: Any) -> Path:
    text = TEMPLATES.get_template(template).render(css=style_sheet(), **words)
    write(folder / "report.html", text.encode())
    return folder / "report.html"


def _work_of(done: Sequence[Done]) -> dict[str, dict[str, float]]:
    work = {}
    for label, runs in _by_label(done).items():
        if kinds := {kind for run in runs for kind in run.work}:
            work[label] = {kind: sum(run.work.get(kind, 0.0) for run in runs) / len(runs) for kind in sorted(kinds)}
    return work


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
        macros.worth(worth, metric_name),  # type: ignore[attr-defined]
    )
