"""A server that turns on its sites: every attack that sealed runs are to stand, tried on the programs themselves."""

import pytest

pytest.register_assert_rewrite("tests.attacks.world")
