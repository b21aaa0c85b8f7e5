"""Terms, offsets and weights of a regression, held against statsmodels on pooled rows, and every error of them."""

import re
import tomllib

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from fedsmall.data.federation import Task
from fedsmall.errors import DataError, PlanError
from fedsmall.extensions.regression.page import inference_of
from fedsmall.extensions.regression.terms import terms_of
from fedsmall.package.export import export
from fedsmall.package.predictor import predictor_of
from fedsmall.parts import Privacy, Regression
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from tests import ROOT, only_quick
from tests.sim.engines.harness import assert_equal_bits


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    """Stays at hospitals with a number of falls, of patients who were there for so many days."""
    rng = rng_for(0, "falls")
    n = 240
    age, days, ward = rng.normal(70, 9, n), rng.integers(2, 40, n), rng.choice(["A", "B", "C"], n)
    mean = days * np.exp(-3 + 0.05 * (age - 70) + 0.4 * (ward == "B") + 0.03 * (age - 70) * (ward == "C"))
    ill = rng.random(n) < 1 / (1 + np.exp(-0.1 * (age - 70) - (ward == "B")))
    columns = {"age": age, "days": days, "ward": ward, "stays": rng.integers(1, 4, n), "falls": rng.poisson(mean)}
    return pd.DataFrame({**columns, "ill": np.where(ill, "yes", "no"), "hospital": rng.choice(list("PQR"), n)})


TASK = {"categorical": {"ward": ["B", "C"]}, "site_column": "hospital", "unscaled": ["days", "stays"]}


def scenario(path, target, *settings):
    methods = [
        {"name": "Ridge", "label": f"fit {k}", "regression": {"penalty": 0, **own}} for k, own in enumerate(settings)
    ]
    table = {"task": {"csv": str(path), **TASK, **target}, "partition": {"natural": "hospital"}, "rounds": 30}
    return build({"name": "falls", "dtype": "float64", **table, "method": methods})


def page_of(done) -> str:
    write_report(done.folder, [done], "falls")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (done.folder / "report.html").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def falls(patients, tmp_path_factory):
    """The run of the page's scenario, of which the second method has the product."""
    folder = tmp_path_factory.mktemp("falls")
    patients.drop(columns="ill").to_csv(folder / "falls.csv", index=False)
    page = (ROOT / "docs" / "regression.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(# falls.toml\n.*?)```", page, re.DOTALL)
    table = tomllib.loads(block)
    table["task"]["csv"] = str(folder / "falls.csv")
    return execute(build({**table, "dtype": "float64"}), folder / "run")


def test_rates_with_weights_and_products_are_those_of_statsmodels(falls, patients):
    assert not falls.failed
    of_run = falls.done[1]
    train = build_federation(of_run.plan).pooled().train[0]
    kept = pd.DataFrame(train.x, columns=["age", "days", "ward=B", "ward=C", "stays"])
    x = kept[["age", "ward=B", "ward=C"]].to_numpy()
    x = np.c_[x, x[:, :1] * x[:, 1:], np.ones(len(x))]
    mean, scale = build_federation(of_run.plan).task.unit
    y = np.rint(train.y[:, 0] * scale + mean)
    pooled = sm.GLM(y, x, sm.families.Poisson(), offset=np.log(kept["days"]), freq_weights=kept["stays"]).fit(tol=1e-14)

    stored = falls.packages_of(of_run)[0]
    _, _, found, _ = inference_of(stored, of_run)

    unit = np.array([1, *np.array(stored.package.preparation.agreed.scale)[[2, 3]], 1, 1])  # a ward is 1 or 0 on a page
    assert np.allclose(found.estimate * unit, pooled.params[:-1], atol=1e-7)
    assert np.allclose(found.error * unit, pooled.bse[:-1], atol=1e-6)
    assert np.allclose(found.p, pooled.pvalues[:-1], atol=1e-6)


def test_the_page_has_the_likelihood_ratio_test_of_added_terms(falls):
    text = page_of(falls)

    part = build_federation(falls.done[1].plan)
    train, (mean, scale) = part.pooled().train[0], part.task.unit
    x, y = train.x[:, [0, 2, 3]], np.rint(train.y[:, 0] * scale + mean)
    designs = [np.c_[x, np.ones(len(x))], np.c_[x, x[:, :1] * x[:, 1:], np.ones(len(x))]]
    more = {"offset": np.log(train.x[:, 1]), "freq_weights": train.x[:, 4]}
    small, large = (sm.GLM(y, of, sm.families.Poisson(), **more).fit(tol=1e-14).llf for of in designs)
    statistic = 2 * (large - small)
    assert "Likelihood-ratio tests" in text
    p = stats.chi2.sf(statistic, 2)
    shown = "&lt; 0.0001" if p < 1e-4 else f"{p:.4f}"
    assert f"Ridge without the product age * ward=B, age * ward=C {statistic:.2f} 2 {shown}" in text


def ridge_on(patients, folder, task, *settings, name="Ridge", dtype="float64"):
    patients.to_csv(folder / "p.csv", index=False)
    table = {
        "task": {"csv": str(folder / "p.csv"), "site_column": "hospital", **task},
        "rounds": 30,
        "dtype": dtype,
    }
    methods = [
        {"name": name, "label": f"fit {k}", "regression": {"penalty": 0, **own}} for k, own in enumerate(settings)
    ]
    of = {"name": "f", "partition": {"natural": "hospital"}, "keep": "sites", "method": methods}
    return execute(build({**table, **of}), folder / "run")


@pytest.mark.parametrize(("label", "model"), [("ill", sm.Logit), ("falls", sm.OLS), ("stays", sm.MNLogit)])
def test_values_of_a_category_stand_against_the_first_as_in_statsmodels(patients, tmp_path, label, model):
    task = {"categorical": ["ward", "shift"], "target" if label == "falls" else "label": label}
    patients = patients.assign(shift=np.resize(list("xyzxyy"), len(patients)))[
        ["age", "ward", "shift", "hospital", label]
    ]

    done = ridge_on(patients, tmp_path, task, {})

    stored, part = done.packages_of(done.done[0])[0], build_federation(done.done[0].plan)
    train, names = part.pooled().train[0], part.task.feature_names
    assert names == ("age", "ward=A", "ward=B", "ward=C", "shift=x", "shift=y", "shift=z")
    agreed = stored.package.preparation.agreed
    x = np.c_[np.ones(len(train)), train.x[:, 0], (train.x * agreed.scale + agreed.mean)[:, [2, 3, 5, 6]]]
    how = {} if label == "falls" else {"disp": 0, "method": "newton", "tol": 1e-14}
    pooled = model(train.y.ravel(), x).fit(**how)
    _, _, found, _ = inference_of(stored, done.done[0])
    assert np.allclose(found.estimate, np.asarray(pooled.params)[1:].T.ravel(), atol=1e-6)
    assert np.allclose(found.error, np.asarray(pooled.bse)[1:].T.ravel(), atol=1e-6)
    text = page_of(done)
    if label == "falls":  # shown in falls, by what the page says of age
        years = float(re.search(r"age \(by (.*?)\)", text)[1])
        of_raw = sm.OLS(train.y.ravel() * part.task.unit[1], np.c_[x[:, :1], x[:, 1] * agreed.scale[0], x[:, 2:]]).fit()
        shown = float(re.search(r"age \(by .*?\) (\S+) ", text)[1])
        assert shown == pytest.approx(of_raw.params[1] * years, rel=0.01)
    for row in ("ward: B against A", "ward: C against A", "shift: y against x", "shift: z against x"):
        assert row in text
    assert "ward=A" not in text[text.index("Coefficients") : text.index("Use the model")]


def test_a_category_has_one_degree_of_freedom_less_than_values(patients, tmp_path):
    task = {"categorical": ["ward"], "label": "ill"}

    done = ridge_on(patients[["age", "ward", "ill", "hospital"]], tmp_path, task, {"terms": ["age"]}, {})

    part = build_federation(done.done[0].plan)
    train = part.pooled().train[0]
    designs = [sm.add_constant(train.x[:, list(of)]) for of in ((0,), (0, 2, 3))]
    small, large = (sm.Logit(train.y, x).fit(disp=0, tol=1e-14).llf for x in designs)
    statistic = 2 * (large - small)
    assert f"fit 1 fit 0 ward=A, ward=B, ward=C {statistic:.2f} 2 {stats.chi2.sf(statistic, 2):.4f}" in page_of(done)


@pytest.mark.parametrize("dtype", only_quick(["float32"], ["float64", "float32"]))
@pytest.mark.parametrize(("label", "model"), [("ill", sm.Logit), ("falls", sm.OLS), ("stays", sm.MNLogit)])
def test_nothing_is_told_of_columns_that_say_what_others_say(patients, tmp_path, label, model, dtype):
    task = {"categorical": ["ward"], "target" if label == "falls" else "label": label}
    patients = patients.assign(months=12 * patients["age"], ground=1 * (patients["ward"] == "A"))
    patients = patients[["age", "days", "ward", "months", "ground", "hospital", label]]
    settings = {"terms": ["age", "days"]}, {"terms": ["age", "days", "months"]}, {"robust": True}

    done = ridge_on(patients, tmp_path, task, {}, *settings, dtype=dtype)

    train = build_federation(done.done[0].plan).pooled().train[0]
    x = np.c_[np.ones(len(train)), train.x[:, [0, 1, 3, 4]]]
    how = {} if label == "falls" else {"disp": 0, "method": "newton", "tol": 1e-14}
    fit, small = (model(train.y.ravel(), of).fit(**how) for of in (x, x[:, :3]))
    (_, _, found, _), (_, _, robust, _) = (inference_of(done.packages_of(of)[0], of) for of in done.done[::3])
    classes = 2 if label == "stays" else 1
    names = ["age", "days", "ward: B", "ward: C", "months", "ground"]
    told = np.tile([name == "days" for name in names], classes)
    assert found.undetermined.tolist() == robust.undetermined.tolist() == (~told).tolist()
    close = 1e-6 if dtype == "float64" else 1e-4
    assert np.allclose(found.estimate[told], np.atleast_2d(np.asarray(fit.params).T)[:, 2], atol=close)
    assert np.allclose(found.error[told], np.atleast_2d(np.asarray(fit.bse).T)[:, 2], atol=close)
    text = page_of(done)
    statistic = 2 * (fit.llf - small.llf)
    assert f"fit 0 fit 1 ward=A, ward=B, ward=C, months, ground {statistic:.2f} {2 * classes} " in text
    assert "fit 2 fit 1 months" not in text


def test_a_value_that_a_hospital_lacks_is_not_determined_there(patients, tmp_path):
    task = {"categorical": ["ward"], "label": "ill"}
    patients = patients[(patients["hospital"] != "P") | (patients["ward"] != "C")].assign(sex=lambda of: of["days"] % 2)

    done = ridge_on(patients[["age", "sex", "ward", "ill", "hospital"]], tmp_path, task, {}, name="StandaloneRidge")

    lacking = {
        of.package.whose: inference_of(of, done.done[0])[2].undetermined.tolist()
        for of in done.packages_of(done.done[0])
    }
    assert lacking == {"P": [False, False, False, True], "Q": [False] * 4, "R": [False] * 4}
    text = page_of(done)
    assert re.search(r"age \(by (8|9)\.\d+\) .* sex: 1 against 0 ", text)
    assert "fit 0, trained at P alone (seed 0)" in text
    assert "ward: C against A not determined" in text


@pytest.mark.parametrize(
    ("times", "ranges", "steps"),
    [(1, {"ranges": {"age": [20, 110], "days": [10, 60]}}, ["26", "14.4"]), (1e29, {}, ["9.03e+29", "10.5"])],
)
def test_a_column_far_from_zero_is_by_its_own_step(patients, tmp_path, times, ranges, steps):
    patients = patients.assign(age=times * patients["age"])[["age", "days", "ill", "hospital"]]

    done = ridge_on(patients, tmp_path, {"label": "ill", **ranges}, {})

    assert re.findall(r"\w+ \(by (\S+)\)", page_of(done)) == steps


def test_a_package_predicts_with_its_offset_in_the_unit_of_rows(falls, patients):
    model = predictor_of(falls.packages_of(falls.done[1])[:1])
    rows = patients.drop(columns=["ill", "falls"]).head(5)

    once, twice = model.predict(rows), model.predict(rows.assign(days=2 * rows["days"]))

    assert np.allclose(np.asarray(twice, float), 2 * np.asarray(once, float), rtol=1e-4)


def test_messages_and_secure_sums_have_the_bits_of_a_stack(falls):
    plan = falls.done[1].plan
    federation = build_federation(plan)
    method = plan.method.model_copy(update={"privacy": Privacy(secure=True)})
    secure = plan.model_copy(update={"method": method})

    stack = run_plan(plan, federation, "cohort").model

    assert_equal_bits(stack, run_plan(plan, federation, "inprocess").model)
    assert_equal_bits(stack, run_plan(secure, federation, "cohort").model)


@pytest.mark.parametrize("form_of_file", [pytest.param("onnx", marks=pytest.mark.thorough), "torchscript"])
def test_an_offset_and_products_are_exported(falls, form_of_file, tmp_path):
    if form_of_file == "onnx":
        pytest.importorskip("onnxscript")

    export(falls.packages_of(falls.done[1])[0], tmp_path / "model", form_of_file)  # which holds it against the package

    assert (tmp_path / "model").stat().st_size > 1000


def test_a_number_s_test_has_an_estimated_variance(patients, tmp_path):
    patients.drop(columns=["ill"]).to_csv(tmp_path / "t.csv", index=False)
    task = {"target": "falls"}
    built = scenario(tmp_path / "t.csv", task, {"terms": ["age"]}, {"terms": ["age", "ward"]})

    done = execute(built, tmp_path / "run")
    train = build_federation(done.done[0].plan).pooled().train[0]
    fits = [
        sm.OLS(train.y[:, 0], np.c_[train.x[:, columns], np.ones(len(train.x))]).fit() for columns in ([0], [0, 2, 3])
    ]
    statistic, p, _ = fits[1].compare_lr_test(fits[0])
    assert f"fit 1 fit 0 ward=B, ward=C {statistic:.2f} 2 {p:.4f}" in page_of(done)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"terms": ["agee"]}, "regression names 'agee', which is no column. Did you mean"),
        ({"terms": ["age * sex"]}, "regression names 'sex', which is no column"),
        ({"offset": "ward"}, "an offset or weights are one column of numbers, and 'ward' is a category"),
        ({"weights": "nights"}, "regression names 'nights', which is no column"),
    ],
)
def test_a_column_that_is_not_there_is_refused_in_one_line(patients, tmp_path, settings, reason):
    patients.drop(columns="falls").to_csv(tmp_path / "t.csv", index=False)

    with pytest.raises(PlanError, match=re.escape(reason)):
        execute(scenario(tmp_path / "t.csv", {"label": "ill"}, settings))


@pytest.mark.parametrize(
    ("settings", "column", "value", "reason"),
    [
        ({"offset": "log(days)"}, "days", 0, "of a patient here the number is missing or not above 0"),
        ({"offset": "log(days)"}, "days", np.nan, "of a patient here the number is missing or not above 0"),
        ({"weights": "stays"}, "stays", -1, "regression.weights has a number below 0"),
    ],
)
def test_a_number_that_no_offset_or_weight_can_be_is_refused(patients, tmp_path, settings, column, value, reason):
    rows = patients.drop(columns="falls").astype({column: float})
    rows[column] = value
    rows.to_csv(tmp_path / "t.csv", index=False)

    done = execute(scenario(tmp_path / "t.csv", {"label": "ill"}, settings), tmp_path / "run")

    assert reason in str(done.failed)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"unscaled": "days"}, "unscaled lists columns, as in unscaled = ["),
        ({"unscaled": ["ward"]}, "unscaled names 'ward', which is no feature of numbers"),
        ({"ranges": {"age": [0, 100]}}, "ranges scale every column, and unscaled says that some are not"),
    ],
)
def test_an_unscaled_column_that_cannot_be_one_is_refused(patients, tmp_path, more, reason):
    patients.drop(columns="falls").to_csv(tmp_path / "t.csv", index=False)

    with pytest.raises((DataError, PlanError), match=re.escape(reason)):
        execute(scenario(tmp_path / "t.csv", {"label": "ill", **more}, {}))


def test_all_columns_are_terms_but_offset_and_weights():
    task = Task("t", (4,), 2, feature_names=("a", "b=1", "b=2", "w"))

    assert terms_of(task, Regression()).names == ("a", "b=1", "b=2", "w")
    assert terms_of(task, Regression(weights="w", offset="a")).names == ("b=1", "b=2")
    assert terms_of(task, Regression(terms=("b * a", "w"))).columns == ((1, 0), (2, 0), (3, -1))
    assert terms_of(Task("t", (2,), 2), Regression(terms=("column 2",))).columns == ((1, -1),)
