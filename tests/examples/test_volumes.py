"""What is measured of whole volumes is measured of files that are read and a network that is trained."""

from pathlib import Path

import pytest

from examples.volumes import cost, scan

pytest.importorskip("nibabel")


def test_a_size_has_its_cost(tmp_path: Path) -> None:
    files = [scan(tmp_path / f"{index}.nii.gz", index, (12, 10, 8)) for index in range(2)]

    small, large = cost(files, 4), cost(files, 8)

    assert (small.sample_mb, large.sample_mb) == (4 * 4**3 / 2**20, 4 * 8**3 / 2**20)
    assert large.peak_mb >= small.peak_mb > 0
    assert small.step_s > 0
