"""``fedsmall`` on the command line: imports a command when called; a user's mistake ends in one line and code 2."""

import atexit
import errno
import gc
import io
import os
import re
import sys
import traceback
from typing import Any, get_type_hints

import click
import typer
from typer import Option

from fedsmall.files import FULL, one_line
from fedsmall.sim.cli.commands import COMMANDS, LIVE, Entry

INTERRUPTED = 130


class LazyCommand(click.Command):
    """Stands for a command until it is called; then it is imported and takes over."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, add_help_option=False)
        self.entry = entry
        self.rich_help_panel = entry.panel

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        """The context of the real command."""
        return self.real().make_context(info_name, args, parent, **extra)

    def real(self) -> click.Command:
        """The command itself."""
        target = self.entry.load()
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(self.name, help=target.__doc__)(target)
            target = app
        command = with_whole_help(typer.main.get_command(target))
        command.name = self.name
        if self.rich_help_panel != LIVE and self.name != "schema":  # which prints JSON
            from fedsmall.sim.cli.output import with_output

            command = with_output(command)
        return command


def with_whole_help(command: click.Command) -> click.Command:
    """The command, and all below it, with what its function's annotations say of every argument.

    A terminal breaks the lines of paragraphs. Typer below 0.21 loses the help of arguments, which click 8.5 has anew.
    """
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_whole_help(inner)
    command.help = "\n\n".join(one_line(paragraph) for paragraph in (command.help or "").split("\n\n"))
    kind = typer.core.TyperArgument
    arguments = [parameter for parameter in command.params if isinstance(parameter, kind) and not parameter.help]
    hints = get_type_hints(command.callback, include_extras=True) if arguments else {}
    for argument in arguments:
        notes = getattr(hints.get(str(argument.name)), "__metadata__", ())
        argument.help = next((note.help for note in notes if isinstance(note, typer.models.ArgumentInfo)), None)
    return command


class Commands(typer.core.TyperGroup):
    """All commands of the table whose module is there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return [name for name, entry in COMMANDS.items() if entry.is_here()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, not imported yet."""
        return LazyCommand(cmd_name, COMMANDS[cmd_name]) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is asked for; the nearest one is named where there is none."""
        known = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in known:
            from fedsmall.methods import nearest

            if args[0] in COMMANDS:
                cure = "git clone the repository and `pip install -e .` there"
                raise click.UsageError(f"`fedsmall {args[0]}` comes with the repository, not with the wheel: {cure}")
            raise click.UsageError(f"There is no command {args[0]!r}. {nearest(args[0], known)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Commands, no_args_is_help=True)


def show_version(asked: bool) -> None:
    """Print the version and leave, before typer misses a command."""
    if asked:
        from fedsmall import __version__

        typer.echo(f"fedsmall {__version__}")
        raise typer.Exit


@app.callback()
def fedsmall(
    version: bool = Option(False, "--version", help="Show the version.", is_eager=True, callback=show_version),
) -> None:
    """Learn one model across sites that each hold only a handful of samples and may not pool them.

    Start with `fedsmall demo`.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run ``fedsmall``. A wrong value ends it with one line and code 2; a fault of ours keeps its traceback."""
    gc.set_threshold(100_000, 50, 100)  # what is imported is no garbage; looking for some took a tenth of a short run
    atexit.register(gc.freeze)  # nor is it when all ends, which took half a second
    for library in ("OPENBLAS", "NUMEXPR"):  # on small matrices a second thread only waits, and it hinders forks
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a hospital's name may have letters that a terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="fedsmall", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show(sys.stdout)
        code = 0
    except click.ClickException as error:
        code = stop(re.sub(r"( Did you mean [^?]*\?)\1", r"\1", error.format_message()), 2)  # typer's and click's own
    except (click.Abort, KeyboardInterrupt):
        code = stop("interrupted", INTERRUPTED)
    except ValueError as error:
        if not raised_by_us(error):
            raise
        code = stop(str(error), 2)
    except OSError as error:
        code = stop(_of_the_system(error), 2)
    sys.exit(code if isinstance(code, int) else 0)


def stop(message: str, code: int) -> int:
    """Say in one line on stderr why the command ends; returns its exit code."""
    print(f"fedsmall: {one_line(message)}", file=sys.stderr)
    return code


def _of_the_system(error: OSError) -> str:
    """One line for a missing or forbidden path or a full disk; any other error is raised again."""
    if error.errno in FULL:
        return str(error) if error.filename is None else f"the disk is full: {error.filename}"
    if error.errno == errno.EROFS:
        return f"the disk is read-only: {error.filename or error.strerror}"
    named = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
    if not isinstance(error, named) or error.filename is None:
        raise error
    return f"{error.strerror}: {error.filename}"


def raised_by_us(error: ValueError) -> bool:
    """Whether our own code refused a value, which is for the user to mend; a library's refusal is a fault of ours."""
    from fedsmall.errors import DataError, PlanError, PolicyError, ReplyError

    if isinstance(error, PlanError | DataError | PolicyError | ReplyError):
        return True  # wherever it was raised: in another process, say
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] == "fedsmall"


if __name__ == "__main__":
    main()
