"""The page itself: one file, rendered on the server, in which every word that came from a site is escaped."""

import math
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedsmall.extensions.dashboard import drawing
from fedsmall.extensions.dashboard.desk import Desk, RunView
from fedsmall.files import one_line, plain
from fedsmall.sim.report.css import style_sheet
from fedsmall.sim.report.style import short_name

MOST_RUNS = 8  # that are shown in full
MOST_SHOWN = 30  # contacts in the table
LONGEST_REASON = 300


def whole(desk: Desk, nonce: str) -> str:
    """The page with what is to be seen now; what changes later comes by itself."""
    return TEMPLATES.get_template("page.html").render(
        desk=desk, css=style_sheet(), nonce=nonce, body=Markup(body(desk))
    )


def body(desk: Desk) -> str:
    """The part of the page that changes."""
    return TEMPLATES.get_template("body.html").render(desk=desk, runs=desk.runs())


def contact_rows(run: RunView) -> list[dict[str, Any]]:
    """The last contacts of a run, newest first."""
    took, between = run.log.seconds(), run.log.between()
    shown = sorted(run.log.run.contacts.values(), reverse=True)[:MOST_SHOWN]
    return [{"t": t, "answers": n, "seconds": took.get(t), "between": between.get(t)} for t, _, n in shown]


def times(run: RunView) -> str:
    """Median and slowest contact, in a line."""
    took = list(run.log.seconds().values())
    if not took:
        return "no contact yet"
    apart = list(run.log.between().values())
    beside = f"; from one contact to the next {median(apart):.2f} s" if apart else ""
    long = f"median {median(took):.2f} s, slowest {max(took):.2f} s"
    return f"{len(took)} contacts, first order to last answer: {long}{beside}"


def time_chart(run: RunView) -> drawing.Chart | None:
    """How long each contact took."""
    took = sorted(run.log.seconds().items())
    return drawing.chart([t for t, _ in took], [seconds for _, seconds in took], " s", low=0.0)


def metrics_of(run: RunView) -> list[str]:
    """The metrics of the common model that evaluations hold, the loss first."""
    names = dict.fromkeys(name for each in run.evaluations for name in each.get("common") or {})
    return sorted(names, key=lambda name: (name != "loss", name))


def metric_chart(run: RunView, metric: str) -> drawing.Chart | None:
    """What the common model was worth, evaluation by evaluation; what is not finite is left out."""
    told = [(each["t"], (each.get("common") or {}).get(metric, math.nan)) for each in run.evaluations]
    told = [(t, float(value)) for t, value in told if math.isfinite(value)]
    return drawing.chart([t for t, _ in told], [value for _, value in told])


def reason(text: object) -> str:
    """A reason as it came, on one line, with what does something to a screen replaced."""
    return one_line(text, LONGEST_REASON)


TEMPLATES = Environment(
    loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
)
TEMPLATES.filters |= {"plain": plain, "reason": reason, "short": short_name}
TEMPLATES.globals |= {f.__name__: f for f in (contact_rows, times, time_chart, metrics_of, metric_chart)}
TEMPLATES.globals |= {"seats": drawing.seats, "arrows": drawing.arrows, "MOST_RUNS": MOST_RUNS}
