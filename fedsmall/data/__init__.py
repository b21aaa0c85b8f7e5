"""Which samples lie where."""
