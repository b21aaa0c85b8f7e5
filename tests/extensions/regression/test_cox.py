"""Cox's regression from sums over sites and a shared grid is that of pooled patients."""

import numpy as np
import pytest

from fedsmall.extensions.regression.cox import (
    RiskSums,
    Times,
    baseline_hazard,
    partial_likelihood,
    risk_sums,
)
from fedsmall.randomness import rng_for
from tests.extensions.regression.fits import standardised


def generated(n: int = 90, columns: int = 3, ties: bool = True) -> Times:
    rng = rng_for(0, "times")
    x = rng.normal(size=(n, columns))
    time = rng.exponential(np.exp(-x[:, 0])) * 10
    return Times(x, np.ceil(time) if ties else time, (rng.random(n) < 0.7) * 1.0, np.ones(n), np.zeros(n))


def parts_of(patients: Times, sites: int) -> list[Times]:
    at = np.array_split(rng_for(1, "deal").permutation(len(patients.time)), sites)
    return [Times(*(part[k] for part in patients)) for k in at]


def together(parts: list[RiskSums]) -> RiskSums:
    return RiskSums(*(sum(each) for each in zip(*parts, strict=True)))


def fit(sites: list[Times], grid: np.ndarray, ties: str = "efron"):
    beta = np.zeros(sites[0].x.shape[1])
    for _ in range(12):
        sums = partial_likelihood(together([risk_sums(beta, site, grid) for site in sites]), ties)
        beta = beta - np.linalg.solve(sums.hessian, sums.gradient)
    return beta, partial_likelihood(together([risk_sums(beta, site, grid) for site in sites]), ties)


def survival_sets():
    datasets = pytest.importorskip("sksurv.datasets")
    pd = pytest.importorskip("pandas")
    for load in (datasets.load_gbsg2, datasets.load_whas500):
        x, y = load()
        event, time = y.dtype.names
        x = standardised(pd.get_dummies(x, drop_first=True).astype(float).to_numpy())
        yield Times(x, y[time], y[event].astype(float), np.ones(len(x)), np.zeros(len(x)))


def grid_of(patients: Times) -> np.ndarray:
    return np.unique(patients.time[patients.event > 0])


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_two_survival_sets_have_the_coefficients_and_errors_of_statsmodels(ties):
    regression = pytest.importorskip("statsmodels.duration.hazard_regression")
    for patients in survival_sets():
        beta, sums = fit(parts_of(patients, 5), grid_of(patients), ties)

        pooled = regression.PHReg(patients.time, patients.x, patients.event, ties=ties).fit()
        assert np.abs(beta - pooled.params).max() < 1e-7
        assert np.abs(np.sqrt(np.diag(np.linalg.inv(sums.hessian))) - pooled.bse).max() < 1e-6
        assert -sums.loss == pytest.approx(pooled.llf, abs=1e-6)


def test_breslows_hazard_is_that_of_scikit_survival():
    linear_model = pytest.importorskip("sksurv.linear_model")
    patients = generated()
    grid = grid_of(patients)

    beta, _ = fit(parts_of(patients, 4), grid, "breslow")

    y = np.array(list(zip(patients.event > 0, patients.time, strict=True)), dtype=[("event", "?"), ("time", "f8")])
    pooled = linear_model.CoxPHSurvivalAnalysis(ties="breslow", tol=1e-12).fit(patients.x, y)
    ours = baseline_hazard(together([risk_sums(beta, site, grid) for site in parts_of(patients, 4)]))
    assert np.abs(beta - pooled.coef_).max() < 1e-7
    assert np.abs(ours - pooled.cum_baseline_hazard_(grid)).max() < 1e-6


def test_a_coarse_grid_ties_the_times_of_an_interval():
    patients = generated(ties=False)
    rounded = patients._replace(time=np.where(patients.event > 0, np.ceil(patients.time), np.floor(patients.time)))
    grid = np.arange(1.0, 41)

    coarse, exact = (partial_likelihood(risk_sums(np.zeros(3), times, grid)) for times in (patients, rounded))

    assert coarse.loss == pytest.approx(exact.loss)
    assert np.allclose(coarse.gradient, exact.gradient)
    assert coarse.loss != pytest.approx(partial_likelihood(risk_sums(np.zeros(3), patients, grid_of(patients))).loss)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_sites_of_few_patients_add_up_(n):
    patients = generated(9)
    sites, grid = [Times(*(part[k : k + n] for part in patients)) for k in range(0, 9, n)], grid_of(patients)
    beta = np.full(3, 0.3)

    apart = partial_likelihood(together([risk_sums(beta, site, grid) for site in sites]))

    assert apart.loss == pytest.approx(partial_likelihood(risk_sums(beta, patients, grid)).loss)
