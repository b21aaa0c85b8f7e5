"""What sites sum: derivatives, and fits that are those of pooled data by scikit-learn and statsmodels."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.linear_model import Ridge as PooledRidge

from fedsmall.extensions.regression.families import (
    LARGE,
    Rows,
    Sums,
    fit_intercept,
    intercepts,
    profiled_sums,
    start,
    sums_at,
)
from fedsmall.extensions.regression.inference import inverse
from fedsmall.extensions.regression.newton import (
    Setup,
    advance,
    begin,
    chosen,
    folds_for,
    penalty_of,
    read_sum,
    rests,
    summand,
)
from fedsmall.randomness import rng_for
from tests.extensions.regression.fits import dealt, fit, inference, rows_of, standardised

PREDICTORS = {"linear": 1, "logistic": 1, "softmax": 3, "ordinal": 3, "poisson": 1, "hazard": 4}


def made(family: str, n: int = 40, columns: int = 3) -> Rows:
    rng = rng_for(2, family)
    x, k = rng.normal(size=(n, columns)), PREDICTORS[family]
    y = {
        "linear": rng.normal(size=(n, 1)),
        "logistic": rng.integers(0, 2, n),
        "softmax": rng.integers(0, 3, n),
        "ordinal": rng.integers(0, 4, n),
        "poisson": rng.poisson(2.0, n),
        "hazard": np.stack([rng.integers(0, 6, n), rng.integers(0, 2, n)], axis=1).astype(float),
    }[family]
    return rows_of(x, y, k, weight=rng.uniform(0.5, 2, n), offset=0.1 * rng.normal(size=(n, 1)) * np.ones((1, k)))


@pytest.mark.parametrize("family", PREDICTORS)
def test_gradient_and_hessian_are_derivatives_of_the_loss(family):
    rows, k = made(family), PREDICTORS[family]
    theta = start(family, 4, k) + 0.1 * rng_for(3, family).normal(size=len(start(family, 4, k)))

    sums = sums_at(family, theta, rows)

    slopes = approx_fprime(theta, lambda at: sums_at(family, at, rows).loss, 1e-7)
    curves = approx_fprime(theta, lambda at: sums_at(family, at, rows).gradient, 1e-7)
    assert np.allclose(sums.gradient, slopes, atol=1e-4)
    assert np.allclose(sums.hessian, curves, atol=1e-4)
    assert np.abs(sums.gradient).max() > 0.1


@pytest.mark.parametrize("family", PREDICTORS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sites_of_one_two_and_three_patients_add_up_to_the_whole(family, n):
    rows, theta = made(family, 3 * n), start(family, 4, PREDICTORS[family])

    parts = [sums_at(family, theta, Rows(*(part[k::3] for part in rows))) for k in range(3)]

    whole, sum_of_parts = sums_at(family, theta, rows), Sums(*(sum(each) for each in zip(*parts, strict=True)))
    assert np.allclose(sum_of_parts.hessian, whole.hessian)
    assert np.allclose(sum_of_parts.gradient, whole.gradient)
    assert sum_of_parts.loss == pytest.approx(whole.loss)


def test_a_step_without_a_finite_loss_says_so_and_nothing_else():
    rows = made("poisson")

    sums = sums_at("poisson", np.full(4, 1e4), rows)
    crossed = sums_at("ordinal", np.array([0, 0, 0, 0.0, 1.0, 2.0]), made("ordinal"))  # log-odds that rise

    assert (sums.loss, crossed.loss) == (LARGE, LARGE)
    assert not sums.gradient.any()
    assert not sums.hessian.any()


SETS = {
    "breast cancer": (load_breast_cancer, "logistic", 1),
    "wine": (load_wine, "softmax", 3),
    "iris": (load_iris, "softmax", 3),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("penalty", [0.3, 10.0])
def test_classes_have_the_coefficients_of_scikit_learn_on_pooled_data(name, penalty):
    load, family, k = SETS[name]
    x, y = load(return_X_y=True)
    x = standardised(x)

    state, exchanges = fit(Setup(family, x.shape[1] + 1, k, (penalty,)), dealt(rows_of(x, y, k), 12))

    pooled = LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(x, y)
    b = state.last[0].reshape(k, -1)
    assert np.abs(b[:, :-1] - pooled.coef_).max() < 1e-7
    assert np.abs(b[:, -1] - pooled.intercept_ + (pooled.intercept_ - b[:, -1]).mean() * (k > 1)).max() < 1e-7
    assert exchanges <= 12


def test_numbers_and_counts_have_the_coefficients_of_scikit_learn_with_weights():
    x, y = load_diabetes(return_X_y=True)
    x, weight = standardised(x), rng_for(0, "weights").uniform(0.5, 2, len(y))
    counts = rng_for(0, "counts").poisson(np.exp(0.3 * x[:, 2]))

    linear, once = fit(Setup("linear", 11, 1, (3.0,)), dealt(rows_of(x, y[:, None] / 77, weight=weight), 7))
    poisson, _ = fit(Setup("poisson", 11, 1, (3.0,)), dealt(rows_of(x, counts, weight=weight), 7))

    ridge = PooledRidge(alpha=3.0, tol=1e-12).fit(x, y / 77, weight)
    glm = PoissonRegressor(alpha=3.0 / weight.sum(), solver="newton-cholesky", tol=1e-12).fit(x, counts, weight)
    assert np.abs(linear.last[0] - np.r_[ridge.coef_, ridge.intercept_]).max() < 1e-7
    assert np.abs(poisson.last[0] - np.r_[glm.coef_, glm.intercept_]).max() < 1e-7
    assert once == 2  # one step, and one exchange in which nothing moves


@pytest.mark.filterwarnings("ignore:Maximum Likelihood optimization failed")  # its derivatives are by differences
def test_grades_have_the_coefficients_of_statsmodels():
    ordinal_model = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    x, y = load_diabetes(return_X_y=True)
    x, grade = standardised(x)[:, :5], np.digitize(y, np.quantile(y, [0.3, 0.7]))

    state, _ = fit(Setup("ordinal", 6, 2, (0.0,)), dealt(rows_of(x, grade, 2), 9))

    model = ordinal_model.OrderedModel(grade, x, distr="logit")
    pooled = model.fit(method="newton", tol=1e-12, maxiter=100, disp=0)
    ends = model.transform_threshold_params(pooled.params)[1:-1]
    assert np.abs(state.last[0] - np.r_[pooled.params[:5], -ends]).max() < 1e-6


def test_hazards_in_intervals_are_a_pooled_regression_of_persons_and_intervals_by_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    rows = made("hazard", 200)
    survived, event = rows.y.T.astype(int)
    persons = [(i, k) for i in range(200) for k in range(min(survived[i] + event[i], 4))]
    who, when = np.array(persons).T
    happened = (when == survived[who]) & (event[who] == 1)
    x = np.c_[rows.x[who, :3], np.eye(4)[when]]
    setup = Setup("hazard", 4, 4, (0.0,))

    state, _ = fit(setup, dealt(rows._replace(weight=np.ones(200), offset=np.zeros((200, 4))), 5))

    family = sm.families.Binomial(sm.families.links.CLogLog())
    pooled = sm.GLM(happened.astype(float), x, family=family).fit(tol=1e-13)
    assert np.abs(state.last[0] - pooled.params).max() < 1e-7


@pytest.mark.parametrize("penalty", [1.0, 100.0])
def test_an_interval_without_an_event_has_a_hazard_with_which_a_later_event_can_live(penalty):
    rows = made("hazard", 60)
    y = np.where(rows.y[:, :1] == 2, [[2.0, 0.0]], rows.y)  # nobody has the event in the third interval
    rows = rows._replace(y=y, weight=np.ones(60), offset=np.zeros((60, 4)))

    state, exchanges = fit(Setup("hazard", 4, 4, (penalty,)), dealt(rows, 3))
    loose, _ = fit(Setup("hazard", 4, 4, (0.0,)), dealt(rows, 3))

    late = Rows(rows.x[:1], np.array([[2.0, 1.0]]), np.ones(1), np.zeros((1, 4)))
    assert sums_at("hazard", state.last[0], late).loss < 8 < sums_at("hazard", loose.last[0], late).loss
    assert exchanges < 20


def test_hazards_in_many_intervals_have_the_hazard_ratios_of_cox():
    regression = pytest.importorskip("statsmodels.duration.hazard_regression")
    rng = rng_for(0, "hazards")
    x = rng.normal(size=(400, 2))
    time = rng.exponential(np.exp(-x @ [0.7, -0.3]))
    ends = np.quantile(time, np.linspace(0.02, 0.98, 30))
    through = np.searchsorted(ends, time)
    y = np.stack([through, time <= ends[-1]], axis=1).astype(float)
    setup = Setup("hazard", 3, 30, (0.0,))

    state, _ = fit(setup, dealt(rows_of(x, y, 30), 6))

    cox = regression.PHReg(np.minimum(time, ends[-1]), x, y[:, 1], ties="efron").fit()
    table = inference(setup, state)
    assert np.allclose(state.last[0, :2], cox.params, atol=0.02)
    assert np.allclose(table.error[:2], cox.bse, atol=0.01)


def test_offsets_shift_the_intercept_and_nothing_else():
    rows = made("logistic")._replace(offset=np.zeros((40, 1)))
    setup = Setup("logistic", 4, 1, (1.0,))

    plain, shifted = (fit(setup, [rows._replace(offset=rows.offset + by)])[0].last[0] for by in (0.0, 2.0))

    assert np.allclose(plain - shifted, [0, 0, 0, 2.0], atol=1e-7)


def test_separated_classes_have_a_finite_fit_under_a_penalty_and_none_without():
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    sites = [rows_of(x[[k]], np.array([k // 2])) for k in range(4)]  # a patient a site

    held, exchanges = fit(Setup("logistic", 2, 1, (1.0,)), sites)
    without = Setup("logistic", 2, 1, (0.0,))
    free, _ = fit(without, sites)

    pooled = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(x, [0, 0, 1, 1])
    assert held.last[0, 0] == pytest.approx(pooled.coef_[0, 0], abs=1e-7)
    assert exchanges < 10
    assert free.last[0, 0] > 10
    assert inference(without, free).undetermined[0]
    assert not inference(Setup("logistic", 2, 1, (1.0,)), held).undetermined.any()


@pytest.mark.parametrize("classes", [2, 3])
def test_a_site_with_one_class_and_a_column_without_values_do_no_harm(classes):
    family, k = ("logistic", 1) if classes == 2 else ("softmax", 3)
    rng = rng_for(0, "one class")
    x, y = np.c_[rng.normal(size=(30, 2)), np.zeros(30)], np.repeat(np.arange(classes), 30 // classes)
    setup = Setup(family, 4, k, (0.0,))

    by_class, _ = fit(setup, [rows_of(x[y == c], y[y == c], k) for c in range(classes)])
    pooled, _ = fit(setup, [rows_of(x, y, k)])

    assert np.allclose(by_class.last, pooled.last, atol=1e-7)
    assert np.allclose(by_class.last[0].reshape(k, 4)[:, 2], 0)


@pytest.mark.parametrize("firth", [False, True])
def test_a_site_that_is_silent_for_a_while_is_in_the_fit_when_it_is_back(firth):
    rows = made("logistic", 60)
    sites = [Rows(*(part[k::3] for part in rows)) for k in range(3)]
    setup = Setup("logistic", 4, 1, (0.0 if firth else 1.0,), firth=firth)

    state = begin(setup)
    for t in range(30):
        known = inverse(setup, state.hessian[0]) if rests(setup, state) else None
        there = sites[1:] if t in (2, 4, 5) else sites
        total = sum(summand(setup, state.theta, site, np.zeros(len(site.y)), known) for site in there)
        state = advance(setup, state, read_sum(setup, total))

    assert np.abs(state.last - fit(setup, sites)[0].last).max() < 1e-7


def test_summands_are_whole_numbers_with_one_sum_in_any_order():
    rows, setup = made("logistic"), Setup("logistic", 4, 1, (1.0, 10.0), folds=2, robust=True)
    theta, fold = np.zeros((6, 4)), np.arange(40) % 2
    parts = [summand(setup, theta, Rows(*(p[k::4] for p in rows)), fold[k::4]) for k in range(4)]

    forward, backward = sum(parts), sum(reversed(parts))

    assert forward.dtype == np.int64
    assert len(forward) == setup.numbers
    assert np.array_equal(forward, backward)
    said = read_sum(setup, forward)
    assert said.models[0, 1] == pytest.approx(sums_at("logistic", theta[0], rows).loss, rel=1e-12)
    assert said.models[1, 0] + said.models[2, 0] == pytest.approx(rows.weight.sum())  # two halves
    assert np.allclose(
        said.meat[0, :4, :4],
        sum(
            np.outer(g, g)
            for g in (sums_at("logistic", theta[0], Rows(*(p[k::4] for p in rows))).gradient for k in range(4))
        ),
    )
    assert said.meat[0, 4, 4] == 4  # sites


@pytest.mark.parametrize("curves", ["own", "shared"])
def test_the_penalty_is_chosen_as_cross_validation_over_sites_chooses_it(curves, monkeypatch):
    if curves == "shared":
        monkeypatch.setattr("fedsmall.extensions.regression.newton.LONG", 0)
    x, y = load_breast_cancer(return_X_y=True)
    x, y = standardised(x)[::3, :10], y[::3]
    sites = dealt(rows_of(x, y), 12)
    penalties, folds = (0.1, 1.0, 10.0, 100.0), [np.full(len(site.y), k % 4) for k, site in enumerate(sites)]
    setup = Setup("logistic", 11, 1, penalties, folds=4)

    state, exchanges = fit(setup, sites, folds)

    fold, whole = np.concatenate(folds), np.concatenate([site.x[:, :-1] for site in sites])
    target, losses = np.concatenate([site.y for site in sites]), []
    for penalty in penalties:
        pooled = LogisticRegression(C=1 / penalty, solver="newton-cholesky", tol=1e-10, max_iter=500)
        fits = [pooled.fit(whole[fold != f], target[fold != f]).predict_proba(whole[fold == f]) for f in range(4)]
        shares = np.concatenate([share[np.arange(len(share)), target[fold == f]] for f, share in enumerate(fits)])
        losses.append(-np.log(shares).sum())
    best = chosen(setup, state)
    assert best == int(np.argmin(losses))
    assert state.held[best] == pytest.approx(losses[best], rel=1e-5 if curves == "own" else 1e-3)
    assert exchanges <= (15 if curves == "own" else 40)


@pytest.mark.parametrize(("curves", "most"), [("own", 11), ("shared", 30)])
def test_a_fold_without_a_class_does_not_hold_up_a_fit(curves, most, monkeypatch):
    if curves == "shared":
        monkeypatch.setattr("fedsmall.extensions.regression.newton.LONG", 0)
    x, y = load_iris(return_X_y=True)
    kept = np.flatnonzero((y < 2) | (np.arange(len(y)) == 120))  # one flower of the third class
    sites = dealt(rows_of(standardised(x[kept])[:, 1:3], y[kept], 3), 12)
    folds = [np.full(len(site.y), k % 4) for k, site in enumerate(sites)]
    setup = Setup("softmax", 3, 3, (0.1, 1.0, 10.0), folds=4)

    state, exchanges = fit(setup, sites, folds)

    monkeypatch.setattr("fedsmall.extensions.regression.newton.NO_GAIN", 0)
    for_ever, more = fit(setup, sites, folds, exchanges=most + 5)
    assert exchanges <= most < more
    assert chosen(setup, state) == chosen(setup, for_ever)
    assert np.abs(state.last - for_ever.last)[:: setup.folds + 1].max() < 1e-7


def test_folds_are_of_three_sites_at_least_or_of_patients():
    assert [folds_for(sites) for sites in (1, 4, 5, 6, 9, 15, 100)] == [
        (5, False), (5, False), (5, False), (2, True), (3, True), (5, True), (5, True)
    ]  # fmt: skip


def joint_fit(rows: list[Rows], family: str, k: int, penalty: float, home: float) -> np.ndarray:
    """Coefficients where every site's intercepts are parameters too, by a plain optimizer."""
    columns = rows[0].x.shape[1]
    own = intercepts(family, columns, k)
    free, each = own.shape
    bend = Setup(family, columns, k, (penalty,))

    def objective(v):
        theta, value, slope = v[:free], 0.0, np.zeros_like(v)
        for s, site in enumerate(rows):
            at = slice(free + s * each, free + (s + 1) * each)
            sums = sums_at(family, theta + own @ v[at], site)
            value += sums.loss + home / 2 * v[at] @ v[at]
            slope[:free] += sums.gradient
            slope[at] = own.T @ sums.gradient + home * v[at]
        pen = penalty_of(bend, 0)
        return value + pen @ theta**2 / 2, slope + np.r_[pen * theta, np.zeros(len(v) - free)]

    begin = np.r_[start(family, columns, k), np.zeros(each * len(rows))]
    return minimize(objective, begin, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 2000}).x[:free]


@pytest.mark.parametrize("family", ["logistic", "softmax", "ordinal", "linear"])
def test_intercepts_fitted_at_home_give_the_coefficients_of_a_joint_fit(family):
    k, rows = PREDICTORS[family], made(family, 60)
    sites = [Rows(*(part[s::3] for part in rows)) for s in range(3)]
    setup = Setup(family, 4, k, (1.0,), home=2.0)

    state, exchanges = fit(setup, sites)

    joint, plain = joint_fit(sites, family, k, 1.0, 2.0), fit(setup._replace(home=None), sites)[0].last[0]
    slopes = slice(0, 3)
    assert np.abs(state.last[0][slopes] - joint[slopes]).max() < 1e-6
    assert np.abs(plain[slopes] - joint[slopes]).max() > 1e-4
    assert exchanges <= 10


def test_a_site_of_one_class_has_an_intercept_under_a_penalty_and_says_nothing_without():
    rows = rows_of(np.array([[0.5], [1.0]]), np.array([1, 1]))

    held, shift = profiled_sums("logistic", np.zeros(2), rows, 1.0)
    free, _ = profiled_sums("logistic", np.zeros(2), rows, 0.0)

    assert 0.5 < shift[0] < 2
    assert held.gradient.any()
    assert np.abs(free.gradient).max() < 1e-6
    assert np.abs(free.hessian).max() < 1e-6


def test_a_new_hospital_finds_its_intercept_from_its_prevalence():
    rng = rng_for(0, "new hospital")
    x = rng.normal(size=(50, 2))
    rows = rows_of(x, np.full(50, 0.8))  # how many of its patients have it; who, it does not know
    b = np.array([1.0, -1.0, 0.0])

    shift = fit_intercept("logistic", b, rows, 0.0)

    assert (1 / (1 + np.exp(-(rows.x @ b + shift)))).mean() == pytest.approx(0.8, abs=1e-8)
