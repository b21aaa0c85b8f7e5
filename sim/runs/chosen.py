"""Which of a run's models are meant: those of one method, of all its seeds or of one, of all sites or of one alone."""

from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.package.record import CENTRAL, COMMON
from fedsmall.package.store import Stored
from sim.report.tables import reference_of
from sim.runs.folder import Run


def chosen(run: Run, method: str | None = None, seed: int | None = None, site: str | None = None) -> list[Stored]:
    """The packages of a run that are meant: by default those of its main method, of every seed.

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
    wanted = (COMMON, CENTRAL) if site is None else (site,)
    there = [stored for one in of_seed for stored in run.packages_of(one)]
    return [stored for stored in there if stored.package.whose in wanted] or _none(label, site, there)


def main_method(run: Run) -> str:
    """The method that tables measure the others against, or the first of which there is a package.

    Raises PlanError where there is none of any.
    """
    usable = [one for one in run.done if run.has_packages(one)]
    if not usable:
        raise PlanError(
            "this run holds no model that can be used: it is of an older release, or its sites have models of their "
            "own. `fedsmall run RUN/scenario.toml` runs it again"
        )
    main = run.scenario.reference or reference_of([one.plan.method for one in run.done])
    return next((one.label for one in usable if one.label == main), usable[0].label)


def _none(label: str, site: str | None, there: list[Stored]) -> list[Stored]:
    known = [stored.package.whose for stored in there if stored.package.whose not in (COMMON, CENTRAL)]
    if site is not None and known:
        raise PlanError(f"there is no model of the site {site!r}. {nearest(site, known)}")
    if site is not None:
        raise PlanError(f'the sites\' own models of {label} were not kept; keep = "sites" in the scenario keeps them')
    where = f"; name a site: --site {known[0]}" if known else '; keep = "sites" in the scenario keeps the sites\' own'
    raise PlanError(f"{label} ends with no common model{where}")
