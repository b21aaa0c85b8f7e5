"""The generated reference holds everything that there is, and what it says of it is true."""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import click
import pytest
import typer
from pydantic import BaseModel, Field

from docs.manual import api, commands, keys, methods, tasks
from docs.manual.toml import spelled
from fedsmall.data.sources.registry import KINDS, TASKS, read_task
from fedsmall.data.splits import KINDS as PARTITIONS
from fedsmall.errors import PlanError
from fedsmall.methods import METHODS
from fedsmall.models.registry import MODELS
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method
from fedsmall.sim.cli.app import app
from fedsmall.sim.runs.scenario import Scenario

SCENARIO, COMMANDS = keys.page(), commands.page()


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by their first cell."""
    part = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert part, heading
    found = re.findall(r"^\| `?(.*?)`? \|(.*)\|$", part[1], re.MULTILINE)
    return {first: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)] for first, rest in found}


def schemas() -> dict[str, dict]:
    """The tables of a scenario as pydantic's own JSON schema names them: another road to the same keys."""
    whole: dict[str, dict] = {}
    for model in (Scenario, Method):
        schema = model.model_json_schema()
        whole |= {schema["title"]: schema, **schema.get("$defs", {})}
    return whole


def test_every_key_of_every_table_stands_in_the_reference():
    headings = {section.model.__name__: section.heading for section in keys.SECTIONS}
    schema = schemas()

    assert set(headings) == set(schema)
    for name, one in schema.items():
        assert set(one["properties"]) == set(rows(SCENARIO, headings[name])) - {"key", "---"}, name


def test_every_key_has_a_meaning_and_no_meaning_is_left_over():
    assert {section.model.__name__: set(keys.keys_of(section.model)) for section in keys.SECTIONS} == {
        name: set(table) for name, table in keys.MEANINGS.items()
    }
    assert all(meaning.endswith(".") for table in keys.MEANINGS.values() for meaning in table.values())


@pytest.mark.parametrize(
    ("heading", "key", "value", "default"),
    [
        ("Scenario", "name", "a text", "**required**"),
        ("Scenario", "rounds", "a whole number from 1 and at most 1,000,000", "`100`"),
        ("Scenario", "seeds", "a list, each a whole number from 0", "`[0]`"),
        ("Scenario", "sites", "a whole number from 1", ""),
        ("Scenario", "recipe", "a table: [Recipe](#recipe)", "`{}`"),
        ("Recipe", "momentum", "a number from 0 and below 1", "`0.0`"),
        ("Recipe", "optimizer", '`"sgd"`, `"adam"`', '`"sgd"`'),
        ("Recipe", "betas", "a list of 2 numbers", "`[0.9, 0.999]`"),
        ("Method", "gate", "a number above 1, or `false`", "`20.0`"),
        ("Method", "validate", "a table: [Validation](#validation)", ""),
        ("Privacy", "sealed", "`true` or `false`", "`false`"),
        ("Stop", "hold_out", "a number above 0 and at most 0.5", ""),
    ],
)
def test_types_and_defaults_are_told_as_a_file_spells_them(heading, key, value, default):
    assert rows(SCENARIO, heading)[key][:2] == [value, default]


def test_a_bound_within_a_list_and_a_choice_is_told():
    class Made(BaseModel):
        each: tuple[Annotated[int, Field(ge=2, le=5)], ...] | Literal["all"] = "all"

    field = Made.model_fields["each"]

    assert keys.kinds(field.annotation) == 'a list, each a whole number from 2 and at most 5, or `"all"`'


def tree() -> Iterator[tuple[str, click.Command]]:
    """Every command by the words that call it, as click itself finds them."""

    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                yield from below(f"{path} {name}", found.real() if hasattr(found, "real") else found)

    yield from below("fedsmall", typer.main.get_command(app))


def test_every_command_and_every_option_stands_in_the_reference():
    found = dict(tree())
    del found["fedsmall"]

    assert len(found) > 40
    assert set(re.findall(r"^### (.+)$", COMMANDS, re.MULTILINE)) == set(found)
    for path, command in found.items():
        options = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
        table = rows(COMMANDS, path) if command.params else {}
        assert options <= {name for first in table for name in re.split(r"`?, `?", first)}, path


def test_every_argument_and_option_has_a_meaning():
    nameless = {
        (path, name)
        for path, command in tree()
        if command.params and path != "fedsmall"
        for name, cells in rows(COMMANDS, path).items()
        if not cells[-1] and name != "---"
    }

    assert nameless == set()


def test_an_option_says_what_it_takes_and_what_it_is_without_it():
    assert rows(COMMANDS, "fedsmall plan")["--sites"][:2] == ["integer from 1", "**required**"]
    assert rows(COMMANDS, "fedsmall tune")["--rates"][1] == "`0.01,0.03,0.1,0.3`"
    assert rows(COMMANDS, "fedsmall run")["--set"][:2] == ["KEY=VALUE, several", ""]


def test_every_method_stands_in_the_reference_with_its_parts():
    table = methods.page()

    for name, row in METHODS.items():
        assert f"| `{name}` | {row.summary} |" in table
    assert "`permute_every = 1`<br>`aggregate_every = 10`" in table


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_task_stands_in_the_reference_and_is_taken(kind):
    line = re.search(rf"^### {kind}\n(?:(?!^###).)*?^Options: (.*?)\.$", tasks.page(), re.DOTALL | re.MULTILINE)
    assert line
    table = {*re.findall(r"`(\w+)[^`]*`", line[1])}
    known = {*inspect.getfullargspec(tasks.function_of(KINDS[kind])).kwonlyargs} - {*tasks.BY_CODE}

    assert table == known
    for option in table:
        read_task({kind: "x", option: "?"})  # an option that there is not would be refused
    with pytest.raises(PlanError, match="has no option"):
        read_task({kind: "x", "other": 1})


def test_every_data_set_partition_and_model_stands_in_the_reference():
    text = tasks.page()

    assert all(f"| `{name}` |" in text for name in (*TASKS, *MODELS))
    assert set(re.findall(r"^\| `(?:\{(\w+)|\"(\w+)\")", text, re.MULTILINE)) == {
        (kind, "") if value else ("", kind) for kind, value in PARTITIONS.items()
    }
    assert '`widths = [16, 32]`<br>`norm = "group"`<br>`dropout = 0.0`' in text
    assert "`sites` (**required**)" in text


@pytest.mark.parametrize(
    ("value", "toml"),
    [
        (True, "true"),
        ("a", '"a"'),
        ({"rounds": 0.2, "sites": [8]}, "{rounds = 0.2, sites = [8]}"),
        (Recipe(lr=0.3), "{lr = 0.3}"),
        (Privacy(blur=1), "{blur = 1.0}"),
    ],
)
def test_a_value_is_spelled_as_toml(value, toml):
    assert spelled(value) == toml


@pytest.mark.parametrize("package", api.PACKAGES)
def test_every_public_name_of_a_package_is_in_its_reference(package):
    from importlib import import_module

    module = import_module(package)
    text = api.page(package)

    for name in {*module.__all__} - {api.VERSIONS}:
        assert re.search(rf"^(      heading:|##) {api.import_name(package)}\.{name}$", text, re.MULTILINE)
        assert getattr(module, name).__doc__
