import pytest

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.validation import check_plan, parameter_count

TASK = Task("small", (17,), 2, loss="hinge")


def plan_of(name, **parts):
    return Plan(name="test", task="digits", model="linear", method=method(name, **parts))


def test_the_parameters_of_a_linear_model_are_its_weights_and_bias():
    assert parameter_count(plan_of("FedAvg"), TASK) == 18


def test_fewer_models_than_the_radon_number_is_an_error_that_names_both():
    check_plan(plan_of("FedDC+Radon"), TASK, 20)

    with pytest.raises(PlanError, match=r"20.*19|19.*20"):
        check_plan(plan_of("FedDC+Radon"), TASK, 19)


@pytest.mark.parametrize(
    ("name", "parts", "words"),
    [
        ("FedTrimmedAvg", {"aggregator_options": {"trimm": 0.1}}, "trimm"),
        ("FedAvg", {"server_options": {"eta": 0.1}}, "server_options"),
        ("Krum", {}, "Krum"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name, parts, words):
    with pytest.raises(PlanError, match=words):
        check_plan(plan_of(name, **parts), TASK, 2)


@pytest.mark.parametrize(
    "parts", [{"models": 2}, {"groups": 3}, {"validate": {"routes": 3}}, {"groups": "each"}, {"fraction": 0.3}]
)
def test_an_aggregator_is_tried_on_as_many_models_as_are_averaged(parts):
    check_plan(plan_of("Krum"), TASK, 8)

    with pytest.raises(PlanError, match=r"= 3 models; got [12]"):
        check_plan(plan_of("Krum", **parts), TASK, 8)


@pytest.mark.parametrize("name", ["Standalone", "Central"])
def test_comparators_need_no_number_of_sites(name):
    check_plan(plan_of(name), TASK, 1)
