"""Lines for the terminal that stand in pages, held to the commands that there are."""

import click

from fedsmall.sim.cli.app import COMMANDS, LazyCommand


def assert_known(line: str) -> None:
    """Every word of a line after `fedsmall` names a command, and every option is one of it."""
    words = line.split()
    command: click.Command = LazyCommand(words[0], COMMANDS[words[0]]).real()
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.commands[words[0]]

    known = {option for parameter in command.params for option in parameter.opts}

    assert {word for word in words if word.startswith("-")} <= known
