"""pandas tables in Python are what files of the same rows are: columns by name, gaps, categories, what is predicted."""

from typing import Any

import numpy as np
import pytest
from pandas import NA, Categorical, DataFrame, Series, concat

from fedsmall.data.federation import Federation
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation, federation_from_arrays, load_site

SEX = {"name": "mine", "categorical": ["sex"]}
BY_FILE = {"natural": "file"}


def patients(seed: int, count: int = 24) -> tuple[DataFrame, Series]:
    """Patients whose rows are not counted from 0, with two gaps, and whether each is ill."""
    rng = np.random.default_rng(seed)
    x = DataFrame({"age": rng.normal(60, 10, count), "dose": rng.normal(0, 9, count)}, index=range(70, 70 + count))
    x["sex"], x["smoker"] = rng.choice(["f", "m"], count), rng.random(count) > 0.5
    x.loc[71, "age"], x.loc[72, "sex"] = np.nan, None
    return x, Series(np.arange(count) % 2, index=x.index, name="ill")


def plan_of(task: Any = "mine", partition: Any = "iid", **settings: Any) -> Plan:
    return Plan(name="t", task=task, model="linear", partition=partition, method=method("FedAvg"), **settings)


def assert_same(federation: Federation, other: Federation) -> None:
    assert federation.task.feature_names == other.task.feature_names
    assert federation.names == other.names
    for one, two in zip((*federation.train, federation.test), (*other.train, other.test), strict=True):
        np.testing.assert_array_equal(one.x, two.x)
        np.testing.assert_array_equal(one.y, two.y)


@pytest.mark.parametrize("names", [["essen"], ["essen", "bonn"], ["essen", "bonn", "graz"]])
def test_tables_are_prepared_as_files_of_the_same_rows(tmp_path, names):
    sites = {name: patients(place) for place, name in enumerate(names)}
    for name, (x, y) in sites.items():
        x.assign(smoker=x.smoker.astype(int), ill=y).to_csv(tmp_path / f"{name}.csv", index=False)
    files = {"csv": str(tmp_path), "label": "ill", "categorical": ["sex"]}

    federation = federation_from_arrays(plan_of(SEX), sites)

    assert federation.task.feature_names == ("age", "dose", "sex=f", "sex=m", "smoker")
    assert_same(federation, build_federation(plan_of(files, BY_FILE)))


def test_columns_in_another_order_at_a_site_change_nothing():
    x, y = patients(1)
    sites = {"bonn": patients(0), "essen": (x, y)}

    turned = {**sites, "essen": (x[["smoker", "dose", "sex", "age"]], y)}

    assert_same(federation_from_arrays(plan_of(SEX), turned), federation_from_arrays(plan_of(SEX), sites))


@pytest.mark.parametrize("odd", ["bonn", "graz"])
def test_a_site_with_a_column_more_or_less_is_named(odd):
    sites = {name: patients(place) for place, name in enumerate(["bonn", "essen", "graz"])}
    x, y = sites[odd]

    with pytest.raises(DataError, match=rf"site '{odd}' has no column 'dose', which is at 2 of 3 sites"):
        federation_from_arrays(plan_of(SEX), {**sites, odd: (x.drop(columns="dose"), y)})
    with pytest.raises(DataError, match=rf"site '{odd}' has a column 'more', .* features = \[\"age\", \"dose\", \"sex"):
        federation_from_arrays(plan_of(SEX), {**sites, odd: (x.assign(more=1), y)})


def test_a_column_of_categories_needs_no_word_and_a_nullable_one_has_gaps():
    x, y = patients(0)
    x["sex"] = Categorical(x["sex"])
    x["smoker"] = x["smoker"].astype("boolean").where(x["dose"] > 0, NA)

    federation = federation_from_arrays(plan_of(), {"bonn": (x, y)})

    assert federation.task.feature_names == ("age", "dose", "sex=f", "sex=m", "smoker")
    assert not any("missing" in note for note in federation.notes)


def test_text_that_nobody_calls_a_category_is_refused_as_in_a_file():
    with pytest.raises(DataError, match=r"site 'bonn': text .* column 'sex' \(23 of 24 rows\).* categorical = "):
        federation_from_arrays(plan_of(), {"bonn": patients(0)})


def test_a_common_test_set_is_found_by_the_names_of_its_columns_too():
    x, y = patients(2)

    federation = federation_from_arrays(plan_of(SEX), {"bonn": patients(0)}, test=(x[x.columns[::-1]], y))

    assert (federation.names, len(federation.train[0]), len(federation.test)) == (("bonn",), 24, 24)
    np.testing.assert_array_equal(federation.test.x[:, 4] > 0, x["smoker"])


@pytest.mark.parametrize("column", ["hospital", "site", "file", "folder"])
def test_one_table_with_a_column_of_sites_is_split_or_dealt(column):
    sites = {name: patients(place) for place, name in enumerate(["bonn", "essen"])}
    whole = concat([x.assign(ill=y, **{column: name}) for name, (x, y) in sites.items()])
    task = {"csv": "tables in Python", "label": "ill", "categorical": ["sex"]}

    split = build_federation(plan_of(task, {"natural": column}), tables={"": whole})
    dealt = build_federation(plan_of({**task, "drop": [column]}, sites=4), tables={"": whole})

    assert_same(split, federation_from_arrays(plan_of(SEX), sites))
    assert len(dealt.names) == 4


def test_a_feature_of_that_name_stays_one_where_samples_come_with_their_sites():
    sites = {name: (patients(place)[0].assign(site=[1, 2] * 12), patients(place)[1]) for place, name in enumerate("ab")}

    assert "site" in federation_from_arrays(plan_of(SEX), sites).task.feature_names


@pytest.mark.parametrize("column", ["hospital", "site", "file"])
def test_a_hospital_s_own_file_may_hold_what_is_left_out_and_its_name_or_not(tmp_path, column):
    x, y = patients(0)
    rows = x.assign(ill=y, **{column: "essen"})
    rows.to_csv(tmp_path / "named.csv", index=False)
    rows.drop(columns=[column, "smoker"]).to_csv(tmp_path / "plain.csv", index=False)
    task = {"csv": "all.csv", "label": "ill", "classes": ["0", "1"], "categorical": {"sex": ["f", "m"]}}
    plan = plan_of({**task, "drop": ["smoker"]}, {"natural": column})

    named, plain = (load_site(plan, "essen", tmp_path / name) for name in ("named.csv", "plain.csv"))

    assert named.task.feature_names == plain.task.feature_names
    np.testing.assert_array_equal(named.train.x, plain.train.x)


@pytest.mark.parametrize("as_arrays", [False, True])
def test_y_of_many_numbers_that_are_not_whole_is_a_number_to_predict(as_arrays):
    x = patients(0)[0][["dose", "smoker"]].astype(float)
    y = Series(np.linspace(18.3, 41.9, 24), name="bmi")
    given = (x.to_numpy(), y.to_numpy()) if as_arrays else (x, y)

    federation = federation_from_arrays(plan_of(), {"bonn": given})

    assert federation.task.kind == "numbers"
    assert federation.task.target == ("y" if as_arrays else "bmi")
    assert any("many numbers that are not whole, so the number itself" in note for note in federation.notes)


@pytest.mark.parametrize("y", [np.arange(24) % 2 / 1.0, np.arange(24) % 3 / 2, np.arange(24.0) % 22])
def test_y_of_few_numbers_or_of_whole_ones_are_classes(y):
    x = np.arange(48.0).reshape(24, 2)

    federation = federation_from_arrays(plan_of(), {"bonn": (x, y)}, test=(x, y))

    assert (federation.task.kind, federation.task.classes) == ("classes", len(np.unique(y)))


def test_numbers_that_are_listed_as_classes_are_classes():
    x, y = np.arange(48.0).reshape(24, 2), np.linspace(18.3, 41.9, 24)

    federation = federation_from_arrays(plan_of({"classes": y.tolist()}), {"bonn": (x, y)}, test=(x, y))

    assert federation.task.classes == 24


def test_many_numbers_in_an_npz_are_no_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((24, 2)), y=np.linspace(18.3, 41.9, 24))

    with pytest.raises(DataError, match="y holds many numbers that are not whole, so they are no classes"):
        build_federation(plan_of({"npz": str(tmp_path / "a.npz")}, sites=2))


@pytest.mark.parametrize("as_arrays", [False, True])
def test_samples_with_times_and_events_are_survival(as_arrays):
    x = patients(0)[0][["dose", "smoker"]].astype(float)
    months, died = Series(np.arange(24) + 1, name="months"), Series(np.arange(24) % 2 == 0, name="died")
    given = tuple(each.to_numpy() for each in (x, months, died)) if as_arrays else (x, months, died)

    federation = federation_from_arrays(plan_of({"cuts": [6, 12, 24]}), {"bonn": given})

    assert (federation.task.kind, federation.task.cuts) == ("times", (6.0, 12.0, 24.0))
    assert federation.task.target == ("time" if as_arrays else "months")
    assert federation.task.feature_names == (("x0", "x1") if as_arrays else ("dose", "smoker"))


X, Y = patients(0)
N = (np.ones((4, 2)), np.arange(4) % 2)


@pytest.mark.parametrize(
    ("sites", "task", "words"),
    [
        ([(X, Y)], SEX, r"sites is {name: \(x, y\), ...}, by the names of the sites; got list"),
        (X, SEX, r"got DataFrame; one table of all is task={\"csv\": table"),
        ({}, SEX, "got none"),
        ({"bonn": X}, SEX, r"site 'bonn': expected \(x, y\).* got DataFrame; tables that hold the label"),
        ({"bonn": {"x": 1}}, SEX, r"site 'bonn': expected \(x, y\), .* got dict"),
        ({"bonn": (X, Y), "essen": N}, SEX, "sites 'bonn' and 'essen' differ in kind"),
        ({"bonn": N, "essen": (*N, N[1])}, "mine", "sites 'bonn' and 'essen' differ in kind"),
        ({"bonn": (X.assign(ill=Y), Y)}, SEX, "site 'bonn': 'ill' is a column of x, and the label has that name"),
        ({"bonn": (X, Y[:5])}, SEX, "site 'bonn': what is predicted has 1 columns of 5 rows; .* 24 rows"),
        ({"bonn": (X, Y.where(Y > 0))}, {**SEX, "classes": [0, 1]}, "site 'bonn': column 'ill' is empty in 12 of 24"),
        ({"bonn": (concat([X, X], axis=1), Y)}, SEX, "site 'bonn', column 'age': 4 duplicate column names"),
        ({"bonn": (X, X["age"].round())}, SEX, "the label has that name"),
        ({"bonn": (X, Y)}, {"categoricl": ["sex"]}, "no option 'categoricl'. Did you mean 'categorical'"),
        ({"bonn": N}, {"categorical": ["sex"]}, "arrays have no option 'categorical'"),
        ({"bonn": N}, {"loss": "hazard"}, r"survival takes \(x, time, event\)"),
        (
            {"bonn": N},
            {"target": "age", "loss": "logistic"},
            "'logistic' is for classes, and this task predicts numbers",
        ),
        ({"bonn": ([[1, 2], [3]], [0, 1])}, "mine", "samples are rows of one length"),
        (
            {"bonn": (*N, N[1]), "essen": (np.ones((4, 2, 2)), N[1], N[1])},
            "mine",
            "site 'essen': survival takes samples",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(sites, task, words):
    with pytest.raises((PlanError, DataError), match=words) as refused:
        federation_from_arrays(plan_of(task), sites)

    assert "\n" not in str(refused.value)
