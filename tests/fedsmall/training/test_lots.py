"""Lots and noise under patient-level privacy: what a broken build would get wrong, each fault has a test that fails."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedsmall.data.federation import Samples, Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method, Plan
from fedsmall.privacy.patient_level import NamedChance, SystemChance
from fedsmall.training.batches import Lots
from fedsmall.training.cohort import Cohort
from fedsmall.training.trainer import Indices
from fedsmall.wire import ModelState

TASK = Task("table", (6,), 3)
IMAGES = Task("images", (1, 8, 8), 3)
WEIGHTS = {"hidden": [20, 10]}
QUIET = {"noise": 1e-9}


def plan_of(lot=10, clip=0.5, noise=2.0, **changes):
    privacy = Privacy(level="patient", clip=clip, noise=noise, lot=lot)
    fields = {"name": "test", "task": "t", "model_options": WEIGHTS, "rounds": 4, "recipe": Recipe(lr=1.0)}
    method = Method(name="FedAvg", aggregate_every=1, privacy=privacy)
    return Plan(**fields | {"method": method, "dtype": "float64"} | changes)


def samples_of(sizes, task=TASK, seed=7):
    rng = np.random.default_rng(seed)
    return [Samples(rng.normal(size=(n, *task.input_shape)) * 2, rng.integers(0, task.classes, n)) for n in sizes]


def update(plan, samples, t=1, task=TASK, path="auto", indices=None):
    """What one step of learning rate 1 takes from every parameter, as one vector for each site: (sites, parameters)."""
    names = [f"site-{k}" for k in range(len(samples))]
    cohort = Cohort(plan, task, names, samples, path=path, indices=indices)
    model = initial_model(plan, task)
    stack = cohort.stack([ModelState(model)] * len(names))
    cohort.train(stack, range(len(names)), t, 1)
    return np.concatenate([(model[n] - a.numpy()).reshape(len(names), -1) for n, a in stack.parameters.items()], axis=1)


def lots_of(plan, sizes, t=1, indices=None):
    """Lots whose samples are numbered through, so that a batch can be read."""
    samples = [Samples(np.arange(n)[:, None] + 1.0, np.zeros(n, dtype=np.int64)) for n in sizes]
    names = [f"site-{k}" for k in range(len(sizes))]
    lots = Lots(plan, names, samples, {}, torch.device("cpu"), {"w": (3, 2)}, indices or Indices.of_all(len(sizes)))
    return list(lots.round(np.arange(len(sizes)), t, pads=True))


def drawn(plan, sizes, rounds, indices=None):
    """Whether each sample was in each lot: (rounds * steps, samples of the first site)."""
    rows = []
    for t in range(1, rounds + 1):
        for _, batch in lots_of(plan, sizes, t, indices):
            inside = batch.x[0, :, 0][batch.weight[0] > 0].numpy().astype(int) - 1
            assert len(set(inside)) == len(inside)
            rows.append(np.isin(np.arange(sizes[0]), inside))
    return np.array(rows)


@pytest.mark.parametrize("path", ["auto", "loop"])
def test_noise_has_exactly_the_deviation_that_is_accounted_for(path):
    """At sites that a lot holds whole the clipped sum is no chance, so what differs between rounds is noise alone."""
    plan, samples = plan_of(lot=40, clip=0.5, noise=3.0), samples_of([12] * 20)
    quiet = update(plan_of(lot=40, clip=0.5, **QUIET), samples, path=path)

    noise = update(plan, samples, path=path) - quiet

    deviation, count = 3.0 * 0.5 / 40, noise.size
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], count) / count
    assert low < noise.var() / deviation**2 < high
    assert high < 1.1  # half the noise is a quarter of the variance
    assert abs(noise.mean()) < 5 * deviation / count**0.5
    assert stats.kstest(noise.ravel() / deviation, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise).ravel()[1]) < 0.3  # no two sites draw the same


@pytest.mark.parametrize(("model", "task", "options"), [("mlp", TASK, WEIGHTS), ("cnn", IMAGES, {"norm": "group"})])
def test_one_patient_more_adds_their_own_clipped_gradient_and_moves_nothing_else(model, task, options):
    """Clipping whole batches, or dividing by what came, moves the others' share; both fail here."""
    plan = plan_of(lot=40, clip=0.5, model=model, model_options=options, **QUIET)
    (with_them,) = samples_of([12], task)
    with_them.x[-1] *= 50  # an outlier, as those who are found are
    without = Samples(with_them.x[:-1], with_them.y[:-1])
    alone = Samples(with_them.x[-1:], with_them.y[-1:])

    both, rest, own = (update(plan, [each], task=task)[0] for each in (with_them, without, alone))

    np.testing.assert_allclose(both - rest, own, atol=1e-9)
    assert np.linalg.norm(own) == pytest.approx(0.5 / 40, rel=1e-6)  # clipped, over the lot


def test_a_site_without_patients_in_a_lot_sends_noise_alone():
    plan = plan_of(lot=1, clip=0.5, noise=1.0)
    rounds = [lots_of(plan, [300, 2], t) for t in range(1, 40)]

    empty = [batch for steps in rounds for _, batch in steps if not batch.weight[0].any()]

    assert empty
    assert all(torch.isfinite(batch.x).all() for batch in empty)
    assert np.isfinite(update(plan, samples_of([300, 300, 300]))).all()


@pytest.mark.parametrize("secret", [False, True])
def test_every_sample_joins_every_lot_independently(secret):
    """Shuffled epochs, which draw no sample twice and lots of one size, fail each of these."""
    plan = plan_of(lot=10, recipe=Recipe(local_steps=5))
    inside = drawn(plan, [40], 200, Indices((0,), 1, secret))  # (1000 lots, 40 samples)

    sizes, rate = inside.sum(axis=1), 0.25
    assert abs(inside.mean() - rate) < 5 * (rate * (1 - rate) / inside.size) ** 0.5
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(sizes) - 1) / (len(sizes) - 1)
    assert low < sizes.var(ddof=1) / (40 * rate * (1 - rate)) < high
    twice = (inside[:-1] & inside[1:]).mean()  # in a lot and in the next
    assert abs(twice - rate**2) < 5 * (rate**2 / inside[1:].size) ** 0.5
    pairs = np.corrcoef(inside.T)[np.triu_indices(40, 1)]
    assert abs(pairs).max() < 6 / len(sizes) ** 0.5


def test_sums_are_divided_by_the_lot_that_is_expected_and_not_by_the_one_that_came():
    batches = [batch for t in range(1, 30) for _, batch in lots_of(plan_of(lot=10), [40, 5], t)]

    sizes = {int((batch.weight[0] > 0).sum()) for batch in batches}

    assert len(sizes) > 3
    assert {float(w) for batch in batches for w in batch.weight.unique()} == {0.0, 0.1}


def test_a_site_gets_the_same_numbers_in_any_company():
    plan, samples = plan_of(), samples_of([30, 50, 8])
    names = ["site-0", "site-1", "site-2"]
    together = update(plan, samples)

    for place in range(3):
        alone = Cohort(plan, TASK, [names[place]], [samples[place]], path="loop", indices=Indices((place,), 3))
        model = initial_model(plan, TASK)
        stack = alone.stack([ModelState(model)])
        alone.train(stack, [0], 1, 1)
        own = np.concatenate([(model[n] - a.numpy()).ravel() for n, a in stack.parameters.items()])
        np.testing.assert_allclose(own, together[place], atol=1e-12)


def test_noise_of_a_simulation_repeats_and_that_of_a_real_site_does_not():
    plan, samples = plan_of(), samples_of([30])

    assert np.array_equal(update(plan, samples), update(plan, samples))
    assert not np.array_equal(update(plan, samples), update(plan, samples, t=2))
    real = [update(plan, samples, indices=Indices((0,), 1, secret=True)) for _ in range(2)]
    assert not np.array_equal(*real)


@pytest.mark.parametrize("chance", [SystemChance(), NamedChance(0, "essen", 1)])
def test_both_sources_draw_normal_multiples_and_uniform_numbers(chance):
    drawn = chance.multiples(100_000, 2.0**24)

    assert (drawn == drawn.round()).all()
    assert stats.kstest(drawn.numpy() / 2.0**24, "norm").pvalue > 1e-6
    assert stats.kstest(chance.uniform(100_000), "uniform").pvalue > 1e-6


def test_a_sample_s_dropout_mask_is_its_own_whoever_else_is_in_the_lot():
    plan = plan_of(model_options={**WEIGHTS, "dropout": 0.5})

    one = update(plan, samples_of([30, 50]), path="loop")
    other = update(plan, samples_of([30, 50]), path="mlp")

    np.testing.assert_allclose(one, other, atol=1e-12)
