"""The keys of a scenario as a JSON schema, by which an editor completes and checks a file."""

from typing import Any

from fedsmall.methods import METHODS
from fedsmall.plan import Method
from fedsmall.sim.runs.scenario import Scenario

SHORTER = {  # what may stand in place of a table, or of null
    "augment": {"type": "array", "items": {"type": "string"}},
    "regions": {"type": "integer", "minimum": 1},
    "stop": {"const": False},
    "topology": {"type": "string"},
}


def scenario_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12); what keys go together, and what a task's table may hold, is not in it."""
    whole, method = Scenario.model_json_schema(), Method.model_json_schema()
    definitions = whole["$defs"] | method.pop("$defs")
    keys = method["properties"]
    keys["name"] = {"anyOf": [{"enum": list(METHODS)}, {"type": "string"}]}
    keys |= {"recipe": {"$ref": "#/$defs/Recipe"}, "stop": {"anyOf": [{"$ref": "#/$defs/EarlyStop"}]}}
    for properties in (keys, definitions["Recipe"]["properties"]):
        for name in SHORTER.keys() & properties.keys():
            properties[name]["anyOf"].append(SHORTER[name])
    whole["properties"]["method"]["items"] = {"$ref": "#/$defs/Method"}
    whole["required"].remove("method")  # without methods those of a first choice are compared
    return whole | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A scenario of fedsmall",
        "$defs": definitions | {"Method": method},
    }
