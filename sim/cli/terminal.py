"""What the commands of a consortium print: a word of another's stands there as it came, and does nothing else."""

from rich.console import Console

from fedsmall.files import plain

console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def say(text: str, style: str | None = None) -> None:
    """Print one line."""
    console.print(plain(text), style=style)
