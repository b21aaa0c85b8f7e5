"""report.html: one file that needs nothing else, made from a run's folder alone by the templates beside this module."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from fedsmall.data.outcomes import ORDINAL
from fedsmall.entry_points import extensions, load_extension
from fedsmall.evaluation.clinical import precision_recall, roc
from fedsmall.evaluation.statistics import interval
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.sim.report import figures
from fedsmall.sim.report.cards import model_card
from fedsmall.sim.report.chain import chain
from fedsmall.sim.report.clinical import figures as clinical_figures
from fedsmall.sim.report.clinical.shown import Clinical, class_names, clinical, participants
from fedsmall.sim.report.clinical.subgroups import FLOOR, subgroups
from fedsmall.sim.report.clinical.tripod import tripod
from fedsmall.sim.report.css import style_sheet
from fedsmall.sim.report.facts import (
    BLIND,
    READER_HEADS,
    blind,
    ensemble_sentences,
    leaves_a_site,
    looked_at,
    readers,
    stop_sentences,
    unseen_heads,
    unseen_rows,
    unseen_sentences,
)
from fedsmall.sim.report.outcomes.grades import graded_half
from fedsmall.sim.report.outcomes.half import Shown, asked, outcome_half
from fedsmall.sim.report.sentences import amount, named, p_of, sentences, short, value, with_interval
from fedsmall.sim.report.sites.at_home import at_home, real_sentences, repeat
from fedsmall.sim.report.sites.figures import drawings
from fedsmall.sim.report.style import Style
from fedsmall.sim.report.tables import Table, by_label, metrics_of, primary, scale_of, table
from fedsmall.sim.runs.files import as_csv, write
from fedsmall.sim.runs.folder import PlanRun, Run, engine_of
from fedsmall.sim.runs.scenario import FILES

MANY_SITES = 12


def write_report(folder: Path, runs: Sequence[Run], title: str, about: str = "") -> Path:
    """Write the report of one or several runs (one for each data set) into ``folder``; returns the file."""
    path = folder / "report.html"
    write(path, page(runs, title, about).encode())
    return path


def page(runs: Sequence[Run], title: str, about: str = "") -> str:
    """The whole page."""
    template = TEMPLATES.get_template("page.html")
    return template.render(runs=runs, title=title, about=about, css=style_sheet())


def table_of(shown: Table) -> str:
    """A table as HTML."""
    return str(TEMPLATES.get_template("table.html").module.table_of(shown))  # type: ignore[attr-defined]


def shown_scenario(run: Run) -> dict[str, Any]:
    """The scenario as a report may show it: without the names of a site's files."""
    shown = run.scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(shown.get("task"), dict):
        shown["task"] = {key: "(your files)" if key in FILES else value for key, value in shown["task"].items()}
    return shown


def facts(run: Run) -> list[str]:
    """What was run, on what."""
    about, plan = run.about, run.plans[0]
    low, high = about.get("samples_per_site", (0, 0))
    samples = str(low) if low == high else f"{low} to {high}"
    seeds = len(run.scenario.seeds)
    return [
        f"{about.get('sites')} sites, {samples} samples each, judged on {about.get('test_samples')} test samples",
        f"model {plan.model}, {plan.rounds} rounds, {seeds} seed{'s' * (seeds > 1)}",
        f"engine {engine_of(about)}",
        f"{about.get('cores')} cores, {about.get('machine')}, {str(about.get('started'))[:10]}",
    ]


def names_of(plans: Sequence[Plan]) -> str:
    """The first plans by name, and how many more there are."""
    names = [f"{plan.method.label} (seed {plan.seed})" for plan in plans]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def place_of(shown: Table) -> str:
    """The samples that a table's models are judged on."""
    if shown.where:
        return f"on {shown.where}"
    return "on the test samples" if shown.whose == "common" else "on the sites' own test samples"


def further_samples(run: Run) -> list[str]:
    """The further sets of samples that all sites' models are judged on."""
    return list(dict.fromkeys(name for one in run.done for name in one.row["extra"] if name != "held_out"))


def site_by_site(run: Run, metric: str) -> dict[str, dict[str, float | None]]:
    """The common model of each method on each site's own held-out samples, where sites have such and are few.

    Where sites have models of their own, it is their common layers, completed at each site with its own. The mean is
    over the runs whose held-out samples show the metric; None at a site where none do, as the AUC of a single class.
    """
    means = {}
    for label, group in by_label(run.done).items():
        by_seed = [one.row["extra"].get("held_out") for one in group]
        if all(by_seed):
            names = sorted(set().union(*by_seed))
            known = {site: [each[site][metric] for each in by_seed if metric in each.get(site, ())] for site in names}
            means[label] = {site: sum(values) / len(values) if values else None for site, values in known.items()}
    sites = {site for values in means.values() for site in values}
    found = {label: {site: values.get(site) for site in sorted(sites)} for label, values in means.items()}
    return found if len(sites) <= MANY_SITES else {}


def events_of(run: Run) -> list[tuple[PlanRun, dict[str, Any]]]:
    """Every event with the plan run in which it happened."""
    return [(one, event) for one in run.done for event in one.events]


def part_of(run: Run, extension: str, name: str) -> Markup:
    """What an extension shows of a run in the section of that name; nothing where it is not there, or not needed."""
    audited = run.folder is not None and (run.folder / "audit").is_dir()
    needed = {"audit": audited, "travels": any(one.plan.method.moves for one in run.done)}
    if extension not in extensions("fedsmall.pages") or not needed[extension]:
        return Markup()
    return load_extension("fedsmall.pages", extension).part(run, name)  # type: ignore[no-any-return]


def svg(figure: Figure, title: str) -> Markup:
    """A figure as an element of the page."""
    return Markup(figures.svg(figure, str(escape(title))))


def contents(run: Run, shown: Clinical | None, other: Shown | None = None) -> Markup:
    """Links to the parts of a run's section."""
    parts = {"question": "question", "who": "who took part" if participants(run) else ""}
    if shown:
        parts |= {"model": "model", "thresholds": "thresholds" if shown.two else "", "ranking": "ranking, calibration"}
        parts |= {"grades": "grades" if run.about["task"].get("loss") == ORDINAL else ""}
        parts |= {
            "hospitals": "hospitals" if shown.sites else "",
            "subgroups": "subgroups" if shown.said.groups else "",
        }
    if other:
        parts |= {"model": "model", "hospitals": "hospitals" if other.sites else ""}
    parts |= {"real": "real hospitals"} if at_home(run) else {}
    parts |= {"methods": "methods", "traffic": "traffic", "events": "events", "plan": "plan", "tripod": "TRIPOD+AI"}
    links = [f'<a href="#{anchor(run)}-{part}">{words}</a>' for part, words in parts.items() if words]
    return Markup("<nav>{}</nav>").format(Markup(" ".join(links)))


def data_link(text: str, name: str) -> Markup:
    """A link to the numbers behind a figure, which are in the page itself."""
    content = base64.b64encode(text.encode()).decode()
    return Markup('<a download="{}" href="data:text/csv;base64,{}">data (CSV)</a>').format(name, content)


def overview_data(run: Run) -> str:
    """What every method came to, by seed and fold, as CSV."""
    metric = primary(run)
    rows = [["method", "seed", "fold", f"common_{metric}", f"sites_{metric}_mean"]]
    for label, group in by_label(run.done).items():
        for one in group:
            ends = (one.row["common"] or {}).get(metric), one.row["sites"].get(f"{metric}_mean")
            rows.append(
                [label, str(one.plan.seed), str(one.plan.fold), *("" if v is None else f"{v:.6g}" for v in ends)]
            )
    return as_csv(rows)


def course_data(run: Run) -> str:
    """The points of the course of a run, as CSV."""
    rows = [["panel", "method", "x", "mean", "low", "high", "seeds"]]
    for panel in figures.PANELS:
        for label, points in figures.course_points(run, panel).items():
            for x, values in points:
                mean = interval(values, scale=scale_of(primary(run)))
                rows.append(
                    [panel, label, f"{x:g}", *(f"{v:.6g}" for v in (mean.mean, mean.low, mean.high)), str(mean.n)]
                )
    return as_csv(rows)


def dashes_of(look: Style) -> str:
    """A line style as SVG writes it; empty for a whole line."""
    return "" if isinstance(look.dashes, str) else " ".join(f"{2 * length:g}" for length in look.dashes[1])


def curves_of(shown: Clinical) -> list[tuple[Figure, str, str, str, str]]:
    """The figures of the clinical half: figure, title, caption, data, and the name of the file of the data."""
    band = "Band: 95% interval of the mean over seeds, point by point." if len(shown.of_seeds) > 1 and shown.two else ""
    thick = "Thick: the model that is shown; thin: other methods, mean over seeds." if shown.two else ""
    roc_points = clinical_figures.curve_data(shown, roc, ("false_positive_rate", "sensitivity"))
    pr_points = clinical_figures.curve_data(shown, precision_recall, ("recall", "precision"))
    bins = clinical_figures.calibration_data(shown)
    bars = "Ten bins; upright: Wilson's interval of each." if shown.two else "Ten bins."
    draw = clinical_figures
    return [
        (draw.roc_figure(shown), "ROC curve", f"ROC curve. {thick} {band}", roc_points, "roc.csv"),
        (
            clinical_figures.pr_figure(shown),
            "precision and recall",
            f"Precision and recall. {band}",
            pr_points,
            "pr.csv",
        ),
        (draw.calibration_figure(shown), "calibration", f"Calibration. {bars}", bins, "calibration.csv"),
    ]


def anchor(run: Run) -> str:
    """The name by which the page links to a run."""
    return "run-" + "".join(letter if letter.isalnum() else "-" for letter in run.scenario.name)


TEMPLATES = Environment(
    loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
)
USED: tuple[Callable[..., Any], ...] = (
    *(
        amount,
        anchor,
        asked,
        at_home,
        blind,
        by_label,
        chain,
        class_names,
        clinical,
        contents,
        course_data,
        dashes_of,
        figures.course_looks,
        overview_data,
        curves_of,
        data_link,
        drawings,
        events_of,
        facts,
        further_samples,
        has_own_models,
        leaves_a_site,
        model_card,
        metrics_of,
        named,
    ),
    *(
        looked_at,
        outcome_half,
        graded_half,
        names_of,
        p_of,
        part_of,
        participants,
        tripod,
        place_of,
        readers,
        real_sentences,
        repeat,
        sentences,
        short,
        shown_scenario,
        site_by_site,
        stop_sentences,
        subgroups,
        svg,
        table,
        ensemble_sentences,
        unseen_heads,
        unseen_rows,
        unseen_sentences,
        value,
        with_interval,
    ),
)
TEMPLATES.globals |= {function.__name__: function for function in USED} | {"figures": figures, "toml": tomli_w.dumps}
TEMPLATES.globals |= {"BLIND": BLIND, "HEADS": READER_HEADS, "FLOOR": FLOOR}
