import ast
import warnings
from importlib import import_module

import numpy as np
import pytest
from pandas import NA, DataFrame
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedsmall
from fedsmall import FederatedClassifier, FederatedRegressor, FederatedSurvival
from tests import ROOT

RNG = np.random.default_rng(0)
TABLE = DataFrame({"a": RNG.normal(size=90), "b": RNG.normal(size=90), "sex": RNG.choice(["m", "f"], 90)})
ILL = np.where(TABLE.a + RNG.normal(size=90) > 0, "ill", "well")
HOSPITALS = RNG.choice(["kiel", "bonn", "essen"], 90)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # of what is switched on by a variable
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # scikit-learn's, of y = inf
@pytest.mark.parametrize("estimator", [FederatedClassifier, FederatedRegressor])
def test_scikit_learns_own_checks_pass(estimator):
    checks = check_estimator(estimator(), on_fail=None)

    assert len(checks) > 40
    assert [check["check_name"] for check in checks if check["status"] == "failed"] == []


def test_a_federation_ranks_patients_as_pooled_logistic_regression_does():
    data = load_breast_cancer()
    hospital = np.arange(len(data.target)) % 5

    ours = cross_val_score(
        FederatedClassifier("FedAvg"), data.data, data.target, cv=3, scoring="roc_auc", params={"groups": hospital}
    )
    pooled = cross_val_score(
        make_pipeline(StandardScaler(), LogisticRegression()), data.data, data.target, cv=3, scoring="roc_auc"
    )

    assert ours.mean() > pooled.mean() - 0.01


def test_whole_hospitals_are_left_out_as_scikit_learn_leaves_them_out():
    scores = cross_val_score(
        FederatedClassifier(rounds=5), TABLE, ILL, groups=HOSPITALS, cv=GroupKFold(3), params={"groups": HOSPITALS}
    )

    assert len(scores) == 3
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("nobody", [None, np.nan, NA])
def test_rows_of_no_hospital_are_refused(nobody):
    with pytest.raises(ValueError, match=f"no hospital in 1 of {len(ILL)} rows"):
        FederatedClassifier().fit(TABLE, ILL, groups=[nobody, *HOSPITALS[1:]])


def test_groups_are_the_hospitals_and_pandas_tables_keep_their_columns():
    fitted = FederatedClassifier(rounds=5).fit(TABLE, ILL, groups=HOSPITALS)

    assert fitted.sites_ == ("bonn", "essen", "kiel")
    assert list(fitted.feature_names_in_) == list(fitted.model_.feature_names_in_) == ["a", "b", "sex"]
    assert list(fitted.classes_) == ["ill", "well"]
    assert np.array_equal(fitted.predict_proba(TABLE), fitted.predict_proba(TABLE[["a", "b", "sex"]].iloc[:]))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(TABLE[["sex", "a", "b"]])


@pytest.mark.parametrize("labels", [(10, 9), (0.0, 1.0), (False, True), ("b", "a"), (-1, 1), (2, 10)])
def test_classes_come_back_as_they_were_given(labels):
    y = np.array(labels)[(TABLE.a > 0).astype(int)]

    fitted = FederatedClassifier(rounds=100).fit(TABLE, y)

    assert fitted.score(TABLE, y) > 0.9
    assert np.array_equal(fitted.classes_[fitted.predict_proba(TABLE).argmax(axis=1)], fitted.predict(TABLE))


@pytest.mark.thorough
def test_a_search_sets_the_settings_of_a_method():
    search = GridSearchCV(FederatedClassifier(rounds=5), {"method": ["FedAvg", "FedDC"], "rounds": [2, 4]}, cv=2)

    search.fit(TABLE, ILL)

    assert search.best_params_["rounds"] in (2, 4)
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_a_regressor_that_is_exact_by_sums_is_a_ridge_regression():
    x, y = load_diabetes(return_X_y=True)

    fitted = FederatedRegressor("Ridge", rounds=3).fit(x, y, groups=np.arange(len(y)) % 7)

    assert fitted.score(x, y) == pytest.approx(LinearRegression().fit(x, y).score(x, y), abs=0.005)


def test_survival_takes_event_and_time_as_scikit_survival_does():
    time, event = np.exp(1 - TABLE.a.to_numpy()), RNG.integers(0, 2, 90)
    records = np.array(list(zip(event.astype(bool), time, strict=True)), dtype=[("event", "?"), ("time", "f8")])

    fitted = FederatedSurvival(rounds=50, recipe={"lr": 0.5}).fit(TABLE, records)
    of_columns = FederatedSurvival(rounds=50, recipe={"lr": 0.5}).fit(TABLE, np.stack([event, time], axis=1))

    assert np.array_equal(fitted.predict(TABLE), of_columns.predict(TABLE))
    assert fitted.score(TABLE, records) > 0.8
    assert np.corrcoef(fitted.predict(TABLE), TABLE.a)[0, 1] > 0.7
    assert list(fitted.predict_survival(TABLE).columns) == list(fitted.model_.times_)
    with pytest.raises(ValueError, match="event"):
        FederatedSurvival().fit(TABLE, time)


def test_one_class_and_a_failed_run_are_refused():
    with pytest.raises(ValueError, match="1 class"):
        FederatedClassifier().fit(TABLE, np.zeros(90))
    with pytest.raises(ValueError, match="no method"):
        FederatedClassifier("FedDCC").fit(TABLE, ILL)


def test_a_module_and_a_function_are_models():
    torch = pytest.importorskip("torch")

    for model in (torch.nn.Linear(4, 2), lambda task: torch.nn.Linear(4, task.classes)):
        assert FederatedClassifier(model=model, rounds=20).fit(TABLE, ILL).score(TABLE, ILL) > 0.6


def test_fedsmall_names_what_it_has():
    assert set(dir(fedsmall)) == set(fedsmall.__all__)
    stub = ast.parse((ROOT / "fedsmall" / "__init__.pyi").read_text(encoding="utf-8"))
    brought = {
        name.name: getattr(import_module(line.module), name.name)
        for line in stub.body
        if isinstance(line, ast.ImportFrom) and line.module.startswith("fedsmall")
        for name in line.names
    }
    assert brought == {name: getattr(fedsmall, name) for name in fedsmall.__all__ if name != "__version__"}
    assert all(getattr(fedsmall, name) for name in dir(fedsmall))


def test_a_fitted_models_package_claims_no_performance_for_the_rows_it_was_trained_on():
    assert FederatedClassifier(rounds=5).fit(TABLE, ILL).model_.package.performance == {}


def test_a_regression_that_has_not_converged_says_so():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x @ [1.0, 2.0, 3.0]

    with pytest.warns(ConvergenceWarning, match="Ridge: not converged after 1 round; give it more"):
        FederatedRegressor("Ridge", rounds=1).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        assert FederatedRegressor("Ridge").fit(x, y).score(x, y) > 0.99
