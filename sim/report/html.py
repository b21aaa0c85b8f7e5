"""report.html: one file that needs nothing else, made from a run's folder alone."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from fedsmall.models.own_models import has_own_models
from fedsmall.statistics import Comparison
from sim.report import figures
from sim.report.sentences import named, sentences, short, value, with_interval
from sim.report.tables import Line, Table, by_label, metrics_of, primary, table
from sim.report.traffic import amount, leaves_a_site
from sim.runs.files import write
from sim.runs.folder import Run
from sim.runs.scenario import FILES

MANY_SITES = 12


def write_report(folder: Path, runs: Sequence[Run], title: str, about: str = "") -> Path:
    """Write the report of one or several runs (one for each data set) into ``folder``; returns the file."""
    path = folder / "report.html"
    write(path, page(runs, title, about).encode())
    return path


def page(runs: Sequence[Run], title: str, about: str = "") -> str:
    """The whole page."""
    style = (files("sim.report") / "report.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{_anchor(run)}">{escape(run.scenario.name)}</a>' for run in runs)
    body = "".join(_run(run, several=len(runs) > 1) for run in runs)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>" + (f"<p>{escape(about)}</p>" if about else "")
        + (f"<nav>{links}</nav>" if len(runs) > 1 else "")
        + body
        + _how_to_read()
        + "</main></body></html>\n"
    )  # fmt: skip


def _run(run: Run, several: bool) -> str:
    parts = [f'<section id="{_anchor(run)}">']
    if several:
        parts.append(f"<h2>{escape(run.scenario.name)}</h2>")
    if run.scenario.about:
        parts.append(f"<p>{escape(run.scenario.about)}</p>")
    parts += [_facts(run), _partial(run)]
    if by_label(run.done):
        parts += [_says(run), _tables(run), _figures(run), _traffic(run), _sites(run)]
    parts += [_events(run), _repeat(run), "</section>"]
    return "".join(parts)


def _facts(run: Run) -> str:
    about, plan = run.about, run.plans[0]
    low, high = about.get("samples_per_site", (0, 0))
    samples = str(low) if low == high else f"{low} to {high}"
    seeds = len(run.scenario.seeds)
    words = [
        f"{about.get('sites')} sites, {samples} samples each, judged on {about.get('test_samples')} test samples",
        f"model {plan.model}, {plan.rounds} rounds, {seeds} seed{'s' * (seeds > 1)}",
        f"engine {about.get('engine')}" + (f" ({about['path']})" if about.get("path") else ""),
        f"{about.get('cores')} cores, {about.get('machine')}, {str(about.get('started'))[:10]}",
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in about.get("notes", ()))
    return f'<p class="soft">{escape("; ".join(words))}</p>' + (f'<ul class="soft">{notes}</ul>' if notes else "")


def _partial(run: Run) -> str:
    if not run.not_run:
        return ""
    names = [f"{plan.method.label} (seed {plan.seed})" for plan in run.not_run]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f'<p class="warn"><b>This run is partial.</b> {len(run.plans) - len(names)} of {len(run.plans)} plans were run '
        f"to their end. Not run, or cut short: {escape(shown)}. What is shown below rests on the others alone.</p>"
    )


def _says(run: Run) -> str:
    return '<div class="says">' + "".join(f"<p>{escape(line)}</p>" for line in sentences(run)) + "</div>"


def _tables(run: Run) -> str:
    first = primary(run.done)
    extra = list(dict.fromkeys(name for one in run.done for name in one.row["extra"] if name != "held_out"))
    parts = [table_of(table(run, first))]
    parts += [table_of(table(run, first, where)) for where in extra]
    others = [table_of(table(run, metric)) for metric in metrics_of(run.done) if metric != first]
    if others:
        parts.append(f"<details><summary>Further metrics</summary>{''.join(others)}</details>")
    return "".join(parts)


def table_of(shown: Table) -> str:
    """A table as HTML."""
    alike = shown.whose == "common"
    where = f"on {shown.where}" if shown.where else "on the test samples" if alike else "on the sites' own test samples"
    whose = "common" if alike else "the sites' own"
    lead = f"{escape(shown.reference or '')} minus this"
    head = ("method", "common model", "sites' own models", "spread over sites", lead, "p")
    rows = "".join(_line(shown, line) for line in shown.lines)
    return (
        f'<div class="wide"><table><caption>{escape(named(shown.metric).capitalize())} {escape(where)}: mean over '
        f"runs, with its 95% interval. Differences are between {whose} models, seed by seed.</caption>"
        f"<thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _line(shown: Table, line: Line) -> str:
    gap = line.lead
    cells = (
        escape(line.label),
        with_interval(shown, line.common) if line.common else "<small>none</small>",
        with_interval(shown, line.sites) if line.sites else "<small>none</small>",
        value(shown, line.spread) if line.spread is not None else "",
        _gap(shown, gap) if gap else "",
        f"{gap.p_value:.2g}" if gap and gap.difference.n > 1 else "",
    )
    mark = ' class="reference"' if line.label == shown.reference else ""
    return f"<tr{mark}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _gap(shown: Table, gap: Comparison) -> str:
    """A difference, its interval small below it."""
    mean, opened, ends = short(shown, gap).partition(" (")
    return f"{mean}<br><small>{ends.removesuffix(')')}</small>" if opened else mean


def _figures(run: Run) -> str:
    metric = named(primary(run.done))
    parts = [
        _figure(figures.overview(run), f"{metric} of every method", "Filled mark and bar: the common model, mean and "
                "95% interval over seeds. Dots: each site's own model after its last local training, mean over seeds."),
        _figure(figures.curves(run), f"{metric} by rounds and by bytes", "Lines: mean over seeds; bands: 95% interval. "
                "A common model exists only after an aggregation, so methods that seldom aggregate have few points."),
    ]  # fmt: skip
    chain = figures.chain(run)
    if chain is not None:
        note = "Left: every mark is a local training. Right: mean, fewest and most over all models; dotted: all sites."
        parts.append(_figure(chain, "which model visited which site", note))
    return "".join(parts)


def _figure(figure: Any, title: str, caption: str) -> str:
    return f"<figure>{figures.svg(figure, escape(title))}<figcaption>{escape(caption)}</figcaption></figure>"


def _traffic(run: Run) -> str:
    sites = max(int(run.about.get("sites", 1)), 1)
    rows = "".join(
        f"<tr><td>{escape(line.label)}</td><td>{line.contacts:g}</td><td>{amount(line.bytes_sent)}</td>"
        f"<td>{amount(line.bytes_sent / sites)}</td></tr>"
        for line in table(run).lines
    )
    heads = ("method", "contacts", "bytes sent, all sites", "bytes per site")
    words = "".join(f"<li>{escape(line)}</li>" for line in leaves_a_site(run))
    return (
        "<h3>Communication, and what leaves a site</h3>"
        f'<div class="wide"><table><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div><ul>{words}</ul>"
    )


def _sites(run: Run) -> str:
    """The common model on each site's own held-out samples, where sites have such and are few.

    Where sites have models of their own, it is their common layers, completed at each site with its own.
    """
    metric, cells = primary(run.done), {}
    for label, group in by_label(run.done).items():
        found = [one.row["extra"].get("held_out") for one in group]
        if all(found):
            cells[label] = {site: sum(each[site][metric] for each in found) / len(found) for site in found[0]}
    names = list(next(iter(cells.values()), {}))
    if not names or len(names) > MANY_SITES:
        return ""
    shown = table(run)
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{value(shown, each[name])}</td>' for name in names)}</tr>"
        for label, each in cells.items()
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in ["method", *names])
    return (
        f'<h3>Site by site</h3><div class="wide"><table><caption>{escape(named(metric).capitalize())} of the common '
        f"{_completed(run)} on each site's own held-out samples, mean over runs.</caption>"
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _completed(run: Run) -> str:
    return "layers, completed with the site's own," if has_own_models(run.plans[0]) else "model"


def _events(run: Run) -> str:
    rows = [
        f"<tr><td>{escape(one.label)}</td><td>{one.plan.seed}</td><td>{event.get('t', '')}</td>"
        f'<td class="words">{escape(str(event.get("site", "")))}</td>'
        f'<td class="words">{escape(str(event.get("reason") or event.get("kind", "")))}</td></tr>'
        for one in run.done
        for event in one.events
    ]
    if not rows:
        return '<h3>Events</h3><p class="soft">Every site answered every order with a usable reply.</p>'
    heads = '<th>method</th><th>seed</th><th>round</th><th class="words">site</th><th class="words">what happened</th>'
    more = f"<p>and {len(rows) - 100} more, in rounds.json.</p>" if len(rows) > 100 else ""
    return (
        f"<h3>Events</h3><details open><summary>{len(rows)} event{'s' * (len(rows) > 1)}</summary>"
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows[:100])}</tbody></table></div>'
        f"{more}</details>"
    )


def _repeat(run: Run) -> str:
    engine = run.about.get("engine")
    versions = ", ".join(f"{name} {number}" for name, number in run.about.get("versions", {}).items())
    return (
        "<h3>Plan, versions, and how to repeat this</h3>"
        f"<p>The run's folder holds the whole scenario. With these versions, it gives the same numbers:</p>"
        f"<pre>fedsmall run {escape(run.folder.name if run.folder else 'RUN')}/scenario.toml --engine {engine}</pre>"
        f'<p class="soft">{escape(versions)}</p>'
        f"<details><summary>The scenario</summary><pre>{escape(tomli_w.dumps(shown_scenario(run)))}</pre></details>"
    )


def shown_scenario(run: Run) -> dict[str, Any]:
    """The scenario as a report may show it: without the names of a site's files."""
    shown = run.scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if isinstance(shown.get("task"), dict):
        shown["task"] = {key: "(your files)" if key in FILES else value for key, value in shown["task"].items()}
    return shown


def _how_to_read() -> str:
    return (
        "<h2>How to read this</h2><ul>"
        "<li><b>Common model</b>: the one model that the sites have together at the end. <b>Sites' own models</b>: "
        "what each site holds after its last local training, before models are averaged. They are never mixed.</li>"
        "<li><b>Contact</b>: a round after which models travel. FedAvg with b = 1 sends as many messages as a method "
        "that hands models on every round; that is the comparison with equal traffic.</li>"
        "<li><b>95% interval</b>: Student's t over runs with different seeds; it speaks of further seeds of this same "
        "experiment. <b>p</b>: a sign-flip permutation test on the paired differences, not corrected for the number of "
        "rows; below six seeds it cannot reach .05.</li></ul>"
    )


def _anchor(run: Run) -> str:
    return "run-" + "".join(letter if letter.isalnum() else "-" for letter in run.scenario.name)
