import csv
from inspect import signature

import numpy as np
import pytest
import torch
from pandas import DataFrame, Series, concat

from fedsmall.data.sources import tables
from fedsmall.errors import DataError, PlanError
from fedsmall.evaluation.baselines import POOLED
from fedsmall.methods import TABLE_KEYS
from fedsmall.package.predictor import load as load_package
from fedsmall.sim import run
from fedsmall.sim.cli.app import main
from fedsmall.sim.runs.scenario import load
from tests.sim.runs.scenarios import SMALL, write

RNG = np.random.default_rng(0)
SITES = {name: (RNG.normal(size=(12, 3)), np.arange(12) % 2) for name in ("essen", "bonn", "kiel")}


def shifted() -> dict:
    """Three sites whose two classes can be told apart."""
    return {name: (x + 2.0 * y[:, None], y) for name, (x, y) in SITES.items()}


@pytest.mark.thorough
def test_a_plan_that_fails_is_said_and_the_others_are_there():
    rng = np.random.default_rng(0)
    rows = {name: (rng.normal(size=(12, 2)), rng.normal(size=12)) for name in "abc"}
    wild = {"name": "FedAvg", "label": "wild", "gate": False, "recipe": {"lr": 1e37}}

    with pytest.warns(UserWarning, match="wild, seed 0, failed: No site gave a model"):
        result = run(sites=rows, methods=["FedAvg", wild], model="linear", rounds=3, progress=False)

    assert [plan_run.label for plan_run in result.run.done] == ["FedAvg"]


def test_arrays_of_ones_own_give_a_table_figures_and_a_model():
    result = run(
        sites=shifted(),
        methods=["Standalone", {"name": "FedDC", "aggregate_every": 5}],
        rounds=20,
        seeds=range(2),
        evaluate_every=5,
        engine="inprocess",
        progress=False,
    )

    table = result.table()
    outputs = result.model(torch.tensor([[2.0, 2.0, 2.0], [-2.0, -2.0, -2.0]]))

    assert list(table.index) == ["the majority class", POOLED, "Standalone", "FedDC"]
    assert table.loc["FedDC", "global"] > 0.7
    assert table.loc["FedDC", "global_low"] <= table.loc["FedDC", "global"] <= table.loc["FedDC", "global_high"]
    assert np.isnan(table.loc["Standalone", "global"])
    constant = table.iloc[0]  # the same in all runs, which is no interval of width 0
    assert not np.isnan(constant["global"])
    assert np.isnan(constant["global_low"])
    assert list(table)[:9] == [f"{of}{end}" for of in ("global", "sites", "lead") for end in ("", "_low", "_high")]
    assert outputs.argmax(dim=1).tolist() == [1, 0]
    assert not result.model.training
    assert {key for key in result.models} == {("FedDC", 0), ("FedDC", 1)}
    assert "FedDC" in str(result)
    assert "<table>" in result._repr_html_()
    for kind in ("curves", "overview"):
        assert result.figure(kind).axes


def test_the_model_of_groups_is_a_module_that_answers_for_all_of_them():
    methods = [{"name": "TravellingGroups", "groups": 3}]
    result = run(sites=shifted(), methods=methods, rounds=20, seeds=[0], progress=False)

    outputs = result.model(torch.tensor([[2.0, 2.0, 2.0], [-2.0, -2.0, -2.0]]))

    assert outputs.argmax(dim=1).tolist() == [1, 0]
    assert torch.allclose(outputs.exp().sum(dim=1), torch.ones(2))  # logarithms of mean probabilities
    assert len(result.model.members) == 3


@pytest.mark.thorough
def test_a_scenario_runs_as_a_record_as_a_path_and_with_keys_set_anew(tmp_path):
    path = write(tmp_path, SMALL.replace("seeds = [0, 1]", "seeds = [0]").replace("rounds = 6", "rounds = 2"))

    first = run(path, engine="inprocess", progress=False)
    second = run(load(path), engine="inprocess", progress=False, out=tmp_path / "out")
    third = run(str(path), rounds=1, engine="inprocess", progress=False)

    assert [row["common"] for row in first.summary] == [row["common"] for row in second.summary]
    assert (tmp_path / "out" / "report.html").is_file()
    assert {row["rounds"] for row in third.summary} == {1}


@pytest.mark.thorough
def test_the_model_is_the_reference_methods_with_its_first_seed(small_run):
    from fedsmall.sim.api import Result

    result = Result(small_run)
    weights = next(iter(result.model.state_dict().values())).numpy()

    assert np.array_equal(weights, next(iter(result.models["FedDC", 0].values())))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "takes a scenario or sites="),
        ({"scenario": "x.toml", "sites": SITES}, "one of the two"),
        ({"scenario": "absent.toml"}, "There is no scenario"),
        ({"scenario": DataFrame({"a": [1]})}, "takes a scenario or sites="),
        ({"task": {"csv": [DataFrame({"a": [1]})], "label": "a"}}, "a pandas table, or one for each site by its name"),
        ({"task": {"npz": np.ones((9, 9))}}, "npz names a file or folder"),
        ({"sites": SITES, "methods": ["FedDD"]}, "There is no method 'FedDD'"),
        ({"sites": SITES, "roundz": 3}, "unknown key 'roundz'"),
        ({"sites": {"essen": (np.ones((4, 2)), np.arange(3) % 2)}}, "4 samples and 3 labels"),
    ],
)
def test_a_mistake_in_python_is_a_value_error(arguments, words):
    with pytest.raises((PlanError, DataError)) as refused:
        run(**arguments, progress=False)

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def hospitals() -> dict:
    """Two sites whose columns have names, in two orders; one site has gaps."""
    frames = {name: DataFrame(x, columns=["age", "dose", "marker"]) for name, (x, _) in shifted().items()}
    frames["bonn"] = frames["bonn"][["marker", "dose", "age"]]
    frames["kiel"].loc[0, "dose"] = np.nan
    return {name: (frame, Series(SITES[name][1], name="ill")) for name, frame in frames.items()}


def test_a_model_of_tables_predicts_the_very_tables_by_the_names_of_their_columns():
    result = run(sites=hospitals(), methods=["FedAvg"], rounds=20, engine="inprocess", progress=False)
    frame = hospitals()["kiel"][0]

    predicted = result.predict(frame)

    assert result.predictor().package.preparation.form.columns == ("marker", "dose", "age")
    assert predicted.equals(result.predict(frame[["age", "marker", "dose"]]))
    assert (predicted["class"].astype(int) == hospitals()["kiel"][1]).mean() > 0.7


def test_one_table_runs_as_the_csv_of_a_task_in_keys_or_in_a_scenario_of_python():
    table = concat([x.assign(ill=y, clinic=name) for name, (x, y) in hospitals().items()])
    keys = {"task": {"csv": table, "label": "ill"}, "rounds": 2, "partition": {"natural": "clinic"}}
    dealt = {**keys, "task": {**keys["task"], "drop": ["clinic"]}, "partition": "iid"}
    apart = {"csv": {name: rows for name, rows in table.drop(columns="clinic").groupby(table.clinic)}, "label": "ill"}
    quiet = {"methods": ["FedAvg"], "engine": "inprocess", "progress": False}

    by_site = [run(keys, **quiet), run(**keys, **quiet), run(task=apart, rounds=2, **quiet)]

    assert all(result.summary[0]["common"] == by_site[0].summary[0]["common"] for result in by_site)
    assert run(**dealt, sites=4, **quiet).run.about["sites"] == 4
    assert run({"task": "breast_cancer", "rounds": 1}, sites=3, **quiet).summary


def test_a_number_that_is_predicted_unasked_is_said():
    sites = {name: (x, x[:, 0] * 1.5) for name, (x, _) in SITES.items()}

    result = run(sites=sites, methods=["FedAvg"], rounds=2, engine="inprocess", progress=False)

    assert "Note: 'y' holds many numbers that are not whole, so the number itself is predicted" in str(result)
    assert "so the number itself is predicted" in result._repr_html_()


def test_a_figure_that_cannot_be_drawn_says_why():
    result = run(sites=shifted(), methods=["FedAvg"], rounds=2, engine="inprocess", progress=False)

    with pytest.raises(PlanError, match="There is no figure 'curve'"):
        result.figure("curve")
    with pytest.raises(PlanError, match="no figure 'chain'"):
        result.figure("chain")  # of release 0.2: the animation shows it


def test_a_cell_plays_models_on_their_way_and_says_where_there_are_none():
    methods = [{"name": "FedDC", "permute_every": 1, "aggregate_every": 2}]
    chained = run(sites=shifted(), methods=methods, rounds=4, engine="inprocess", progress=False).animation()
    apart = run(sites=shifted(), methods=["FedAvg"], rounds=2, engine="inprocess", progress=False)

    assert chained._repr_svg_() == chained.svg
    assert "@keyframes" in chained.svg
    with pytest.raises(PlanError, match="nothing to watch"):
        apart.animation()


def frame_of_patients() -> DataFrame:
    """Patients of three hospitals in one table, of whom one has a missing value."""
    rng = np.random.default_rng(1)
    table = DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "sex": rng.choice(["m", "f"], 60)})
    table["hospital"], table["outcome"] = (
        rng.choice(["kiel", "bonn", "essen"], 60),
        np.where(table.a > 0, "ill", "well"),
    )
    table.loc[3, "b"] = np.nan
    return table


def test_one_table_with_a_label_and_a_column_of_hospitals_runs(tmp_path):
    table, task = frame_of_patients(), {"categorical": ["sex"]}

    result = run(
        data=table, label="outcome", site="hospital", task=task, methods=["FedAvg"], rounds=5, seeds=[0], progress=False
    )

    assert result.run.about["sites"] == 3
    assert list(result.predict(table.head(2)).columns) == ["class", "p_ill", "p_well", "notes"]


def test_a_result_writes_its_report_and_its_model_never_over_another(tmp_path):
    result = run(sites=shifted(), methods=["FedAvg"], rounds=5, seeds=[0], progress=False)

    report, package = result.report(tmp_path / "mine.html"), result.save(tmp_path / "model.zip")

    assert "FedAvg" in report.read_text()
    rows = SITES["essen"][0]
    assert np.array_equal(load_package(package).predict_proba(rows), result.predictor().predict_proba(rows))
    for write_again in (lambda: result.report(report), lambda: result.save(package)):
        with pytest.raises(PlanError, match="is there already"):
            write_again()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": DataFrame({"a": [1.0]}), "label": "outcom"}, "data has no column 'outcom'"),
        ({"label": "outcome"}, "data = frame"),
        ({"sites": {"essen": (np.ma.masked_less(np.eye(4), 1), [0, 1, 0, 1])}}, "masked values are no numbers"),
        ({"sites": {"essen": (np.eye(4), np.ma.masked_less([0.5, 1, 2, 3], 1))}, "task": {"target": "y"}}, "masked"),
        ({"sites": SITES, "model": 3}, "a model is a name, a torch module, or a function"),
    ],
)
def test_what_is_no_table_or_no_model_is_refused(given, said):
    with pytest.raises((PlanError, DataError), match=said):
        run(methods=["FedAvg"], progress=False, **given)


@pytest.mark.parametrize("label", [2, "2"])
def test_a_table_whose_columns_are_numbered_has_a_label_by_its_number(label):
    table = frame_of_patients()
    numbered = DataFrame(np.c_[table[["a", "b"]], table["outcome"] == "ill"])

    result = run(data=numbered, label=label, sites=3, methods=["FedAvg"], rounds=2, seeds=[0], progress=False)

    assert len(result.predict(numbered.head(2))) == 2
    with pytest.raises(DataError, match="masked values"):
        result.predict(np.ma.masked_less(np.eye(2), 1))


def test_a_module_trains_on_from_its_own_weights_and_is_not_changed():
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()

    result = run(
        sites=shifted(), methods=["FedAvg"], model=model, rounds=1, recipe={"lr": 1e-6}, seeds=[0], progress=False
    )

    assert torch.equal(model.weight, before)
    assert torch.allclose(result.model.weight, before, atol=1e-4)


def test_a_loaded_package_is_one_line_and_knows_its_columns():
    table = frame_of_patients()
    model = run(
        data=table.drop(columns="sex"), label="outcome", site="hospital", methods=["FedAvg"], rounds=2, progress=False
    ).predictor()

    assert len(repr(model)) < 120
    assert list(model.feature_names_in_) == ["a", "b"]


@pytest.fixture(scope="module")
def sexed(tmp_path_factory):
    """A package whose columns are two numbers and a category."""
    table, task = frame_of_patients(), {"categorical": ["sex"]}
    made = run(data=table, label="outcome", site="hospital", task=task, methods=["FedAvg"], rounds=2, progress=False)
    return made.save(tmp_path_factory.mktemp("package") / "model.zip")


def predicted(capsys, *words: object) -> tuple[int, list[dict[str, str]], str]:
    """The exit code of ``fedsmall predict``, its rows, and what it said beside them."""
    with pytest.raises(SystemExit) as left:
        main(["predict", *map(str, words)])
    shown, beside = capsys.readouterr()
    return int(left.value.code or 0), list(csv.DictReader(shown.splitlines())), beside


def test_rows_that_cannot_be_read_are_refused_one_by_one(sexed, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("id;a;b;sex\nx;1,5;2;m\ny;2;foo;f\nz;1;1;divers\n")

    code, rows, _ = predicted(capsys, sexed, new, "--decimal", ",", "--id", "id", "--unknown", "refuse")
    _, lenient, beside = predicted(capsys, sexed, new, "--decimal", ",", "--id", "id", "--unknown", "missing")

    assert code == 0
    assert [(row["id"], bool(row["class"])) for row in rows] == [("x", True), ("y", False), ("z", False)]
    assert rows[1]["notes"] == "refused: b is no number"
    assert "sex is a category" in rows[2]["notes"]
    assert [bool(row["class"]) for row in lenient] == [True, False, True]
    assert float(lenient[0]["p_ill"]) == pytest.approx(float(rows[0]["p_ill"]))
    assert "refused: b is no number in 1 of 3 rows" in beside


def test_a_table_of_which_no_row_can_be_read_is_one_line(sexed, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("a;b;sex\n1,5;2,5;m\n")

    code, rows, beside = predicted(capsys, sexed, new)

    assert (code, rows) == (2, [])
    assert beside.count("\n") == 1
    assert "--decimal" in beside


def test_a_key_of_the_table_beside_it_is_sent_to_its_task():
    frame = DataFrame({"sex": ["f", "m"] * 20, "age": range(40), "ill": ["no", "yes", "yes", "no"] * 10})
    asked = {"label": "ill", "methods": ["Ridge"], "seeds": [0], "progress": False, "sites": 2}

    with pytest.raises(PlanError, match=r"It belongs to a task: task = \{categorical = "):
        run(data=frame, categorical=["sex"], **asked)
    assert len(run(data=frame, task={"categorical": ["sex"]}, **asked).run.done) == 1


def test_what_belongs_to_a_table_is_named_as_its_reader_names_it():
    assert set(TABLE_KEYS) <= {*signature(tables.csv).parameters, "ranges"}


def test_one_method_needs_no_list_and_several_labels_are_sent_to_the_task():
    frame = DataFrame({"age": range(40), "edema": [0, 1] * 20, "ill": [0, 1, 1, 0] * 10})
    asked = {"data": frame, "methods": "Ridge", "seeds": [0], "progress": False, "sites": 2}

    assert [plan.label for plan in run(label="ill", **asked).run.done] == ["Ridge"]
    with pytest.raises(PlanError, match=r'several of 0 and 1 are task = \{"targets": \[\'edema\', \'ill\'\]\}'):
        run(label=["edema", "ill"], **asked)
    with pytest.raises(PlanError, match=r"It belongs to a task: task = \{targets = "):
        run(targets=["edema", "ill"], **asked)
    two = {**asked, "methods": "FedAvg", "task": {"targets": ["edema", "ill"]}, "rounds": 2}
    assert len(run(**two).run.done) == 1
