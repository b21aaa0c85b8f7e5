"""What tests that start Ray must put up with."""

import pytest

# Ray ends with files and processes of its own still open
ON_RAY = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
