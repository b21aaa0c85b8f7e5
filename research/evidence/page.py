"""docs/evidence.md: every number beside the published one, made from the results in docs/evidence alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.evaluation.statistics import ENOUGH, Interval
from fedsmall.research.evidence.items import Item, published_by_hospital
from fedsmall.research.evidence.judge import MARGIN, cannot_decide, nothing_learnt
from fedsmall.research.evidence.result import EvidenceRow, ItemResult
from fedsmall.sim.runs.folder import engine_of

HEAD = f"""# Evidence

*For researchers.*

Made by `fedsmall reproduce`; not written by hand. `fedsmall reproduce all --profile quick` makes it again.

How to read it. **Measured** is the mean over seeds with its 95% interval (Student t); a seed draws anew which samples
are held out and which lie where, the initial models and the batches, and is shared by all methods of a table.
**Difference** is the method minus the table's baseline, paired by seed; **p** is from an exact sign-flip test,
corrected over the whole table (Holm). Where so few runs cannot bring any p of a table below .05, it says so.
**Verdict** holds the mean against the published one: "agrees" when the whole interval of their difference lies within
{100 * MARGIN:g} points, "differs" when it lies wholly outside, "undecided" otherwise. **Claim** asks the same of the
published difference from the baseline: undecided unless the measured interval is narrower than the difference that is
claimed; on other data than the paper's only the sign is asked for, and given where the interval leaves out zero. The
intervals that are printed are those of their row alone, at 95%; verdicts and claims rest on wider ones, corrected for
the number of verdicts, or of differences, in the table (Bonferroni). A verdict or claim from fewer than five seeds, or
from runs that all gave the same number, says so beside it. A value marked (sites) is the mean of the sites' own models,
where no model is common. **Always the commonest class**, or **always the median**, is a prediction that looks at no
sample: a method that does not beat it has learnt nothing that its table can show. Networks for images normalise batches
(`norm = "batch"`), as in the papers, where a section names nothing else.
"""
NOT_RUN = "not run"
OF_ERRORS = "x 100"  # an error, where others are shares in points
HOSPITAL_METRICS = ("auc", "accuracy")


def page(items: Sequence[Item], results: dict[str, ItemResult], study: str = "", findings: str = "findings.md") -> str:
    """The whole page, from the results that there are."""
    parts = [HEAD, f"What follows from it is on one page: [what we found]({findings}).\n", _contents(items, results)]
    parts += [_section(item, results[item.name]) for item in items if item.name in results]
    return "\n".join(part for part in [*parts, study] if part)


def summary(item: Item, result: ItemResult) -> str:
    """A result in a few lines, for the terminal."""
    if result.not_run:
        return f"{item.name}: not run, {result.not_run}"
    lines = [f"{item.name}: {item.title} ({result.about['seconds']:.0f} s)"]
    for row in result.rows:
        apart = f"; minus {item.baseline} {_in_points(row.against, sign=True)}" if row.against else ""
        published = f"; published {_published(row)}, {row.verdict}" if row.published is not None else ""
        lines.append(f"  {row.variant:>4} {row.label:32} {_in_points(row.mean)}{apart}{published}")
    return "\n".join([*lines, *_reservations(item, result)])


def _contents(items: Sequence[Item], results: dict[str, ItemResult]) -> str:
    lines = ["| item | | runs | seconds | verdicts |", "|---|---|---|---|---|"]
    for item in items:
        result = results.get(item.name)
        if result is None or result.not_run:
            why = result.not_run if result is not None else "not yet made"
            lines.append(f"| {item.name} | {item.title} | {NOT_RUN}: {why} | | |")
            continue
        runs = sum(len(row.values) for row in result.of_methods)
        lines.append(
            f"| [{item.name}](#{item.name}) | {item.title} | {runs} | {result.about.get('seconds', 0):.0f} "
            f"| {_counted([row.verdict for row in result.of_methods])} |"
        )
    return "\n".join([*lines, ""])


def _section(item: Item, result: ItemResult) -> str:
    if result.not_run:
        return f'<a id="{item.name}"></a>\n## {item.title}\n\nNot run: {result.not_run}. Command: `{result.command}`\n'
    item = item.as_run(result.profile)
    lines = [
        f'<a id="{item.name}"></a>\n## {item.title}\n',
        _about(result),
        f"![{item.title}](evidence/{item.name}.svg)\n",
    ]
    if item.apart:
        lines.append(f"Not comparable with the published numbers: {item.apart}.\n")
    lines.append(_tables(item, result))
    if result.hospitals:
        lines.append(_hospitals(item, result))
    return "\n".join(lines)


def _about(result: ItemResult) -> str:
    about = result.about
    sizes = about.get("samples_per_site", ["?", "?"])
    samples = f"{sizes[0]}" if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"
    lr = ", ".join(f"{label} {value:g}" for label, value in about.get("lr", {}).items())
    return (
        f"`{result.command}` - {about.get('about', '')} {about.get('sites')} sites with {samples} samples, "
        f"{about.get('rounds')} rounds, {about.get('seeds')} seeds, "
        f"tested on {about.get('test_samples')} samples; engine "
        f"{engine_of(about)}, {about.get('seconds', 0):.0f} s on {_cores(about)} "
        f"({about.get('machine')})." + (f" Learning rates chosen on training sites: {lr}." if lr else "") + "\n"
    )


def _cores(about: Mapping[str, Any]) -> str:
    return "1 core" if about.get("cores") == 1 else f"{about.get('cores')} cores"


def _tables(item: Item, result: ItemResult) -> str:
    tables = [_table(item, rows) for rows in _variants(result.rows)]
    return "\n".join([*tables, *(f"{sentence}\n" for sentence in _reservations(item, result))])


def _reservations(item: Item, result: ItemResult) -> list[str]:
    return [sentence for sentence in (cannot_decide(result.rows), nothing_learnt(item, result.rows)) if sentence]


def _table(item: Item, rows: Sequence[EvidenceRow]) -> str:
    variant = f"\n**{item.vary.key} = {rows[0].variant}**\n" if item.vary else ""
    private = any(row.epsilon is not None for row in rows)
    unit = f" ({OF_ERRORS})" if item.metric in LOWER_IS_BETTER else ""
    columns = ["method", f"measured {item.metric}{unit}", "n"]
    if any(row.published is not None for row in rows):
        columns += ["published", "verdict"]
    columns += [f"minus {item.baseline}", "p"]
    if any(row.claim for row in rows):
        columns += ["claimed", "claim"]
    columns += ["epsilon"] * private + ["MB sent"]
    lines = [variant, f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [row.label, _in_points(row.mean) + (" (sites)" if row.of == "sites" else ""), str(row.mean.n)]
        if "published" in columns:
            cells += [_published(row), _marked(row.verdict, row.mean)]
        cells += [_in_points(row.against, sign=True), f"{row.p_value:.3f}" if row.p_value is not None else ""]
        if "claim" in columns:
            cells += [f"{100 * row.claimed:+.1f}" if row.claimed is not None else "", _claim(row)]
        cells += ([_epsilon(row)] if private else []) + [f"{row.bytes_sent / 1e6:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _hospitals(item: Item, result: ItemResult) -> str:
    published = published_by_hospital(item.experiment)
    if item.figure == "hospitals":
        words = "The global model on each hospital's own held-out patients, mean over seeds (sd)"
    else:
        words = "Each hospital's own model on the common test set, mean over runs (sd), beside published"
    tables = [_by_hospital(metric, result, published.get(metric, {})) for metric in published or HOSPITAL_METRICS]
    return "\n".join([f"{words}:\n", *tables])


def _by_hospital(metric: str, result: ItemResult, published: Mapping[str, Mapping[str, float]]) -> str:
    sites = list(next(iter(result.hospitals.values())))
    unit = f" ({OF_ERRORS})" if metric in LOWER_IS_BETTER else ""
    lines = [f"| {metric}{unit} | {' | '.join(sites)} |", "|" + "---|" * (len(sites) + 1)]
    for label, by_site in result.hospitals.items():
        cells = [_spread(by_site.get(site, {}).get(metric, [])) + _beside(published, label, site) for site in sites]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _beside(published: Mapping[str, Mapping[str, float]], label: str, site: str) -> str:
    value = published.get(label, {}).get(site)
    return "" if value is None else f", published {100 * value:.1f}"


def _variants(rows: Sequence[EvidenceRow]) -> list[list[EvidenceRow]]:
    groups: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        groups.setdefault(row.variant, []).append(row)
    return list(groups.values())


def _in_points(mean: Interval | None, sign: bool = False) -> str:
    """A share in points of a hundred with its interval: 89.1 [88.0, 90.2]."""
    if mean is None:
        return ""
    plus = "+" if sign else ""
    text = f"{100 * mean.mean:{plus}.1f}"
    return text + (f" [{100 * mean.low:{plus}.1f}, {100 * mean.high:{plus}.1f}]" if np.isfinite(mean.width) else "")


def _published(row: EvidenceRow) -> str:
    if row.published is None:
        return ""
    return f"{100 * row.published:.1f}" + (f" ± {100 * row.spread:.1f}" if row.spread is not None else "")


def _claim(row: EvidenceRow) -> str:
    if row.seeds_needed:
        return f"{row.claim} ({row.seeds_needed} seeds would do)"
    return _marked(row.claim, row.against)


def _marked(word: str, mean: Interval | None) -> str:
    """A verdict, and beside it what takes its weight: fewer than five seeds, or runs that do not differ at all."""
    if mean is None or word in ("", "undecided", "not comparable"):
        return word
    return word + (" (no spread)" if mean.flat else f" (only {mean.n} seeds)" if mean.n < ENOUGH else "")


def _epsilon(row: EvidenceRow) -> str:
    if row.epsilon is None:
        return "" if row.trivial else "no promise"
    return f"{row.epsilon:.3g}"


def _spread(values: Sequence[float]) -> str:
    kept = [value for value in values if np.isfinite(value)]
    if not kept:
        return "-"
    return f"{100 * np.mean(kept):.1f}" + (f" ({100 * np.std(kept, ddof=1):.1f})" if len(kept) > 1 else "")


def _counted(verdicts: Sequence[str]) -> str:
    kinds = [word for word in ("agrees", "differs", "undecided", "not comparable") if word in verdicts]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in kinds)


def tables_of(items: Sequence[Item], results: dict[str, ItemResult]) -> dict[str, str]:
    """The tables of all items that were run, as :func:`evidence.tables.filled` puts them into pages."""
    known = [(item, results[item.name]) for item in items if item.name in results]
    return {item.name: _tables(item, result) for item, result in known if not result.not_run}
