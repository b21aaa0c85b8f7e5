"""Attacks that no command makes, for evidence and tests: crafted models, last digits of floats, pictures."""
