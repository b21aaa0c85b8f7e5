"""``--json`` and ``--quiet`` of every command that prints results: one object for programs, or nothing but errors.

With ``--json`` what a command says goes to standard error, and what it has given with :func:`give` to standard output.
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Any

import click
import typer

_given: dict[str, Any] = {}


def give(**results: Any) -> None:
    """What a command has found, for ``--json``; of a key that is given twice both, in a list."""
    for key, value in results.items():
        _given[key] = [*_given.get(key, []), *value] if isinstance(value, list) else value


def as_text(results: Any) -> str:
    """Results as JSON: a number that is none is null."""
    return json.dumps(_numbers(json.loads(json.dumps(results, default=str))))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Heard(io.StringIO):
    """Text that goes to standard error, and is kept."""

    def write(self, text: str) -> int:
        """Pass text on."""
        sys.stderr.write(text)
        return super().write(text)


def with_output(command: click.Command) -> click.Command:
    """The command, and all below it, with both options; one that has ``--json`` already keeps its own."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_output(inner)
        return command
    known = {option for parameter in command.params for option in parameter.opts}
    if "--json" not in known and command.callback is not None:
        quiet = typer.core.TyperOption(param_decls=["--quiet"], is_flag=True, help="print nothing but errors")
        as_json = typer.core.TyperOption(
            param_decls=["as_json", "--json"], is_flag=True, help="print results as one JSON object"
        )
        command.params += [quiet, as_json]
        command.callback = _called(command.callback)
    return command


def _called(callback: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(callback)
    def call(*arguments: Any, quiet: bool, as_json: bool, **options: Any) -> Any:
        if not (quiet or as_json):
            return callback(*arguments, **options)
        _given.clear()
        heard = Heard()
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere if quiet else heard):
            try:
                ended = callback(*arguments, **options)
            except typer.Exit as error:
                ended = error
        if as_json:
            lines = [line.rstrip() for line in heard.getvalue().splitlines() if line.strip()]
            print(as_text(_given or {"lines": lines}))
        if isinstance(ended, typer.Exit):
            raise ended
        return ended

    return call
