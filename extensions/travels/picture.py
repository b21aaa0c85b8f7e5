"""Models on their way as a picture that moves: SVG and CSS without a script, the same letters for the same run."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from math import pi
from typing import NamedTuple, final
from zlib import crc32

import numpy as np
from markupsafe import Markup

from fedsmall.plan import Method, Plan
from fedsmall.planning.validation import among
from fedsmall.sim.report.style import LOOKS, SPARE, place_on_circle, short_name
from fedsmall.sim.runs.folder import PlanRun, Run, reference_of
from fedsmall.travel.journey import groups_of, journey
from fedsmall.travel.schedule import Action, CommRound

# Where the models of a run were at each communication round, and from which sites each had learnt by then

MISSED = ("absent", "silent", "set aside", "refused")  # kinds of events: a site gave no update that was used
REPLACED = "replaced"  # by the last global model, for what the site of this event had trained
BAD = (*MISSED, REPLACED)


@final
class Learnt:
    """``seen`` (models, sites): from which sites models have learnt, by the rules of what counts in averages."""

    def __init__(self, method: Method, models: int, sites: int) -> None:
        self._method = method
        self.seen = np.zeros((models, sites), bool)
        self._group = groups_of(method, models, method.group_count(sites))
        self._known_by_global = np.zeros((method.group_count(sites), sites), bool)
        self._trained, self._here = np.zeros(models, bool), np.zeros(models, bool)  # since the average; just now
        self._by = np.full(models, -1)  # the site that trained it last
        self._turn = 0

    def train(self, at: np.ndarray, befell: Mapping[int, str]) -> None:
        """Models train at the sites ``at`` (models,), to some of which ``befell`` a kind of :data:`BAD`."""
        kinds = [befell.get(site) for site in at.tolist()]
        replaced = np.array([befell.get(site) == REPLACED for site in self._by.tolist()])
        self._here = np.array([kind not in MISSED for kind in kinds]) & ~replaced
        self.seen[replaced], self._trained[replaced] = self._known_by_global[self._group[replaced]], False
        self.seen[self._here, at[self._here]] = True
        self._by[self._here] = at[self._here]
        self._trained |= self._here

    def average(self, refused: bool = False) -> None:
        """The models of each group become one, unless its average is ``refused``."""
        counted = self._trained & self._here if self._method.hidden else self._trained
        turns = self._method.by_samples
        for group in [self._turn] if turns else range(len(self._known_by_global)):
            members = counted & (self._group == group)
            if members.any() and not refused:
                self._known_by_global[group] = self.seen[members].any(axis=0)
        if turns:
            self._turn = (self._turn + 1) % len(self._known_by_global)
            self._group[:] = self._turn
        self.seen, self._trained[:] = self._known_by_global[self._group], False


FEW = 12  # so many models are followed, and so many communication rounds shown, whole
MOST = 1000  # sites: what each model has learnt from is kept for every one of them
AFTER = 3  # communication rounds that are shown from an average on
BEFORE = 2  # and before one, where others are left out

Way = tuple[CommRound, np.ndarray]  # a communication round, and where each model trains for it


class Stop(NamedTuple):
    """A communication round: where each model trained for it, and what models have learnt from when it is over.

    ``at`` (models,) are indices of sites in the order of names. ``before``, ``trained`` and ``averaged`` (models,) are
    the shares of all samples (else sites) that each model has learnt from as it comes, as it leaves, and after the
    average; ``sites`` and ``samples`` means over models as they leave. ``skipped`` ones before it are not shown.
    """

    t: int
    action: Action
    at: np.ndarray
    before: np.ndarray
    trained: np.ndarray
    averaged: np.ndarray
    sites: float
    samples: float
    skipped: int = 0


class Travels(NamedTuple):
    """The way of a plan's models: the sites' names and training samples (none where not known), groups, and stops."""

    plan: Plan
    names: tuple[str, ...]
    samples: tuple[int, ...]
    groups: np.ndarray
    stops: tuple[Stop, ...]

    @property
    def followed(self) -> list[int]:
        """The models that are drawn: all, or of many those that stand evenly in the order in which they set out."""
        models = len(self.groups)
        return [int(number) for number in np.linspace(0, models - 1, min(FEW, models))]


def travels(run: Run) -> Travels | None:
    """The ways of the models of the run's main method, or of another; None where no model went anywhere."""
    done = [plan_run for plan_run in run.done if plan_run.plan.method.moves]
    main = run.scenario.reference or reference_of([plan_run.plan.method for plan_run in run.done])
    for plan_run in sorted(done, key=lambda plan_run: plan_run.label != main):
        samples = samples_of(plan_run)
        names = tuple(samples) or tuple(site_names(run))
        count = len(names) or int(run.about.get("sites", 0))
        names = names or tuple(f"site {number + 1}" for number in range(count))
        if (ways := travels_of(plan_run, names, tuple(samples.values()))) is not None:
            return ways
    return None


def site_names(run: Run) -> list[str]:
    """The names of a run's sites in order, as far as its evaluations name them."""
    ends = [plan_run.evaluations[-1]["sites"].get("names") or [] for plan_run in run.done if plan_run.evaluations]
    return sorted(max(ends, key=len, default=[]))


def samples_of(plan_run: PlanRun) -> dict[str, int]:
    """The training samples of every site by name, in the order of names; empty where some are not known."""
    real = plan_run.row.get("real", {}).get("sites", {})
    samples = plan_run.row.get("samples") or {site: summary["samples"] for site, summary in real.items()}
    return {site: samples[site] for site in sorted(samples)} if all(samples.values()) else {}


def travels_of(plan_run: PlanRun, names: tuple[str, ...], samples: tuple[int, ...]) -> Travels | None:
    """The way of the models of one plan's run over sites of these ``names``; None where none went, or for too many."""
    plan, sites = among(plan_run.plan, len(names)), len(names)
    regions = plan.method.regions
    is_apart = regions is not None and regions.sites is not None and len(regions.names) != sites  # of one, or above
    if is_apart or not 2 <= sites <= MOST:
        return None
    try:
        ways = list(journey(plan, sites, samples))
    except ValueError:  # it takes numbers of samples that an older folder does not hold
        return None
    ways = [(comm_round, at) for comm_round, at in ways if comm_round.t <= plan_run.row["rounds"]]
    if all((at == after).all() for (_, at), (_, after) in pairwise(ways)):
        return None
    counted = () if plan.method.by_samples else samples  # else a model trains on a part of a site's samples
    shown = comm_rounds_shown([comm_round.action for comm_round, _ in ways])
    stops = _stops(plan_run, plan, ways[: shown[-1] + 1], names, counted)
    kept = [stops[index]._replace(skipped=index - before - 1) for before, index in pairwise([-1, *shown])]
    groups = groups_of(plan.method, len(ways[0][1]), plan.method.group_count(sites))
    return Travels(plan, names, counted, groups, tuple(kept))


def comm_rounds_shown(actions: Sequence[Action]) -> list[int]:
    """Which communication rounds are shown: up to shortly after the first average, without a long stretch before it."""
    every = list(range(len(actions)))
    first = next((index for index, action in enumerate(actions) if action is Action.AGGREGATE), None)
    if first is None or first + AFTER <= FEW:
        return every[: max(FEW if first is None else first + AFTER, FEW - 4)]
    return [*every[: FEW - BEFORE - AFTER], *every[first - BEFORE : first + AFTER]]


def _stops(
    plan_run: PlanRun, plan: Plan, ways: Sequence[Way], names: Sequence[str], samples: Sequence[int]
) -> list[Stop]:
    counts = np.array(samples or [1] * len(names))
    share, learnt, stops = counts / counts.sum(), Learnt(plan.method, len(ways[0][1]), len(names)), []
    for comm_round, at in ways:
        events = [event for event in plan_run.events if event["t"] == comm_round.t and event.get("kind") in BAD]
        befell = {event["site"]: event["kind"] for event in events}
        before = learnt.seen @ share
        learnt.train(at, {names.index(site): kind for site, kind in befell.items() if site in names})
        left = learnt.seen.copy()  # (models, sites)
        if comm_round.action is Action.AGGREGATE:
            learnt.average(refused="server" in befell)
        means = float(left.sum(axis=1).mean()), float((left @ counts).mean())
        stops.append(Stop(comm_round.t, comm_round.action, at, before, left @ share, learnt.seen @ share, *means))
    return stops


# How that is drawn

TRAIN_S, HOP_S, GATHER_S, REST_S = 0.9, 1.0, 0.8, 1.0  # how long models train, are on their way, gather, and are one
FADE_S, GAP_S, END_S = 0.4, 2.0, 1.6  # to vanish, what is not shown, and the last round until all begins again

Key = tuple[float, str]  # seconds, and a value of CSS from then on
Point = tuple[float, float]


class Beat(NamedTuple):
    """The times of one stop, in seconds: models ``train`` at their sites, ``leave``, and it is ``over``.

    Models that are averaged are ``gathered`` and ``part`` again. What is skipped before it begins at ``gap``.
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
    start = FADE_S
    for stop in stops:
        train = start + (GAP_S if stop.skipped else 0.0)
        leave = train + TRAIN_S
        gathered, part = leave, leave
        if stop.action is Action.AGGREGATE:
            gathered = leave + GATHER_S
            part = gathered + REST_S
        over = part + (GATHER_S if part > leave else HOP_S)
        made.append(Beat(start, train, leave, gathered, part, over))
        start = over
    return [*made[:-1], made[-1]._replace(over=made[-1].over + END_S)]


def way_keys(travels: Travels, site_points: Sequence[Point], middles: Sequence[Point]) -> list[list[Key]]:
    """Where every followed model is and when; ``middles`` is where each of them gathers with others."""
    made, stops, times = [], travels.stops, beats(travels.stops)
    for model, middle in zip(travels.followed, map(moved_to, middles), strict=True):
        at = [moved_to(site_points[stop.at[model]]) for stop in stops]
        keys = [(0.0, at[0])]
        for stop, beat, point in zip(stops, times, at, strict=True):
            if stop.skipped:  # it stays until nobody sees it any more, and is then somewhere else
                keys += [(beat.gap + FADE_S, keys[-1][1]), (beat.gap + FADE_S + 0.01, point)]
            keys += [(beat.train, point), (beat.leave, point)]
            if beat.part > beat.leave:
                keys += [(beat.gathered, middle), (beat.part, middle)]
                keys += [(beat.part + GATHER_S, point)] if stop is stops[-1] else []
        made.append([*keys, (times[-1].over, at[-1])])
    return made


def ring_keys(travels: Travels) -> list[list[Key]]:
    """How much of all samples every followed model has learnt from and when: offsets of a dash of length 100."""
    made, pairs = [], list(zip(travels.stops, beats(travels.stops), strict=True))
    for model in travels.followed:
        keys = [(0.0, offset(0.0))]
        for stop, beat in pairs:
            before = offset(stop.before[model])
            if stop.skipped:
                keys += [(beat.gap + FADE_S, keys[-1][1]), (beat.gap + FADE_S + 0.01, before)]
            keys += [(beat.train, before), (beat.leave, offset(stop.trained[model]))]
            if beat.part > beat.leave:
                keys += [(beat.gathered, keys[-1][1]), ((beat.gathered + beat.part) / 2, offset(stop.averaged[model]))]
        made.append([*keys, (pairs[-1][1].over, keys[-1][1])])
    return made


def shade_keys(travels: Travels) -> list[Key]:
    """When the models are to be seen: not while communication rounds are skipped, nor as all begins anew."""
    times = beats(travels.stops)
    end = times[-1].over
    keys = [(0.0, "opacity:0"), (FADE_S, "opacity:1")]
    for stop, beat in zip(travels.stops, times, strict=True):
        if stop.skipped:
            keys += [(beat.gap, "opacity:1"), (beat.gap + FADE_S, "opacity:0")]
            keys += [(beat.train - FADE_S, "opacity:0"), (beat.train, "opacity:1")]
    return [*keys, (end - FADE_S, "opacity:1"), (end, "opacity:0")]


def union_keys(travels: Travels) -> list[Key]:
    """When models are one, and drawn so."""
    keys = [(0.0, "opacity:0")]
    for beat in beats(travels.stops):
        if beat.part > beat.leave:
            keys += [(beat.gathered - FADE_S / 2, "opacity:0"), (beat.gathered, "opacity:1")]
            keys += [(beat.part, "opacity:1"), (beat.part + FADE_S / 2, "opacity:0")]
    return [*keys, (beats(travels.stops)[-1].over, "opacity:0")]


def moved_to(to: Point) -> str:
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


WIDE, HIGH, MIDDLE, RADIUS = 400, 352, (200.0, 140.0), 100.0
NAME_LENGTH = 12  # characters
NAMED, DRAWN = 24, 120  # so many sites have names beside them, and dots of their own
LINE = 44  # the height of what is said of a communication round
BAR = (30.0, 340.0, 340.0)  # where the line of time begins, how long it is, and its height
AVERAGED = ("FedAvg", "FedDC", "FedDC+Radon", "FedProx", "DaisyChain", "RepFL", "FedAvg, equal period")
OTHERS = ("FedDC+RepTreeFL", "FedSGD", "RadonMachine", "RepTreeFL")
LOOK = [*(LOOKS[name] for name in (*AVERAGED, *OTHERS)), SPARE[3]]
COLOURS = tuple(look.colour for look in LOOK)
RING = (
    '<circle class="go r{0}" style="{4}" r="{5:g}" fill="none" stroke="{3}" stroke-width="3" pathLength="100" '
    'stroke-dasharray="100" transform="rotate(-90)"/>'
)
CAPTIONED = Markup(
    '<div class="travels"><input type="checkbox" id="{0}-still"><label for="{0}-still">hold still</label>\n'
    "<figure>{1}<figcaption>{2}, seed {3}: models on their way. A dot is a model{4}; the ring around it closes as it "
    "learns from more {5}, and is whole when it has learnt from all. Models are averaged in the middle; a long stroke "
    "on the line of time is an average.</figcaption></figure></div>"
)
STANDALONE = """:root{--ink:#1b2530;--soft:#5a6675;--paper:#fff;--rule:#d5dae1;font-family:system-ui,sans-serif}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa6b5;--paper:#14181d;--rule:#343c46}}"""


def part(run: Run, name: str) -> Markup:
    """The picture with its caption, for the section of that name; nothing where no model went anywhere."""
    shown_travels = travels(run)
    if shown_travels is None:
        return Markup()
    shown, models = len(shown_travels.followed), len(shown_travels.groups)
    note = f" ({shown} of {models} are shown, evenly by where they set out)" if shown < models else ""
    whose = shown_travels.plan.method.label, shown_travels.plan.seed, note
    learnt_from = "samples" if shown_travels.samples else "sites"
    return CAPTIONED.format(name, travel_picture(shown_travels, name), *whose, learnt_from)


def file_of(run: Run) -> str | None:
    """The picture as a file of its own; None where no model went anywhere."""
    shown_travels = travels(run)
    return None if shown_travels is None else travel_file(shown_travels)


def travel_picture(travels: Travels, name: str) -> Markup:
    """The picture as an element of a page, whose ink, paper and rules it takes; each on a page has a ``name``."""
    element = Markup('<svg {} style="width:100%;max-width:30rem;height:auto">{}</svg>')
    return element.format(_head(travels), _inside(travels, name))


def travel_file(travels: Travels) -> str:
    """The picture as a file of its own, on light paper or on dark as its reader has it."""
    made = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" {} width="{}" height="{}"><style>{}</style>'
        '<rect width="100%" height="100%" fill="var(--paper)"/>{}</svg>\n'
    ).format(_head(travels), 2 * WIDE, 2 * HIGH, Markup(STANDALONE), _inside(travels, ""))
    return str(made)


def _head(travels: Travels) -> Markup:
    title = f"{travels.plan.method.label}: models that travel through {len(travels.names)} sites"
    return Markup('role="img" aria-label="{}" viewBox="0 0 {} {}"').format(title, WIDE, HIGH)


def _inside(travels: Travels, name: str) -> Markup:
    prefix = f"v{crc32(name.encode()):x}" if name else "v"
    radius = min(13.0, max(1.5, 0.8 * pi * RADIUS / len(travels.names)))
    drawn = _sites(travels, radius), _models(travels, radius), _words(travels), _time(travels)
    return Markup('<g id="{}">{}</g>').format(prefix, Markup("").join([_style(travels, prefix), *drawn]))


def site_points(travels: Travels) -> list[Point]:
    """Where the sites are."""
    places = [place_on_circle(number, len(travels.names)) for number in range(len(travels.names))]
    return [_at(MIDDLE, RADIUS, place.across, place.down) for place in places]


def middles(travels: Travels) -> list[Point]:
    """Where each followed model becomes one with those of its group."""
    of = [int(travels.groups[model]) for model in travels.followed]
    groups = sorted(set(of))
    places = [place_on_circle(groups.index(group), len(groups)) for group in of]
    return [_at(MIDDLE, 0.0 if len(groups) == 1 else 44.0, place.across, place.down) for place in places]


def _at(centre: Point, radius: float, across: float, down: float) -> Point:
    return round(centre[0] + radius * across, 1), round(centre[1] + radius * down, 1)


def still(travels: Travels) -> int:
    """The stop that is shown where nothing may move: the first average, or the last stop."""
    averages = [index for index, stop in enumerate(travels.stops) if stop.action is Action.AGGREGATE]
    return averages[0] if averages else len(travels.stops) - 1


def colours(travels: Travels) -> list[str]:
    """The colours of the followed models: one for each group where there are a few, else one for each model."""
    groups = [int(travels.groups[model]) for model in travels.followed]
    numbers = groups if 1 < len(set(groups)) < len(groups) else range(len(groups))
    return [COLOURS[number % FEW] for number in numbers]


def _style(travels: Travels, prefix: str) -> Markup:
    length = beats(travels.stops)[-1].over
    at, named = f"#{prefix} ", partial(keyframes, length=length)
    rules = [f"{at}.go{{animation:{length:g}s ease-in-out infinite}}"]
    rules += [f"{at}.w,{at}.p{{animation-duration:{length:g}s}}"]
    rules += [f"{at}.w{{animation-timing-function:step-end}}{at}.p{{animation-timing-function:linear}}"]
    ways = way_keys(travels, site_points(travels), middles(travels))
    moving = {"a": shade_keys(travels), "c": union_keys(travels), "w": _turns(travels)}
    moving |= {"p": [(0.0, moved_to((0, 0))), (length, moved_to((BAR[1], 0)))]}
    moving |= {f"m{model}": way for model, way in enumerate(ways)}
    moving |= {f"r{model}": ring for model, ring in enumerate(ring_keys(travels))}
    for name, keys in moving.items():
        rules.append(named(prefix + name, keys) + f"{at}.{name}{{animation-name:{prefix}{name}}}")
    still = f"{at}*{{animation:none!important}}{at}.s{{display:inline}}{at}.p{{display:none}}"
    rules += [f"{at}.s{{display:none}}", f"@media (prefers-reduced-motion:reduce),print{{{still}}}"]
    return Markup("<style>{}</style>").format(Markup("\n".join(rules)))


def _sites(travels: Travels, radius: float) -> Markup:
    count, shown = len(travels.names), list(range(len(travels.names)))
    parts = [Markup('<circle cx="{:g}" cy="{:g}" r="{:g}" fill="none" stroke="var(--rule)"/>').format(*MIDDLE, RADIUS)]
    if count > DRAWN:
        shown = sorted({int(stop.at[model]) for stop in travels.stops for model in travels.followed})
    every = site_points(travels)
    ring = (
        '<circle class="site" cx="{:g}" cy="{:g}" r="{:g}" fill="var(--paper)" stroke="var(--rule)" stroke-width="2"/>'
    )
    parts += [Markup(ring).format(*every[number], radius) for number in shown]
    if count <= NAMED:
        parts += [_name(travels.names[number], number, count, radius) for number in shown]
    return Markup("").join(parts)


def _name(name: str, number: int, count: int, radius: float) -> Markup:
    across, down, anchor = place_on_circle(number, count)
    x, y = _at(MIDDLE, RADIUS + radius + 6, across, down)
    y += 4 + (6 * down if anchor == "middle" else 0)
    text = Markup('<text x="{:g}" y="{:g}" text-anchor="{}" font-size="11" fill="var(--soft)">{}</text>')
    return text.format(x, round(y, 1), anchor, short_name(name, NAME_LENGTH))


def _models(travels: Travels, radius: float) -> Markup:
    at, every = still(travels), site_points(travels)
    stop, parts = travels.stops[at], [_route(travels)]
    for number, (model, colour) in enumerate(zip(travels.followed, colours(travels), strict=True)):
        way, ring = moved_to(every[stop.at[model]]), offset(stop.trained[model])
        dot = Markup('<g class="go m{0}" style="{1}"><circle r="{2:g}" fill="{3}"/>' + RING + "</g>")
        parts.append(dot.format(number, way, max(4.0, 0.55 * radius), colour, ring, max(7.0, radius)))
    if not travels.groups.max():
        circle = '<circle class="go c" cx="{:g}" cy="{:g}" r="{:g}" fill="var(--ink)" opacity="0"/>'
        parts.append(Markup(circle).format(*MIDDLE, max(7.0, radius) + 1.5))
    return Markup('<g class="go a">{}</g>').format(Markup("").join(parts))


def _route(travels: Travels) -> Markup:
    every, stops = site_points(travels), travels.stops[: still(travels) + 1]
    since = max(index for index, stop in enumerate(stops) if stop.skipped or index == 0)
    points = " ".join(f"{x:g},{y:g}" for x, y in (every[stop.at[travels.followed[0]]] for stop in stops[since:]))
    line = '<polyline class="s" points="{}" fill="none" stroke="{}" stroke-width="1.5" stroke-opacity=".6"/>'
    return Markup(line).format(points, colours(travels)[0])


def lines(travels: Travels) -> list[tuple[float, str, str]]:
    """What is said and from when on, in seconds: what happens, and what the models have learnt from."""
    captions, last = [], 0
    union = "each group becomes one" if travels.groups.max() else "become one"
    for stop, beat in zip(travels.stops, beats(travels.stops), strict=True):
        if stop.skipped:
            captions.append((beat.gap, f"after round {last}, and before round {stop.t}:", "likewise, not shown"))
        ends = stop.action is Action.AGGREGATE
        done = f"round {stop.t}: all train, then {union if ends else 'go on'}"
        of = f", {stop.samples:.0f} of {sum(travels.samples)} samples" if travels.samples else ""
        learnt = f"a model has learnt from {stop.sites:.1f} of {len(travels.names)} sites{of}"
        captions.append((beat.train, done, learnt))
        last = stop.t
    return captions


def _turns(travels: Travels) -> list[Key]:
    captions = lines(travels)
    keys = [(time, moved_to((0, -LINE * index))) for index, (time, _, _) in enumerate(captions)]
    return [(0.0, keys[0][1]), *keys, (beats(travels.stops)[-1].over, keys[-1][1])]


def _words(travels: Travels) -> Markup:
    captions = lines(travels)
    begun = beats(travels.stops)[still(travels)].train
    shown = [time for time, _, _ in captions].index(begun)
    pair = (
        '<text x="{0:g}" y="{1}" text-anchor="middle" font-size="12.5" fill="var(--ink)">{2}</text>'
        '<text x="{0:g}" y="{3}" text-anchor="middle" font-size="11.5" fill="var(--soft)">{4}</text>'
    )
    texts = [
        Markup(pair).format(WIDE / 2, LINE * index + 16, first, LINE * index + 34, second)
        for index, (_, first, second) in enumerate(captions)
    ]
    window = '<svg y="278" width="{}" height="{}" style="overflow:hidden"><g class="go w" style="{}">{}</g></svg>'
    return Markup(window).format(WIDE, LINE, moved_to((0, -LINE * shown)), Markup("").join(texts))


def _time(travels: Travels) -> Markup:
    start, length, height = BAR
    times = beats(travels.stops)
    parts = [Markup('<path d="M{:g} {:g}h{:g}" stroke="var(--rule)"/>').format(start, height, length)]
    for stop, beat in zip(travels.stops, times, strict=True):
        x, ends = round(start + length * beat.leave / times[-1].over, 1), stop.action is Action.AGGREGATE
        stroke = '<path d="M{:g} {:g}v{}" stroke="var(--{})" stroke-width="{}"/>'
        parts.append(Markup(stroke).format(x, height - 3 - 3 * ends, 6 + 6 * ends, "ink" if ends else "soft", 1 + ends))
    parts.append(Markup('<circle class="go p" cx="{:g}" cy="{:g}" r="4" fill="var(--ink)"/>').format(start, height))
    return Markup("").join(parts)
