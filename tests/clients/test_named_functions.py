"""A plan names functions of what is installed at a hospital; none is imported or called but those its policy lists.

The attacker is the coordinator: it writes the whole plan, knows where the station's data begin, and every module there.
"""

import sys

import numpy as np
import pytest

from fedsmall.extensions.describe.site import DESCRIBE, LABEL
from fedsmall.parts import Privacy, Tree
from fedsmall.sim.consortium import sample_data
from tests.clients.test_data_process import AS_IT_IS, DataProcess, config, order, plan, scaled

TRAP = """from pathlib import Path

Path({mark!r}).write_text("imported")


def network(task, **options):
    from torch import nn

    return nn.Sequential(nn.Linear(*task.input_shape, task.outputs))


def distance(parent, child):
    return 1.0
"""
MODEL = {"model": "trap_of_a_plan:network"}
TREE = {"tree": {"fanout": 1, "depth": 1, "drop": 0.5, "diversity": "trap_of_a_plan:distance"}}


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "hospital").mkdir()
    sample_data.write([tmp_path / "hospital" / "essen.csv"])
    (tmp_path / "policy.toml").write_text(AS_IT_IS)
    (tmp_path / "trap_of_a_plan.py").write_text(TRAP.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap_of_a_plan", raising=False)
    return DataProcess("essen", tmp_path / "hospital" / "essen.csv", tmp_path / "home", tmp_path / "policy.toml")


def allow(site, *functions):
    site.policy_file.write_text(AS_IT_IS + f"functions = {list(functions)}\n")


@pytest.mark.parametrize("source", ["os:truncate", "os:remove", "shutil:rmtree", "os:chmod"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["roll", DESCRIBE])
def test_no_plan_deletes_a_hospitals_data(site, source, whole, kind):
    site.data = site.data.parent if whole else site.data
    before = {path.name: path.read_bytes() for path in site.home.parent.glob("hospital/*")}
    table = plan(name="FedAvg", label=LABEL, privacy=Privacy(secure=True))  # as that of `fedsmall describe`
    evil = table.model_copy(update={"task": {"source": source}, "partition": "iid", "seed": 0})

    words, arrays = site.answer(kind, config(evil), {})

    assert f"the policy here lets no plan name {source!r} (functions)" in words["error"]
    assert not arrays
    assert {path.name: path.read_bytes() for path in site.home.parent.glob("hospital/*")} == before


@pytest.mark.parametrize("kind", ["roll", "train", "evaluate"])
def test_a_network_that_the_policy_does_not_list_is_never_imported(site, kind):
    evil = plan().model_copy(update=MODEL)

    words, _ = site.answer(kind, order(1, the_plan=evil), {})

    assert "error" in words
    assert not (site.home.parent / "mark").exists()


PATHS = {
    "another folder's graphs": {"task": {"connectomes": "../other.npz"}, "partition": "iid"},
    "the folder above": {"task": {"connectomes": ".."}, "partition": "iid"},
    "a whole path": {"task": {"medmnist": "/etc/other"}, "partition": "iid"},
    "somebody's weights": {"model": "torchvision:resnet18", "model_options": {"weights": "/etc/passwd"}},
}


@pytest.mark.parametrize("named", PATHS)
@pytest.mark.parametrize("kind", ["roll", "train", DESCRIBE])
def test_no_plan_reads_files_by_their_paths(site, named, kind):
    np.savez(site.home.parent / "other.npz", source=np.eye(3)[None], target=np.eye(3)[None])
    evil = plan().model_copy(update=PATHS[named])

    words, arrays = site.answer(kind, order(1, the_plan=evil), {})

    assert "names a file by its name alone" in words["error"]
    assert not arrays


def test_nor_is_a_measure_of_diversity(site):
    grown = plan(name="RepTreeFL", **TREE)

    words, _ = site.answer("roll", config(grown), {})

    assert "lets no plan name 'trap_of_a_plan:distance'" in words["error"]
    assert not (site.home.parent / "mark").exists()


@pytest.mark.parametrize("the_plan", [plan().model_copy(update=MODEL), plan(name="RepTreeFL", **TREE)])
def test_what_the_policy_lists_trains(site, the_plan):
    named = [the_plan.model, the_plan.method.tree.diversity if the_plan.method.tree else ""]
    allow(site, *(name for name in named if ":" in name))

    model = scaled(site, the_plan)
    words, sent = site.answer("train", order(1, the_plan=the_plan), model)

    assert "error" not in words
    assert sent
    assert (site.home.parent / "mark").exists()


@pytest.mark.parametrize("the_plan", [plan().model_copy(update=MODEL), plan(name="RepTreeFL", **TREE)])
def test_what_a_policy_lists_no_more_is_called_no_more_in_a_run_under_way(site, the_plan):
    allow(site, "trap_of_a_plan:network", "trap_of_a_plan:distance")
    model = scaled(site, the_plan)
    assert "error" not in site.answer("train", order(1, the_plan=the_plan), model)[0]
    allow(site)

    words, sent = site.answer("train", order(2, the_plan=the_plan), model)

    assert "the policy here lets no plan name 'trap_of_a_plan:" in words["error"]
    assert not sent


def test_no_scenario_is_checked_with_functions_that_the_policy_does_not_list(site, fedsmall):
    words = ["site", "check", "--task", '{source = "shutil:rmtree"}', "--data", str(site.data.parent)]
    before = site.data.read_bytes()

    code, _, complained = fedsmall(*words)

    assert code == 2
    assert "the policy here lets no plan name 'shutil:rmtree' (functions)" in complained
    assert site.data.read_bytes() == before


def test_a_simulation_asks_no_policy(site):
    from fedsmall.entry_points import own_function

    assert own_function("model", "trap_of_a_plan:network").__name__ == "network"
    assert Tree(**TREE["tree"]).diversity == "trap_of_a_plan:distance"
