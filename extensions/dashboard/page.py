"""The coordinator's page: drawings as SVG, tables, figures in Prometheus' format; sites' words are escaped."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedsmall.evaluation.metrics import by_digits
from fedsmall.extensions.dashboard.view import ConsortiumView, Map, RunView
from fedsmall.files import one_line, plain
from fedsmall.sim.consortium import members
from fedsmall.sim.report.style import LOOKS, SPARE, place_on_circle, short_name, style_sheet

COLOURS = tuple(look.colour for look in (*LOOKS.values(), *SPARE))
WIDE, HIGH, RADIUS = 340.0, 260.0, 88.0
MOST_LABELS = 24
BROAD, LOW, LEFT = 640.0, 120.0, 64.0  # a chart, and where its line begins


class SiteDot(NamedTuple):
    """A site on the map: where its dot and its name stand, and in what colour its model is drawn."""

    site: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    colour: str
    is_global: bool


class Arrow(NamedTuple):
    """The way of a model from the site that trained it last to the site that trains it next."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    words: str


class Chart(NamedTuple):
    """A line through points: their places, and the words at its ends."""

    points: str
    dots: tuple[tuple[float, float, str], ...]
    low: str
    high: str
    first: str
    last: str


def site_dots(shown: Map) -> list[SiteDot]:
    """The sites in a circle, in the order of their names, the first on top."""
    names = [held.site for held in shown.held]
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    drawn = []
    for number, held in enumerate(shown.held):
        across, down, anchor = place_on_circle(number, len(names))
        place = WIDE / 2 + RADIUS * across, HIGH / 2 + RADIUS * down
        label = WIDE / 2 + (RADIUS + 14) * across, HIGH / 2 + (RADIUS + 18) * down + 4
        site = held.site if len(names) <= MOST_LABELS else ""
        drawn.append(SiteDot(site, *place, *label, anchor, colour.get(held.by, COLOURS[0]), held.is_global))
    return drawn


def arrows(shown: Map) -> list[Arrow]:
    """An arrow for every model that is not where it was trained."""
    places = {held.site: dot for held, dot in zip(shown.held, site_dots(shown), strict=True)}
    drawn = []
    for held in shown.held:
        if held.is_global or held.by not in places or held.by == held.site:
            continue
        start, end = places[held.by], places[held.site]
        length = max(((end.x - start.x) ** 2 + (end.y - start.y) ** 2) ** 0.5, 1e-9)
        back = min(13.0 / length, 0.4)  # it ends before the dots begin
        across, down = (end.x - start.x) * back, (end.y - start.y) * back
        words = f"the model that {held.by} trained last is at {held.site}"
        drawn.append(Arrow(start.x + across, start.y + down, end.x - across, end.y - down, end.colour, words))
    return drawn


def chart(places: Sequence[float], values: Sequence[float], unit: str = "", low: float | None = None) -> Chart | None:
    """Values over rounds as a line, from ``low`` (the least) to the largest; None for fewer than two."""
    if len(values) < 2:
        return None
    low = min(values) if low is None else low
    high, first, last = max(values), places[0], places[-1]
    across, up = max(last - first, 1e-12), max(high - low, 1e-12)
    dots = []
    for place, value in zip(places, values, strict=True):
        x = round(LEFT + (BROAD - LEFT - 10) * (place - first) / across, 1)
        y = round(LOW - 10 - (LOW - 20) * (value - low) / up, 1)
        dots.append((x, y, f"round {place:g}: {by_digits(value)}{unit}"))
    points = " ".join(f"{x},{y}" for x, y, _ in dots)
    least, most = (by_digits(end, 3) + unit for end in (low, high))
    return Chart(points, tuple(dots), least, most, f"round {first:g}", f"round {last:g}")


MOST_RUNS = 8  # that are shown in full
MOST_SHOWN = 30  # communication rounds in the table
LONGEST_REASON = 300


def whole(view: ConsortiumView, nonce: str) -> str:
    """The page with what is to be seen now; what changes later comes by itself."""
    words = {"css": style_sheet(), "nonce": nonce, "body": Markup(body(view))}
    return TEMPLATES.get_template("page.html").render(view=view, **words)


def body(view: ConsortiumView) -> str:
    """The part of the page that changes."""
    return TEMPLATES.get_template("body.html").render(view=view, runs=view.runs())


def comm_round_rows(run: RunView) -> list[dict[str, Any]]:
    """The last communication rounds of a run, newest first."""
    took, between = run.log.seconds(), run.log.between()
    shown = sorted(run.log.run.comm_rounds.values(), reverse=True)[:MOST_SHOWN]
    return [{"t": t, "answers": n, "seconds": took.get(t), "between": between.get(t)} for t, _, n in shown]


def times(run: RunView) -> str:
    """Median and slowest communication round, in a line."""
    took = list(run.log.seconds().values())
    if not took:
        return "no communication round yet"
    apart = list(run.log.between().values())
    beside = f"; from one communication round to the next {median(apart):.2f} s" if apart else ""
    long = f"median {median(took):.2f} s, slowest {max(took):.2f} s"
    return f"{len(took)} communication rounds, first order to last answer: {long}{beside}"


def time_chart(run: RunView) -> Chart | None:
    """How long each communication round took."""
    took = sorted(run.log.seconds().items())
    return chart([t for t, _ in took], [seconds for _, seconds in took], " s", low=0.0)


def metrics_of(run: RunView) -> list[str]:
    """The metrics of the global model that evaluations hold, the loss first."""
    names = dict.fromkeys(name for evaluation in run.evaluations for name in evaluation.get("common") or {})
    return sorted(names, key=lambda name: (name != "loss", name))


def metric_chart(run: RunView, metric: str) -> Chart | None:
    """What the global model was worth, evaluation by evaluation; what is not finite is left out."""
    found = [(e["t"], (e.get("common") or {}).get(metric, math.nan)) for e in run.evaluations]
    points = [(t, float(value)) for t, value in found if math.isfinite(value)]
    return chart([t for t, _ in points], [value for _, value in points])


def reason(text: object) -> str:
    """A reason as it came, on one line, with what does something to a screen replaced."""
    return one_line(text, LONGEST_REASON)


METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COUNTS = {  # by what a run's log counts of a site
    "answers": ("answers", "answers of a site in a run"),
    "came": ("bytes", "bytes of arrays in a site's answers"),
    "refused": ("refusals", "orders that a site refused or that failed there"),
    "silent": ("silences", "orders that a site did not answer before the deadline"),
}


def metrics_text(view: ConsortiumView) -> str:
    """All figures, one a line, as Prometheus reads them."""
    runs = sorted(view.runs(), key=lambda run: run.name)
    return TEMPLATES.get_template("metrics.txt").render(view=view, runs=runs, buckets_s=BUCKETS_S, counts=COUNTS)


def metrics_line(name: str, value: float, /, **labels: str) -> str:
    """One figure as Prometheus reads it."""
    quoted = {key: word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, word in labels.items()}
    inside = ",".join(f'{key}="{word}"' for key, word in quoted.items())
    return f"{name}{{{inside}}} {float(value):.17g}" if inside else f"{name} {float(value):.17g}"


TEMPLATES = Environment(
    loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
)
TEMPLATES.filters |= {"plain": plain, "reason": reason, "short": short_name}
TEMPLATES.globals |= {f.__name__: f for f in (comm_round_rows, times, time_chart, metrics_of, metric_chart)}
TEMPLATES.globals |= {"site_dots": site_dots, "arrows": arrows, "MOST_RUNS": MOST_RUNS}
TEMPLATES.globals |= {"line": metrics_line, "certificates": members.certificates, "warnings": members.warnings}
