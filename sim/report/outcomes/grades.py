"""What a page adds where classes have an order: how far off, in grades, and whether being above each grade is as likely
as the model says. It stands behind the half for classes, whose model it is.
"""

from collections.abc import Callable
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedsmall.data.outcomes import ORDINAL
from fedsmall.evaluation.clinical import wilson
from fedsmall.evaluation.metrics import kappa
from fedsmall.evaluation.statistics import Scale, interval
from fedsmall.sim.report.clinical.shown import Said, clinical
from fedsmall.sim.report.figures import INK
from fedsmall.sim.report.outcomes.figures import Told, empty, reliability, reliability_of
from fedsmall.sim.report.outcomes.half import Drawn, Shown, Worth, sites_of, worth
from fedsmall.sim.runs.files import as_csv
from fedsmall.sim.runs.folder import Run

FIFTHS = 5
SHADES = (0.12, 0.88)  # of the colour map, between which grades lie: light to dark, so they are told apart in grey


def graded_half(run: Run) -> Shown | None:
    """What a page adds on grades; None where classes have no order, or nothing was kept of a model."""
    shown = clinical(run)
    if shown is None or (run.about.get("task") or {}).get("loss") != ORDINAL:
        return None
    said, names = shown.said, shown.classes
    arrays = [(each.p, each.y) for each in shown.of_seeds]
    return Shown(
        shown.label,
        shown.seed,
        shown.folds,
        len(said.y),
        len(arrays),
        "Grades are predicted, from the lowest to the highest: " + ", ".join(names),
        [
            *(worth(name, of, arrays, scale) for name, (of, scale) in STATISTICS.items()),
            *(_recall(label, name, shown.of_seeds) for label, name in enumerate(names)),
        ],
        [Drawn(*each) for each in figures(names, said.p, said.y)],
        ("kappa", "grades off"),
        sites_of(said.sites if len(said.sites) else None, (said.p, said.y), (_kappa, _off)),
        (
            "The grade that is called is the likeliest one. Quadratic weighted kappa (Cohen 1968): 1 where all are "
            "called right, 0 for what chance or one grade for all would give; two grades off count four times as "
            "much as one.",
        ),
    )


def _kappa(p: np.ndarray, y: np.ndarray) -> float:
    return kappa(p.argmax(axis=1), y)


def _off(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(p.argmax(axis=1) - y).mean())


def _within(p: np.ndarray, y: np.ndarray, reach: int) -> float:
    return float((np.abs(p.argmax(axis=1) - y) <= reach).mean())


STATISTICS: dict[str, tuple[Callable[..., float], Scale]] = {
    "quadratic weighted kappa": (_kappa, "gain"),
    "mean absolute error, in grades": (_off, "positive"),
    "share called right": (partial(_within, reach=0), "share"),
    "share at most one grade off": (partial(_within, reach=1), "share"),
}


def _recall(label: int, name: str, of_seeds: tuple[Said, ...]) -> Worth:
    """The share of a grade's samples that are called so: the first seed's with Wilson's interval."""
    counts = [
        (int((said.p[said.y == label].argmax(axis=1) == label).sum()), int((said.y == label).sum()))
        for said in of_seeds
    ]
    shares = [hits / of for hits, of in counts if of]
    title = f"recall of {name} ({counts[0][1]} samples)"
    return Worth(title, wilson(*counts[0]), interval(shares, scale="share") if len(shares) > 1 else None)


def figures(names: tuple[str, ...], p: np.ndarray, y: np.ndarray) -> list[Told]:
    """What the model says of the samples of each grade, and the calibration of being above each grade."""
    means = {name: p[y == label].mean(axis=0) for label, name in enumerate(names) if (y == label).any()}
    above = {
        f"above {name}": reliability_of(p[:, label + 1 :].sum(axis=1), y > label, FIFTHS)
        for label, name in enumerate(names[:-1])
    }
    rows = [[name, *(f"{share:.6g}" for share in shares)] for name, shares in means.items()]
    points = [[which, *(f"{cell:.6g}" for cell in point)] for which, each in above.items() for point in each]
    return [
        (
            _bars(names, means),
            "what is said of each grade",
            "The mean probability of every grade, for the test samples that are truly of each. Of a perfect model each "
            "bar has one shade.",
            as_csv([["true", *names], *rows]),
            "grades.csv",
        ),
        (
            reliability(above),
            "calibration of being above a grade",
            "How many are above a grade over the probability that the model gives to that, in fifths of the test "
            "samples in the order of that probability. On the diagonal it is as likely as the model says.",
            as_csv([["which", "samples", "predicted", "observed"], *points]),
            "above.csv",
        ),
    ]


def _bars(names: tuple[str, ...], means: dict[str, np.ndarray]) -> Figure:
    figure, axes = empty("true grade", "mean probability")
    shades = mpl.colormaps["cividis_r"](np.linspace(*SHADES, len(names)))
    below = np.zeros(len(means))
    for label, name in enumerate(names):
        shares = np.array([each[label] for each in means.values()])
        axes.bar(list(means), shares, bottom=below, color=shades[label], edgecolor=INK, linewidth=0.5, label=name)
        below = below + shares
    axes.set_ylim(0, 1)
    with mpl.rc_context({"text.color": INK}):
        axes.legend(
            fontsize=8.5,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=min(len(names), 4),
            labelcolor=INK,
            frameon=False,
        )
    return figure
