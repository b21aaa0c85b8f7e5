"""What `fedsmall` has in Python: every name says what it takes, gives and raises, and its example runs."""

import doctest
import inspect
import re

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer

import fedsmall
import fedsmall.strategies as fedsmall_strategies
from fedsmall.clients import HospitalClient
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for

OF_FLOWER = fedsmall_strategies.__all__
NAMES = [name for name in fedsmall.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(fedsmall, name))]


@pytest.fixture
def given(tmp_path) -> dict:
    """What the examples have at hand."""
    rng = rng_for(0, "examples")
    x = rng.normal(size=(120, 3))
    y, hospital = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int), np.repeat(list("abc"), 40)
    x[:3, :2] = [[-1, -1], [-2, 0], [2, 1]]
    y[:3] = [0, 0, 1]
    time, event = rng.exponential(10 * np.exp(-x[:, 0])), rng.integers(0, 2, 120)
    frame = pandas.DataFrame(x, columns=["age", "marker", "dose"]).assign(
        state=np.where(y, "ill", "well"), hospital=hospital
    )
    rows = load_breast_cancer(as_frame=True).data.iloc[[0, 1, 19]]
    return {"folder": tmp_path, "rows": rows, "frame": frame, "x": x, "y": y, "hospital": hospital, "np": np} | {
        "time": time,
        "event": event,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_name_runs(name, given):
    found = doctest.DocTestFinder(recurse=False).find(getattr(fedsmall, name), name, globs=given)
    results = [doctest.DocTestRunner(verbose=False).run(example) for example in found]

    assert sum(result.attempted for result in results) >= 2
    assert sum(result.failed for result in results) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_what_it_takes(name):
    what = getattr(fedsmall, name)
    text = inspect.getdoc(what)

    assert "Examples\n--------" in text
    said = text if "Parameters\n----------" in text else inspect.getdoc(fedsmall.FederatedClassifier)
    parameters = [one for one in inspect.signature(what).parameters if one != "self"]
    assert [one for one in parameters if one not in said] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_gives_and_raises(name):
    text = inspect.getdoc(getattr(fedsmall, name))

    assert "Returns\n-------" in text
    assert "Raises\n------" in text


WANT_MORE = ("SCAFFOLD", "FedDyn", "FedNova", "RadonMachine", "RepTreeFL")  # fedsmall's own clients, or more sites


@pytest.fixture
def grid():
    """Three hospitals of the tutorial's Flower app, which know nothing of us, and their first model."""
    from flwr.app import ArrayRecord, ConfigRecord
    from torch.nn import Linear

    from fedsmall.sim.engines.inprocess import InProcessGrid
    from tests.examples.test_flower_apps import modules

    with modules("flower_app") as (client, _):
        arrays, config = ArrayRecord(Linear(30, 2).state_dict()), ConfigRecord({"lr": 0.1, "epochs": 2})
        yield {"grid": InProcessGrid(client.app, 3), "arrays": arrays, "config": config}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in OF_FLOWER if name not in WANT_MORE])
def test_the_example_of_a_strategy_runs(name, grid):
    found = doctest.DocTestFinder(recurse=False).find(getattr(fedsmall_strategies, name), name, globs=grid)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    results = [runner.run(example) for example in found]

    assert sum(result.attempted for result in results) >= 2
    assert sum(result.failed for result in results) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", WANT_MORE)
def test_a_strategy_that_wants_more_of_its_sites_does_not_go_on(name, grid):
    strategy = getattr(fedsmall_strategies, name)(*([fedsmall_strategies.Tree()] if name == "RepTreeFL" else []))

    with pytest.raises(PlanError):
        strategy.start(grid["grid"], grid["arrays"], 1, train_config=grid["config"])


@pytest.mark.parametrize("what", [*(getattr(fedsmall_strategies, name) for name in OF_FLOWER), HospitalClient])
def test_a_strategy_and_a_client_say_what_they_take(what):
    text = inspect.getdoc(what)

    assert re.search(r"(Parameters|Attributes)\n-{10}", text)
    assert [one for one in inspect.signature(what).parameters if one != "self" and one not in text] == []
