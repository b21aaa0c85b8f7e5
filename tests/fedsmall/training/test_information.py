"""What of a record is in an update: by formula, by two routes, and as the bound on an attacker who knows all else."""

import numpy as np
import pytest

import fedsmall.training.information as information
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method, Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.information import deviation_for, record_squares
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState
from tests import only_quick
from tests.sim.engines.harness import batched

CLASSES = Task("classes", (3,), 2, "cross_entropy", ("loss",))


def plan_of(task="breast_cancer", model="linear", **recipe):
    recipe = Recipe(**{"lr": 0.1, "batch": 8} | recipe)
    return Plan(
        name="test", task=task, model=model, rounds=6, method=Method(name="FedAvg", aggregate_every=1), recipe=recipe
    )


def samples_of(count, classes=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 3))
    return Samples(x / x.std(), rng.integers(0, 2, count) if classes else rng.standard_normal(count))


def start_of(plan, samples, task=CLASSES):
    cohort = Cohort(plan, task, ["essen"], [samples])
    return cohort.stack([ModelState(initial_model(plan, task))])


LEG = Phase(np.array([0]), 1, 1)


def squares_of(plan, samples, t=1):
    start, everybody = start_of(plan, samples), [np.arange(len(samples))]
    phase = Phase(np.array([0]), t, 1)
    return record_squares(plan, CLASSES, ["essen"], [samples], everybody, start, phase, TrainInput())[0]


@pytest.mark.parametrize(
    "recipe", [{"batch": 2}, {"batch": 2, "local_steps": 3}, {"batch": 5, "local_epochs": 1, "local_steps": None}]
)
def test_of_patients_in_no_batch_an_update_tells_nothing(recipe):
    plan, samples = plan_of(**recipe), samples_of(7)

    taken = Cohort(plan, CLASSES, ["essen"], [samples]).taken(0, Phase(np.array([0]), 3, 1))

    assert np.flatnonzero(squares_of(plan, samples, t=3)).tolist() == taken.tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_step_of_softmax_regression_moves_by_the_formula(count):
    """Update -lr/n sum_i (p_i - e_y) [x_i, 1]: its derivative by hand."""
    plan, samples = plan_of(), samples_of(count)
    model = initial_model(plan, CLASSES)
    weight, bias = (a.astype(np.float64) for a in model.values())

    found = squares_of(plan, samples)

    for x, y, square in zip(samples.x, samples.y, found, strict=True):
        p = np.exp(weight @ x + bias)
        p /= p.sum()
        slope = (np.diag(p) - np.outer(p, p)) @ weight  # d p / d x, (classes, features)
        of_weight = np.einsum("cj,k->ckj", slope, x) + np.einsum("c,kj->ckj", p - np.eye(2)[y], np.eye(3))
        expected = (0.1 / count) ** 2 * (np.square(of_weight).sum() + np.square(slope).sum()) / 3
        assert square == pytest.approx(expected, rel=1e-3)


BATCHES, ADAM = {"local_steps": 4, "batch": 2}, {"optimizer": "adam", "lr": 0.01}


@pytest.mark.parametrize(
    "recipe",
    only_quick([BATCHES, ADAM], [{}, BATCHES, ADAM, {"momentum": 0.9, "local_steps": 3}]),
    ids=["a step", "small batches", "Adam", "momentum"],
)
def test_random_directions_give_on_average_what_every_feature_by_itself_gives(recipe, monkeypatch):
    plan, samples = plan_of(model="mlp", **recipe), samples_of(4)
    exact = squares_of(plan, samples)  # of round 1: batches are drawn by round

    monkeypatch.setattr(information, "EXACT", 2)
    monkeypatch.setattr(information, "rng_for", lambda seed, word, site, t: next(streams))
    streams = (np.random.default_rng(seed) for seed in range(100))
    drawn = np.mean([squares_of(plan, samples) for _ in range(20)], axis=0)

    np.testing.assert_allclose(drawn, information.MARGIN * exact, rtol=0.3)
    assert (exact > 0).all()


def test_a_unit_that_a_patient_all_but_switches_on_makes_no_noise():
    """A change that crosses the threshold moves the update by a jump, of which no derivative tells."""
    plan, samples = plan_of(model="mlp"), samples_of(4)
    found = []
    for below in (1e-7, 1.0):
        start = start_of(plan, samples)
        weight, bias = (next(t for name, t in start.parameters.items() if name.endswith(e)) for e in ("weight", "bias"))
        seen = samples.x @ weight[0, 0].double().numpy()
        bias[0, 0] = -float(seen.max()) - below  # the first unit is off for everybody
        phase, everybody = Phase(np.array([0]), 1, 1), [np.arange(4)]
        found.append(record_squares(plan, CLASSES, ["essen"], [samples], everybody, start, phase, TrainInput())[0])

    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


FEDAVG, FEDDC = {"name": "FedAvg", "aggregate_every": 1}, {"name": "FedDC", "permute_every": 1, "aggregate_every": 3}
PROXIMAL = {"name": "FedProx", "rule": "proximal", "proximal_mu": 0.1, "aggregate_every": 1}
ADAM = {"optimizer": "adam", "lr": 0.01, "optimizer_state": "reset", "batch": 2, "local_steps": 3}
RUNS = {
    "one communication round": (FEDAVG, {}, 1),
    "a step": (FEDAVG, {}, 5),
    "small batches": (FEDAVG, {"batch": 1}, 6),
    "Adam": (FEDAVG, ADAM, 2),
    "handovers": (FEDDC, {"batch": 1, "local_steps": 2}, 4),
    "proximal, epochs": (PROXIMAL, {"local_steps": None, "local_epochs": 2, "batch": 3}, 3),
}
QUICK = ("one communication round", "small batches", "Adam")


def told_in_run(plan, monkeypatch):
    """The exact information that a run tells of each record, (sites, patients), over the noise that was added."""
    told, exact, chosen = {}, [], information.deviation_for

    def with_oracle(*given):
        with monkeypatch.context() as patch:
            patch.setattr(information, "EXACT", 1000)
            exact.extend(zip(given[2], record_squares(*given), strict=True))
        return record_squares(*given)

    def with_count(square, exposure):
        noise, (site, of_site) = chosen(square, exposure), exact.pop(0)
        told[site] = told.get(site, 0) + (of_site / noise**2 if noise else 0 * of_site)
        assert noise or not of_site.any()
        return noise

    monkeypatch.setattr(information, "record_squares", with_oracle)
    monkeypatch.setattr(information, "deviation_for", with_count)
    batched(plan)
    assert not exact
    return np.array([*told.values()])


@pytest.mark.parametrize("name", only_quick(QUICK, RUNS))
@pytest.mark.parametrize("task", ["breast_cancer", "digits"])
def test_no_record_of_a_run_is_told_better_than_its_budget(name, task, monkeypatch):
    """All features by themselves, over the noise that was added: of pictures of 64 pixels random ones choose it."""
    method, recipe, rounds = RUNS[name]
    fields = {"name": "test", "task": task, "sites": 3, "samples_per_site": 4, "rounds": rounds}
    method = Method(**method, privacy=Privacy(exposure=2.0))
    plan = Plan(**fields, model_options={"hidden": [8]}, recipe=Recipe(**{"lr": 0.1} | recipe), method=method)

    exposure = told_in_run(plan, monkeypatch)

    assert exposure.shape == (3, 4)
    assert 0.25 < exposure.max() <= 2.0


def budgeted(recipe, rounds=6, count=5):
    method = Method(name="FedAvg", aggregate_every=1, privacy=Privacy(exposure=1.0))
    plan = plan_of(**recipe).model_copy(update={"method": method, "rounds": rounds})
    return plan, cohort_for(plan, CLASSES, ["essen"], [samples_of(count)])


@pytest.mark.parametrize("batch", [1, 5])
def test_a_budget_is_shared_over_the_comm_rounds_of_the_patient_who_is_in_most_batches(batch):
    plan, cohort = budgeted({"batch": batch, "local_steps": 1})
    alone = Cohort(plan, CLASSES, ["essen"], [samples_of(5)])
    batches = [alone.taken(0, Phase(np.array([0]), t, 1)).tolist() for t in range(1, 7)]
    most = max(sum(patient in taken for taken in batches) for patient in range(5))

    assert cohort.exposure_of_comm_round(0) == pytest.approx(1 / most)
    assert most == 6 if batch == 5 else most < 6
    told = [cohort.exposure_after(0, range(1, t + 1)) for t in range(7)]
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, pytest.approx(1.0))


@pytest.mark.parametrize(
    "changes",
    [{"recipe": {"momentum": 0.9, "optimizer_state": "stay"}}, {"rule": "feddyn", "server": "feddyn"}],
    ids=["moments that stay", "FedDyn"],
)
def test_what_a_site_remembers_of_other_batches_would_be_told_again_and_is_refused(changes):
    plan, _ = budgeted({"batch": 1, "local_steps": 1} | changes.pop("recipe", {}))
    dyn = {"feddyn_alpha": 0.1} if changes else {}
    plan = plan.model_copy(update={"method": plan.method.model_copy(update=changes | dyn)})

    with pytest.raises(PlanError, match="exposure needs training that remembers no earlier round"):
        check_features(plan)


def test_who_asks_again_is_told_again_of_those_in_the_batch():
    _, cohort = budgeted({"batch": 1, "local_steps": 1})

    told = [cohort.exposure_after(0, [3] * times) for times in range(4)]

    np.testing.assert_allclose(told, np.arange(4) * cohort.exposure_of_comm_round(0))


@pytest.mark.parametrize("least", [1e-8, 0.3, 1.0, 1.0001, 7.0])
def test_the_size_of_noise_is_the_next_power_of_two(least):
    found = deviation_for(least**2, 1.0)

    assert least * (1 - 1e-12) <= found < 2 * least
    assert np.frexp(found)[0] == 0.5
    assert deviation_for(0.0, 1.0) == 0


def test_noise_whose_size_followed_records_would_tell_more_of_them_than_the_budget():
    """Of log(deviation) who sees P numbers learns 2 P of Fisher information; what is a power of two stands still."""
    plan, samples = plan_of(model="mlp"), samples_of(4)
    share, most = 1.0 / plan.rounds, int(squares_of(plan, samples).argmax())
    numbers = sum(array.size for array in initial_model(plan, CLASSES).values())

    def largest(direction):
        x = samples.x.copy()
        x[most] += 1e-4 * direction
        return squares_of(plan, Samples(x, samples.y)).max()

    base, moved = largest(np.zeros(3)), [largest(direction) for direction in np.eye(3)]
    slopes = np.log(np.array(moved) / base) / 2 / 1e-4
    told = 2 * numbers * np.square(slopes).sum() * samples.x.std() ** 2 / 3

    assert told > 10 * share
    assert {deviation_for(square, share) for square in moved} == {deviation_for(base, share)}


def test_it_does_not_matter_how_many_train_at_a_time(monkeypatch):
    plan, samples = plan_of(model="mlp"), samples_of(3)

    together = squares_of(plan, samples)
    monkeypatch.setattr(information, "BYTES", 1)

    np.testing.assert_allclose(squares_of(plan, samples), together, rtol=1e-6)


def test_nobody_who_knows_all_else_errs_by_less_than_the_bound_says():
    """The most likely record given the noised update, by Gauss-Newton from the truth: the best unbiased attacker."""
    plan, samples, rng = plan_of(), samples_of(2, seed=3), np.random.default_rng(1)
    start = start_of(plan, samples)
    wide = plan.model_copy(update={"dtype": "float64"})

    def update(x):
        changed = Samples(np.vstack([x, samples.x[1:]]), samples.y)
        return information._updates(wide, CLASSES, ["essen"], [changed], [0], start, LEG, TrainInput())[0]

    truth = samples.x[0]
    clean = update(truth)
    jacobian = np.stack([(update(truth + 1e-6 * e) - clean) / 1e-6 for e in np.eye(3)], axis=1)
    noise = 0.05 * np.abs(jacobian).max()
    wrong = [np.linalg.lstsq(jacobian, noise * rng.standard_normal(len(clean)), rcond=None)[0] for _ in range(2000)]

    bound = noise / np.sqrt(squares_of(plan, samples)[0])

    assert np.sqrt(np.mean(np.square(wrong))) >= 0.98 * bound * samples.x.std()
    assert bound > 0.01


def test_what_is_left_on_the_way_out_is_noised_and_what_stays_is_not():
    method = Method(name="FedAvg", aggregate_every=1, privacy=Privacy(exposure=1.0))
    plan = plan_of().model_copy(update={"method": method})
    cohort = cohort_for(plan, CLASSES, ["essen"], [samples_of(5)])

    moved = {}
    for leaves in (False, True):
        stack = start_of(plan, samples_of(5))
        cohort.walk(stack, [LEG._replace(leaves=leaves)], TrainInput())
        moved[leaves] = np.concatenate([t.numpy().ravel() for t in stack.parameters.values()])
    noise = moved[True] - moved[False]

    deviation = np.sqrt(squares_of(plan, samples_of(5)).max() / cohort.exposure_of_comm_round(0))
    assert cohort.exposure_of_comm_round(0) == pytest.approx(1 / 6)
    assert 0.5 < noise.std() / deviation < 4
