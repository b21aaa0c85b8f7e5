"""Boosted trees over rows, as the trainer of the methods whose table has ``boosting``."""
