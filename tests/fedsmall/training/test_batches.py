"""How large the batches of pooled samples are: a round of central training sees what a round of the sites sees."""

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.training.batches import Batches
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.wire import ModelState
from tests.fedsmall.training.cohorts import TABLE, plan_for, samples_for


def federation(*sizes: int) -> Federation:
    """Sites whose samples are numbered through, so that a batch can be read."""
    ends = np.cumsum(sizes)
    sites = [np.arange(end - size, end, dtype=float)[:, None] for size, end in zip(sizes, ends, strict=True)]
    train = tuple(Samples(x, np.zeros(len(x), dtype=np.int64)) for x in sites)
    return Federation(Task("table", (1,), 2), tuple(f"site-{k}" for k in range(len(sizes))), train, train[0])


def batches(of: Federation, recipe: Recipe, t: int = 1) -> list[np.ndarray]:
    """The numbers of the samples in all batches of round t, at all sites."""
    plan = plan_for().model_copy(update={"recipe": recipe})
    drawn = Batches(plan, of.names, of.train, {}, torch.device("cpu"))
    steps = drawn.round(np.arange(len(of.names)), t, pads=False)
    return [row.numpy().ravel() for _, batch in steps for row in batch.x]


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 2, 9), (1, 1, 50)])
@pytest.mark.parametrize("batch", [1, 2, 4, 100, None])
def test_a_step_on_pooled_data_sees_as_many_samples_as_the_step_of_all_sites(sizes, batch):
    recipe, sites = Recipe(batch=batch, local_steps=1), federation(*sizes)

    (central,) = batches(sites.pooled(), recipe)

    assert len(central) == len(set(central)) == sum(len(mine) for mine in batches(sites, recipe))


def test_pooled_batches_are_drawn_anew_from_all_samples_in_every_round():
    recipe, pooled = Recipe(batch=2, local_steps=1), federation(6, 6, 6).pooled()

    rounds = [set(batches(pooled, recipe, t)[0]) for t in range(20)]

    assert set.union(*rounds) == set(range(18))
    assert len({frozenset(drawn) for drawn in rounds}) > 1


@pytest.mark.parametrize(
    ("samples", "batch", "sizes"),
    [(1, 2, [1]), (2, 1, [1, 1]), (3, 2, [2, 1]), (33, 32, [17, 16]), (70, 32, [24, 23, 23]), (9, None, [9])],
)
def test_even_batches_differ_by_one_sample_at_most_and_are_as_many(samples, batch, sizes):
    recipe, last = Recipe(batch=batch, even_batches=True, local_epochs=2), Recipe(batch=batch, local_epochs=2)

    drawn = batches(federation(samples), recipe)

    assert [len(taken) for taken in drawn] == sizes * 2 == recipe.batch_sizes(samples)
    assert sorted(np.concatenate(drawn[: len(sizes)])) == sorted(federation(samples).train[0].x.ravel())
    assert len(last.batch_sizes(samples)) == len(sizes * 2)


def test_an_epoch_of_pooled_data_keeps_the_batch_of_the_recipe():
    recipe, sites = Recipe(batch=2, local_epochs=1), federation(6, 6, 6)

    central = batches(sites.pooled(), recipe)

    assert [len(batch) for batch in central] == [2] * 9
    assert sum(map(len, central)) == sum(map(len, batches(sites, recipe)))


def test_a_step_of_the_central_model_is_the_mean_of_the_sites_steps():
    names, samples = samples_for(TABLE, (6, 6, 6))
    sites = Federation(TABLE, tuple(names), tuple(samples), samples[0])
    plan = plan_for(rounds=1, lr=0.5, batch=6, local_steps=1)

    (central,), apart = (_after_a_round(plan, of).parameters["0.weight"].numpy() for of in (sites.pooled(), sites))

    assert np.abs(central - apart.mean(axis=0)).max() < 1e-12  # rounding of sums in another order


def _after_a_round(plan: Plan, of: Federation) -> Stack:
    cohort = Cohort(plan, of.task, of.names, of.train)
    stack = cohort.stack([ModelState(initial_model(plan, of.task))] * len(of.names))
    cohort.train(stack, range(len(of.names)), 1, 1)
    return stack
