"""Training images that are changed: by hand for each way, and the same on every engine."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import run_plan
from fedsmall.training.augmentation import DRAWS, augment_images
from fedsmall.training.cohort import Cohort
from tests.fedsmall.training.cohorts import IMAGES, TABLE, plan_for, samples_for
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.test_outcomes import over_real_sites

ALL = ["flip", "shift", "rotate", "intensity"]
SQUARE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]


def changed(rows: list[list[float]], asked: dict[str, float], **drawn: float) -> list[list[float]]:
    places = {"flip": 0, "down": 1, "right": 2, "angle": 3, "contrast": 4, "brightness": 5}
    chances = np.full((1, DRAWS), 0.5)
    for name, value in drawn.items():
        chances[0, places[name]] = value
    x = torch.tensor(rows, dtype=torch.float64)[None, None]
    return augment_images(x, chances, asked)[0, 0].round(decimals=12).tolist()


def test_a_flip_mirrors_left_and_right() -> None:
    assert changed(SQUARE, {"flip": 0.5}, flip=0.4) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert changed(SQUARE, {"flip": 0.5}, flip=0.6) == SQUARE


def test_a_shift_moves_by_whole_pixels_and_repeats_the_edge() -> None:
    assert changed(SQUARE, {"shift": 1.0}, down=0.9) == [[1, 2, 3], [1, 2, 3], [4, 5, 6]]
    assert changed(SQUARE, {"shift": 1.0}, down=0.1, right=0.9) == [[4, 4, 5], [7, 7, 8], [7, 7, 8]]
    assert changed(SQUARE, {"shift": 1.0}) == SQUARE


def test_a_rotation_turns_about_the_middle() -> None:
    assert changed(SQUARE, {"rotate": 90.0}, angle=1.0) == np.rot90(SQUARE).tolist()
    assert changed(SQUARE, {"rotate": 180.0}, angle=0.0) == np.rot90(SQUARE, 2).tolist()
    assert changed(SQUARE, {"rotate": 90.0}) == SQUARE


def test_a_rotation_by_less_than_a_pixel_is_bilinear() -> None:
    row = [[0.0, 1.0, 0.0]]  # the outer pixels are now cos(60) = half a pixel from the middle

    assert changed(row, {"rotate": 60.0}, angle=1.0) == [[0.5, 1.0, 0.5]]


def test_intensity_scales_about_the_middle_of_the_range_and_moves_it() -> None:
    assert changed([[-1.0, 0.0, 0.5]], {"intensity": 0.2}, contrast=1.0, brightness=0.25) == [[-1.3, -0.1, 0.5]]


def test_an_image_has_the_same_bits_in_any_company() -> None:
    rng = np.random.default_rng(0)
    x, chances = torch.from_numpy(rng.normal(size=(9, 3, 7, 5))), rng.random((9, DRAWS))
    asked = Recipe(augment=ALL).augment
    assert asked is not None

    together = augment_images(x, chances, asked)

    assert all(torch.equal(together[k], augment_images(x[k : k + 1], chances[k : k + 1], asked)[0]) for k in range(9))
    assert not torch.equal(together, x)


def test_a_batch_is_the_sites_own_images_changed_by_its_own_stream() -> None:
    plan = plan_for("linear", {}, batch=2, local_epochs=1, augment={"shift": 2, "flip": 0.5})
    names, samples = samples_for(IMAGES, [5, 3])

    seen = list(Cohort(plan, IMAGES, names, samples)._batches.round(np.array([0]), 3, False))

    order, rng = rng_for(0, "batches", "site-0", 3).permutation(5), rng_for(0, "augment", "site-0", 3)
    for (_, batch), first, size in zip(seen, (0, 2, 4), (2, 2, 1), strict=True):
        x = torch.from_numpy(samples[0].x[order[first : first + size]])
        assert torch.equal(batch.x[0], augment_images(x, rng.random((size, DRAWS)), {"flip": 0.5, "shift": 2.0}))


def test_without_it_batches_are_the_samples() -> None:
    names, samples = samples_for(IMAGES, [4])

    ((_, batch),) = Cohort(plan_for("linear", {}), IMAGES, names, samples)._batches.round(np.array([0]), 1, False)

    assert torch.equal(batch.x[0], torch.from_numpy(samples[0].x))


def image_plan(name: str = "FedDC", dtype: str = "float64", augment: Any = ALL, **changes: Any) -> Plan:
    settings = {"permute_every": 1, "aggregate_every": 3} if name == "FedDC" else {}
    defaults = {
        "name": "test",
        "task": "digits",
        "model": "cnn",
        "model_options": {"norm": "group"},
        "sites": 5,
        "samples_per_site": 6,
        "test": 20,
        "rounds": 4,
        "dtype": dtype,
        "recipe": Recipe(lr=0.05, batch=4, local_epochs=1, augment=augment),
        "method": method(name, **settings),
    }
    return Plan(**(defaults | changes))


@pytest.mark.parametrize("name", ["FedDC", "SCAFFOLD", "RepTreeFL", "Standalone"])
def test_a_method_is_the_same_on_a_stack_and_with_messages(name: str) -> None:
    recipe = Recipe(lr=0.05, batch=4, local_steps=2, augment=ALL)
    plan = image_plan(name, model="mlp", model_options={"hidden": [5]}, recipe=recipe)
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert one.evaluations[-1].sites["loss_mean"] == pytest.approx(other.evaluations[-1].sites["loss_mean"], abs=1e-10)
    for key, array in (one.model or {}).items():
        np.testing.assert_allclose(array, other.model[key], rtol=0, atol=1e-10)


def test_training_is_changed_and_judging_is_not() -> None:
    plain, changed = (image_plan(augment=augment, rounds=3) for augment in (None, {"shift": 3}))
    federation = build_federation(plain)
    names, samples = federation.names, federation.train

    cohorts = [Cohort(plan, federation.task, names, samples) for plan in (plain, changed)]
    stacks = [cohort.stack_of(_common(plain, federation)) for cohort in cohorts]
    before = [cohort.predict(stack, federation.test.x) for cohort, stack in zip(cohorts, stacks, strict=True)]
    for cohort, stack in zip(cohorts, stacks, strict=True):
        cohort.train(stack, [0], 1, 1)

    np.testing.assert_array_equal(*before)
    ends = [stack.state for stack in stacks]
    assert any(not torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    stacks[1] = cohorts[1].stack_of({key: tensor.clone() for key, tensor in ends[0].items()})
    after = [cohort.predict(stack, federation.test.x) for cohort, stack in zip(cohorts, stacks, strict=True)]
    np.testing.assert_array_equal(*after)


def _common(plan: Plan, federation: Federation) -> dict[str, torch.Tensor]:
    model = initial_model(plan, federation.task)
    return {name: torch.from_numpy(array.copy())[None] for name, array in model.items()}


@pytest.mark.thorough
def test_the_programs_of_real_sites_come_to_the_same_bits(tmp_path: Any, monkeypatch: Any) -> None:
    plan = image_plan(dtype="float32")
    federation = build_federation(plan)

    theirs = over_real_sites(plan, federation, tmp_path, monkeypatch).model

    ours = run_plan(plan, federation, "inprocess").model
    assert ours is not None
    assert theirs is not None
    for key, array in ours.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)


@on_ray
@pytest.mark.slow
def test_ray_comes_to_the_same_bits() -> None:
    plan = image_plan(dtype="float32", rounds=2)
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine).model for engine in ("ray", "inprocess"))

    assert one is not None
    assert other is not None
    for key, array in one.items():
        np.testing.assert_array_equal(array, other[key], err_msg=key)


def test_a_recipe_reads_back_what_it_holds() -> None:
    recipe = Recipe(augment=["shift", "flip"])

    assert recipe.augment == {"flip": 0.5, "shift": 2.0}
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert Recipe(augment={"rotate": 15}).augment == {"rotate": 15.0}


@pytest.mark.parametrize(
    ("augment", "line"),
    [
        (["flop"], "there is no augmentation 'flop'; there are flip, shift, rotate, intensity"),
        ({"shift": 1.5}, "shift = 1.5: it takes a whole number of pixels, above 0 and at most 10000"),
        ({"rotate": 270}, "rotate = 270: it takes above 0 and at most 180"),
        ({"intensity": "much"}, "intensity = 'much': it takes above 0 and at most 1"),
        ({"flip": float("nan")}, "flip = nan: it takes above 0 and at most 1"),
        ([], 'augment is a list, as in ["flip", "shift"]'),
        ("flip", 'augment is a list, as in ["flip", "shift"]'),
    ],
)
def test_an_augmentation_that_is_none_is_refused(augment: Any, line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe(augment=augment)

    assert line in str(caught.value)


FROZEN = "tests.fedsmall.training.test_frozen:frozen_body"
PATIENTS = Privacy(level="patient", clip=0.5, epsilon=3.0, lot=4)


@pytest.mark.parametrize(
    ("task", "model", "privacy", "line"),
    [
        (TABLE, "linear", None, r"augment changes images, and a sample has shape \(6,\)\. Leave augment out\."),
        (Task("graph", (595,), 10, "l1"), "linear", None, r"a sample has shape \(595,\)"),
        (IMAGES, FROZEN, None, r"behind a frozen body features are worked out once\. Leave augment out, or train"),
    ],
)
def test_where_there_is_nothing_to_change_it_is_refused(task: Task, model: str, privacy: Any, line: str) -> None:
    average = method("FedAvg", aggregate_every=1, **({"privacy": privacy} if privacy else {}))
    plan = plan_for(model, {}, average, augment=ALL, local_steps=1)
    y = np.zeros(4, dtype=np.int64)
    samples = Samples(np.zeros((4, *task.input_shape)), y)

    with pytest.raises(PlanError, match=line):
        check_plan(plan, task, 3)
    with pytest.raises(PlanError, match=line):
        Cohort(plan, task, ["essen"], [samples])
