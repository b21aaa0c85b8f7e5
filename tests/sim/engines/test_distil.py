"""One model made of several that answer together."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import answer
from fedsmall.package.record import DISTILLED
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_at_hand
from fedsmall.sim.consortium import runs
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import choose_packages, read
from fedsmall.sim.runs.scenario import build
from fedsmall.training.distillation import distillation, perturb_rows, soft_answers
from fedsmall.training.gradients import LOSSES
from fedsmall.training.trees import cohort_for
from tests.sim.engines.harness import federation_of, plan_of

GROUPS: dict[str, Any] = {"groups": 2, "distil": 30}


def grouped(**changes: Any) -> Plan:
    return plan_of("TravellingGroups", GROUPS, recipe=Recipe(lr=0.3), rounds=20, **changes)


@pytest.mark.parametrize(
    ("hard", "soft", "width"), [("cross_entropy", "soft_cross_entropy", 3), ("logistic", "soft_logistic", 1)]
)
def test_soft_targets_that_are_sure_are_classes(hard: str, soft: str, width: int) -> None:
    outputs = torch.randn(4, 7, width, dtype=torch.float64)
    y = torch.randint(0, max(width, 2), (4, 7))
    sure = torch.nn.functional.one_hot(y, width).double() if width > 1 else y[..., None].double()

    torch.testing.assert_close(LOSSES[soft].value(outputs, sure), LOSSES[hard].value(outputs, y))
    torch.testing.assert_close(LOSSES[soft].slope(outputs, sure), LOSSES[hard].slope(outputs, y))


@pytest.mark.parametrize(("soft", "width"), [("soft_cross_entropy", 3), ("soft_logistic", 1)])
def test_the_slope_of_a_soft_loss_is_its_gradient(soft: str, width: int) -> None:
    outputs = torch.randn(2, 5, width, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(2, 5, width, dtype=torch.float64)
    targets = targets / targets.sum(-1, keepdim=True) if width > 1 else targets

    (gradient,) = torch.autograd.grad(LOSSES[soft].value(outputs, targets).sum(), outputs)

    torch.testing.assert_close(LOSSES[soft].slope(outputs.detach(), targets), gradient)


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (6, 1, 4, 4)])
def test_perturbed_rows_are_the_sites_own_and_mixtures_between_them(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    rows = perturb_rows(x, np.random.default_rng(1), copies=3, noise=0)
    noised = perturb_rows(x, np.random.default_rng(1), copies=3, noise=0.5)

    np.testing.assert_array_equal(rows[: len(x)], x)
    assert rows.shape == (4 * len(x), *shape[1:])
    assert rows.dtype == x.dtype
    assert (rows >= x.min(axis=0) - 1e-6).all()
    assert (rows <= x.max(axis=0) + 1e-6).all()
    assert (len(x) == 1) == np.array_equal(rows, noised)


def test_sites_learn_from_what_the_members_say_together() -> None:
    plan, outputs = grouped(), np.random.default_rng(0).standard_normal((3, 40, 2))
    federation = federation_of(plan)
    names = federation.names[1:]

    student, answers = distillation(plan, federation, lambda site, x: outputs if site in names else None)

    assert (answers.names, student.rounds, student.method.name) == (names, 30, "FedAvg")
    for samples in answers.train:
        np.testing.assert_allclose(samples.y, softmax(answer(outputs, "cross_entropy"), axis=-1), atol=1e-12)
        np.testing.assert_allclose(samples.y, softmax(outputs, axis=-1).mean(axis=0), atol=1e-12)


def test_one_output_is_the_probability_of_the_second_class() -> None:
    assert soft_answers(np.zeros((2, 3, 1)), "logistic").tolist() == [[0.5]] * 3


def test_the_one_model_says_what_the_several_say_and_one_of_few_rounds_does_not() -> None:
    long, short = (plan_of("TravellingGroups", GROUPS | {"distil": n}, recipe=Recipe(lr=0.3)) for n in (400, 1))
    federation = federation_of(long)
    trainer = cohort_for(long, federation.task, federation.names, federation.train)

    def apart(plan: Plan) -> float:
        record = run_plan(plan, federation, "cohort")
        assert record.distilled is not None
        assert record.model is not None
        state = {name: torch.from_numpy(array) for name, array in record.model.items()}
        several = soft_answers(trainer.predict(trainer.stack_of(state), federation.test.x), "cross_entropy")
        one = softmax(trainer.predict_at(0, record.distilled.model, federation.test.x, {}), axis=-1)
        return float(np.abs(one - several).mean())

    assert apart(long) < 0.05 < apart(short)


@pytest.mark.parametrize("settings", [GROUPS, {"keep_last": 3, "distil": 10}])
def test_every_engine_distils_the_same(settings: dict[str, Any]) -> None:
    plan = plan_of("TravellingGroups" if "groups" in settings else "FedDC", settings)
    federation = federation_of(plan)

    one, other = (run_plan(plan, federation, engine).distilled for engine in ("cohort", "inprocess"))

    assert one is not None
    assert other is not None
    assert (one.rounds, one.bytes_sent) == (other.rounds, other.bytes_sent)
    assert one.metrics == pytest.approx(other.metrics, abs=1e-8)
    for name, array in one.model.items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=1e-9)


def test_a_run_keeps_the_one_model_and_says_what_it_is_worth(tmp_path) -> None:
    table = {"name": "d", "task": "breast_cancer", "sites": 4, "samples_per_site": 6, "rounds": 4}

    execute(build(table | {"method": [{"name": "TravellingGroups", **GROUPS}]}), tmp_path / "run")

    run = read(tmp_path / "run")
    several, one = (choose_packages(run, whose=whose)[0] for whose in (None, DISTILLED))
    shapes = {name: array.shape[1:] for name, array in several.weights.items()}
    assert shapes == {name: array.shape for name, array in one.weights.items()}
    assert (several.package.architecture.members, one.package.architecture.members) == (2, None)
    worth = run.done[0].row["distilled"]["common"]["accuracy"]
    assert one.package.performance["test samples"]["accuracy"] == worth


@pytest.mark.parametrize(
    ("name", "settings", "changes", "line"),
    [
        ("FedAvg", {"distil": 5}, {}, "one model of several"),
        ("TravellingGroups", GROUPS, {"task": {"name": "breast_cancer", "loss": "hinge"}}, "loss is 'hinge'"),
    ],
)
def test_what_cannot_be_distilled_is_refused(
    name: str, settings: dict[str, Any], changes: dict[str, Any], line: str
) -> None:
    plan = plan_of(name, settings, **changes)
    federation = build_federation(plan)

    with pytest.raises(PlanError, match=line):
        run_plan(plan, federation, "cohort")


def test_real_sites_refuse_before_anything_is_made(tmp_path) -> None:
    with pytest.raises(PlanError, match="needs the whole federation at hand"):
        runs.prepare(tmp_path, "r", grouped(), ("a", "b"))
    with pytest.raises(PlanError, match="Leave it out here"):
        check_at_hand(grouped())

    assert not any(tmp_path.iterdir())
