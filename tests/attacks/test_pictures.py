"""A batch of one picture behind convolutions: its pixels follow from one update."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Samples
from fedsmall.models.registry import build_network, initial_model
from fedsmall.parts import Privacy
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.reading import layers_read
from fedsmall.privacy.site_level import privatise_one
from fedsmall.research.attacks.pictures import inputs_of, likeness, read_picture
from fedsmall.training.trees import cohort_for
from fedsmall.wire import Arrays, ModelState
from tests.extensions.audit.worlds import plan_of

KEYS = {
    "model": "cnn",
    "model_options": {},
    "recipe": {"lr": 0.01, "batch": 1, "local_steps": 1},
    "samples_per_site": 8,
}


def updated(plan, task, start: Arrays, samples: Samples) -> Arrays:
    """The model after one step of the plan on these samples."""
    trainer = cohort_for(plan, task, ["site"], [samples])
    stack = trainer.stack([ModelState(start)])
    trainer.train(stack, [0], 1, 1, is_global=[True], rule={}, memory={})
    return stack.model_state(0).model


def federation(task, **keys):
    plan = plan_of("FedAvg", task=task, **{**KEYS, **keys})
    data = os.environ.get("FEDSMALL_DATA")
    return plan, build_federation(plan, Path(data) if data else None)


def test_the_layer_behind_convolutions_gives_what_came_into_it():
    plan, built = federation("digits")
    start, one = initial_model(plan, built.task), Samples(built.train[0].x[:1], built.train[0].y[:1])
    model = build_network(plan, built.task).eval()

    found = inputs_of(start, updated(plan, built.task, start, one), "9")

    model.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    came = model[:-1](torch.from_numpy(one.x.astype(np.float32))).detach().numpy()[0]
    assert len(layers_read(start, one.x[0].size)) == 0  # so the division at the input finds nothing
    assert np.linalg.norm(found - came) < 0.01 * np.linalg.norm(came)


def recognised(blur: float) -> list[bool]:
    """Of one picture at each of four sites: is what was read from one update liker to it than to all 31 others?"""
    plan, built = federation({"medmnist": "pneumoniamnist"})
    start, everybody = initial_model(plan, built.task), np.concatenate([samples.x for samples in built.train])
    model, rng, found = build_network(plan, built.task), np.random.default_rng(0), []
    for k, samples in enumerate(built.train):
        sent = updated(plan, built.task, start, Samples(samples.x[:1], samples.y[:1]))
        sent = privatise_one(sent, start, Privacy(blur=blur), rng)
        like = likeness(everybody, read_picture(model, start, sent, built.task.input_shape, rng))
        found.append(like.argmax() == 8 * k and like.max() > 0.7)
    return found


@pytest.mark.thorough
@pytest.mark.skipif("FEDSMALL_DATA" not in os.environ, reason="takes PneumoniaMNIST")
def test_pictures_of_batches_of_one_are_recognised_among_all():
    assert recognised(blur=0.0) == [True] * 4


@pytest.mark.thorough
@pytest.mark.skipif("FEDSMALL_DATA" not in os.environ, reason="takes PneumoniaMNIST")
def test_blur_of_the_size_of_an_update_hides_no_picture_and_sixteen_times_as_much_hides_all():
    assert recognised(blur=1.0) == [True] * 4
    assert recognised(blur=16.0) == [False] * 4


def test_likeness_is_one_for_the_picture_itself_whatever_its_brightness():
    pictures = np.random.default_rng(0).standard_normal((3, 1, 4, 4))

    assert likeness(pictures, 2 * pictures[1] + 5)[1] == pytest.approx(1)
    assert abs(likeness(pictures, 2 * pictures[1] + 5)[[0, 2]]).max() < 0.9
