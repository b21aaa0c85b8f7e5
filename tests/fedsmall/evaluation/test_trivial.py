"""The least that a model must beat: what it says is what scikit-learn's dummies say."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.evaluation.baselines import constant, trivial
from fedsmall.evaluation.metrics import evaluate


def samples(y: np.ndarray) -> Samples:
    return Samples(np.zeros((len(y), 2), np.float32), np.asarray(y))


def federation(task: Task, train: list, test: np.ndarray, **more) -> Federation:
    names = tuple(f"s{k}" for k in range(len(train)))
    return Federation(task, names, tuple(samples(y) for y in train), samples(test), **more)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge"])
def test_the_commonest_class_of_the_training_samples_is_judged_on_the_test_samples(loss):
    task = Task("t", (2,), 2, loss, ("accuracy", "auc", "loss"))
    train, test = (
        [np.array([0, 1, 1]), np.array([1, 1, 0])],
        np.array([0, 0, 0, 1]),
    )  # 1 is commoner in training

    found = trivial(federation(task, train, test))

    dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((6, 1)), np.concatenate(train))
    assert found["label"] == "the majority class"
    assert found["common"]["accuracy"] == dummy.score(np.zeros((4, 1)), test) == 0.25
    assert found["common"]["auc"] == 0.5
    assert np.isfinite(found["common"]["loss"])


def test_of_two_classes_that_are_equally_common_the_lower_one_is_named():
    task = Task("t", (2,), 3, metrics=("accuracy",))

    assert constant(np.array([2, 1, 2, 1]), task).argmax() == 1


def test_a_regression_has_the_median_of_each_target():
    task = Task("t", (2,), 2, "l1", ("mae", "loss"))
    rng = np.random.default_rng(0)
    train, test = [rng.normal(size=(5, 2)), rng.normal(size=(4, 2))], rng.normal(size=(6, 2))

    found = trivial(federation(task, train, test))

    dummy = DummyRegressor(strategy="median").fit(np.zeros((9, 1)), np.concatenate(train))
    assert found["label"] == "always the median"
    assert found["common"]["mae"] == pytest.approx(np.abs(dummy.predict(np.zeros((6, 1))) - test).mean())
    assert found["common"]["mae"] <= evaluate(np.full((6, 2), 3.0), test, task)["mae"]


def test_sites_with_models_of_their_own_have_each_their_own_median():
    task = Task("t", (2,), 2, "l1", ("mae",))
    train = [np.array([[0.0, 0.0]]), np.array([[1.0, 1.0, 1.0]])]  # targets of two lengths
    home = (samples(np.array([[0.5, 0.5]])), samples(np.array([[1.25, 1.25, 1.25]])))

    found = trivial(federation(task, train, np.zeros((0, 2)), held_out=home), own_models=True)

    assert found["common"] is None
    assert found["sites"] == {"mae_mean": 0.375, "mae_sd": pytest.approx(0.125 * 2**0.5)}


def test_further_samples_and_the_sites_own_are_judged_too():
    task = Task("t", (2,), 2, metrics=("accuracy",))
    more = {"held_out": (samples(np.array([1])), None), "extra": (("far", samples(np.array([1, 0]))),)}

    found = trivial(federation(task, [np.array([1, 1]), np.array([0])], np.array([1]), **more))

    assert found["extra"] == {"far": {"common": {"accuracy": 0.5}, "sites": {}}, "held_out": {"s0": {"accuracy": 1.0}}}
