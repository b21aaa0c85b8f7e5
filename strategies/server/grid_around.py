"""What a grid that stands before another leaves to it."""

from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid


class GridAround(Grid):
    """A grid before ``grid``: the run, and the making of messages, are the other's."""

    grid: Any

    def set_run(self, run: Any) -> None:
        """As the grid behind it."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid behind it."""
        return self.grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        """As the grid behind it."""
        return self.grid.create_message(*args, **options)  # type: ignore[no-any-return]
