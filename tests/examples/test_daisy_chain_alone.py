"""The daisy chain as one file: the models of the package's strategy, without importing it."""

import ast

import numpy as np
import pytest

from examples import daisy_chain_alone
from fedsmall.strategies import FedDC
from tests import ROOT
from tests.oracles import bijection
from tests.strategies.toy import append_digit, half_way, toy_grid, walk, weights


class PackagePermutations:
    """Draws the package's permutations, so that both chains take the same ways."""

    def __init__(self, seeds):
        self.seed, self.t = seeds

    def permutation(self, sites: int) -> np.ndarray:
        return np.asarray(bijection(self.seed, self.t, sites))


def final(grid, rounds: int, **settings) -> np.ndarray:
    chain = daisy_chain_alone.DaisyChain(**settings)
    result = chain.start(grid, weights(0.5, -1.0), rounds, timeout=10)
    return result.arrays["w"].numpy()


@pytest.mark.parametrize(
    ("d", "b", "sites"),
    [
        (2, 6, 5),
        *(
            pytest.param(d, b, sites, marks=pytest.mark.thorough)
            for d, b in ((1, 4), (2, 6), (1, 1), (1, 100))
            for sites in (2, 5)
            if (b, sites) != (6, 5)
        ),
    ],
)
def test_it_ends_in_the_model_of_the_package(d, b, sites, monkeypatch):
    monkeypatch.setattr(daisy_chain_alone.np.random, "default_rng", PackagePermutations)
    alone = final(toy_grid(sites), 12, permute_every=d, aggregate_every=b, seed=7)

    *_, (_, last) = walk(FedDC(permute_every=d, aggregate_every=b, seed=7), toy_grid(sites), weights(0.5, -1.0), 12)

    np.testing.assert_allclose(alone, last["w"].numpy(), rtol=1e-12)


def test_a_site_that_does_not_answer_keeps_its_model_and_the_others_go_on():
    grid = toy_grid(3, half_way, lambda site, t, reply: None)
    silent = toy_grid(3, lambda site, w, rounds: 1 / 0 if site == "site-1" else half_way(site, w, rounds))

    everybody, two = (final(one, 6, permute_every=1, aggregate_every=6) for one in (grid, silent))

    assert np.isfinite(two).all()
    assert not np.allclose(everybody, two)


def test_every_model_visits_other_sites():
    seen = final(toy_grid(3, append_digit), 3, permute_every=1, aggregate_every=3)

    assert len(set(str(int(seen[0])))) > 1


def test_it_imports_flower_and_numpy_alone():
    tree = ast.parse((ROOT / "examples" / "daisy_chain_alone.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}

    assert {name.partition(".")[0] for name in modules} == {"collections", "typing", "numpy", "flwr"}


@pytest.mark.parametrize("settings", [{"permute_every": 0}, {"aggregate_every": -1}])
def test_periods_are_at_least_one(settings):
    with pytest.raises(ValueError, match="at least 1"):
        daisy_chain_alone.DaisyChain(**settings)
