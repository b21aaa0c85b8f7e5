"""``fedsmall list`` and ``schema``: what is bundled by name, and the keys of a scenario, for an editor."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from fedsmall.entry_points import SCENARIOS, extensions
from fedsmall.methods import METHODS
from fedsmall.plan import Method
from fedsmall.sim.cli.options import check_unwritten, command_group, grid, terminal
from fedsmall.sim.runs import scenario as scenario_files

console = terminal()
SHORTER = {  # what may stand in place of a table, or of null
    "augment": {"type": "array", "items": {"type": "string"}},
    "regions": {"type": "integer", "minimum": 1},
    "stop": {"const": False},
    "topology": {"type": "string"},
}

listing = command_group("The methods, tasks and scenarios that are bundled.")


@listing.command()
def methods() -> None:
    """Every method by name, with its source; any part of it can be set anew in a scenario."""
    rows = [(f"[bold]{name}[/bold]", row.summary, f"[dim]{row.source}[/dim]") for name, row in METHODS.items()]
    console.print(grid(("method", "what it does", "source"), rows))
    console.print(
        "\nWith methods of their own: " + ", ".join(f"fedsmall {kind} --help" for kind in extensions(SCENARIOS))
    )


@listing.command()
def tasks() -> None:
    """The data sets by name, and the forms in which your own data are named."""
    from fedsmall.data.sources.registry import TASKS

    rows = [(f"[bold]{name}[/bold]", str(source.__doc__).partition("\n")[0]) for name, source in TASKS.items()]
    console.print(grid(("task", "what it is"), rows))
    console.print('\nYour own: task = {csv = "file or folder", label = "column"}, {npz = ...}, or {images = "folder"};')
    console.print("docs/data.md shows each.", markup=False)


@listing.command()
def scenarios() -> None:
    """The scenarios by name: `fedsmall run NAME` runs one."""
    known = {name: scenario_files.read(path) for name, path in scenario_files.scenarios().items()}
    rows = [(f"[bold]{name}[/bold]", str(table.get("about", ""))) for name, table in known.items()]
    console.print(grid(("scenario", "what it is"), rows))


def scenario_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12); what keys go together, and what a task's table may hold, is not in it."""
    whole, method = scenario_files.Scenario.model_json_schema(), Method.model_json_schema()
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


def schema(out: Annotated[Path | None, Option(help="a file, never written over; printed without")] = None) -> None:
    """The keys of a scenario as a JSON schema: an editor completes them and marks what is wrong.

    For editors with Even Better TOML or taplo the first line of a scenario is then: #:schema ./scenario.schema.json
    """
    text = json.dumps(scenario_schema(), indent=1)
    if out is None:
        typer.echo(text)
    else:
        check_unwritten(out)
        out.write_text(text + "\n", encoding="utf-8")
        console.print(f"Written: {out}. First line of a scenario: #:schema ./{out.name}", markup=False)
