"""What pages are made of: a section has a title, sentences, a table and figures; a page is a list of sections."""

import base64
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from fedsmall.evaluation.clinical import Estimate
from fedsmall.evaluation.statistics import Interval
from fedsmall.sim.report import figures

Form = Callable[[float], str]
ENDS = Markup("{}<br><small>{} to {}</small>")
COUNTED = Markup("{:.1f}%<br><small>{:.1f} to {:.1f}; {} of {}</small>")
SMALL = Markup("<small>{}</small>")
DATA = Markup('<a download="{}" href="data:text/csv;base64,{}">data (CSV)</a>')


class Cells(NamedTuple):
    """A table: ``words`` stand left, a short row ends in a broad cell, ``reference`` is lit, long ones are folded."""

    heads: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: object = ""
    words: Collection[int] = ()
    reference: int | None = None
    is_open: bool = False


class Drawing(NamedTuple):
    """A figure with its title and caption, and the numbers behind it as CSV, with the name of that file."""

    figure: Figure
    title: str
    caption: str
    data: str
    file: str


class Section(NamedTuple):
    """A part of a page: ``sentences`` above its table, and ``notes`` below; ``part`` is what links lead to."""

    title: str = ""
    part: str = ""
    sentences: Sequence[object] = ()
    table: Cells | None = None
    notes: Sequence[object] = ()
    figures: Sequence[Drawing] = ()


def show(sections: Sequence[Section], page: str) -> Markup:
    """Sections as HTML; ``page`` begins the names of their parts."""
    return Markup(TEMPLATES.get_template("sections.html").render(sections=sections, page=page))


def svg(figure: Figure, title: str) -> Markup:
    """A figure as an element of the page."""
    return Markup(figures.svg(figure, str(escape(title))))


def data_link(text: str, name: str) -> Markup:
    """A link to the numbers behind a figure, which are in the page itself."""
    return DATA.format(name, base64.b64encode(text.encode()).decode())


def share(estimate: Estimate) -> Markup:
    """A share of samples in a cell, with its interval and what was counted."""
    if not estimate.of:
        return SMALL.format("not estimable")
    ends = (100 * value for value in estimate[:3])
    return COUNTED.format(*ends, estimate.hits, estimate.of)


def number(estimate: Estimate, form: Form = "{:.3f}".format, missing: str = "one class only") -> Markup:
    """A number in a cell, with its interval."""
    if estimate.value != estimate.value:
        return SMALL.format(missing)
    return ENDS.format(*map(form, estimate[:3]))


def over_seeds(mean: Interval | None, form: Form = "{:.3f}".format) -> Markup:
    """A mean over seeds in a cell, with its interval."""
    if mean is None:
        return SMALL.format("one seed")
    if mean.flat:
        return Markup("{}<br><small>each of {}</small>").format(form(mean.mean), mean.n)
    return ENDS.format(*map(form, (mean.mean, mean.low, mean.high)))


# Flower's bundle has no templates: they are looked for when a page is made, not at the import of what a terminal shows.
LOADER = FileSystemLoader(Path(__file__).parent / "templates")
TEMPLATES = Environment(loader=LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False)
NAMES: dict[str, Any] = {"svg": svg, "data_link": data_link, "show": show}
TEMPLATES.globals |= NAMES
