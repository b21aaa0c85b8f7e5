"""Class weights: what sites tell of their classes, and what follows for training."""

import numpy as np
import pytest
import torch

from fedsmall.clients.telling import told_classes
from fedsmall.data.federation import Task
from fedsmall.data.raw_site import RawSite, agreed_weights, class_sums, with_weights
from fedsmall.data.sources.pool import Part
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.sim import run
from fedsmall.training.gradients import LOSSES, weighted
from tests.clients.test_told_sums import guard_in

TASK = Task("t", (2,), 2, class_names=("well", "ill"))
BALANCED = Plan(name="p", task="t", recipe=Recipe(class_weights="balanced"), method=method("FedDC"))


def labels(well: int, ill: int) -> np.ndarray:
    return np.array([0] * well + [1] * ill)


def test_balanced_weights_are_scikit_learns():
    from sklearn.utils.class_weight import compute_class_weight

    y = [labels(30, 10), labels(50, 20)]

    weights = agreed_weights([class_sums(each, 2, 5) for each in y], TASK)

    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=np.concatenate(y))
    assert weights == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("well", "ill"), [(30, 4), (4, 30), (30, 1)])
def test_a_site_with_few_of_a_class_tells_nothing_of_it(well, ill):
    sums = class_sums(labels(well, ill), 2, floor=5)

    assert not sums.total.any()
    assert not sums.count.any()


def test_others_decide_where_a_site_tells_nothing_and_somebody_must():
    open_, shy = class_sums(labels(30, 10), 2, 5), class_sums(labels(30, 2), 2, 5)

    assert agreed_weights([open_, shy], TASK) == pytest.approx((40 / 60, 40 / 20))
    with pytest.raises(PlanError, match="no site may tell how many of class 'well'"):
        agreed_weights([shy], TASK)


def site(y: np.ndarray) -> RawSite:
    return RawSite("bonn", TASK, Part(np.zeros((len(y), 2)), y), None, True)


def test_a_real_site_tells_again_rather_than_one_patient_more(tmp_path):
    first = told_classes(site(labels(30, 10)), BALANCED, 5, guard_in(tmp_path))
    again = told_classes(site(labels(30, 11)), BALANCED, 5, guard_in(tmp_path))
    later = told_classes(site(labels(40, 20)), BALANCED, 5, guard_in(tmp_path))

    assert first.total.tolist() == again.total.tolist() == [30, 10]
    assert later.total.tolist() == [40, 20]


def test_a_real_site_tells_no_counts_that_nobody_may_have(tmp_path):
    plain = BALANCED.model_copy(update={"recipe": Recipe()})
    private = BALANCED.method.model_copy(update={"privacy": Privacy(level="patient", clip=1.0, noise=1.0)})

    with pytest.raises(PlanError, match="balances no classes"):
        told_classes(site(labels(30, 10)), plain, 5, guard_in(tmp_path))
    with pytest.raises(PlanError, match="steps that are noised and counted"):
        told_classes(site(labels(30, 10)), BALANCED.model_copy(update={"method": private}), 5, guard_in(tmp_path))


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge"])
def test_the_slope_of_a_weighted_loss_is_its_derivative_and_torchs_for_cross_entropy(loss):
    outputs = torch.randn(7, 2 if loss == "cross_entropy" else 1, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    made = weighted(LOSSES[loss], (0.5, 3.0))

    made.value(outputs, targets).sum().backward()

    assert torch.allclose(outputs.grad, made.slope(outputs.detach(), targets))
    if loss == "cross_entropy":
        of_torch = torch.nn.functional.cross_entropy(
            outputs, targets, weight=torch.tensor([0.5, 3.0], dtype=torch.float64), reduction="none"
        )
        assert torch.allclose(made.value(outputs, targets), of_torch)


def hospitals() -> dict:
    rng = np.random.default_rng(0)
    made = {}
    for name in ("bonn", "essen", "graz"):
        y = (np.arange(60) % 6 == 0).astype(int)
        made[name] = (rng.normal(size=(60, 3)) + y[:, None] * 0.8, y)
    return made


def trained(engine: str = "cohort", **recipe) -> dict:
    asked = {"methods": ["FedDC", "Central"], "model": "linear", "rounds": 40, "recipe": {"lr": 0.3, **recipe}}
    return run(sites=hospitals(), engine=engine, progress=False, dtype="float64", **asked).run


def weights_of(made) -> list[float]:
    counts = np.sum([each["train"] for each in made.about["class_counts"].values()], axis=0)
    return (counts.sum() / (2 * counts)).tolist()


def test_balanced_weights_find_the_rare_class_and_are_told_in_the_report():
    plain, balanced = trained(), trained(class_weights="balanced")

    sensitivity = [one.done[0].row["common"]["sensitivity"] for one in (plain, balanced)]

    assert sensitivity[1] > sensitivity[0] + 0.2
    weights = weights_of(balanced)
    assert any(f"0 {weights[0]:.3g}, 1 {weights[1]:.3g}" in note for note in balanced.about["notes"])


@pytest.mark.thorough
def test_the_word_is_its_numbers_on_every_engine():
    word = trained(class_weights="balanced")
    numbers = trained(class_weights=weights_of(word))
    by_messages = trained("inprocess", class_weights="balanced")

    for one, two, three in zip(word.done, numbers.done, by_messages.done, strict=True):
        for name, array in (word.model_of(one) or {}).items():
            assert np.allclose(array, numbers.model_of(two)[name], atol=1e-12)
            assert np.allclose(array, by_messages.model_of(three)[name], atol=1e-9)


def test_weights_that_are_not_one_for_each_class_are_refused():
    with pytest.raises(PlanError, match="3 numbers and the task 2 classes"):
        trained(class_weights=[1.0, 2.0, 3.0])


def test_only_the_word_is_replaced():
    plan = BALANCED.model_copy(update={"recipe": Recipe(class_weights=(1.0, 2.0))})

    assert with_weights(plan, (5.0, 6.0)) == plan
    assert with_weights(BALANCED, [5.0, 6.0]).recipe.class_weights == (5.0, 6.0)
