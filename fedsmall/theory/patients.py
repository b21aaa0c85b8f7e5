"""From how many patients a site privacy for each patient is worth it: a rule of thumb, held against measurements."""

import math
from typing import NamedTuple

PATIENTS_EPSILON = 60  # patients a site times epsilon from which it costs a few points: about 20 at epsilon 3


class PatientAdvice(NamedTuple):
    """What patient-level privacy at ``epsilon`` asks for: ``enough`` patients a site; ``samples`` are there."""

    epsilon: float
    enough: int
    samples: int
    sites: int

    @property
    def worth_it(self) -> bool:
        """Whether a site has as many patients as it takes."""
        return self.samples >= self.enough


def advise_patients(sites: int, samples: int, epsilon: float) -> PatientAdvice:
    """Whether ``samples`` patients at each of ``sites`` sites are enough for ``epsilon``.

    The noise in a step's gradient is noise * clip / lot in every number. For given steps and delta the noise grows with
    lot / (samples * epsilon), so what counts is samples * epsilon, whatever the lot. An average divides the noise by
    sqrt(sites); between two averages a model gathers the noise of
    all its steps, handed on or not. Not a theorem: where the
    limit lies was measured (docs/methods.md), on models of a few hundred to some thousand numbers.
    """
    return PatientAdvice(epsilon, math.ceil(PATIENTS_EPSILON / epsilon), samples, sites)
