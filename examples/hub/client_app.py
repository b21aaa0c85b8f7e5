"""A hospital: its samples stay here; it trains and judges what comes."""

from fedsmall.clients.client_app import app

__all__ = ["app"]
