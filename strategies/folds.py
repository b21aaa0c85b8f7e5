"""Who may train where at the server: the folds of the sites, by name, for a method that has routes of sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.plan import Method, Plan
from fedsmall.travel.journey import drawn_by_routes, first_places, passage, routes_of
from fedsmall.travel.routes import folds_of, route_of


@dataclass(frozen=True)
class SiteFolds:
    """The folds of the sites that a run began with; of none where models may train at all sites, and it is false."""

    method: Method
    seed: int
    of: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are folds of sites."""
        return bool(self.of)

    @property
    def sites(self) -> list[str]:
        """The names in order."""
        return sorted(self.of)

    def participants(self, t: int) -> list[str]:
        """The sites that take part in the contact after round ``t``, in name order."""
        names = self.sites
        return [names[number] for number in drawn_by_routes(self.seed, self.method, t, self._at(names))]

    def first_groups(self, drawn: Sequence[str], groups: np.ndarray) -> np.ndarray:
        """The groups of the travellers at the sites ``drawn`` for the first contact, from theirs by number."""
        there = first_places(self.seed, routes_of(self.method, len(self.of)), self._at(drawn))
        return np.asarray(groups[np.argsort(there)])

    def handed_on(self, t: int, groups: Mapping[str, int], there: Sequence[str]) -> dict[str, str]:
        """Where the models go after round ``t``, by the sites where they are; ``groups`` are theirs."""
        assert self.method.validation is not None
        here = sorted(groups)
        routes = route_of([groups[site] for site in here], self.method.validation.routes)
        chosen = passage(self.seed, t, routes, self._at(there))
        return {site: sorted(there)[place] for site, place in zip(here, chosen, strict=True)}

    def _at(self, sites: Sequence[str]) -> np.ndarray:
        return np.array([self.of[site] for site in sorted(sites)], dtype=np.int64)


def dealt_to(method: Method, plan: Plan | None, samples: Mapping[str, int]) -> dict[str, int]:
    """The folds of sites that told so many ``samples`` each; none where the method has no routes of sites.

    Raises PlanError where the sites were sent no plan: those of another app know nothing of folds.
    """
    if method.validation is None:
        return {}
    if plan is None:
        raise PlanError("validate asks sites to judge models, which those of another app do not know; run a plan")
    names = sorted(samples)
    folds = folds_of(plan, [samples[name] for name in names])
    return {} if folds is None else dict(zip(names, folds.tolist(), strict=True))
