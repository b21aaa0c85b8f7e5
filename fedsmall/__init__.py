"""Federated learning from small data: the mathematics, models, data and training. No network in here."""

__version__ = "0.1.0"
