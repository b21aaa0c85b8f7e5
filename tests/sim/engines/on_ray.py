"""What tests that start Ray must put up with."""

import pytest

IGNORED = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def on_ray(test):
    """Mark a test: Ray ends with files and processes still open, which are collected before another test is blamed."""
    return pytest.mark.filterwarnings(*IGNORED)(pytest.mark.usefixtures("collect_what_ray_left")(test))
