"""One look for all tables and figures. Colours: Okabe and Ito, for colour-blind readers; markers hold in grey."""

from collections.abc import Sequence
from importlib.resources import files
from math import cos, pi, sin
from typing import NamedTuple

from markupsafe import Markup

from fedsmall.methods import METHODS
from fedsmall.plan import Method


class Style(NamedTuple):
    """How a method is drawn: a colour that stands out on white and on black, a matplotlib marker, a line style."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


DASHED, DOTTED, DASHDOT = (0, (5.0, 2.0)), (0, (1.2, 1.6)), (0, (6.0, 1.8, 1.2, 1.8))
LONG = (0, (9.0, 2.0))

LOOKS: dict[str, Style] = {
    "Standalone": Style("#8a8f98", "x", DOTTED),
    "FedAvg, equal period": Style("#56a5d8", "v", DASHED),
    "FedAvg": Style("#2f74c0", "o", DASHED),
    "FedProx": Style("#b07cc6", "s", DASHDOT),
    "FedSGD": Style("#a0783c", "<", DOTTED),
    "DaisyChain": Style("#d9a200", "D", DASHDOT),
    "FedDC": Style("#d9541e", "^", "-"),
    "RadonMachine": Style("#3aa6a6", "h", DASHED),
    "FedDC+Radon": Style("#12876f", "P", "-"),
    "RepFL": Style("#c9689a", ">", DASHED),
    "RepTreeFL": Style("#b3246f", "p", "-"),
    "FedDC+RepTreeFL": Style("#7d3fbf", "*", "-"),
    "Central": Style("#5c6470", "d", LONG),
}
SPARE = (
    Style("#2f8f4e", "s", DASHDOT),
    Style("#c0392b", "X", DASHED),
    Style("#6a7fdb", "8", DOTTED),
    Style("#9aa52b", "H", DASHDOT),
    Style("#e07aa0", "<", LONG),
    Style("#4fb0c6", ">", DASHDOT),
)


def place(method: Method) -> tuple[int, ...]:
    """Where a method stands: alone, averaged, chained, in trees, central; in each, rare averaging before frequent."""
    family = ("standalone", "federated", "central").index(method.family)
    is_chained, is_averaged = bool(method.permute_every), bool(method.aggregate_every)
    kind = 3 if method.tree else is_chained + (is_chained and is_averaged)
    return family, kind, _listed(method), -(method.aggregate_every or 0)


def in_order(methods: Sequence[Method]) -> list[Method]:
    """Methods in the order of all tables and figures; equals keep the order in which they come."""
    return sorted(methods, key=place)


def looks(methods: Sequence[Method]) -> dict[str, Style]:
    """The look of each method, by its label; of two settings of one method the second gets a spare look."""
    chosen: dict[str, Style] = {}
    for method in in_order(methods):
        spare = (look for look in SPARE if look not in chosen.values())
        rare = method.name == "FedAvg" and (method.aggregate_every or 0) > 1
        own_look = LOOKS.get("FedAvg, equal period" if rare else method.name, SPARE[_listed(method) % len(SPARE)])
        chosen[method.label] = next(spare, own_look) if own_look in chosen.values() else own_look
    return chosen


def _listed(method: Method) -> int:
    names = list(METHODS)
    return names.index(method.name) if method.name in names else len(names)


LONGEST = 14  # letters of a name beside a dot


class Place(NamedTuple):
    """A place on a circle of radius 1 around (0, 0), and on which side of it words begin (SVG's text-anchor)."""

    across: float
    down: float
    anchor: str


def place_on_circle(number: int, count: int) -> Place:
    """The place of a site, by its number among so many: in the order of names, the first on top."""
    angle = 2 * pi * number / count - pi / 2
    across, down = cos(angle), sin(angle)
    return Place(across, down, "middle" if abs(across) < 0.3 else "start" if across > 0 else "end")


def short_name(name: str, longest: int = LONGEST) -> str:
    """A name as it fits beside a dot."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def style_sheet() -> Markup:
    """The text of report.css, the one style sheet of all pages, to stand in a page as it is."""
    return Markup((files(__package__) / "report.css").read_text(encoding="utf-8"))
