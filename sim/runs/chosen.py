"""Which of a run's models are meant: the common one of a seed or all, a site's own, its visitors, the distilled one."""

from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.package.record import CENTRAL, COMMON, DISTILLED, VISITORS, visitors_of
from fedsmall.package.store import Stored
from fedsmall.sim.runs.folder import Run


def whose_is(site: str | None = None, visitors: str | None = None, distilled: bool = False) -> str | None:
    """Whose model is meant, None for that of all sites; PlanError where more than one is asked for."""
    asked = [site, visitors_of(visitors) if visitors is not None else None, DISTILLED if distilled else None]
    if len(wanted := [whose for whose in asked if whose is not None]) > 1:
        raise PlanError("site, visitors and distilled each mean another model; give one of them")
    return wanted[0] if wanted else None


def choose_packages(
    run: Run, method: str | None = None, seed: int | None = None, whose: str | None = None
) -> list[Stored]:
    """The chosen packages, by default the common models of the main method, of every seed; PlanError for none."""
    label = method or main_method(run)
    labels = list(dict.fromkeys(plan_run.label for plan_run in run.done))
    if label not in labels:
        raise PlanError(f"this run has no method {label!r}. {nearest(label, labels)}")
    of_method = [plan_run for plan_run in run.done if plan_run.label == label]
    of_seed = [plan_run for plan_run in of_method if seed is None or plan_run.plan.seed == seed]
    if not of_seed:
        seeds = ", ".join(str(plan_run.plan.seed) for plan_run in of_method)
        raise PlanError(f"{label} was run with the seeds {seeds}, not {seed}")
    wanted = (COMMON, CENTRAL) if whose is None else (whose,)
    packages = [stored for plan_run in of_seed for stored in run.packages_of(plan_run)]
    return [stored for stored in packages if stored.package.whose in wanted] or _raise_missing(label, whose, packages)


def main_method(run: Run) -> str:
    """The reference method of tables, or else the first of which there is a package; PlanError where there is none."""
    usable = [plan_run for plan_run in run.done if run.has_packages(plan_run)]
    if not usable:
        raise PlanError(
            "this run holds no model that can be used: it is of an older release, or its sites have models of their "
            "own. `fedsmall run RUN/scenario.toml` runs it again"
        )
    return next((plan_run.label for plan_run in usable if plan_run.label == run.reference), usable[0].label)


def _raise_missing(label: str, whose: str | None, packages: list[Stored]) -> list[Stored]:
    """Raise PlanError that says why there is no such model, and which there are."""
    if whose == DISTILLED:
        raise PlanError(f"{label} was not distilled into one model; distil = 100 under the method does that")
    of_visitors = whose is not None and whose.startswith(VISITORS)
    known = [stored.package.whose for stored in packages if stored.package.whose not in (COMMON, CENTRAL, DISTILLED)]
    known = [name.removeprefix(VISITORS) for name in known if name.startswith(VISITORS) == of_visitors]
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
