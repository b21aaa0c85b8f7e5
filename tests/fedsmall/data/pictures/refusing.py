"""What files of images that cannot be used are met with."""

from pathlib import Path
from typing import Any

import pytest

from fedsmall.data.sources.images import images
from fedsmall.errors import DataError


def refused(folder: Path, options: dict[str, Any], line: str) -> None:
    """Assert that the images in a folder are refused with a ``line`` that names no patient, and no path."""
    with pytest.raises(DataError, match=line) as caught:
        images(None, 0, str(folder), **options)

    assert "Mueller" not in str(caught.value)
    assert str(folder) not in str(caught.value)
