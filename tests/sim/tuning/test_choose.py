import json

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LinearRegression
from sklearn.metrics import cohen_kappa_score

from fedsmall.data.federation import Samples
from fedsmall.errors import PlanError
from fedsmall.evaluation.survival import concordance
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning import choose as module
from fedsmall.sim.tuning.choose import MEAN, NEW, SAME, candidates, choose_class, decide, left_out, nested_worth
from fedsmall.sim.tuning.search import WORST

TABLE = {"name": "x", "task": "breast_cancer", "sites": 6, "samples_per_site": 6, "rounds": 10}
NAMES = ("ridge", "additive ridge", "random features", "boosting", "network")


def scenario(**more):
    return build({**TABLE, "method": [{"name": "Ridge"}], **more})


def losses(**means):
    """Ten folds of losses, equal in all but their means and what goes up and down from fold to fold."""
    base, turns = np.linspace(0.4, 0.6, 10), 0.001 * (-1.0) ** np.arange(10)
    names = {name.replace("_", " "): mean for name, mean in means.items()}
    return {name: base + mean + k * turns for k, (name, mean) in enumerate(names.items())}


def test_the_best_is_taken_where_all_others_are_told_apart():
    found = decide(losses(ridge=0.0, additive_ridge=0.1, boosting=0.2, network=0.1, mean_of_three=0.05))

    assert found.pick == "ridge"
    assert "told apart" in found.reason
    # 2 of the 1,024 patterns of signs are as extreme, Holm's first of four
    assert max(found.p_values.values()) == pytest.approx(4 * 2 / 2**10)


def test_the_mean_is_taken_where_two_are_level():
    found = decide(losses(ridge=0.0, additive_ridge=0.0, boosting=0.2, network=0.1, mean_of_three=0.0))

    assert found.pick == MEAN
    assert found.reason.startswith("ridge and additive ridge cannot be told apart")


def test_the_simplest_is_taken_where_the_mean_is_worse_than_those_that_are_level():
    found = decide(losses(ridge=0.5, boosting=0.0, network=0.0, mean_of_three=0.2))

    assert found.pick == "boosting"
    assert "simplest" in found.reason


def test_a_mean_that_is_better_than_the_best_is_taken():
    assert decide(losses(ridge=0.1, additive_ridge=0.2, boosting=0.3, mean_of_three=0.0)).pick == MEAN


def test_folds_that_are_too_few_tell_nothing_apart():
    few = {name: values[:7] for name, values in losses(ridge=0.0, boosting=9.0, network=9.0, mean_of_three=9.0).items()}
    four = {name: values[:4] for name, values in few.items()}

    assert decide(few).pick == "ridge"
    assert decide(four).pick == MEAN


def test_a_fold_has_no_say_in_what_is_taken_for_it():
    apart = losses(ridge=0.0, additive_ridge=0.3, boosting=0.3, network=0.3, mean_of_three=0.3)
    areas = {name: np.full(10, 0.5) for name in apart}
    before, _ = nested_worth(apart, areas)

    apart["ridge"][3] += 5.0  # the pick is bad here, and that it is chosen for this fold cannot be helped

    assert before == pytest.approx(apart["ridge"].mean() - 0.5)
    assert nested_worth(apart, areas)[0] >= apart["ridge"].mean() - 1e-9


@pytest.mark.parametrize("by_sites", [True, False])
@pytest.mark.parametrize("folds", [2, 4, 99])
def test_every_sample_is_left_out_once_and_no_patient_is_on_both_sides(by_sites, folds):
    whole = build_federation(scenario().plans()[0])
    marked = [
        Samples(np.arange(6.0)[:, None] + 10 * k, site.y, patients=np.array([0, 0, 1, 2, 3, 4]) + 10 * k)
        for k, site in enumerate(whole.train)
    ]
    whole = module.replace(whole, train=tuple(marked))

    parts = left_out(whole, folds, by_sites, np.random.default_rng(0))

    out = np.concatenate([part.test.x for part in parts]).ravel()
    assert sorted(out) == sorted(np.concatenate([site.x for site in marked]).ravel())
    for part in parts:
        trained = np.concatenate([site.patients for site in part.train])
        assert not set(trained) & set(part.test.patients)
        assert len(part.names) == len(part.train) == len(part.held_out)
        assert len(trained) + len(part.test) == 36
    assert len(parts) == min(folds, 6 if by_sites else 36)


@pytest.mark.parametrize("name", ["ridge", "additive ridge", "boosting"])
def test_what_is_fitted_on_pooled_rows_is_the_fit_over_sites_and_sends_as_much(name):
    plan = module._plans(scenario(), candidates((0.1,))[name])[0]
    part = left_out(build_federation(plan), 3, False, np.random.default_rng(0))[0]

    quick, whole = module._fit(plan, part), run_plan(plan, part, "cohort")

    np.testing.assert_allclose(quick.predictions["probabilities"], whole.predictions["probabilities"], atol=1e-6)
    assert (quick.comm_rounds, quick.bytes_sent) == (whole.comm_rounds, whole.bytes_sent)


@pytest.mark.parametrize(
    ("more", "use", "reason"),
    [
        (
            {"task": "digit_properties", "model": "linear"},
            None,
            "for classes, grades, times or one number; the loss here is binary_cross_entropy",
        ),
        ({"sites": 3}, NEW, "takes four hospitals at least"),
        ({}, "nobody", "--for takes new-hospitals or same-hospitals; got 'nobody'"),
    ],
)
def test_what_cannot_be_chosen_for_is_refused_in_one_line(more, use, reason):
    with pytest.raises(PlanError, match=reason):
        choose_class(scenario(**more), (0.1,), use)


def small(monkeypatch):
    """Fewer settings, so that a choice takes seconds."""
    monkeypatch.setattr(module, "PENALTIES", (1.0, 30.0))
    monkeypatch.setattr(module, "DEPTHS", (1,))


@pytest.mark.thorough
def test_the_command_prints_the_table_and_writes_it(fedsmall, tmp_path, monkeypatch):
    small(monkeypatch)
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\ntask = "breast_cancer"\nsites = 6\nsamples_per_site = 6\nrounds = 5\n'
    )

    code, said, _ = fedsmall("run", "mine.toml")
    again, _, complained = fedsmall("choose", "mine.toml")
    written = json.loads((tmp_path / "choose-mine.json").read_text())

    assert (code, again) == (0, 2)
    assert "is there already" in complained
    assert all(name in said for name in (*NAMES, MEAN, f"Take {written['pick']}: {written['reason']}"))
    assert "6 folds are too few" in said
    assert [*written["rows"]] == [*NAMES, MEAN]
    assert written["for"] == NEW


def made(folder, kind):
    """A scenario of 300 made patients at 20 hospitals, whose outcome is of one ``kind``."""
    rng = np.random.default_rng(1)
    x, task = rng.normal(size=(500, 6)), {"csv": str(folder / "made.csv")}
    steps = 3.0 * ((x[:, 0] > 0) * 1.0 - (x[:, 1] > 0.5) + (np.abs(x[:, 2]) > 1) - 0.6)
    odds = {"linear": x @ np.linspace(1, 2, 6) * 0.65, "steps": steps, "noise": np.zeros(500)}[kind.removesuffix("*")]
    if kind.endswith("*"):  # a number, in a unit of its own
        y, task = 80 + 20 * (odds + rng.normal(size=500)), task | {"target": "outcome"}
    else:
        y, task = np.where(rng.random(500) < 1 / (1 + np.exp(-odds)), "ill", "well"), task | {"label": "outcome"}
    rows = [",".join([*(f"{v:.3f}" for v in row), str(outcome)]) for row, outcome in zip(x, y, strict=True)]
    (folder / "made.csv").write_text("\n".join(["a,b,c,d,e,f,outcome", *rows]))
    return scenario(task=task, sites=20, samples_per_site=15, rounds=50)


@pytest.mark.thorough
def test_of_a_number_the_table_has_the_errors_of_pooled_rows(tmp_path, monkeypatch):
    small(monkeypatch)
    asked = made(tmp_path, "linear*")

    found = choose_class(asked, (0.03,), SAME, folds=2)

    assert found.score == "mae"
    assert list(found.rows) == [*NAMES, MEAN]
    plan = module._plans(asked, candidates((0.03,))["ridge"])[0]
    whole, errors = build_federation(plan), []
    for part in left_out(whole, 2, False, rng_for(asked.seeds[0], "choose")):
        x, y = (np.concatenate([getattr(train, name) for train in part.train]) for name in "xy")
        beside = LinearRegression().fit(x, y).predict(part.test.x)
        errors.append(((beside - part.test.y) ** 2).mean())
    assert found.rows["ridge"]["loss"] == pytest.approx(np.mean(errors), rel=0.01)
    assert found.rows["ridge"]["mae"] == pytest.approx(np.sqrt(2 / np.pi) * 20, rel=0.1)  # of noise of 20
    assert found.nested.keys() == {"loss", "mae"}


@pytest.mark.parametrize("metrics", [{}, {"loss": np.nan}, {"loss": np.inf, "mae": np.nan}])
def test_who_says_nothing_of_those_left_out_has_the_worst_loss_and_so_has_a_mean_with_it(metrics):
    part = build_federation(module._plans(scenario(task="diabetes", model="linear"), candidates((0.1,))["ridge"])[0])
    numbers = {"predictions": part.test.y}

    nothing = module.Judged(module._worth(metrics, part.task), {}, 3, 1.0)
    mean = module._mean_of([module.Judged({"loss": 0.5, "score": 0.1}, numbers, 2, 4.0), nothing], part)

    for judged in (nothing, mean):
        assert judged.worth["loss"] == WORST
        assert np.isnan(judged.worth["score"])
    assert (mean.comm_rounds, mean.bytes_sent) == (5, 5.0)


OTHERS = [name for name in NAMES if name != "boosting"]
KINDS = {"diabetes_grades": "kappa", "gbsg2": "c_index"}


@pytest.mark.parametrize("task", KINDS)
def test_grades_and_times_have_the_likelihood_and_score_of_what_their_models_say(task):
    asked = scenario(task=task, model="linear", sites=6, samples_per_site=20, rounds=5, seeds=[1])
    plan = module._plans(asked, candidates((0.03,))["ridge"])[0]
    part = left_out(build_federation(plan), 3, False, rng_for(1, "choose"))[0]

    found, y = module._fit(plan, part), part.test.y

    if task == "diabetes_grades":
        said = found.predictions["probabilities"]
        likelihood = said[np.arange(len(y)), y]
        score = cohen_kappa_score(y, said.argmax(axis=1), weights="quadratic")
    else:  # of y[:, 0] intervals that a patient came through, and whether an event ended the next
        curves, rows, through = found.predictions["survival"], np.arange(len(y)), y[:, 0].astype(int)
        padded = np.c_[np.ones(len(y)), curves, curves[:, -1]]
        likelihood = padded[rows, through] - y[:, 1] * padded[rows, through + 1]
        score = concordance(curves[None], found.predictions["cuts"][0], *y[:, 2:4].T)[0]
    assert found.worth["loss"] == pytest.approx(-np.log(likelihood).mean(), abs=1e-5)
    assert found.worth["score"] == pytest.approx(score, abs=1e-6)


def test_models_that_start_apart_are_compared_from_a_common_start(monkeypatch):
    small(monkeypatch)

    found = choose_class(
        build({**TABLE, "initial_models": "independent", "rounds": 2, "method": [{"name": "FedAvg"}]}),
        (0.03,),
        SAME,
        folds=2,
    )

    assert set(NAMES) <= set(found.rows)


@pytest.mark.thorough
@pytest.mark.parametrize("task", KINDS)
def test_of_grades_and_times_all_but_trees_are_compared(task, monkeypatch):
    small(monkeypatch)
    asked = scenario(task=task, model="linear", sites=6, samples_per_site=20, rounds=5, seeds=[1])

    found = choose_class(asked, (0.03,), SAME, folds=2)

    assert (found.score, list(found.rows)) == (KINDS[task], OTHERS)
    assert found.verdict.pick in OTHERS
    assert found.nested.keys() == {"loss", KINDS[task]}


@pytest.mark.parametrize(
    ("most", "compared"),
    [(256, ["ridge", "random features", "network"]), (192, ["ridge", "network"]), (191, ["network"])],
)
def test_of_images_regressions_are_compared_that_have_not_too_many_numbers(most, compared, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    for place, name in enumerate([f"{of}/{k}.png" for of in ("ill", "well") for k in range(24)]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 200 + place, (8, 8, 3)).astype(np.uint8)).save(tmp_path / name)
    small(monkeypatch)
    monkeypatch.setattr(module, "MOST_COEFFICIENTS", most)
    task = {"images": str(tmp_path), "channels": 3}

    found = choose_class(scenario(task=task, model="cnn", rounds=2, sites=4), (0.03,), SAME, folds=2)

    assert list(found.rows) == compared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "picks"),
    [
        ("linear", {"ridge"}),
        ("linear*", {"ridge", MEAN}),  # of a number 300 patients do not tell it from an additive one
        ("steps", {"additive ridge", "boosting", MEAN}),
        ("steps*", {"additive ridge", "boosting", MEAN}),
        ("noise", {MEAN, "ridge"}),
        ("noise*", {MEAN, "ridge"}),
    ],
)
def test_the_family_that_made_the_data_is_found(kind, picks, tmp_path):
    found = choose_class(made(tmp_path, kind), (0.03, 0.3), NEW)

    assert found.verdict.pick in picks
    kind = kind.removesuffix("*")
    assert (
        ("cannot be told apart" in found.verdict.reason) == (kind == "noise")
        or kind == "steps"
        or found.verdict.pick == MEAN
    )
    best = min(NAMES, key=lambda name: found.rows[name]["loss"])
    assert best in {"linear": {"ridge"}, "steps": {"additive ridge", "boosting"}, "noise": set(NAMES)}[kind]
