"""What each party knows of a candidate: features of mean 0 and SD 1, summed over communication rounds by kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedsmall.extensions.audit.federations import World
from fedsmall.extensions.audit.sightings import OLDEST, SERVER, Route, Sightings, Visit

AGES = (1, 2, 4, OLDEST)  # communication rounds since a model was at a site: up to 1, 2, 4, ...
TIMES = 4  # parts of a run that are told apart
SERVER_TIMES = 8


@dataclass(frozen=True)
class Case:
    """One method's sightings; ``observers`` are sites that keep what they receive, ``group`` those that share it."""

    world: World
    route: Route
    seen: Sightings
    observers: tuple[int, ...]
    group: tuple[int, ...]

    @cached_property
    def pushed(self) -> np.ndarray:
        """How far an update pushed the model towards a candidate's right answer, per length of its way."""
        return _standard((self.seen.after - self.seen.before) / np.maximum(self.seen.moved, 1e-12))

    @cached_property
    def global_models(self) -> np.ndarray:
        """How sure global models are, and how far their changes pushed: (federations, features, candidates)."""
        seen = self.seen
        pushed = np.diff(seen.global_models, axis=1) / np.maximum(seen.stepped, 1e-12)[..., None]
        times = _times(pushed.shape[1], TIMES)
        last = _standard(seen.global_models[:, -1:])
        sums = [_sum_by_time(_standard(moments), times) for moments in (seen.global_models[:, 1:], pushed)]
        return np.concatenate([*sums, last], 1)

    @cached_property
    def visits(self) -> list[tuple[Visit, np.ndarray]]:
        """Every visit, and what it shows of the visited site's candidates."""
        if not self.seen.visits:
            return []
        every = _standard(np.concatenate(self.seen.sure, axis=1))
        cuts = np.cumsum([part.shape[1] for part in self.seen.sure])[:-1]
        return list(zip(self.seen.visits, np.split(every, cuts, axis=1), strict=True))


class InHand(NamedTuple):
    """``features`` (federations, units, features), each unit's candidate, and records ``read`` of those there."""

    features: np.ndarray
    candidates: np.ndarray
    read: tuple[int, int] | None


def released(case: Case) -> InHand | None:
    """The global model at the end."""
    return _of_everyone(_standard(case.seen.global_models[:, -1:])) if case.route.averaged.any() else None


def own_models(case: Case) -> InHand | None:
    """What a site that trains alone would release: its own model."""
    return None if case.route.averaged.any() else _of_everyone(_standard(case.seen.after[:, -1:]))


def every_global_model(case: Case) -> InHand | None:
    """Every global model: what any site has, and a server that sees sums only."""
    if not case.route.averaged.any():
        return None
    return _of_everyone(case.global_models, _count_read(case.seen.read_average, case.seen.present))


def raw_model(case: Case) -> InHand | None:
    """One model of the middle of the run as the candidate's site sent it on, without what it had been before."""
    travels = np.array([comm_round.travels for comm_round, _ in case.route.comm_rounds])
    places = np.flatnonzero(travels & ~case.route.averaged & ~case.route.set_out)
    return _of_everyone(_standard(case.seen.after[:, places[[len(places) // 2]]])) if len(places) else None


def neighbour(case: Case) -> InHand | None:
    """All that one other site receives, for each of the observers; their own patients are not counted."""
    if not case.route.averaged.any() or len(case.world.names) < 2:
        return None
    return _received(case, [(site,) for site in case.observers])


def colluders(case: Case) -> InHand | None:
    """All that the sites of the group receive, put together; their own patients are not counted."""
    if not case.route.hops or not 2 <= len(case.group) < len(case.world.names):
        return None
    return _received(case, [case.group])


def update(case: Case) -> InHand | None:
    """The first update that the candidate's site sends, where the model that it set out from is known."""
    if not case.route.averaged.any():
        return None
    features = np.concatenate([case.pushed[:, :1], _standard(case.seen.after[:, :1])], 1)
    return _of_everyone(features, _count_read(case.seen.read[:, 0], case.seen.present))


def server(case: Case) -> InHand | None:
    """Every model that every site receives and sends."""
    if not case.route.averaged.any():
        return None
    times = _times(case.seen.after.shape[1], SERVER_TIMES)
    features = [_sum_by_time(case.pushed, times), _sum_by_time(_standard(case.seen.after), times), case.global_models]
    read = _count_read(np.any(case.seen.read, axis=1), case.seen.present)
    return _of_everyone(np.concatenate(features, 1), read)


def server_at_averages(case: Case) -> InHand | None:
    """Single models at averages alone: the server's view where hops are sealed."""
    if not case.route.hops:
        return None
    known = case.route.averaged & case.route.set_out
    read = _count_read(np.any(case.seen.read[:, known], axis=1), case.seen.present)
    return _of_everyone(np.concatenate([case.global_models, _by_age(case, (SERVER,))], 1), read)


VIEWS: dict[str, Callable[[Case], InHand | None]] = {
    "released": released,
    "own": own_models,
    "commons": every_global_model,
    "raw": raw_model,
    "neighbour": neighbour,
    "colluders": colluders,
    "update": update,
    "sealed": server_at_averages,
    "server": server,
}  # what each party has in hand; None where the method gives it nothing of the kind


def _of_everyone(features: np.ndarray, read: tuple[int, int] | None = None) -> InHand:
    """Features (federations, features, candidates) as a party's that looks at every candidate."""
    return InHand(np.moveaxis(features, 1, 2), np.arange(features.shape[2]), read)


def _received(case: Case, groups: Sequence[tuple[int, ...]]) -> InHand:
    global_models = case.global_models
    features, candidates, read, present = [], [], 0, 0
    for group in groups:
        others = np.flatnonzero(~np.isin(case.world.site_of, group))
        own_features = np.concatenate([global_models, _by_age(case, group), _known_starts(case, group)], 1)
        features.append(own_features[:, :, others])
        candidates.append(others)
        shown, counted = _read_by(case, group)
        read, present = read + shown, present + counted
    return InHand(np.moveaxis(np.concatenate(features, 2), 1, 2), np.concatenate(candidates), (read, present))


def _read_by(case: Case, group: tuple[int, ...]) -> tuple[int, int]:
    shown = case.seen.read_average.copy()
    for visit in case.seen.visits:
        if visit.to in group and _knows(visit, group):
            shown[:, visit.site] |= case.seen.read[:, visit.place, visit.site]
    others = ~np.isin(np.arange(shown.shape[1]), group)
    return _count_read(shown[:, others], case.seen.present[:, others])


def _knows(visit: Visit, group: tuple[int, ...]) -> bool:
    return visit.age == 1 and (visit.sender == SERVER or visit.sender in group)


def _count_read(shown: np.ndarray, present: np.ndarray) -> tuple[int, int]:
    return int((shown & present).sum()), int(present.sum())


def _by_age(case: Case, group: tuple[int, ...]) -> np.ndarray:
    coming = [(visit, sure) for visit, sure in case.visits if visit.to in group]
    chosen = [(int(np.searchsorted(AGES, visit.age)), visit.site, sure) for visit, sure in coming]
    return _sum_by_kind(case, chosen, len(AGES))


def _known_starts(case: Case, group: tuple[int, ...]) -> np.ndarray:
    pushed, site_of = case.pushed, case.world.site_of
    coming = [visit for visit, _ in case.visits if visit.to in group and _knows(visit, group)]
    return _sum_by_kind(case, [(0, v.site, pushed[:, v.place, site_of == v.site]) for v in coming], 1)


def _sum_by_kind(case: Case, chosen: Sequence[tuple[int, int, np.ndarray]], kinds: int) -> np.ndarray:
    """Sums of standardised numbers by kind, over the root of their count; NaN where there are none."""
    site_of = case.world.site_of
    total = np.zeros((len(case.seen.members), kinds, len(site_of)))
    count = np.zeros((kinds, len(site_of)))
    for kind, site, sure in chosen:
        at_site = site_of == site
        total[:, kind, at_site] += sure
        count[kind, at_site] += 1
    return np.where(count > 0, total / np.sqrt(np.maximum(count, 1)), np.nan)


def _sum_by_time(seen: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Standardised numbers (federations, moments, candidates) summed by part of the run."""
    parts = []
    for part in range(int(times.max()) + 1):
        binned = seen[:, times == part]
        counts = np.isfinite(binned).all(axis=0).sum(axis=0)
        parts.append(np.where(counts > 0, np.nansum(binned, 1) / np.sqrt(np.maximum(counts, 1)), np.nan))
    return np.stack(parts, 1)


def _times(moments: int, parts: int) -> np.ndarray:
    return np.arange(moments) * min(parts, moments) // max(moments, 1)


def _standard(seen: np.ndarray) -> np.ndarray:
    """Mean 0 and spread 1 over the federations, the first axis; what never changes is 0."""
    finite = np.where(np.isfinite(seen), seen, np.nan)
    with np.errstate(invalid="ignore"):
        mean, spread = finite.mean(0), finite.std(0)
    tiny = 1e-6 * np.maximum(np.abs(mean), 1e-6)
    return np.asarray(np.where(spread > tiny, (finite - mean) / np.maximum(spread, 1e-30), finite * 0))
