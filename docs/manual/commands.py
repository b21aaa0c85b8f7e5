"""The reference of the command line: every command, argument and option, from the commands themselves."""

import inspect
import re
from collections.abc import Iterator
from pathlib import PurePath

import click

from fedsmall.sim.cli.app import LazyCommand
from fedsmall.sim.cli.commands import COMMANDS

HEAD = """# Every command

*For hospital data scientists, coordinators and researchers.*

Made from the command line itself; `fedsmall COMMAND --help` says the same. A wrong value ends a command with one line
and exit code 2, before anything is written; `fedsmall --version` says which version speaks, and
`fedsmall --install-completion` lets your shell complete commands and options.
"""


def page() -> str:
    """All commands, in the panels of `fedsmall --help`."""
    parts, panel = [HEAD], ""
    for name, entry in COMMANDS.items():
        if entry.panel != panel:
            panel = entry.panel
            parts.append(f"## {panel}\n")
        parts += [_command(path, command) for path, command in walk(name, LazyCommand(name, entry).real())]
    return "\n".join(parts)


def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, by their words."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(f"{path} {name}", inner)


def _command(path: str, command: click.Command) -> str:
    with click.Context(command, info_name=f"fedsmall {path}") as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        rows = [_row(parameter, context) for parameter in shown]
    head = f"### fedsmall {path}\n\n{_text(command.help)}\n\n```text\n{usage}\n```\n"
    return head + ("\n| | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


def _row(parameter: click.Parameter, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if isinstance(parameter, click.Argument):
        names = f"`{parameter.make_metavar(context).strip('[]')}`"
    value = "" if getattr(parameter, "is_flag", False) else _value(parameter)
    return f"| {names} | {value} | {_default(parameter)} | {_text(getattr(parameter, 'help', ''))} |"


def _value(parameter: click.Parameter) -> str:
    """What a parameter takes: the word that help shows for it, or a type with its bounds."""
    kind = parameter.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        words = [parameter.metavar or kind.name.removesuffix(" range")]
        words += [f"from {kind.min}"] * (kind.min is not None) + [f"to {kind.max}"] * (kind.max is not None)
        return " ".join(words)
    shown = parameter.metavar if isinstance(parameter, click.Option) and parameter.metavar else kind.name
    return _text(shown) + ", several" * (parameter.multiple or parameter.nargs == -1)


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "**required**"
    shown = isinstance(parameter.default, str | int | float | PurePath) and not isinstance(parameter.default, bool)
    return f"`{parameter.default}`" if shown and parameter.default != "" else ""


def _text(help: str | None) -> str:
    text = re.sub(r"\s+", " ", inspect.cleandoc(help or "")).strip()
    return re.sub(r"<(?=\w)", "&lt;", text).replace("|", "\\|").replace("*", "\\*")
