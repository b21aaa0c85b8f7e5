"""The ClientApp of a real site: the relay of the fedsmall that is installed there."""

from clients.relay import app

__all__ = ["app"]
