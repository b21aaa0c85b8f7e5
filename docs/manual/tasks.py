"""The reference of tasks, partitions and models: what each takes, from the functions that read and build them."""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from docs.manual.toml import spelled
from fedsmall.data.sources.registry import KINDS, LOSSES, TASKS
from fedsmall.data.splits import KINDS as PARTITIONS
from fedsmall.entry_points import extensions
from fedsmall.models.registry import MODELS

HEAD = f"""# Tasks, partitions, models

*For hospital data scientists and researchers.*

Made from the functions that read samples and build networks. How they are used is in [Bringing your own
data](../data.md), [Outcomes](../outcomes.md) and [Use your own network](../howto/network.md).

A `task` is a name from the second table, or a table whose first word is a kind from the first section, as in
`task = {{csv = "patients.csv", label = "outcome"}}`. Every one also takes `loss`, without which it is the one of its
outcome ({", ".join(f"`{loss}`" for loss in LOSSES)}), `ranges` (the [public
ranges](../data.md#a-table) of features) and `subgroups` ([whom a report also looks at](../report.md#subgroups)).
"""
BY_CODE = ("by_site", "site_column", "file", "own")  # what `partition`, or that a site reads its own, says


def page() -> str:
    """All kinds of files, the data sets by name, the partitions, and the models with their options."""
    parts = [HEAD, "## Your own files\n", *(_kind(name, function_of(place)) for name, place in KINDS.items())]
    parts += ["## Data sets by name\n\n| `task` | what it is |\n|---|---|", *map(_named, TASKS)]
    parts += ["\n## Partitions\n\n[Who gets what](../samples.md#how-samples-are-split-over-sites).\n"]
    parts += ["| `partition` |\n|---|", *(f"| `{_partition(kind, value)}` |" for kind, value in PARTITIONS.items())]
    parts += [
        "\n## Models\n\n| `model` | what it is | `model_options`, and their defaults |\n|---|---|---|",
        *map(_model, [*MODELS, *extensions("fedsmall.models")]),
    ]
    return "\n".join(parts) + "\n"


def function_of(place: str | Callable[..., Any]) -> Callable[..., Any]:
    """A function by its "module:name", or itself."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a scenario may say beside the first word: the arguments by keyword."""
    named = inspect.signature(function).parameters.values()
    return {
        parameter.name: parameter
        for parameter in named
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in BY_CODE
    }


def _kind(name: str, function: Callable[..., Any]) -> str:
    options = ", ".join(_option(key, option) for key, option in options_of(function).items())
    return f"### {name}\n\n{inspect.getdoc(function)}\n\nOptions: {options or 'none'}.\n"


def _named(name: str) -> str:
    return f"| `{name}` | {_sentence(function_of(TASKS[name]))} |"


def _partition(kind: str, value: str) -> str:
    return f"{{{kind} = {value}}}" if value else f'"{kind}"'


def _model(name: str) -> str:
    function = function_of(MODELS[name] if name in MODELS else extensions("fedsmall.models")[name].value)
    options = [_option(key, option) for key, option in options_of(function).items()]
    if any(option.kind is option.VAR_KEYWORD for option in inspect.signature(function).parameters.values()):
        options.append("those of the model of that name")
    return f"| `{name}` | {_sentence(function)} | {'<br>'.join(options)} |"


def _option(key: str, parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return f"`{key}` (**required**)"
    return f"`{key}`" if parameter.default in (None, ()) else f"`{key} = {spelled(parameter.default)}`"


def _sentence(function: Callable[..., Any]) -> str:
    return re.sub(r"\s+", " ", (inspect.getdoc(function) or "").split("\n\n")[0]).replace("|", "\\|")
