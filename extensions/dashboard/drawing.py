"""The page's three drawings, as SVG: who is where, how long contacts took, what the models are worth."""

from collections.abc import Sequence
from typing import NamedTuple

from fedsmall.extensions.dashboard.desk import Map
from fedsmall.sim.report.style import LOOKS, SPARE, place_on_circle

COLOURS = tuple(look.colour for look in (*LOOKS.values(), *SPARE))
WIDE, HIGH, RADIUS = 340.0, 260.0, 88.0
MOST_LABELS = 24
BROAD, LOW, LEFT = 640.0, 120.0, 64.0  # a chart, and where its line begins


class Seat(NamedTuple):
    """A site on the map: where its dot and its name stand, and in what colour its traveller is drawn."""

    site: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    colour: str
    common: bool


class Arrow(NamedTuple):
    """The way of a traveller from the site that trained it last to the site that trains it next."""

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


def seats(shown: Map) -> list[Seat]:
    """The sites in a circle, in the order of their names, the first on top."""
    names = [sitting.site for sitting in shown.sitting]
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    found = []
    for number, sitting in enumerate(shown.sitting):
        across, down, anchor = place_on_circle(number, len(names))
        found.append(
            Seat(
                site=sitting.site if len(names) <= MOST_LABELS else "",
                x=WIDE / 2 + RADIUS * across,
                y=HIGH / 2 + RADIUS * down,
                label_x=WIDE / 2 + (RADIUS + 14) * across,
                label_y=HIGH / 2 + (RADIUS + 18) * down + 4,
                anchor=anchor,
                colour=colour.get(sitting.by, COLOURS[0]),
                common=sitting.common,
            )
        )
    return found


def arrows(shown: Map) -> list[Arrow]:
    """An arrow for every traveller that is not where it was trained."""
    places = {sitting.site: seat for sitting, seat in zip(shown.sitting, seats(shown), strict=True)}
    found = []
    for sitting in shown.sitting:
        if sitting.common or sitting.by not in places or sitting.by == sitting.site:
            continue
        start, end = places[sitting.by], places[sitting.site]
        length = max(((end.x - start.x) ** 2 + (end.y - start.y) ** 2) ** 0.5, 1e-9)
        back = min(13.0 / length, 0.4)  # it ends before the dots begin
        across, down = (end.x - start.x) * back, (end.y - start.y) * back
        words = f"the model that {sitting.by} trained last is at {sitting.site}"
        found.append(Arrow(start.x + across, start.y + down, end.x - across, end.y - down, end.colour, words))
    return found


def chart(places: Sequence[float], values: Sequence[float], unit: str = "", low: float | None = None) -> Chart | None:
    """Values over rounds as a line, from ``low`` (the least) to the largest; None for fewer than two."""
    if len(values) < 2:
        return None
    low = min(values) if low is None else low
    high, first, last = max(values), places[0], places[-1]
    across, up = max(last - first, 1e-12), max(high - low, 1e-12)
    dots = tuple(
        (
            round(LEFT + (BROAD - LEFT - 10) * (place - first) / across, 1),
            round(LOW - 10 - (LOW - 20) * (value - low) / up, 1),
            f"round {place:g}: {value:.4g}{unit}",
        )
        for place, value in zip(places, values, strict=True)
    )
    points = " ".join(f"{x},{y}" for x, y, _ in dots)
    return Chart(points, dots, f"{low:.3g}{unit}", f"{high:.3g}{unit}", f"round {first:g}", f"round {last:g}")
