"""Errors, intervals and tests from sums are those of statsmodels and of published analyses."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from fedsmall.extensions.regression.families import Rows, sums_at
from fedsmall.extensions.regression.inference import (
    Fitted,
    between_sites,
    effect_sums,
    inverse,
    likelihood_ratio,
    meta_analysis,
    wald,
)
from fedsmall.extensions.regression.newton import Setup, advance, begin, read_sum, summand
from fedsmall.randomness import rng_for
from tests.extensions.regression.fits import dealt, fit, inference, rows_of, standardised

sm = pytest.importorskip("statsmodels.api")


def close(table, pooled) -> None:
    """The table is that of a statsmodels result, whose constant is the last column, to 1e-6."""
    assert np.abs(table.estimate - pooled.params).max() < 1e-7
    assert np.abs(table.error - pooled.bse).max() < 1e-6
    assert np.abs(table.p - pooled.pvalues).max() < 1e-6
    assert np.abs(np.c_[table.low, table.high] - pooled.conf_int()).max() < 1e-6


def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    return standardised(x[:, [0, 1, 4, 8]]), y


def test_a_logistic_regression_has_the_table_of_statsmodels():
    x, y = cancer()
    setup = Setup("logistic", 5, 1, (0.0,))

    state, _ = fit(setup, dealt(rows_of(x, y), 10))

    pooled = sm.Logit(y, np.c_[x, np.ones(len(y))]).fit(disp=0, method="newton", tol=1e-12)
    table = inference(setup, state)
    close(table, pooled)
    assert np.allclose(table.ratios[0], np.exp(pooled.params))
    null, _ = fit(Setup("logistic", 1, 1, (0.0,)), dealt(rows_of(x[:, :0], y), 10))
    fitted, nested = Fitted(state.loss[0], 4), Fitted(null.loss[0], 0)
    assert likelihood_ratio(fitted, nested) == pytest.approx((pooled.llr, pooled.llr_pvalue), abs=1e-6)


def test_numbers_and_counts_have_the_tables_of_statsmodels():
    x, y = load_diabetes(return_X_y=True)
    x, counts = standardised(x), rng_for(0, "counts").poisson(np.exp(0.3 * standardised(x)[:, 2]))
    linear, poisson = Setup("linear", 11, 1, (0.0,)), Setup("poisson", 11, 1, (0.0,))

    of_linear, _ = fit(linear, dealt(rows_of(x, y[:, None] / 77), 10))
    of_poisson, _ = fit(poisson, dealt(rows_of(x, counts), 10))

    constant = np.c_[x, np.ones(len(y))]
    close(inference(linear, of_linear), sm.OLS(y / 77, constant).fit())
    close(inference(poisson, of_poisson), sm.GLM(counts, constant, family=sm.families.Poisson()).fit(tol=1e-13))


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_robust_errors_by_site_are_the_clustered_ones_of_statsmodels(family):
    x, y = cancer()
    sites = dealt(rows_of(x, y[:, None].astype(float)), 15)
    setup = Setup(family, 5, 1, (0.0,), robust=True)

    state, _ = fit(setup, sites)

    whole = Rows(*(np.concatenate(parts) for parts in zip(*sites, strict=True)))
    model = sm.OLS(whole.y, whole.x) if family == "linear" else sm.GLM(whole.y, whole.x, family=sm.families.Binomial())
    of = np.repeat(np.arange(15), [len(site.y) for site in sites])
    options = {} if family == "linear" else {"tol": 1e-13}
    pooled = model.fit(cov_type="cluster", cov_kwds={"groups": of}, **options)
    table = inference(setup, state)
    assert np.abs(table.error - pooled.bse).max() < 1e-6
    assert np.abs(table.error / inference(setup._replace(robust=False), state).error - 1).max() > 0.05


def by_patients(family, sites, patients):
    """The table with errors by patients, at the parameters where all stand still; and the errors without them."""
    setup = Setup(family, sites[0].x.shape[1], 1, (0.0,), robust="patients")
    state, _ = fit(setup, sites)
    pairs = zip(sites, patients, strict=True)
    total = sum(summand(setup, state.last, site, np.zeros(len(site.y)), whose=whose) for site, whose in pairs)
    state = advance(setup, begin(setup)._replace(theta=state.last), read_sum(setup, total))
    return inference(setup, state), inference(setup._replace(robust=False), state).error


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_robust_errors_by_patient_are_the_clustered_ones_of_statsmodels(family):
    x, y = cancer()
    sites = dealt(rows_of(x, y[:, None].astype(float)), 6)
    patients = [np.arange(len(site.y)) // (2 + k) for k, site in enumerate(sites)]  # equal numbers at all sites

    table, _ = by_patients(family, sites, patients)
    alone, _ = by_patients(family, sites, [None] * 6)  # each sample is a patient

    whole = Rows(*(np.concatenate(parts) for parts in zip(*sites, strict=True)))
    model = sm.OLS(whole.y, whole.x) if family == "linear" else sm.GLM(whole.y, whole.x, family=sm.families.Binomial())
    of = np.concatenate([100_000 * k + whose for k, whose in enumerate(patients)])
    options = {} if family == "linear" else {"tol": 1e-13}
    for found, groups in ((table, of), (alone, np.arange(len(of)))):
        pooled = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, **options)
        assert np.abs(found.error - pooled.bse).max() < 1e-6


@pytest.mark.thorough
def test_intervals_by_patient_hold_where_patients_come_again_and_those_by_samples_do_not():
    rng, holds = np.random.default_rng(0), []
    for _ in range(400):
        patients = np.repeat(np.arange(80), rng.integers(1, 8, 80))
        x = np.c_[rng.normal(size=80)[patients], rng.normal(size=len(patients))]  # of the patient, and of the visit
        eta = 0.8 * x[:, 0] + rng.normal(size=80)[patients]
        y = eta + rng.normal(size=len(patients))
        table, error = by_patients("linear", [rows_of(x, y[:, None])], [patients])
        holds.append([abs(table.estimate[0] - 0.8) < reach * 1.96 for reach in (table.error[0], error[0])])

    by_patient, by_sample = np.mean(holds, axis=0)

    assert by_patient > 0.91  # three standard errors are three points; some eighty patients are few
    assert by_sample < 0.8


def test_one_class_against_another_has_the_table_of_statsmodels():
    x, y = load_wine(return_X_y=True)
    x, setup = standardised(x[:, [1, 7]]), Setup("softmax", 3, 3, (0.0,))

    state, _ = fit(setup, dealt(rows_of(x, y, 3), 8))

    against_first = np.kron(np.array([[-1, 1, 0], [-1, 0, 1]]), np.eye(3))
    covariance = against_first @ inverse(setup, state.hessian[0]) @ against_first.T
    table = wald(against_first @ inference(setup, state).estimate, covariance)
    pooled = sm.MNLogit(y, np.c_[x, np.ones(len(y))]).fit(disp=0, method="newton", tol=1e-12)
    assert np.abs(table.estimate - pooled.params.T.ravel()).max() < 1e-6
    assert np.abs(table.error - pooled.bse.T.ravel()).max() < 1e-6


def test_the_intervals_of_a_penalised_fit_cover_the_truth():
    truth, covered = np.array([0.5, -0.5, 0.0, 0.2]), []
    setup = Setup("logistic", 4, 1, (1.0,))
    for seed in range(120):
        x = rng_for(seed, "cover").normal(size=(120, 3))
        odds = np.c_[x, np.ones(120)] @ truth
        y = (rng_for(seed, "cover", "y").random(120) < 1 / (1 + np.exp(-odds))).astype(int)
        table = inference(setup, fit(setup, [rows_of(x, y)])[0])
        covered.append((table.low < truth) & (truth < table.high))

    assert np.all(np.abs(np.mean(covered, axis=0) - 0.95) < 0.06)


def firth_by_its_objective(x, y) -> np.ndarray:
    def objective(beta):
        p = 1 / (1 + np.exp(-x @ beta))
        information = (x * (p * (1 - p))[:, None]).T @ x
        return -(y * np.log(p) + (1 - y) * np.log1p(-p)).sum() - np.linalg.slogdet(information)[1] / 2

    return minimize(objective, np.zeros(x.shape[1]), method="BFGS", options={"gtol": 1e-9}).x


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero", "ignore:overflow")
def test_firth_is_the_maximum_under_jeffreys_prior_of_separated_classes_too():
    x = rng_for(0, "firth").normal(size=(24, 2))
    y = (x[:, 0] > 0).astype(int)
    setup = Setup("logistic", 3, 1, (0.0,), firth=True)

    state, exchanges = fit(setup, dealt(rows_of(x, y), 6), exchanges=100)

    assert np.abs(state.last[0] - firth_by_its_objective(np.c_[x, np.ones(24)], y)).max() < 1e-5
    assert not inference(setup, state).undetermined.any()
    assert exchanges < 90  # its steps halve their error where classes are separated


def test_firth_of_two_by_two_is_that_of_halves_added_to_every_cell():
    x, y = np.repeat([0.0, 0, 1, 1], [7, 3, 0, 5]), np.repeat([0, 1, 0, 1], [7, 3, 0, 5])
    setup = Setup("logistic", 2, 1, (0.0,), firth=True)

    state, _ = fit(setup, [rows_of(x[::2, None], y[::2]), rows_of(x[1::2, None], y[1::2])], exchanges=100)

    assert state.last[0, 0] == pytest.approx(np.log(5.5 / 0.5) - np.log(3.5 / 7.5), abs=1e-6)  # Heinze, Schemper 2002
    assert state.last[0, 1] == pytest.approx(np.log(3.5 / 7.5), abs=1e-6)


def test_meta_analysis_from_sums_is_that_of_statsmodels():
    combine = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    rng = rng_for(0, "effects")
    estimate, variance = rng.normal(0.5, 1.0, (8, 2)), rng.uniform(0.05, 0.4, (8, 2))

    first = sum(effect_sums(b, v) for b, v in zip(estimate, variance, strict=True))
    tau2 = between_sites(first)[1]
    pooled = meta_analysis(first, sum(effect_sums(b, v, tau2) for b, v in zip(estimate, variance, strict=True)))

    for k in range(2):
        theirs = combine(estimate[:, k], variance[:, k], method_re="dl")
        assert pooled.tau2[k] == pytest.approx(theirs.tau2, abs=1e-7)
        assert pooled.q[k] == pytest.approx(theirs.q, abs=1e-7)
        assert pooled.i2[k] == pytest.approx(theirs.i2, abs=1e-7)
        assert pooled.fixed.estimate[k] == pytest.approx(theirs.mean_effect_fe, abs=1e-7)
        assert pooled.random.estimate[k] == pytest.approx(theirs.mean_effect_re, abs=1e-7)
        assert pooled.random.error[k] == pytest.approx(theirs.sd_eff_w_re, abs=1e-6)


def test_sites_without_an_estimate_count_for_nothing():
    known, unknown = effect_sums(np.ones(1), np.ones(1)), effect_sums(np.array([np.nan]), np.array([np.inf]))

    assert not unknown.any()
    assert meta_analysis(known + unknown, known + unknown).fixed.estimate == pytest.approx([1.0])
    assert np.isnan(meta_analysis(unknown, unknown).fixed.estimate).all()


def test_equal_sites_have_the_pooled_estimate_and_nothing_between_them():
    x, y = cancer()
    own = sums_at("linear", np.zeros(5), rows_of(x, y[:, None].astype(float)))
    estimate, variance = np.linalg.solve(own.hessian, -own.gradient), np.diag(np.linalg.inv(own.hessian))

    first = sum(effect_sums(estimate, variance) for _ in range(3))

    pooled = meta_analysis(first, first)
    assert np.allclose(pooled.fixed.estimate, estimate)
    assert np.allclose(pooled.tau2, 0)
