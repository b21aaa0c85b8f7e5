"""Which of a run's models are meant: of one method, of all its seeds or of one.

Beside the common model there may be a site's own, its last visitors, and the one distilled of several.
"""

from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.package.record import CENTRAL, COMMON, DISTILLED, VISITORS, visitors_of
from fedsmall.package.store import Stored
from fedsmall.sim.runs.folder import Run


def whose_is(site: str | None = None, visitors: str | None = None, distilled: bool = False) -> str | None:
    """Whose model is meant: that of a ``site``, the ``visitors`` of one, the ``distilled`` one, or None for all sites'.

    Raises PlanError where more than one is asked for.
    """
    asked = [site, visitors_of(visitors) if visitors is not None else None, DISTILLED if distilled else None]
    if len(wanted := [whose for whose in asked if whose is not None]) > 1:
        raise PlanError("site, visitors and distilled each mean another model; give one of them")
    return wanted[0] if wanted else None


def chosen(run: Run, method: str | None = None, seed: int | None = None, whose: str | None = None) -> list[Stored]:
    """The chosen packages of a run: by default the common models of its main method, of every seed.

    Raises PlanError where there are none such, with those that there are.
    """
    label = method or main_method(run)
    labels = list(dict.fromkeys(one.label for one in run.done))
    if label not in labels:
        raise PlanError(f"this run has no method {label!r}. {nearest(label, labels)}")
    of_method = [one for one in run.done if one.label == label]
    of_seed = [one for one in of_method if seed is None or one.plan.seed == seed]
    if not of_seed:
        raise PlanError(
            f"{label} was run with the seeds {', '.join(str(one.plan.seed) for one in of_method)}, not {seed}"
        )
    wanted = (COMMON, CENTRAL) if whose is None else (whose,)
    there = [stored for one in of_seed for stored in run.packages_of(one)]
    return [stored for stored in there if stored.package.whose in wanted] or _none(label, whose, there)


def main_method(run: Run) -> str:
    """The reference method of tables, or else the first of which there is a package.

    Raises PlanError where there is none of any.
    """
    usable = [one for one in run.done if run.has_packages(one)]
    if not usable:
        raise PlanError(
            "this run holds no model that can be used: it is of an older release, or its sites have models of their "
            "own. `fedsmall run RUN/scenario.toml` runs it again"
        )
    return next((one.label for one in usable if one.label == run.reference), usable[0].label)


def _none(label: str, whose: str | None, there: list[Stored]) -> list[Stored]:
    """Raise PlanError that says why there is no such model, and which there are."""
    if whose == DISTILLED:
        raise PlanError(f"{label} was not distilled into one model; distil = 100 under the method does that")
    of_visitors = whose is not None and whose.startswith(VISITORS)
    known = [stored.package.whose for stored in there if stored.package.whose not in (COMMON, CENTRAL, DISTILLED)]
    known = [one.removeprefix(VISITORS) for one in known if one.startswith(VISITORS) == of_visitors]
    if whose is not None and known:
        what, site = "are no visitors" if of_visitors else "is no model", whose.removeprefix(VISITORS)
        raise PlanError(f"there {what} of the site {site!r}. {nearest(site, known)}")
    if of_visitors:
        raise PlanError(
            f"the visitors of sites were not kept for {label}; keep_last = 5 under the method and "
            'keep = "sites" in the scenario keep them'
        )
    if whose is not None:
        raise PlanError(f'the sites\' own models of {label} were not kept; keep = "sites" in the scenario keeps them')
    where = f"; name a site: --site {known[0]}" if known else '; keep = "sites" in the scenario keeps the sites\' own'
    raise PlanError(f"{label} ends with no common model{where}")
