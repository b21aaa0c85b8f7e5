"""How sure a model is of the right answer, where answers are grades or several labels."""

import numpy as np
import torch
from scipy.special import logit

from fedsmall.evaluation.outputs import probabilities
from fedsmall.extensions.audit.sightings import sureness

RNG = np.random.default_rng(0)


def test_of_a_grade_it_is_the_log_odds_of_its_probability():
    outputs, y = RNG.normal(size=(3, 20, 3)), RNG.integers(4, size=(3, 20))

    found = sureness(torch.tensor(outputs), torch.tensor(y), "ordinal")

    right = np.take_along_axis(probabilities(outputs, "ordinal"), y[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found, logit(right))


def test_of_a_grade_that_is_certain_it_is_finite():
    outputs = torch.tensor([[[500.0, 0.0, 0.0]]], dtype=torch.float64)

    assert torch.isfinite(sureness(outputs, torch.tensor([[3]]), "ordinal")).all()


def test_of_labels_it_falls_with_their_loss():
    outputs, y = torch.tensor([[[3.0, -3.0]]]), torch.tensor([[[1.0, 0.0]]])

    assert sureness(outputs, y, "binary_cross_entropy") > sureness(-outputs, y, "binary_cross_entropy")
