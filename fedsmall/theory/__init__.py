"""The papers' bounds, and simulations beside them: how long a daisy chain must be before models are aggregated."""

from fedsmall.theory.bounds import (
    Advice,
    RadonAdvice,
    advise,
    advise_radon,
    period_for,
    radon_failure,
    radon_failure_as_printed,
    rounds_between_aggregations,
    rounds_to_visit,
    samples_for,
    sites_to_visit,
)
from fedsmall.theory.groups import GroupAdvice, advise_groups
from fedsmall.theory.hidden import HiddenAdvice, advise_hidden
from fedsmall.theory.patients import PatientAdvice, advise_patients
from fedsmall.theory.visits import (
    Visits,
    expected_draws,
    simulate_visits,
    sites_seen,
    sites_seen_in_groups,
    sites_seen_of_fraction,
)

__all__ = [
    "Advice",
    "GroupAdvice",
    "HiddenAdvice",
    "PatientAdvice",
    "RadonAdvice",
    "Visits",
    "advise",
    "advise_groups",
    "advise_hidden",
    "advise_patients",
    "advise_radon",
    "expected_draws",
    "period_for",
    "radon_failure",
    "radon_failure_as_printed",
    "rounds_between_aggregations",
    "rounds_to_visit",
    "samples_for",
    "simulate_visits",
    "sites_seen",
    "sites_seen_in_groups",
    "sites_seen_of_fraction",
    "sites_to_visit",
]
