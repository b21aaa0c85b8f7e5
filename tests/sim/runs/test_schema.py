"""The schema of scenarios: it takes every scenario that is bundled or shown, and marks what a reader of it can know."""

import json
import tomllib
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from fedsmall.methods import METHODS
from fedsmall.sim.cli.listing import scenario_schema
from fedsmall.sim.runs.scenario import Scenario, Settings
from tests import ROOT

SCENARIOS = [path for folder in ("sim", "examples") for path in sorted((ROOT / folder).rglob("*.toml"))]
GOOD = {"name": "mine", "task": {"csv": "a.csv", "label": "y"}, "method": [{"name": "FedDC", "recipe": {"lr": 0.1}}]}


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(scenario_schema())


def faults(table: dict) -> list[str]:
    return [error.message for error in validator().iter_errors(table)]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_keeps_to_it(path):
    table = tomllib.loads(path.read_text())
    if "task" not in table or "columns" in table["task"]:
        pytest.skip("an extension's, or no scenario")

    assert faults(table) == []


@pytest.mark.parametrize(
    "shorter",
    [
        {"topology": "gossip"},
        {"regions": 2},
        {"regions": {"number": 2}},
        {"stop": False},
        {"recipe": {"augment": ["flip"]}},
        {"validate": {"routes": 3}},
        {"groups": "each"},
        {"name": "MyOwn"},
    ],
    ids=repr,
)
def test_what_may_be_said_in_short_is_known(shorter):
    assert faults(GOOD | {"method": [{"name": "FedDC", **shorter}]}) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 3},
        {"rounds": 0},
        {"seeds": [-1]},
        {"dtype": "float16"},
        {"recipe": {"lr": "fast"}},
        {"method": [{"name": "FedDC", "agregate_every": 1}]},
        {"method": [{"aggregate_every": 1}]},
        {"method": [{"name": "FedDC", "privacy": {"epsilom": 1}}]},
    ],
    ids=repr,
)
def test_what_is_wrong_is_marked(wrong):
    assert faults(GOOD) == []
    assert len(faults(GOOD | wrong)) == 1


def test_the_command_writes_it_with_all_methods_and_never_over_a_file(fedsmall, tmp_path):
    file = tmp_path / "scenario.schema.json"

    code, told, _ = fedsmall("schema", "--out", str(file))

    assert code == 0
    assert "#:schema ./scenario.schema.json" in told
    written = json.loads(file.read_text())
    Draft202012Validator.check_schema(written)
    assert written["$defs"]["Method"]["properties"]["name"]["anyOf"][0]["enum"] == list(METHODS)
    assert fedsmall("schema", "--out", str(file))[0] == 2
    assert json.loads(fedsmall("schema")[1]) == written


def test_an_editor_completes_every_key_in_python():
    in_the_signature = {"sites", "engine", "test"}

    assert set(Settings.__annotations__) | in_the_signature == set(Scenario.model_fields)
