"""What an extra brings is asked for where it is needed, in one line that names the extra."""

import sys

import pytest

from fedsmall.entry_points import import_extra
from fedsmall.errors import PlanError
from fedsmall.sim.engines import run

SCENARIO = """
name = "short"
task = "breast_cancer"
sites = 3
rounds = 1
seeds = [0]
{}
[[method]]
name = "FedAvg"
"""
MISSING = {
    "data": ("flwr_datasets.partitioner", "partition = {dirichlet = 0.5}", ()),
    "ray": ("ray", "samples_per_site = 8", ("--engine", "ray")),
}


@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_named_and_nothing_is_written(fedsmall, tmp_path, monkeypatch, extra):
    module, line, words = MISSING[extra]
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "short.toml").write_text(SCENARIO.format(line))

    code, said, complained = fedsmall("run", "short.toml", "--out", "run", "--processes", "1", *words)

    assert code == 2, said
    assert f"pip install 'fedsmall[{extra}]'" in complained
    assert not (tmp_path / "run").exists()


def test_a_folder_of_a_packages_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "nothing_of_ours").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PlanError, match="needs nothing_of_ours, which is not installed"):
        import_extra("ray", "nothing_of_ours")


def test_a_run_without_ray_says_the_other_versions():
    assert {"flwr", "torch", "numpy"} <= set(run.versions())
