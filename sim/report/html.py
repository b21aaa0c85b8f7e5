"""report.html: one file that needs nothing else, made from a run's folder alone: a list of sections for each run."""

import csv
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from markupsafe import Markup, escape

from fedsmall.data.outcomes import ORDINAL
from fedsmall.data.preparation import Pixels
from fedsmall.entry_points import extensions, load_extension
from fedsmall.errors import PlanError
from fedsmall.package import store
from fedsmall.plan import Plan
from fedsmall.planning.description import rows_of
from fedsmall.sim.report import at_home, facts, figures, model, outcomes, real_sites, sentences, tables
from fedsmall.sim.report.model import MOST_SITES, Clinical, at_sites
from fedsmall.sim.report.sections import SMALL, TEMPLATES, Cells, Drawing, Section
from fedsmall.sim.report.sentences import amount, metric_name, p_of, plural, short, value, with_interval
from fedsmall.sim.report.style import Style, style_sheet
from fedsmall.sim.report.tables import Table, by_label, primary
from fedsmall.sim.runs.files import as_csv, write
from fedsmall.sim.runs.folder import PACKAGES, PlanRun, Run, choose_packages, engine_of, main_method, stem
from fedsmall.sim.runs.hospitals import read_growth
from fedsmall.sim.runs.scenario import shown_scenario

MANY_SITES = 12
OF_POINTS = ("mean", "low", "high", "seeds")
CARD = Markup("""<h3>Use the model</h3>
<p><code>fedsmall predict {} {}</code> says what the models of {} make of new {}. It is no medical device.</p>
<details><summary>The model card ({}, seed {})</summary>
<pre>{}</pre></details>""")
TWO_CLASSES = Markup(
    "The model predicts the probability of <b>{2}{1}</b>, not {0}, for a new patient (<code>classes = [...]</code> in "
    "the task puts another class last)."
)
COMPARED = "Average {} {} over runs, with its 95% interval. Differences are between {} models, seed by seed."
UNSEEN = (
    "{}: every patient judged by models that never saw {} (validate). Intervals are for the average over hospitals "
    "such as these; a single one varies more."
)
IMPORTANCE = (
    "Permutation importance of {}, seed {}: how much worse the global model is on the test samples with one column "
    "shuffled, over 10 shuffles. Columns that say the same share it, and none of it is a cause."
)
READABLE = (
    "Number of complete records that an honest-but-curious party could reconstruct, within 1%, from what was sent "
    "(seed {}; gradient inversion at the first layer). A lower bound: other attacks find more."
)
IN_DATA = "Mean (SD) of each column before scaling, for categories the share, and how many rows lack it."
GROWN = (
    "Hospitals join one by one in an order that each seed draws; each federation is judged on the test patients of all "
    "hospitals. Lines: mean over seeds; bands: 95% interval, of further draws of this kind."
)
ABRIDGED = (
    "Collins et al. 2024, BMJ 385:e078378, abridged. What is not answered here is for the authors of a study to say."
)


def write_report(folder: Path, runs: Sequence[Run], title: str, about: str = "") -> Path:
    """Write the report of one or several runs (one for each data set) into ``folder``; returns the file."""
    path = folder / "report.html"
    write(path, page(runs, title, about).encode())
    return path


def write_dpia(folder: Path, runs: Sequence[Run], title: str) -> Path:
    """Write the annex to a data protection impact assessment into ``folder``; returns the file."""
    path = folder / "dpia.html"
    write(path, fill("dpia.html", runs=runs, title=title).encode())
    return path


def page(runs: Sequence[Run], title: str, about: str = "") -> str:
    """The whole page."""
    return fill("page.html", runs=runs, title=title, about=about)


def fill(template: str, **words: Any) -> str:
    """A page from its template, with the one style sheet in it."""
    return TEMPLATES.get_template(template).render(css=style_sheet(), **words)


def table_of(shown: Table) -> str:
    """A table of methods as HTML."""
    return str(TEMPLATES.get_template("sections.html").module.cells(methods(shown)))  # type: ignore[attr-defined]


def methods(shown: Table) -> Cells:
    """Methods side by side."""
    is_common = shown.whose == "common"
    place = "on the test samples" if is_common else "on the sites' own test samples"
    place = f"on {shown.where}" if shown.where else place
    rows: list[list[object]] = []
    for row in shown.rows:
        means = [with_interval(shown, mean) if mean else SMALL.format("none") for mean in (row.common, row.sites)]
        lead: list[object] = ["", ""]
        if row.lead:
            mean, opened, ends = short(shown, row.lead).partition(" (")
            below = Markup("<br>") + SMALL.format(ends.removesuffix(")")) if opened else Markup()
            lead = [escape(mean) + below, p_of(shown, row.lead)]
        spread = "" if row.spread is None else value(shown, row.spread)
        rows.append([row.label, *means, spread, *(lead if shown.reference or row.lead else [])])
    labels = [row.label for row in shown.rows]
    heads = ["method", "global model", "local models", "sd over sites"]
    heads += [f"{shown.reference} minus this", "p"] if shown.reference else []
    caption = COMPARED.format(metric_name(shown.metric), place, "global" if is_common else "the sites' own")
    return Cells(heads, rows, caption, reference=labels.index(shown.reference) if shown.reference in labels else None)


def names_of(plans: Sequence[Plan]) -> str:
    """The first plans by name, and how many more there are."""
    names = [f"{plan.method.label} (seed {plan.seed})" for plan in plans]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def further_samples(run: Run) -> list[str]:
    """The further sets of samples that all sites' models are judged on."""
    return list(dict.fromkeys(name for plan_run in run.done for name in plan_run.row["extra"] if name != "held_out"))


def site_by_site(run: Run, metric: str) -> dict[str, dict[str, float | None]]:
    """The global model of each method on each site's own held-out samples, where sites have such and are few.

    Where sites have models of their own, it is the shared layers, completed at each site with its own. The mean is over
    the runs that have the metric; None at a site where none do, as the AUC of a single class.
    """
    known: dict[str, dict[str, list[float]]] = {}
    for label, group in by_label(run.done).items():
        by_seed = [plan_run.row["extra"].get("held_out") for plan_run in group]
        if all(by_seed):
            of_sites = known.setdefault(label, {})
            for site, metrics in (entry for held_out in by_seed for entry in held_out.items()):
                of_sites.setdefault(site, []).extend(metrics[name] for name in metrics if name == metric)
    sites = sorted({site for of_sites in known.values() for site in of_sites})
    if len(sites) > MANY_SITES:
        return {}
    means: dict[str, dict[str, float | None]] = {label: dict.fromkeys(sites) for label in known}
    for label, of_sites in known.items():
        means[label] |= {site: sum(values) / len(values) for site, values in of_sites.items() if values}
    return means


def question_section(run: Run, shown: model.Clinical | None) -> Section:
    """What is asked of which classes, and what was run on what."""
    asked: list[str] = [run.scenario.about or outcomes.question(run)]
    if shown and shown.is_binary and not run.scenario.about:
        asked = []
    if shown:
        names = shown.classes
        several = f"The {len(names)} classes are {', '.join(names)}; curves are of each against the rest."
        task = run.plans[0].task
        label = f"{task['label']} = " if isinstance(task, dict) and "label" in task else ""
        asked.append(TWO_CLASSES.format(*names, label) if shown.is_binary else several)
    about, plan = run.about, run.plans[0]
    low, high = about.get("samples_per_site", (0, 0))
    samples, seeds = str(low) if low == high else f"{low} to {high}", len({plan.seed for plan in run.plans})
    facts_of_run = [
        f"{plural(about.get('sites', 0), 'site')}, {samples} sample{'s' * (high != 1)} each, "
        f"evaluated on {plural(about.get('test_samples', 0), 'test sample')}",
        f"model {plan.model}, {plural(plan.rounds, 'round')}, {plural(seeds, 'seed')}",
        f"engine {engine_of(about)}",
        f"{about.get('cores')} cores, {about.get('machine')}, {str(about.get('started'))[:10]}",
    ]
    return Section("The question", "question", [Markup(" ").join(asked)], notes=["; ".join(facts_of_run)])


def protection_sections(run: Run) -> list[Section]:
    """One screen for a data protection officer: who gets what, what can be reconstructed, and which measures are on."""
    if not any(plan_run.plan.method.is_federated for plan_run in run.done):
        return []
    leaves, read = facts.leaves_a_site(run), facts.reader_sentences(run)
    lines = [
        ("Who holds the data", "each hospital its own."),
        ("What is disclosed, and to whom", f"{leaves[0]} {leaves[-1]}"),
        ("What can be reconstructed", " ".join(read) or "not counted for this run (docs/security.md)."),
        ("Measures", facts.measures(run)),
        ("In law", "a model of few patients may be personal data; treat it so unless the risk is shown low."),
    ]
    items = [Markup("<b>{}</b>: {}").format(*line) for line in lines]
    return [Section("For the data protection officer", "protection", items)]


def dpia_sections(run: Run) -> list[Section]:
    """What a data protection impact assessment asks of a run that the run can answer."""
    shown = tables.table(run)
    leaves = Section("Data disclosed by sites", sentences=facts.leaves_a_site(run), table=sent_table(run, shown))
    read = readers_table(run)
    risk = [Section("Reconstruction risk", table=read)] if read else []
    plan = Section("Settings", sentences=[Markup("<pre>{}</pre>").format(tomli_w.dumps(shown_scenario(run.scenario)))])
    return [*protection_sections(run), *participant_sections(run), leaves, *risk, plan]


def participant_sections(run: Run) -> list[Section]:
    """Participants, with how many of each class; none where a folder does not say."""
    if not (counts := participants(run)):
        return []
    train, held_out = ([site[which] for site in counts.values()] for which in ("train", "held_out"))
    names, holds_out = model.class_names(run, len(train[0])), bool(held_out[0])
    heads = ["site", "training", *names, *(["held out", *names] if holds_out else [])]
    rows = [
        [site, sum(own), *own, *([sum(out), *out] if holds_out else [])]
        for site, own, out in zip(counts, train, held_out, strict=True)
    ]
    judged = ", and held out to judge by" * holds_out
    caption = f"Samples of each class to train on{judged} (seed {run.plans[0].seed})."
    return [Section("Participants", "who", table=Cells(heads, rows, caption))]


def data_sections(run: Run) -> list[Section]:
    """What the data hold, hospital by hospital, in a simulation of tables."""
    if not (held := run.about.get("data")):
        return []
    heads, rows = rows_of(held)
    more = f" {held['more']} columns more are not shown." if held["more"] else ""
    return [Section("What is in the data", "data", table=Cells(heads, rows, IN_DATA + more))]


def importance_sections(run: Run) -> list[Section]:
    """What shuffling each column costs the global model that is shown; none where nothing was measured."""
    shown = next((ended for ended in run.done if ended.label == run.reference and ended.row.get("importance")), None)
    if shown is None:
        return []
    found = sorted(shown.row["importance"].items(), key=lambda entry: -entry[1][0])
    metric = metric_name(run.scenario.metric or "accuracy")
    heads = ["column", f"{metric} worse by", "standard deviation"]
    rows = [[column, f"{mean:+z.4f}", f"{spread:.4f}"] for column, (mean, spread) in found]
    caption = IMPORTANCE.format(shown.label, shown.plan.seed)
    return [Section("What the model goes by", "importance", table=Cells(heads, rows, caption, reference=None))]


def unseen_tables(run: Run) -> list[Section]:
    """What to expect where models were validated by routes."""
    metrics = (facts.WORDS.get(name, metric_name(name)) for name in facts.METRICS)
    heads, sections = ["method", *metrics, "accuracy, worst and best hospital"], []
    for where, rows in facts.unseen_rows(run).items():
        caption = UNSEEN.format(where[0].upper() + where[1:], "the patient" if "patients" in where else "its hospital")
        sections.append(Section(table=Cells(heads, rows, caption)))
    return sections


def sent_table(run: Run, shown: Table) -> Cells:
    """What every method sent."""
    sites = max(run.about.get("sites", 1), 1)
    sizes = [(row, amount(row.bytes_sent), amount(row.bytes_sent / sites)) for row in shown.of_methods]
    rows = [[row.label, f"{row.comm_rounds:g}", of_all, of_one] for row, of_all, of_one in sizes]
    return Cells(["method", "communication rounds", "bytes sent, all sites", "bytes per site"], rows)


def readers_table(run: Run) -> Cells | None:
    """Whose records could be read by whom; None where that was not counted."""
    rows = [[row.label, row.patients, *row.cells] for row in facts.readers(run)]
    heads = ["method", "records", *facts.READER_HEADS]
    return Cells(heads, rows, READABLE.format(run.plans[0].seed)) if rows else None


def site_by_site_section(run: Run, shown: Table) -> list[Section]:
    """The global models on each site's own held-out samples, in simulations of a few sites."""
    means = {} if run.real else site_by_site(run, shown.metric)
    if not means:
        return []
    rows = [
        [label, *("not estimable" if mean is None else value(shown, mean) for mean in sites.values())]
        for label, sites in means.items()
    ]
    whose = "shared layers, completed with the site's own," if run.plans[0].has_own_models else "global model"
    caption = f"Average {metric_name(shown.metric)} over runs of the {whose} on each site's own held-out samples."
    return [Section("Site by site", table=Cells(["method", *next(iter(means.values()))], rows, caption))]


def tripod_table(run: Run, shown: Clinical | None, other: outcomes.Outcome | None) -> Cells:
    """TRIPOD+AI, item by item."""
    rows = [[item.number, item.asks, item.answer or "not answered here"] for item in tripod(run, shown, other)]
    return Cells(["item", "what it asks", "where"], rows, ABRIDGED, words=(1, 2))


def events_of(run: Run) -> list[tuple[PlanRun, dict[str, Any]]]:
    """Every event with the plan run in which it happened."""
    return [(plan_run, event) for plan_run in run.done for event in plan_run.events]


def part_of(run: Run, extension: str, name: str) -> Markup:
    """What an extension shows of a run in the section of that name; nothing where it is not there, or not needed."""
    audited = run.folder is not None and (run.folder / "audit").is_dir()
    methods = [plan_run.plan.method for plan_run in run.done]
    needed = {"audit": audited, "travels": any(method.moves for method in methods)}
    needed["regression"] = any(method.regression is not None for method in methods)
    if extension not in extensions("fedsmall.pages") or not needed[extension]:
        return Markup()
    return load_extension("fedsmall.pages", extension).part(run, name)  # type: ignore[no-any-return]


def events_table(events: Sequence[tuple[PlanRun, dict[str, Any]]]) -> Cells:
    """What happened, by round."""
    rows = [
        [plan_run.label, plan_run.plan.seed, event["t"], event["site"], event.get("reason") or event["kind"]]
        for plan_run, event in events
    ]
    return Cells(["method", "seed", "round", "site", "what happened"], rows, words=(3, 4))


def failed_table(run: Run) -> Cells:
    """The plans that failed."""
    rows = [[failure["label"], failure["seed"], failure["reason"]] for failure in run.failed]
    return Cells(["method", "seed", "why"], rows, words=(2,))


def model_card(run: Run) -> Markup:
    """The command that uses the model, and its card; nothing where no model was kept."""
    try:
        label = main_method(run)
        plan_run = next(plan_run for plan_run in run.done if plan_run.label == label and run.has_packages(plan_run))
        stored = choose_packages(run, label, plan_run.plan.seed)[0]
    except PlanError:  # an older run, one of several runs, or sites with models of their own
        return Markup()
    package = f"{run.place}/{PACKAGES}/{stem(plan_run, stored.package.whose)}"
    card = escape(store.card(*stored, package, header=False))
    new = ("NEW-IMAGES", "images") if isinstance(stored.package.preparation.form, Pixels) else ("NEW.csv", "rows")
    return CARD.format(shlex.quote(run.place), new[0], label, new[1], label, plan_run.plan.seed, card)


def links(run: Run, shown: model.Clinical | None, other: outcomes.Outcome | None) -> list[tuple[str, str]]:
    """The parts of a run's section to which its page links, with what they are called."""
    parts = {
        "question": "question",
        "protection": "data protection",
        "who": "participants" if participants(run) else "",
        "data": "data" if run.about.get("data") else "",
    }
    if shown:
        parts |= {
            "model": "model",
            "thresholds": "thresholds" if shown.is_binary else "",
            "ranking": "discrimination, calibration",
        }
        parts |= {"grades": "grades" if run.about["task"].get("loss") == ORDINAL else ""}
        parts |= {"hospitals": "hospitals" if model.at_sites(shown) else ""}
        parts |= {"subgroups": "subgroups" if shown.predictions.groups else ""}
    if other:
        parts |= {"model": "model", "hospitals": "hospitals" if other.sites else ""}
    parts |= {"importance": "columns" if importance_sections(run) else ""}
    parts |= {"real": "real hospitals"} if real_sites.real_runs(run) else {}
    parts |= {"methods": "methods", "traffic": "traffic", "alone": "alone or together" * bool(at_home.homes_of(run))}
    parts |= {"events": "events", "plan": "plan", "tripod": "TRIPOD+AI"}
    return [(part, name) for part, name in parts.items() if name]


def overview_data(run: Run) -> str:
    """What every method came to, by seed and fold, as CSV."""
    metric = primary(run)
    rows: list[list[object]] = [["method", "seed", "fold", f"global_{metric}", f"sites_{metric}_mean"]]
    for label, group in by_label(run.done).items():
        for plan_run in group:
            ends = (plan_run.row["common"] or {}).get(metric), plan_run.row["sites"].get(f"{metric}_mean")
            rows.append([label, *plan_run.key, *("" if end is None else f"{end:.6g}" for end in ends)])
    return as_csv(rows)


def course_data(run: Run) -> str:
    """The points of the course of a run, as CSV."""
    rows = [[panel, *row] for panel in figures.PANELS for row in _point_rows(figures.course_points(run, panel))]
    return as_csv([["panel", "method", "x", *OF_POINTS], *rows])


def _point_rows(points_of: Mapping[str, figures.Points]) -> Iterator[list[object]]:
    for label, points in points_of.items():
        for x, mean in points:
            yield [label, f"{x:g}", *(f"{end:.6g}" for end in (mean.mean, mean.low, mean.high)), mean.n]


def dashes_of(look: Style) -> str:
    """A line style as SVG writes it; empty for a whole line."""
    return "" if isinstance(look.dashes, str) else " ".join(f"{2 * length:g}" for length in look.dashes[1])


def growth_section(run: Run) -> list[Section]:
    """What methods come to by the number of hospitals, where that was run (`fedsmall run --hospitals`)."""
    if (grown := read_growth(run.folder)) is None:
        return []
    rows: list[list[object]] = [["method", "hospitals", *OF_POINTS], *_point_rows(figures.growth_points(grown))]
    title = f"Average {metric_name(grown.metric)} by the number of hospitals"
    drawn = Drawing(figures.growth(run, grown), title, GROWN, as_csv(rows), "hospitals.csv")
    return [Section("Does joining pay", "joining", figures=[drawn])]


def anchor(run: Run) -> str:
    """The name by which the page links to a run."""
    return "run-" + "".join(character if character.isalnum() else "-" for character in run.scenario.name)


class Item(NamedTuple):
    """An item of the list, what it asks, and where a report answers it; an empty ``answer`` says that it does not."""

    number: str
    asks: str
    answer: str = ""


def participants(run: Run) -> dict[str, dict[str, list[int]]]:
    """Participants, with how many of each class; none where a folder does not say, or too many to read."""
    counts = run.about.get("class_counts") or {}
    return dict(sorted(counts.items())) if len(counts) <= MOST_SITES else {}


def tripod(run: Run, shown: Clinical | None, other: outcomes.Outcome | None = None) -> list[Item]:
    """The rows of tripod.csv, filled by a run, the model of classes or of another outcome on its page, and a study."""
    real, held = "Over real hospitals" * run.real, "What is in the data" * bool(run.about.get("data"))
    counts = "Participants" if participants(run) else real or (held if other else "")
    groups = bool(shown and shown.predictions.groups)
    of_groups = "; Subgroup by subgroup" if groups else "; of no subgroup (subgroups in the task names some)"
    folders = [f"{name}/" for name in (PACKAGES, "models") if run.folder and (run.folder / name).is_dir()]
    weights = {getattr(plan_run.plan.recipe, "class_weights", None) for plan_run in run.done}
    how = "class weights: " + ", ".join(sorted(map(str, weights))) if weights - {None} else "no class weights"
    judged = f"Judged by {run.scenario.metric or 'accuracy'}"
    curves, thresholds, page_of = "Discrimination and calibration", "Model at thresholds", "The model that is shown"
    outcome, measures, errors = "", real or "How to read this", real
    if shown:
        outcome, measures, errors = "The question: names of the classes only", curves, f"{thresholds}; {curves}"
    elif other:
        outcome, measures, errors = "The question", page_of, page_of
    answers = {
        "counts": counts,
        "counts_only": held or (counts and f"{counts}: classes only"),
        "missing": held and f"{held}; ",
        "counts_of_classes": held if other else counts and f"{counts} (counts of classes)",
        "dealt_out": counts and f"{counts}; ",
        "outcome": outcome,
        "objectives": "The question" if run.scenario.about else "",
        "measures": measures,
        "model": errors and page_of,
        "thresholds": "Use the model" if other else errors and thresholds,
        "by_site": "Hospital by hospital" if (other and other.sites) or (shown and at_sites(shown)) else real,
        "groups": "Nothing but to look at them: Subgroup by subgroup" if groups else "",
        "of_groups": errors and errors + of_groups,
        "dealt": "; sites were drawn from one table" if model.are_dealt(run) else "",
        "folders": f"The run's folder, {' and '.join(folders)}" if folders else "",
        "imbalance": "No classes are predicted" if other else f"{judged}, beside the majority class; {how}",
        "scenario": "Plan, versions, and how to repeat this",
    }
    text = (files(__package__) / "tripod.csv").read_text(encoding="utf-8")
    return [
        Item(number, asks, "; ".join(filter(None, (getattr(run.scenario.study, key, ""), answer.format_map(answers)))))
        for number, asks, answer, key in csv.reader(text.splitlines())
    ]


OF_PAGES = (at_home, facts, figures, model, outcomes, real_sites, sentences, tables)
TEMPLATES.globals |= {module.__name__.rpartition(".")[2]: module for module in OF_PAGES}
TEMPLATES.globals |= {name: part for name, part in globals().items() if callable(part)}
TEMPLATES.globals |= {"toml": tomli_w.dumps, "shown_scenario": shown_scenario}
