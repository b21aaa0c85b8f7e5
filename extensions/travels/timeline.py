"""When each thing happens in the picture of travelling models, and where every model is then, as keyframes."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from fedsmall.extensions.travels.seen import Stop, Travels
from fedsmall.travel.schedule import Action

TRAIN_S, HOP_S, GATHER_S, REST_S = 0.9, 1.0, 0.8, 1.0  # how long models train, are on their way, gather, and are one
FADE_S, GAP_S, END_S = 0.4, 2.0, 1.6  # to vanish, what is not shown, and the last contact until all begins anew

Key = tuple[float, str]  # seconds, and a value of CSS from then on
Point = tuple[float, float]


class Beat(NamedTuple):
    """The times of one stop, in seconds: models ``train`` at their sites, ``leave``, and it is ``over``.

    Those that become one are ``gathered`` and ``part`` again; of others the two are ``over``. What is skipped before
    it begins at ``gap``.
    """

    gap: float
    train: float
    leave: float
    gathered: float
    part: float
    over: float


def beats(stops: Sequence[Stop]) -> list[Beat]:
    """The times of all stops; the picture is as long as the last is not over."""
    made: list[Beat] = []
    now = FADE_S
    for stop in stops:
        train = now + (GAP_S if stop.skipped else 0.0)
        leave = train + TRAIN_S
        gathered, part = leave, leave
        if stop.action is Action.AGGREGATE:
            gathered = leave + GATHER_S
            part = gathered + REST_S
        over = part + (GATHER_S if part > leave else HOP_S)
        made.append(Beat(now, train, leave, gathered, part, over))
        now = over
    return [*made[:-1], made[-1]._replace(over=made[-1].over + END_S)]


def ways(travels: Travels, seats: Sequence[Point], middles: Sequence[Point]) -> list[list[Key]]:
    """Where every followed model is and when; ``middles`` is where each of them gathers with others."""
    times = beats(travels.stops)
    return [
        _way(travels.stops, times, [seats[stop.at[model]] for stop in travels.stops], middle)
        for model, middle in zip(travels.followed, middles, strict=True)
    ]


def _way(stops: Sequence[Stop], times: Sequence[Beat], at: Sequence[Point], middle: Point) -> list[Key]:
    keys = [(0.0, moved(at[0]))]
    for stop, beat, here in zip(stops, times, at, strict=True):
        if stop.skipped:  # it stays until nobody sees it any more, and is then somewhere else
            keys += [(beat.gap + FADE_S, keys[-1][1]), (beat.gap + FADE_S + 0.01, moved(here))]
        keys += [(beat.train, moved(here)), (beat.leave, moved(here))]
        if beat.part > beat.leave:
            keys += [(beat.gathered, moved(middle)), (beat.part, moved(middle))]
            keys += [(beat.part + GATHER_S, moved(here))] if stop is stops[-1] else []
    return [*keys, (times[-1].over, moved(at[-1]))]


def rings(travels: Travels) -> list[list[Key]]:
    """How much of all samples every followed model has learnt from and when: offsets of a dash of length 100."""
    times = beats(travels.stops)
    return [_ring(travels.stops, times, model) for model in travels.followed]


def _ring(stops: Sequence[Stop], times: Sequence[Beat], model: int) -> list[Key]:
    keys = [(0.0, offset(0.0))]
    for stop, beat in zip(stops, times, strict=True):
        before = offset(stop.before[model])
        if stop.skipped:
            keys += [(beat.gap + FADE_S, keys[-1][1]), (beat.gap + FADE_S + 0.01, before)]
        keys += [(beat.train, before), (beat.leave, offset(stop.trained[model]))]
        if beat.part > beat.leave:
            keys += [(beat.gathered, keys[-1][1]), ((beat.gathered + beat.part) / 2, offset(stop.averaged[model]))]
    return [*keys, (times[-1].over, keys[-1][1])]


def shades(travels: Travels) -> list[Key]:
    """When the models are to be seen: not while contacts are skipped, nor as all begins anew."""
    times = beats(travels.stops)
    end = times[-1].over
    keys = [(0.0, "opacity:0"), (FADE_S, "opacity:1")]
    for stop, beat in zip(travels.stops, times, strict=True):
        if stop.skipped:
            keys += [(beat.gap, "opacity:1"), (beat.gap + FADE_S, "opacity:0")]
            keys += [(beat.train - FADE_S, "opacity:0"), (beat.train, "opacity:1")]
    return [*keys, (end - FADE_S, "opacity:1"), (end, "opacity:0")]


def shown_as_one(travels: Travels) -> list[Key]:
    """When models are one, and drawn so."""
    keys = [(0.0, "opacity:0")]
    for beat in beats(travels.stops):
        if beat.part > beat.leave:
            keys += [(beat.gathered - FADE_S / 2, "opacity:0"), (beat.gathered, "opacity:1")]
            keys += [(beat.part, "opacity:1"), (beat.part + FADE_S / 2, "opacity:0")]
    return [*keys, (beats(travels.stops)[-1].over, "opacity:0")]


def moved(to: Point) -> str:
    """To stand at a point."""
    return f"transform:translate({to[0]:g}px,{to[1]:g}px)"


def offset(share: float) -> str:
    """To be closed so far, of a ring whose dash is as long as 100."""
    return f"stroke-dashoffset:{100 - round(100 * share)}"


def keyframes(name: str, keys: Sequence[Key], length: float) -> str:
    """A rule of CSS; of equal values in a row the first and the last stand, together."""
    parts = []
    for value, group in groupby(keys, key=lambda key: key[1]):
        at = [f"{100 * time / length:.2f}".rstrip("0").rstrip(".") + "%" for time, _ in group]
        parts.append(f"{','.join(dict.fromkeys([at[0], at[-1]]))}{{{value}}}")
    return f"@keyframes {name}{{{''.join(parts)}}}"
