"""The help of commands: paragraphs whose lines a terminal breaks, and what arguments are.

Of the latter Typer below 0.21 (all that Flower allows) loses what newer ones of click set to nothing: in click 8.5
Argument has a ``help`` of its own.
"""

from typing import Any, get_type_hints

import click
import typer

from fedsmall.files import one_line


def with_whole_help(command: click.Command) -> click.Command:
    """The command, and all below it, with what its function's annotations say of every argument."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_whole_help(inner)
    command.help = "\n\n".join(one_line(paragraph) for paragraph in (command.help or "").split("\n\n"))
    arguments = [each for each in command.params if isinstance(each, typer.core.TyperArgument) and not each.help]
    hints = get_type_hints(command.callback, include_extras=True) if arguments else {}
    for argument in arguments:
        argument.help = _told(hints.get(str(argument.name)))
    return command


def _told(annotation: Any) -> str | None:
    notes = [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, typer.models.ArgumentInfo)]
    return notes[0].help if notes else None
