"""A meta-analysis of the hospitals' own regressions beside the pooled one, as a table and a forest plot.

A run has it where it kept the models of a ``StandaloneRidge`` beside a ``Ridge``. Source: DerSimonian and Laird 1986.
"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from fedsmall.evaluation.metrics import by_digits
from fedsmall.extensions.regression.inference import Pooled, Table, between_sites, effect_sums, meta_analysis
from fedsmall.sim.report.figures import INK, STYLE
from fedsmall.sim.report.sections import Cells, Drawing, Section

SEPARATED = 20.0  # a coefficient by one standard deviation beyond which a fit without a maximum was cut off
SHOWN = 3  # columns that have a plot: those of the least p-values in the pooled fit
CAPTION = (
    "The joint fit beside a meta-analysis of {} hospitals' own fits{}, with 95% intervals: fixed effects, and random "
    "ones (DerSimonian and Laird). I² is the share of the differences between hospitals that is not chance, p that of "
    "Cochran's Q. Where hospitals are small their own fits are far from normal, and the joint fit is to be "
    "trusted. A hospital that does not determine a coefficient counts for nothing in its row.{}"
)
PENALISED = ", which a penalty of {:g} draws towards 0: take penalty = 0 under StandaloneRidge for a meta-analysis"
LEAST = 2  # hospitals
APART = (
    "Columns separate the classes at nearly every hospital, so that its own fit has no maximum and there is no "
    "meta-analysis; the joint fit stands. A penalty under StandaloneRidge gives one of fits drawn towards 0."
)


def pool_fits(own: Sequence[Table]) -> Pooled:
    """The meta-analysis of hospitals' own tables, column by column."""
    estimates = [(table.estimate, np.where(table.undetermined, np.inf, table.error**2)) for table in own]
    first = np.sum([effect_sums(*effect) for effect in estimates], axis=0)
    tau2 = between_sites(first)[1]
    return meta_analysis(first, np.sum([effect_sums(*effect, tau2) for effect in estimates], axis=0))


def section(names: Sequence[str], joint: Table, own: dict[str, Table], penalty: float, unit: float = 1.0) -> Section:
    """The table and the plot of a joint fit and of hospitals' ``own`` fits, by their names, shown in a ``unit``."""
    given, own = len(own), {of: found for of, found in own.items() if np.abs(found.estimate).max() < SEPARATED}
    if len(own) < LEAST:
        return Section("Hospitals one by one", sentences=[APART])
    left = f" Left out as columns separate their classes: {given - len(own)} of {given} hospitals." * (len(own) < given)
    pooled = pool_fits(list(own.values()))
    freedom = np.sum([~table.undetermined for table in own.values()], axis=0) - 1
    joint, fixed, random = (found.times(unit) for found in (joint, pooled.fixed, pooled.random))
    rows = [
        [
            name,
            *(_interval(table, k) for table in (joint, fixed, random)),
            *((f"{pooled.i2[k]:.0%}", f"{stats.chi2.sf(pooled.q[k], freedom[k]):.4f}") if freedom[k] > 0 else ()),
        ]
        for k, name in enumerate(names)
    ]
    caption = CAPTION.format(len(own), PENALISED.format(penalty) if penalty else "", left)
    table = Cells(["column", "joint fit", "fixed effects", "random effects", "I²", "p"], rows, caption)
    lines = {site: found.times(unit) for site, found in own.items()}
    lines |= {"fixed effects": fixed, "random effects": random, "joint fit": joint}
    least = sorted(range(len(names)), key=lambda k: joint.p[k])[:SHOWN]
    drawings = [_drawing(names[k], k, lines, len(own)) for k in least]
    return Section("Hospitals one by one", table=table, figures=drawings)


def _interval(table: Table, k: int) -> str:
    if table.undetermined[k] or not np.isfinite(table.estimate[k]):
        return "not determined"
    form = "{:.3f}".format if table.unit == 1 else by_digits
    estimate, low, high = (form(of[k]) for of in (table.estimate, table.low, table.high))
    return f"{estimate} ({low} to {high})"


def _drawing(name: str, k: int, lines: dict[str, Table], hospitals: int) -> Drawing:
    """The forest plot of a coefficient; hospitals above, from which a rule parts what is of all."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 0.22 * len(lines) + 0.7), layout="constrained")
        axes = figure.subplots()
        for y, found in enumerate(lines.values()):
            if found.undetermined[k] or not np.isfinite(found.estimate[k]):
                continue
            axes.plot([found.low[k], found.high[k]], [y, y], color=INK, lw=1.2)
            axes.plot(found.estimate[k], y, "s" if y < hospitals else "D", color=INK, ms=4)
        axes.axvline(0, color=INK, lw=0.7, ls=":")
        axes.axhline(hospitals - 0.5, color=INK, lw=0.7)
        axes.set(yticks=range(len(lines)), yticklabels=list(lines), ylim=(len(lines) - 0.5, -0.5))
    ends = ((of, found.estimate[k], found.low[k], found.high[k]) for of, found in lines.items())
    data = ["fit,estimate,low,high", *(f'"{of}",{middle:.6g},{low:.6g},{high:.6g}' for of, middle, low, high in ends)]
    caption = f"{name}: 95% intervals of every hospital's own fit, both meta-analyses, and the joint fit."
    return Drawing(figure, f"Forest plot of {name}", caption, "\n".join(data), f"forest-{k + 1}.csv")
