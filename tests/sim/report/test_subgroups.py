"""The table of subgroups: scikit-learn's numbers on what a run has saved, and nothing of a group that is too small."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

from fedsmall.data.subgroups import read_subgroups
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation, load_site
from fedsmall.sim.report.html import page, tripod
from fedsmall.sim.report.model import Predictions, _place, clinical, hidden_groups, subgroups
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build

ROWS = 240
ASKED = ["sex", "age>=50, 60", "marker", "ward"]


def patients(folder):
    """A table in which men are harder to judge, of four wards, one of two patients."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(40, 80, ROWS), rng.choice(["f", "m"], ROWS)
    marker = rng.normal(size=ROWS)
    ill = (marker + np.where(sex == "m", 2.0, 0.3) * rng.normal(size=ROWS)) > 0
    ward = np.array(["a", "b", "c", ""])[rng.integers(0, 4, ROWS)]
    ward[:2] = "tiny"
    outcome = np.where(ill, "ill", "well")
    rows = [",".join(map(str, row)) for row in zip(age, sex, marker.round(4), ward, outcome, strict=True)]
    path = folder / "patients.csv"
    path.write_text("\n".join(["age,sex,marker,ward,outcome", *rows]))
    return path


def task(path, asked=ASKED, **more):
    given = {"csv": str(path), "label": "outcome", "classes": ["well", "ill"], "drop": ["sex", "ward"]}
    return given | {"subgroups": asked} | more


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subgroups")
    scenario = {"name": "s", "task": task(patients(folder)), "sites": 4, "rounds": 20, "test": 0.5, "threshold": 0.4}
    execute(build({**scenario, "method": [{"name": "FedAvg"}], "metric": "auc"}), folder / "run")
    return read(folder / "run")


def test_every_group_has_scikit_learns_figures_on_the_saved_predictions(run):
    saved = np.load(run.folder / "predictions.npz")
    p, y = saved["FedAvg/0/probabilities"][:, 1], saved["FedAvg/0/labels"]

    found = subgroups(clinical(run))

    assert {at.column for at in found} == {"sex", "age", "marker", "ward"}
    for at in found:
        mine = saved[f"FedAvg/0/groups/{at.column}"] == at.group
        if at.hidden:
            assert mine.sum() < 8 or at.column == "ward"
            continue
        tn, fp, fn, tp = confusion_matrix(y[mine], p[mine] >= 0.4).ravel()
        assert (at.samples, at.positive) == (mine.sum(), tp + fn)
        assert at.area.value == pytest.approx(roc_auc_score(y[mine], p[mine]), abs=1e-12)
        assert at.area.low < at.area.value < at.area.high
        assert at.errors.sensitivity.value == pytest.approx(tp / (tp + fn))
        assert at.errors.specificity.value == pytest.approx(tn / (tn + fp))
    of_sex = {at.group: at.area.value for at in found if at.column == "sex"}
    assert of_sex["f"] > of_sex["m"]


def test_groups_come_from_columns_that_are_no_features_and_in_order(run):
    found = subgroups(clinical(run))

    names = {column: [at.group for at in found if at.column == column] for column in ("sex", "age", "ward")}
    assert names["sex"] == ["f", "m"]
    assert names["age"] == ["below 50", "50 to below 60", "60 or more"]
    assert names["ward"][-1] == "unknown"
    assert len([at for at in found if at.column == "marker"]) == 3  # thirds
    assert run.about["task"]["feature_names"] == ["age", "marker"]


@pytest.mark.thorough
def test_the_page_shows_them_and_tripod_says_where(run):
    html = page([run], "s")

    assert "Subgroup by subgroup" in html
    assert "60 or more" in html
    answers = {item.number: item.answer for item in tripod(run, clinical(run))}
    assert "Subgroup by subgroup" in answers["14"]
    assert answers["23a"].endswith("Subgroup by subgroup")


def test_without_subgroups_tripod_says_that_there_are_none(run):
    shown = clinical(run)
    without = SimpleNamespace(predictions=shown.predictions._replace(groups={}), is_binary=False)

    answers = {item.number: item.answer for item in tripod(run, without)}

    assert (answers["14"], "of no subgroup" in answers["23a"]) == ("", True)


def test_a_small_group_is_hidden_and_whatever_would_give_it_away():
    assert hidden_groups({"a": 50, "b": 8}) == set()
    assert hidden_groups({"a": 50, "b": 7}) == {"a", "b"}
    assert hidden_groups({"a": 50, "b": 9, "c": 3}) == {"b", "c"}
    assert hidden_groups({"a": 50, "b": 9, "c": 4, "d": 5}) == {"c", "d"}
    assert hidden_groups({}) == set()


def test_more_than_two_classes_have_their_accuracy():
    said = Predictions(
        np.eye(3)[[0, 1, 2, 0] * 8], np.array([0, 1, 2, 2] * 8), np.array([]), {"g": np.array(["x"] * 32)}
    )

    (at,) = subgroups(SimpleNamespace(predictions=said, is_binary=False))

    assert (at.samples, at.accuracy.value, at.area) == (32, 0.75, None)


def test_numbers_stand_from_low_to_high_and_the_unknown_last():
    names = ["unknown", "-1 to below 10", "10 or more", "below -1", "word"]

    assert sorted(names, key=_place) == ["below -1", "-1 to below 10", "10 or more", "word", "unknown"]


def federation(given, **more):
    return build_federation(Plan(name="s", task=given, sites=4, method=method("FedAvg"), **more))


def test_a_named_task_is_divided_by_its_features():
    made = federation({"name": "breast_cancer", "subgroups": ["mean radius>=15"]})

    names, counts = np.unique(made.test.groups["mean radius"], return_counts=True)

    assert names.tolist() == ["15 or more", "below 15"]
    assert counts.sum() == len(made.test)
    plain = federation("breast_cancer")
    assert plain.test.x.tobytes() == made.test.x.tobytes()


def test_a_real_site_reads_none_for_no_prediction_leaves_it(tmp_path):
    path = patients(tmp_path)
    plan = Plan(name="s", task=task(path, ["no such column"]), partition={"natural": "file"}, method=method("FedAvg"))

    assert load_site(plan, "essen", path).train.groups == {}


REFUSED = [
    ("sex", PlanError, "subgroups lists columns"),
    (["age>=old"], PlanError, "ascending cuts"),
    (["age>=60, 50"], PlanError, "ascending cuts"),
    ([">=3"], PlanError, "ascending cuts"),
    (["age>=40", "age>=60"], PlanError, r"'age' twice; several cuts go into one: \"age>=40, 60\""),
    (["gender"], DataError, "gender"),
    (["sex>=3"], DataError, "'sex' holds text, which has no cuts"),
]


@pytest.mark.parametrize(("asked", "kind", "words"), REFUSED)
def test_what_cannot_divide_is_refused_in_one_line(tmp_path, asked, kind, words):
    with pytest.raises(kind, match=words) as error:
        federation(task(patients(tmp_path), asked))

    assert "\n" not in str(error.value)


def test_words_of_many_values_are_refused_without_saying_one(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["name,x,outcome", *(f"secret{k},{k},{k % 2}" for k in range(40))]))

    with pytest.raises(DataError, match="'name' has 40 values; 12 groups are the most") as error:
        federation({"csv": str(path), "label": "outcome", "drop": ["name"], "subgroups": ["name"]})

    assert "secret" not in str(error.value)


def test_samples_that_are_no_table_have_no_subgroups():
    with pytest.raises(PlanError, match="subgroups are columns of a table"):
        federation({"name": "digits", "subgroups": ["x"]})
    with pytest.raises(PlanError, match=r"there is no feature 'radius'"):
        federation({"name": "breast_cancer", "subgroups": ["radius"]})


def test_a_column_alone_or_with_cuts():
    assert read_subgroups(["sex", "age >= 40, 60.5"]) == (("sex", ()), ("age", (40.0, 60.5)))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (range(2000, 2015), ["2004.7 to below 2009.3", "2009.3 or more", "below 2004.7"]),
        ([0.61, 0.68, 0.72, 0.8, 0.9, 1.0, 1.1, 1.3, 4.0, 9.0], ["0.8 to below 1.1", "1.1 or more", "below 0.8"]),
    ],
    ids=["years", "a blood count"],
)
def test_thirds_are_rounded_by_how_far_they_are_apart(tmp_path, values, named):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["at,x,outcome", *(f"{v},{k},{k % 2}" for v in values for k in range(4))]))

    found = federation({"csv": str(path), "label": "outcome", "drop": ["at"], "subgroups": ["at"]})

    assert sorted({name for samples in found.train for name in samples.groups["at"]}) == named
