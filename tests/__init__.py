"""The tests; ``ROOT`` is the checkout's folder."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
