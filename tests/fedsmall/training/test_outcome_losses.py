"""Losses of numbers and of times: their slopes, and that what they train to is what scikit-learn finds."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from fedsmall.algorithm.model_states import ModelState
from fedsmall.data.federation import Samples, Task
from fedsmall.data.outcomes import Survival
from fedsmall.evaluation.metrics import grade_losses
from fedsmall.evaluation.outputs import cumulative
from fedsmall.models.registry import build_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.gradients.losses import LOSSES

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3))
Y = X @ [[1.0], [-2.0], [0.5]] + 0.3 + RNG.normal(size=(60, 1))
TIMES = Survival(name="t", event="e", stated=(1.0, 2.0, 3.0))
SEEN = TIMES.targets(np.stack([RNG.exponential(2 / (1 + np.exp(-X[:, 0]))), RNG.random(60) < 0.7], axis=1))


GRADES = (X[:, 0] + RNG.logistic(size=60) > np.array([[-1.0], [0.5], [2.0]])).sum(axis=0)


LABELS = (X + RNG.logistic(size=(60, 3)) > [0.0, 1.0, -0.5]).astype(float)


def targets_of(loss):
    if loss == "binary_cross_entropy":
        return torch.tensor(LABELS[:40].reshape(2, 20, 3))
    if loss == "ordinal":
        return torch.tensor(GRADES[:40].reshape(2, 20))
    of_one = SEEN[:40] if loss == "hazard" else Y[:40]
    return torch.tensor(of_one.reshape(2, 20, -1))


@pytest.mark.parametrize("loss", ["mse", "l1", "huber", "hazard", "ordinal", "binary_cross_entropy"])
def test_the_slope_of_a_loss_is_its_derivative(loss):
    width = 3 if loss in ("hazard", "ordinal", "binary_cross_entropy") else 1
    outputs = torch.tensor(RNG.normal(size=(2, 20, width)) * 2, requires_grad=True)

    value, slope = LOSSES[loss]
    value(outputs, targets_of(loss)).sum().backward()

    torch.testing.assert_close(slope(outputs.detach(), targets_of(loss)), outputs.grad)


def test_the_likelihood_of_a_hazard_is_written_out_for_three_patients():
    odds = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64)
    h = torch.sigmoid(odds)[0]
    y = torch.tensor(TIMES.targets(np.array([[1.5, 1.0], [1.5, 0.0], [9.0, 1.0]])))

    found = LOSSES["hazard"].value(odds.expand(3, 3), y)

    dead_in_the_second = -torch.log((1 - h[0]) * h[1])
    lost_in_the_second = -torch.log(1 - h[0])
    through_all = -torch.log(1 - h).sum()
    torch.testing.assert_close(found, torch.stack([dead_in_the_second, lost_in_the_second, through_all]))


def fitted(task, y, model="linear", rounds=3000, x=X, **recipe):
    """One site with all samples, trained to the end: what Central does."""
    plan = Plan(
        name="t",
        task="t",
        model=model,
        rounds=rounds,
        dtype="float64",
        recipe=Recipe(lr=0.1, **recipe),
        method=Method(name="Central", family="central"),
    )
    cohort = Cohort(plan, task, ["central"], [Samples(x, y)])
    start = build_model(model, task, {}, np.random.default_rng(0)).double()
    stack = cohort.stack([ModelState({name: tensor.numpy() for name, tensor in start.state_dict().items()})])
    cohort.train(stack, [0], rounds, rounds, is_global=[True])
    return {name: tensor[0].numpy() for name, tensor in stack.state.items()}


def test_squares_on_pooled_data_train_to_least_squares():
    model = fitted(Task("t", (3,), 1, "mse"), Y)

    expected = LinearRegression().fit(X, Y[:, 0])

    np.testing.assert_allclose(model["0.weight"][0], expected.coef_, atol=1e-8)
    np.testing.assert_allclose(model["0.bias"][0], expected.intercept_, atol=1e-8)


def test_squares_with_weight_decay_are_ridge_regression():
    centred, y = X - X.mean(axis=0), Y - Y.mean()  # weight decay pulls the bias, too, which is 0 then
    model = fitted(Task("t", (3,), 1, "mse"), y, x=centred, weight_decay=0.2)

    expected = Ridge(alpha=0.2 / 2 * len(y)).fit(centred, y[:, 0])  # half of |w|^2 beside the mean of squares

    np.testing.assert_allclose(model["0.weight"][0], expected.coef_, atol=1e-8)


@pytest.mark.thorough
def test_hazards_on_pooled_data_train_to_a_logistic_regression_of_each_interval():
    model = fitted(Task("t", (3,), 3, "hazard"), SEEN, rounds=6000, momentum=0.9)

    for interval in range(3):
        at_risk = (SEEN[:, 0] > interval) | ((SEEN[:, 0] == interval) & (SEEN[:, 1] == 1))
        happened = (SEEN[at_risk, 0] == interval) & (SEEN[at_risk, 1] == 1)
        expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X[at_risk], happened)
        np.testing.assert_allclose(model["0.weight"][interval], expected.coef_[0], atol=1e-4)
        np.testing.assert_allclose(model["0.bias"][interval], expected.intercept_[0], atol=1e-4)


@pytest.mark.thorough
def test_proportional_hazards_on_pooled_data_are_one_logistic_regression_of_person_periods():
    model = fitted(Task("t", (3,), 3, "hazard"), SEEN, "proportional", rounds=2500, momentum=0.9)

    rows, happened = [], []
    for x, (through, event, *_) in zip(X, SEEN, strict=True):
        for interval in range(min(int(through + event), 3)):
            rows.append([*x, *np.eye(3)[interval]])
            happened.append(bool(event) and interval == through)
    expected = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000).fit(rows, happened)
    np.testing.assert_allclose(model["risk.weight"][0], expected.coef_[0, :3], atol=1e-4)
    np.testing.assert_allclose(model["levels"], expected.coef_[0, 3:], atol=1e-4)


def test_two_grades_have_the_loss_of_two_classes():
    odds, y = torch.tensor(RNG.normal(size=(1, 60, 1))), torch.tensor(GRADES > 1).long()[None]

    for part in ("value", "slope"):
        of_grades, of_classes = (getattr(LOSSES[name], part)(odds, y) for name in ("ordinal", "logistic"))
        torch.testing.assert_close(of_grades, of_classes)


def proportional_odds(x, y, grades):
    """The maximum of the likelihood of proportional odds, written down as in textbooks, by scipy."""
    features = x.shape[1]

    def loss(theta):
        cuts = np.concatenate([[-np.inf], theta[features:], [np.inf]])
        risk = x @ theta[:features]
        p = expit(cuts[y + 1] - risk) - expit(cuts[y] - risk)
        return np.inf if (np.diff(cuts) <= 0).any() else -np.log(p).mean()

    start = np.concatenate([np.zeros(features), np.linspace(-1, 1, grades - 1)])
    found = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 40000, "xatol": 1e-9, "fatol": 1e-14})
    return found.x[:features], found.x[features:], found.fun


@pytest.mark.slow
def test_proportional_odds_on_pooled_data_are_the_maximum_of_their_likelihood():
    model = fitted(Task("t", (3,), 4, "ordinal"), GRADES, "proportional", rounds=6000, momentum=0.9)

    weights, cuts, _ = proportional_odds(X, GRADES, 4)

    np.testing.assert_allclose(model["risk.weight"][0], weights, atol=1e-4)
    np.testing.assert_allclose(cumulative(model["levels"]), -cuts, atol=1e-4)


@pytest.mark.thorough
def test_steps_that_differ_between_patients_fit_no_worse():
    model = fitted(Task("t", (3,), 4, "ordinal"), GRADES, rounds=6000, momentum=0.9)

    worth = grade_losses((X @ model["0.weight"].T + model["0.bias"])[None], GRADES)[0]

    assert worth < proportional_odds(X, GRADES, 4)[2]


@pytest.mark.thorough
def test_labels_on_pooled_data_train_to_a_logistic_regression_of_each():
    model = fitted(Task("t", (3,), 3, "binary_cross_entropy"), LABELS, rounds=6000, momentum=0.9)

    for label in range(3):
        expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, LABELS[:, label])
        np.testing.assert_allclose(model["0.weight"][label], expected.coef_[0], atol=1e-4)
        np.testing.assert_allclose(model["0.bias"][label], expected.intercept_[0], atol=1e-4)
