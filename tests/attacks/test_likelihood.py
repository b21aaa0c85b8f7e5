"""Blur is read past by one likelihood over all rounds; what that needs is rounds, a large model, or knowing the rest."""

from functools import cache
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

from fedsmall.extensions.audit.by_likelihood import seen_of_sites
from fedsmall.extensions.audit.likelihood import (
    Guess,
    Site,
    contacts_under_blur,
    counted_answers,
    descend,
    log_likelihood,
    misfit,
    nearest_patients,
    read_by_likelihood,
)
from tests.extensions.audit.worlds import plan_of

KEYS = {"partition": "iid", "recipe": {"lr": 0.03}, "sites": 40, "samples_per_site": 4}
CLOSE = 0.2


def of_sites(blur: float, hidden: list[int], rounds: int, sites: int, **keys):
    """What a server sees of the first sites of the demo's federation, and their true records and answers."""
    settings = {"aggregate_every": 1, **({"privacy": {"blur": blur}} if blur else {})}
    plan = plan_of("FedAvg", settings, model_options={"hidden": hidden}, rounds=rounds, **{**KEYS, **keys})
    return [seen for _, seen in zip(range(sites), seen_of_sites(plan), strict=False)]
