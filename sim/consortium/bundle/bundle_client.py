"""The ClientApp of a real site: the relay of the fedsmall that is installed there."""

from fedsmall.clients.relay import app

__all__ = ["app"]
