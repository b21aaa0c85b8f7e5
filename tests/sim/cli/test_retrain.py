"""A run again without a hospital: exactly the run of a federation in which it never was."""

import numpy as np
import pytest

from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.run import moved_shares
from fedsmall.sim.runs.folder import read
from tests.sim.runs.scenarios import write

TEXT = """
name = "three"
task = {csv = "data", label = "y"}
rounds = 3
seeds = [0, 1]
model = "linear"
[[method]]
name = "FedAvg"
[[method]]
name = "FedDC"
"""


def tables(folder, names):
    (folder / "data").mkdir(parents=True)
    for number, name in enumerate(names):
        rng = np.random.default_rng(ord(name[0]))
        rows = [f"{a:.3f},{b + number:.3f},{int(a + b > 0)}" for a, b in rng.standard_normal((30, 2))]
        (folder / "data" / f"{name}.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    return write(folder, TEXT)


def weights(folder):
    run = read(folder)
    return [run.packages_of(plan_run)[0].weights for plan_run in run.done]


@pytest.mark.thorough
def test_it_is_the_model_of_a_federation_in_which_the_site_never_was(fedsmall, tmp_path):
    tables(tmp_path, ["bonn", "essen", "ulm"])
    assert fedsmall("run", "small.toml", "--out", "with")[0] == 0

    code, said, complained = fedsmall("retrain", "with", "--without", "essen", "--out", "without")

    assert (code, complained) == (0, "")
    assert "training rows were used" not in said  # essen's are no rows of this run
    assert "FedDC, seed 1: the model has moved by" in said
    assert "of the patients of essen alone: publish the new one only" in " ".join(said.split())
    for name in ("bonn", "ulm"):
        (tmp_path / "never" / "data").mkdir(parents=True, exist_ok=True)
        (tmp_path / "never" / "data" / f"{name}.csv").write_text((tmp_path / "data" / f"{name}.csv").read_text())
    path = write(tmp_path / "never", TEXT)
    assert fedsmall("run", str(path), "--data-root", str(tmp_path / "never"), "--out", "oracle")[0] == 0
    for retrained, never in zip(weights(tmp_path / "without"), weights(tmp_path / "oracle"), strict=True):
        for name, array in never.items():
            assert retrained[name].tobytes() == array.tobytes()
    distances = dict(moved_shares(read(tmp_path / "with"), read(tmp_path / "without")))
    assert len(distances) == 4
    assert min(distances.values()) > 0.001


def test_of_sites_to_which_samples_are_dealt_the_others_keep_theirs():
    method = Method(name="FedAvg", aggregate_every=1)
    plan = Plan(name="a", task="breast_cancer", sites=3, samples_per_site=8, method=method)

    every, some = build_federation(plan), build_federation(plan.model_copy(update={"without": ("site-001",)}))

    assert some.names == ("site-000", "site-002")
    for kept, before in zip(some.train, (every.train[0], every.train[2]), strict=True):
        assert kept.y.tolist() == before.y.tolist()
        assert abs(np.corrcoef(kept.x[:, 0], before.x[:, 0])[0, 1]) > 0.999  # the same patients, scaled anew
        assert not np.array_equal(kept.x, before.x)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["essne"], "there is no such site. Did you mean 'essen'?"),
        (["bonn", "essen", "ulm"], "without names every site; one must be left"),
    ],
)
def test_a_site_that_is_not_there_is_one_line(fedsmall, tmp_path, names, complaint):
    tables(tmp_path, ["bonn", "essen", "ulm"])
    assert fedsmall("run", "small.toml", "--out", "with")[0] == 0

    words = [word for name in names for word in ("--without", name)]
    code, _, complained = fedsmall("retrain", "with", *words, "--out", "without")

    assert (code, complained.count("\n")) == (2, 1)
    assert complaint in complained
    assert not (tmp_path / "without").exists()
