"""Alone or together: hospitals that differ in how many are ill, on the stack and over messages, table and sentence."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fedsmall.data.federation import Federation, Samples, Task, join
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.package.predictor import predictor_of, with_prevalence
from fedsmall.planning.validation import check_plan
from fedsmall.sim.cli.options import terminal
from fedsmall.sim.engines.at_home import fit_alone
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.at_home import homes_of, sections
from fedsmall.sim.report.html import page
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from tests.sim.engines.harness import plan_of

TASK = Task("t", (2,), 2, metrics=("accuracy", "auc", "loss"), class_names=("well", "ill"))
SHIFTS = (-3.0, 0.0, 3.0)


def unlike(plan, sizes=(60, 60, 60), shifts=SHIFTS):
    """Hospitals of the same disease, of whose patients few, half and nearly all are ill."""
    rng = np.random.default_rng(plan.seed)
    parts = []
    for n, shift in zip(sizes, shifts, strict=True):
        x = rng.normal(size=(n + 40, 2)).astype(plan.dtype)
        y = (rng.random(n + 40) < expit(x[:, 0] + shift)).astype(int)
        parts.append((Samples(x[:n], y[:n]), Samples(x[n:], y[n:])))
    test = Samples(*(np.concatenate([getattr(held, name) for _, held in parts]) for name in "xy"))
    train, held = zip(*parts, strict=True)
    return Federation(TASK, ("a", "b", "c")[: len(sizes)], train, test, held)


def scenario(*methods, seeds=5, **changes):
    table = {"name": "unlike", "task": "breast_cancer", "sites": 3, "rounds": 12, "seeds": list(range(seeds))}
    table |= {"recipe": {"lr": 0.3, "local_steps": 5}, "model": "linear", "metric": "loss"}
    return build(table | changes | {"method": [{"name": name} if isinstance(name, str) else name for name in methods]})


FEDDC = {"permute_every": 1, "aggregate_every": 4, "intercepts": "hospital"}


def test_stack_and_messages_judge_a_hospital_with_its_intercept():
    plain, own = plan_of(settings=FEDDC | {"intercepts": "common"}, sites=3), plan_of(settings=FEDDC, sites=3)
    federation = unlike(plain)

    common, stack, messages = (
        run_plan(plan, federation, engine) for plan, engine in ((plain, "cohort"), (own, "cohort"), (own, "inprocess"))
    )

    assert all(np.array_equal(common.model[name], stack.model[name]) for name in common.model)
    assert (common.bytes_sent, common.comm_rounds) == (stack.bytes_sent, stack.comm_rounds)
    before, after, over = (record.evaluations[-1].extra["held_out"] for record in (common, stack, messages))
    assert after["c"]["loss"] < before["c"]["loss"] - 0.05
    assert [over[site]["loss"] for site in "abc"] == pytest.approx([after[site]["loss"] for site in "abc"], abs=1e-9)
    assert stack.at_home["c"]["together"] == pytest.approx(before["c"]["loss"], abs=1e-9)
    assert stack.at_home["c"]["intercept"] == common.at_home["c"]["intercept"] == pytest.approx(after["c"]["loss"])


@pytest.mark.thorough
def test_the_table_says_who_is_worse_off_and_that_an_intercept_mends_it():
    run = execute(scenario("FedAvg"), data=unlike)

    homes = homes_of(run)
    assert [home.site for home in homes["FedAvg"]] == ["a", "b", "c"]
    gain = {home.site: home.joining.difference.mean - home.shifted.difference.mean for home in homes["FedAvg"]}
    assert min(gain["a"], gain["c"]) > 0.1
    said = sections(run, ["FedAvg"])[0].sentences[0]
    assert said.startswith("FedAvg: beyond noise a ")
    assert said.endswith("with a hospital's own intercept nobody is.")
    assert re.search(
        r'<a href="#([^"]+-alone)">alone or together</a>.*<h3 id="\1">Alone or together', page([run], "t"), re.S
    )
    console = terminal()
    with console.capture() as shown:
        print_run(console, run)
    assert "Alone or together: loss at each hospital, lower is better" in shown.get()


@pytest.mark.parametrize("engine", ["cohort", "inprocess"])
def test_of_times_a_hospital_adds_one_number_to_all_intervals(engine):
    plan = plan_of(settings=FEDDC, sites=3)
    rng, parts = np.random.default_rng(0), []
    for shift in SHIFTS:  # at the last hospital the event comes soon
        x = rng.normal(size=(100, 2)).astype(plan.dtype)
        begun = rng.random((100, 4)) < expit(x[:, :1] + shift)
        event = begun.any(axis=1)
        last = np.where(event, begun.argmax(axis=1), 4)
        parts.append(Samples(x, np.stack([last, event, last + event, event], axis=1).astype(plan.dtype)))
    task = Task("t", (2,), 4, loss="hazard", metrics=("c_index", "ibs"), cuts=(1.0, 2.0, 3.0, 4.0))
    train, held = ([part[rows] for part in parts] for rows in (np.arange(60), np.arange(60, 100)))

    done = run_plan(plan, Federation(task, ("a", "b", "c"), train, join(held), held), engine)

    found = done.at_home
    assert all(set(found[site]) == {"together", "intercept"} for site in "abc")
    assert all(found[site]["together"] - found[site]["intercept"] > 0.1 for site in "ac")
    assert found["b"]["together"] == pytest.approx(found["b"]["intercept"], abs=0.1)


@pytest.mark.thorough
def test_alike_hospitals_are_said_to_lose_nothing_and_few_seeds_say_nothing():
    def alike(plan):
        return unlike(plan, shifts=(0.0, 0.0, 0.0))

    run = execute(scenario("FedAvg"), data=alike)

    assert "no hospital is shown to be worse off" in sections(run)[0].sentences[0]
    few = replace(run, done=run.done[:4])
    assert "fewer than 5 seeds" in sections(few)[0].sentences[0]


def test_standalone_is_what_alone_means_where_a_run_has_it():
    run = execute(scenario("Standalone", "FedAvg", seeds=2), data=unlike)

    alone, joined = run.done[0].row["at_home"], run.done[1].row["at_home"]
    mean = np.mean([alone_run.row["at_home"]["c"]["own"] for alone_run in run.done[::2]])
    assert homes_of(run)["FedAvg"][2].alone == pytest.approx(mean)
    assert set(joined["c"]) == {"alone", "together", "intercept"}
    assert set(alone["c"]) == {"own"}
    assert "Standalone" in sections(run)[0].table.caption


@pytest.mark.parametrize("n", [1, 2, 3])
def test_hospitals_of_few_patients_have_their_rows(n):
    run = execute(scenario("FedAvg", seeds=1), data=lambda plan: unlike(plan, sizes=(n, 40, 40)))

    home = homes_of(run)["FedAvg"][0]
    assert np.isfinite([home.alone, home.together, home.intercept]).all()


def test_alone_is_a_ridge_of_the_hospitals_own_patients():
    federation = unlike(plan_of())
    train, held = federation.train[1], federation.held_out[1]

    said = np.exp(fit_alone(train, held.x, TASK))

    rivals = [LogisticRegression(C=c).fit(train.x, train.y).predict_proba(held.x) for c in (1, 0.1, 0.01)]
    assert min(np.abs(said - rival).max() for rival in rivals) < 1e-6
    one_class = np.exp(fit_alone(Samples(train.x[:3], np.ones(3, int)), held.x, TASK))
    assert one_class == pytest.approx(np.tile([0.2, 0.8], (40, 1))[: len(held)] * 0 + [1 / 4, 3 / 4])


@pytest.mark.parametrize("size", [1.0, 1e4, 1e9])
def test_a_hospital_alone_fits_numbers_of_fewer_patients_than_columns_in_any_unit_without_a_word(size):
    x = size * np.array([[1, 1, 2, 1], [2, 2, 4, 2], [3, 3, 6, 3]], dtype=np.float32)  # one column says all of it
    numbers = Task("t", (4,), 1, loss="mse", metrics=("loss",))

    said = fit_alone(Samples(x, np.float32([[1], [2], [3]])), x, numbers)

    assert said.shape == (3, 1)
    assert said[:, 0] == pytest.approx([1, 2, 3], abs=0.1)


def test_what_has_no_common_model_or_fits_its_own_is_refused_in_one_line():
    for changes, word in (({"topology": "gossip"}, "a server"), ({"regression": {}}, "fitted without intercepts")):
        plan = plan_of("FedAvg", {"aggregate_every": 1, "intercepts": "hospital"} | changes)
        with pytest.raises(PlanError, match=word) as refused:
            check_plan(plan, TASK, 5)
        assert "\n" not in str(refused.value)
    with pytest.raises(PlanError, match="is for the losses"):
        check_plan(plan_of(settings=FEDDC), replace(TASK, loss="hinge"), 5)
    assert method("FedDC", intercepts="hospital").keeps_intercepts


def test_a_package_says_it_and_a_new_hospital_has_one_from_its_prevalence():
    asked = scenario({**FEDDC, "name": "FedDC"}, seeds=1, sites=6)
    run = execute(asked)
    stored = run.packages_of(run.done[0])[0]

    moved = with_prevalence(stored, 0.9)

    assert "an intercept of its own" in stored.package.limits[-1]
    assert stored.package.intercept == ()
    rows = np.random.default_rng(0).normal(size=(5, 30))
    before, after = (predictor_of([one]).answers(rows).together for one in (stored, moved))
    counts = stored.package.trained_on.classes
    share = counts[stored.package.positive] / sum(counts.values())
    odds = np.log(after[:, 1] / after[:, 0]) - np.log(before[:, 1] / before[:, 0])
    assert odds == pytest.approx(np.full(5, np.log(9) - np.log(share / (1 - share))), abs=1e-5)
    unknown = stored.package.trained_on.model_copy(update={"classes": None})
    cases = [(stored, 1.0, "above 0 and below 1")]
    cases += [(stored._replace(package=stored.package.model_copy(update={"trained_on": unknown})), 0.5, "how frequent")]
    cases += [(stored._replace(package=stored.package.model_copy(update={"positive": None})), 0.5, "two classes")]
    for package, prevalence, word in cases:
        with pytest.raises(PlanError, match=word):
            with_prevalence(package, prevalence)
