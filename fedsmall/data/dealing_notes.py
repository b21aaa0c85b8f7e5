"""What a reader should know of how samples were dealt: patients, equal samples, rows unused, and numbers not had."""

from collections.abc import Sequence

import numpy as np

from fedsmall.data.kin import coarse, twins
from fedsmall.data.raw_site import RawSite
from fedsmall.data.sources.pool import Part, Pool
from fedsmall.plan import Plan


def dealing_notes(plan: Plan, sites: Sequence[RawSite], test: Part, pool: Pool, given: bool) -> tuple[str, ...]:
    """Notes on the ``sites`` that a ``pool`` was dealt to, and on the common ``test`` set, if ``given`` beside it."""
    notes = *_of_patients(sites, test), *_of_twins(sites, test, bool(pool.test)), *_of_number(plan, test)
    drawn = 0 if given else _drawn(plan, sites, test, pool)
    return (*notes, *_of_unused(plan, sites, sum(map(len, pool.train.values())) - drawn))


def _of_patients(sites: Sequence[RawSite], test: Part) -> tuple[str, ...]:
    trained = [site.train.patients for site in sites if site.train.patients is not None]
    if not trained:
        return ()
    patients, samples = sum(len(np.unique(whose)) for whose in trained), sum(map(len, trained))
    held = "" if test.patients is None else f", and {len(test)} of {len(np.unique(test.patients))} are held out"
    both = 0 if test.patients is None else len(np.intersect1d(test.patients, np.concatenate(trained)))
    sides = f"{both} patients of the source's own test set are trained on" if both else "and on one side"
    return (
        f"Dealt by patients: {samples} samples of {patients} are trained on{held}; all of a patient's are at one site"
        + (f", but {sides}" if both else f" {sides}"),
    )


def _of_twins(sites: Sequence[RawSite], test: Part, official: bool) -> tuple[str, ...]:
    """Where a held-out sample equals one that is trained on, and why that is so; that equal samples were kept apart."""
    parts = [site.train for site in sites]
    if len({part.x.shape[1:] for part in (*parts, test)}) > 1:
        return ()
    group = twins(np.concatenate([*(part.x for part in parts), test.x]))
    trained, held = group[: -len(test) or None], group[len(group) - len(test) :]
    both, equal = int(np.isin(held, trained).sum()), len(group) - len(np.unique(group))
    if not equal:
        return ()
    if not both:
        return (f"{equal} samples equal another to the last bit; none of them is both trained on and held out",)
    if coarse(group):
        return (
            f"{equal} of {len(group)} samples equal another: with so few different ones they were dealt as samples of "
            "different patients, so equal ones are trained on and held out",
        )
    whose = "the source's own test set" if official else "what one site holds out and another trains on"
    return (f"{both} samples of {whose} equal one that is trained on; results look better than they are",)


def _of_number(plan: Plan, test: Part) -> tuple[str, ...]:
    if type(plan.test) is not int or len(test) == plan.test:
        return ()
    return (f"test = {plan.test}, and {len(test)} samples are held out: patients and equal samples stay together",)


def _drawn(plan: Plan, sites: Sequence[RawSite], test: Part, pool: Pool) -> int:
    """How many of the source's training samples are held out, and not samples of its own test set."""
    held = [site for site in sites if site.held_out is not None]
    if held:
        of_test = () if isinstance(plan.test, float) else pool.test
        return sum(len(site.held_out or ()) for site in held if site.name not in of_test)
    return 0 if pool.test and not plan.folds and plan.test in (None, "official") else len(test)


def _of_unused(plan: Plan, sites: Sequence[RawSite], rows: int) -> tuple[str, ...]:
    """How many of the ``rows`` that there are to train on the sites have, where they do not have all."""
    used = sum(len(site.train) + len(site.kept_back or ()) for site in sites)
    why = "" if plan.samples_per_site is None else f" (samples_per_site = {plan.samples_per_site})"
    return () if used == rows else (f"{used:,} of {rows:,} training rows were used{why}",)
