import numpy as np
import pytest

from fedsmall.data.outcomes import Amount, Survival, survival_of
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError, PlanError
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.check import check_site
from fedsmall.planning.tasks import build_federation, federation_from_arrays, load_site
from fedsmall.planning.validation import check_run

RNG = np.random.default_rng(0)
AGES = RNG.integers(20, 90, size=60)


@pytest.fixture
def folder(tmp_path):
    """Three hospitals of 20 patients: a marker, an age, months until an event."""
    (tmp_path / "sites").mkdir()
    for place, name in enumerate(("a", "b", "c")):
        mine = AGES[place * 20 : place * 20 + 20]
        rows = [f"{age / 10 + k % 3},{age},{k + 1 + place * 5},{k % 2}" for k, age in enumerate(mine)]
        (tmp_path / "sites" / f"{name}.csv").write_text("\n".join(["marker,age,months,died", *rows]))
    return tmp_path


def plan_of(folder, **task):
    return Plan(
        name="t",
        task={"csv": str(folder / "sites"), **task},
        model="linear",
        partition={"natural": "file"},
        dtype="float64",
        method=method("FedAvg"),
    )


def test_sites_agree_on_the_unit_of_a_target_as_on_the_scaling_of_features(folder):
    federation = build_federation(plan_of(folder, target="age", drop=["months", "died"]))

    mean, scale = federation.task.unit
    trained = np.concatenate([site.y for site in federation.train])
    assert (federation.task.kind, federation.task.target, federation.task.outputs) == ("numbers", "age", 1)
    assert federation.task.feature_names == ("marker",)
    np.testing.assert_allclose([trained.mean(), trained.std()], [0, 1], atol=1e-9)
    back = mean + scale * np.concatenate([trained, federation.test.y])
    assert sorted(np.round(back[:, 0]).astype(int)) == sorted(AGES)


def test_a_site_alone_gets_the_same_targets_once_it_is_told_the_scaling(folder):
    plan = plan_of(folder, target="age", drop=["months", "died"])
    federation = build_federation(plan)
    raw = load_site(plan, "b", folder / "sites" / "b.csv")

    told = raw.sums()

    assert raw.summed_names == ("marker", "age")
    assert told.total[1] == raw.train.y.sum()
    assert raw.learns(None).unit is None
    assert federation.preparation.outcome.unit == federation.task.unit


def test_a_public_range_of_the_target_leaves_nothing_to_agree_on(folder):
    ranges = {"marker": [0, 12], "age": [0, 120]}
    plan = plan_of(folder, target="age", drop=["months", "died"], ranges=ranges)
    federation = build_federation(plan)

    raw = load_site(plan, "b", folder / "sites" / "b.csv")

    assert not raw.scaled
    assert raw.sums() is None
    assert federation.task.unit == (60.0, 120 / 12**0.5)


def test_sites_agree_on_intervals_and_none_tells_its_longest_time(folder):
    plan = plan_of(folder, time="months", event="died", drop=["age"], intervals=5)
    federation = build_federation(plan)

    times = np.concatenate([site.y[:, 2] for site in federation.train])
    horizon = times.mean() + 2 * times.std()
    assert federation.task.cuts[-1] == pytest.approx(horizon, rel=0.05)
    np.testing.assert_allclose(np.diff(federation.task.cuts, prepend=0), federation.task.cuts[0])
    assert (federation.task.kind, federation.task.outputs) == ("times", 5)
    assert load_site(plan, "b", folder / "sites" / "b.csv").summed_names == ("marker", "months")


def test_stated_cuts_need_no_sums(folder):
    plan = plan_of(folder, time="months", event="died", drop=["age"], cuts=[6, 12, 30], ranges={"marker": [0, 12]})

    assert build_federation(plan).task.cuts == (6.0, 12.0, 30.0)
    assert load_site(plan, "b", folder / "sites" / "b.csv").sums() is None


def test_what_somebody_is_known_to_have_come_through():
    outcome = Survival(name="t", event="e", stated=(10.0, 20.0, 30.0))
    seen = {  # time, event: intervals come through, event in the next
        (5, 1): (0, 1),
        (10, 1): (0, 1),  # an interval holds its end
        (10, 0): (1, 0),
        (15, 0): (1, 0),  # who is lost within an interval counts in those before it
        (15, 1): (1, 1),
        (30, 1): (2, 1),
        (30, 0): (3, 0),
        (40, 1): (3, 0),  # not yet, by the last cut
        (0, 0): (0, 0),
    }

    found = outcome.targets(np.array(list(seen), dtype=float))

    assert [tuple(row) for row in found[:, :2]] == list(seen.values())
    assert [tuple(row) for row in found[:, 2:]] == list(seen)


def test_a_curve_is_the_product_of_what_is_left_in_each_interval():
    np.testing.assert_allclose(survival_of(np.array([[0.0, 0.0, 100.0]])), [[0.5, 0.25, 0]], atol=1e-12)


def test_an_amount_comes_back_in_its_unit():
    amount = Amount(name="age").with_scaling(50.0, 10.0)

    np.testing.assert_allclose(amount.interpret(amount.targets(np.array([[20.0], [75.0]]))), [[20], [75]])


def test_arrays_in_python_can_be_numbers():
    plan = Plan(name="t", task={"name": "t", "loss": "mse"}, method=method("FedAvg"))
    sites = {name: (RNG.normal(size=(12, 2)), RNG.normal(40, 5, size=12)) for name in "ab"}

    federation = federation_from_arrays(plan, sites)

    assert federation.task.unit[0] == pytest.approx(40, abs=5)
    assert federation.train[0].y.shape == (9, 1)


SURVIVAL = {"time": "months", "event": "died", "drop": ["age"]}
REFUSED = {
    "nothing": ({}, "needs one of label, .* this one has none"),
    "two things": ({"label": "died", "target": "age"}, "this one has label, target"),
    "two more": ({"target": "age", "time": "months"}, "this one has target, time"),
    "classes": ({"target": "age", "classes": [0, 1]}, "classes are for a label"),
    "no event": ({"time": "months"}, "survival is time and event"),
    "both": ({**SURVIVAL, "cuts": [1], "intervals": 3}, "remove one of them"),
    "intervals": ({**SURVIVAL, "intervals": 0}, "whole number from 1 to 100; got 0"),
    "cuts": ({**SURVIVAL, "cuts": [12, 6]}, r"from low to high and above 0, .* got \[12, 6\]"),
    "no cuts": ({**SURVIVAL, "cuts": []}, "from low to high and above 0, .* got"),
    "a wrong loss": ({"label": "died", "loss": "l1"}, "is for numbers, and this task predicts classes; the column"),
    "another wrong loss": ({"target": "age", "loss": "hinge"}, "is for classes, and this task predicts numbers"),
    "times by squares": ({**SURVIVAL, "loss": "mse"}, "is for numbers, and this task predicts times"),
    "a target without a range": (
        {"target": "age", "drop": ["months", "died"], "ranges": {"marker": [0, 9]}},
        "ranges says nothing of age, which is predicted",
    ),
    "times to agree on": ({**SURVIVAL, "ranges": {"marker": [0, 9]}}, "beside ranges say cuts"),
    "one label": ({"targets": ["died"]}, r"targets lists 2 columns or more .* got \['died'\]"),
    "labels in a word": ({"targets": "died"}, "targets lists 2 columns or more"),
    "labels that are numbers": ({"targets": [1, 2]}, "targets lists 2 columns or more"),
    "a label twice": ({"targets": ["died", "died"]}, "targets lists 'died' twice"),
    "labels and a target": ({"targets": ["died", "age"], "target": "age"}, "this one has target, targets"),
    "labels and classes": ({"targets": ["died", "age"], "classes": [0, 1]}, "classes are for a label"),
    "labels that are no labels": (
        {"targets": ["died", "age"]},
        "column 'age' is neither 1 .there. nor 0 .absent. in 20",
    ),
    "a label that is not there": ({"targets": ["died", "x"]}, r"no column 'x' \(what is to be predicted\)"),
    "classes by labels": ({"label": "died", "loss": "binary_cross_entropy"}, "is for labels, and this task predicts"),
    "an order of nothing": ({"order": ["0", "1", "2"]}, "order lists the grades of a target"),
    "an order of a label": ({"label": "died", "order": ["0", "1", "2"]}, "leave label and classes out"),
    "an order and classes": ({"target": "died", "order": [0, 1, 2], "classes": [0, 1, 2]}, "leave label and classes"),
    "an order of two": ({"target": "died", "order": ["0", "1"]}, r"3 grades or more, .* got \['0', '1'\]"),
    "an order in a word": ({"target": "died", "order": "0 1 2"}, "3 grades or more, .* got '0 1 2'"),
    "a grade twice": ({"target": "died", "order": [0, 1, 1]}, "lists '1' twice"),
    "a grade that is not listed": ({"target": "age", "order": [0, 1, 2]}, "20 of 20 labels are none of the classes"),
    "an order by squares": ({"target": "died", "order": [0, 1, 2], "loss": "mse"}, "is for numbers, and this task"),
    "two classes in order": ({"label": "died", "loss": "ordinal"}, "for 3 classes or more in their order; .* has 2"),
    "a column of grades that is not there": ({"target": "x", "order": [0, 1, 2]}, "no column 'x'"),
    "a column that is not there": ({"target": "agee"}, r"no column 'agee' \(what is to be predicted\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_outcome_is_refused_in_one_line(folder, case):
    task, words = REFUSED[case]

    with pytest.raises((PlanError, DataError), match=words):
        build_federation(plan_of(folder, **task))


CELLS = {
    "no time": ("3,,0", "column 'months' is empty in 1 of 21 rows"),
    "a word": ("3,soon,0", "text where numbers are expected, in column 'months'"),
    "before the beginning": ("3,-1,0", "column 'months' is below 0 in 1 of 21 rows"),
    "no event": ("3,2,", "column 'died' is empty in 1 of 21 rows"),
    "an odd event": ("3,2,maybe", "column 'died' is neither 1 .* in 1 of 21 rows"),
}


@pytest.mark.parametrize("case", CELLS)
def test_cells_that_are_no_time_or_event_are_counted_and_not_shown(tmp_path, case):
    rows = [f"{k},{k + 1},{'yes' if k % 2 else 'false'}" for k in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["marker,months,died", *rows, CELLS[case][0]]))
    task = {"csv": str(tmp_path / "t.csv"), "time": "months", "event": "died"}

    with pytest.raises(DataError, match=CELLS[case][1]):
        build_federation(Plan(name="t", task=task, sites=2, method=method("FedAvg")))


@pytest.mark.parametrize(("happened", "not_yet"), [("ja", "nein"), ("Oui", "Non"), ("Sì", "no"), ("TRUE", "False")])
def test_an_event_is_told_in_the_words_of_a_table(tmp_path, happened, not_yet):
    rows = [f"{k},{k + 1},{happened if k % 2 else not_yet}" for k in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["marker,months,died", *rows]), encoding="utf-8")
    task = {"csv": str(tmp_path / "t.csv"), "time": "months", "event": "died"}

    federation = build_federation(Plan(name="t", task=task, sites=2, method=method("FedAvg")))

    seen = np.concatenate([samples.y for samples in (*federation.train, federation.test)])
    assert sorted(seen[:, 3]) == [0.0] * 10 + [1.0] * 10


def test_sites_too_small_to_tell_a_sum_need_stated_intervals(tmp_path):
    (tmp_path / "sites").mkdir()
    for name in "abc":
        (tmp_path / "sites" / f"{name}.csv").write_text("x,months,died\n1,2,1\n2,3,0\n3,5,1\n")

    with pytest.raises(PlanError, match=r"no site may tell a sum of 'months', .* cuts = \[...\]"):
        build_federation(plan_of(tmp_path, time="months", event="died"))


def test_a_label_that_is_a_number_of_many_values_is_refused_and_proposes_a_target(folder):
    plan = plan_of(folder, label="age", drop=["months", "died"])
    line = r"To predict the number itself: target = \"age\" in place of label\. If each is a class, .*: classes = \[2"

    with pytest.raises(DataError, match=line):
        build_federation(plan)
    assert not build_federation(plan_of(folder, label="died")).notes


def test_many_numbers_are_classes_where_they_are_listed(folder):
    ages = sorted({int(age) for age in AGES})

    federation = build_federation(plan_of(folder, label="age", drop=["months", "died"], classes=ages))

    assert federation.task.class_names == tuple(map(str, ages))


def test_a_label_of_hundreds_of_values_is_refused_and_proposes_a_target(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *(f"{k},{k / 7}" for k in range(200))]))
    plan = Plan(name="t", task={"csv": str(tmp_path / "t.csv"), "label": "y"}, sites=2, method=method("FedAvg"))

    with pytest.raises(DataError, match=r"like classes\. A number that is to be predicted is named as target"):
        build_federation(plan)


CLASSES_ONLY = {
    "weights": ({"recipe": Recipe(class_weights="balanced")}, "class_weights are for classes, and this task predicts"),
    "a threshold": ({"threshold": "youden"}, "threshold says who is called positive, and this task predicts numbers"),
    "a partition": ({"partition": {"dirichlet": 0.3}}, "goes by classes and this task has none"),
    "a metric": ({"metric": "auc"}, "there is no 'auc' for this task"),
    "a model of times": ({"model": "proportional"}, "it predicts times until an event"),
}


@pytest.mark.parametrize("case", CLASSES_ONLY)
def test_what_is_for_classes_alone_is_refused_for_numbers_in_one_line(case):
    changes, words = CLASSES_ONLY[case]
    plan = Plan(name="t", task="diabetes", sites=4, samples_per_site=8, method=method("FedAvg"))
    plan = plan.model_copy(update={"model": "linear", **changes})

    with pytest.raises(PlanError, match=words):
        check_run(plan, build_federation(plan))


def test_a_site_looks_at_its_own_file_without_classes(folder):
    plan = plan_of(folder, target="age", drop=["months", "died"])

    found = check_site(plan, "a", folder / "sites" / "a.csv")

    assert found.good
    assert not any("class" in finding.text for finding in found.findings)


def test_classes_that_are_numbers_are_never_two_spellings_of_one(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *(f"{k},{(-1, 1, 1.5, 15)[k % 4]}" for k in range(40))]))
    plan = Plan(name="t", task={"csv": str(tmp_path / "t.csv"), "label": "y"}, sites=2, method=method("FedAvg"))

    assert build_federation(plan).task.class_names == ("-1", "1", "1.5", "15")


def graded(tmp_path, **task):
    """A table of 24 patients with a grade in words, of which the alphabet knows another order."""
    rows = [f"{k},{('low', 'middle', 'high')[k % 3]}" for k in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["marker,grade", *rows]))
    return Plan(name="t", task={"csv": str(tmp_path / "t.csv"), **task}, sites=2, method=method("FedAvg"))


ORDER = ["low", "middle", "high"]


@pytest.mark.parametrize(
    "task", [{"target": "grade", "order": ORDER}, {"label": "grade", "classes": ORDER, "loss": "ordinal"}]
)
def test_a_grade_is_a_class_in_the_order_that_is_said(tmp_path, task):
    federation = build_federation(graded(tmp_path, **task))

    known = federation.task
    assert (known.kind, known.ordered, known.classes, known.outputs) == ("classes", True, 3, 2)
    assert known.class_names == tuple(ORDER)
    assert known.metrics[:2] == ("kappa", "mae")
    assert federation.class_sums


def test_grades_that_are_spelt_in_two_ways_are_one(tmp_path):
    order = {"low": ["middle"], "high": [], "highest": []}

    assert build_federation(graded(tmp_path, target="grade", order=order)).task.classes == 3


def test_words_have_no_order_that_nobody_has_said(tmp_path):
    with pytest.raises(PlanError, match=r'needs the order of the classes, .* classes = \["high", "low", "middle"\]'):
        build_federation(graded(tmp_path, label="grade", loss="ordinal"))


def test_numbers_are_grades_by_their_size(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["marker,grade", *(f"{k},{(10, 2, 3)[k % 3]}" for k in range(24))]))
    plan = Plan(
        name="t",
        task={"csv": str(tmp_path / "t.csv"), "label": "grade", "loss": "ordinal"},
        sites=2,
        method=method("FedAvg"),
    )

    assert build_federation(plan).task.class_names == ("2", "3", "10")


OF_CLASSES_ALONE = {
    "threshold": ({"threshold": 0.3}, "threshold says who is called positive, and this task predicts grades"),
    "kl": (
        {"method": method("RepTreeFL", tree={"diversity": "kl"})},
        'diversity = "kl" reads scores of classes, .* grades',
    ),
    "a metric": ({"metric": "c_index"}, "there is no 'c_index' for this task"),
    "a model of graphs": ({"model": "g1"}, "cannot be built"),
}


@pytest.mark.parametrize("case", OF_CLASSES_ALONE)
def test_what_has_no_meaning_for_grades_is_refused_in_one_line(tmp_path, case):
    changes, words = OF_CLASSES_ALONE[case]
    plan = graded(tmp_path, target="grade", order=ORDER).model_copy(update=changes)

    with pytest.raises(PlanError, match=words):
        check_run(plan, build_federation(plan))


def test_check_counts_the_grades_of_a_site(tmp_path):
    plan = graded(tmp_path, target="grade", order=ORDER)
    plan = plan.model_copy(update={"partition": {"natural": "file"}})

    found = check_site(plan, "a", tmp_path / "t.csv")

    assert any("Samples by class: low: 8, middle: 8, high: 8" in finding.text for finding in found.findings)


def labelled(tmp_path, more="", targets=("edema", "effusion"), **task):
    """A table of 24 patients with two labels, one of them in words."""
    rows = [f"{k * 7 % 24},{k % 2},{('no', 'Yes', 'no')[k % 3]}" for k in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["marker,edema,effusion", *rows, *([more] if more else [])]))
    task = {"csv": str(tmp_path / "t.csv"), "targets": list(targets), **task}
    return Plan(name="t", task=task, sites=2, method=method("FedAvg"))


def test_labels_are_columns_of_which_several_may_be_there(tmp_path):
    federation = build_federation(labelled(tmp_path))

    task, y = federation.task, np.concatenate([site.y for site in (*federation.train, federation.test)])
    assert (task.kind, task.outputs, task.labels) == ("labels", 2, ("edema", "effusion"))
    assert task.feature_names == ("marker",)
    assert y.sum(axis=0).tolist() == [12, 8]
    assert set(y.ravel()) == {0.0, 1.0}


LABEL_CELLS = {
    "a missing label": ("3,1,", "column 'effusion' is empty in 1 of 25 rows; drop those rows"),
    "a doubtful label": ("3,1,uncertain", "column 'effusion' is neither 1 .there. nor 0 .absent. in 1 of 25 rows"),
    "a label of two": ("3,2,1", "column 'edema' is neither 1"),
}


@pytest.mark.parametrize("case", LABEL_CELLS)
def test_labels_that_are_missing_or_doubtful_are_refused_in_one_line(tmp_path, case):
    cells, words = LABEL_CELLS[case]

    with pytest.raises(DataError, match=words):
        build_federation(labelled(tmp_path, cells))


OF_OTHERS = {
    "threshold": ({"threshold": 0.3}, "threshold says who is called positive, and this task predicts labels"),
    "class weights": (
        {"recipe": Recipe(class_weights="balanced")},
        "class_weights are for classes, .* predicts labels",
    ),
    "kl": ({"method": method("RepTreeFL", tree={"diversity": "kl"})}, 'diversity = "kl" reads scores .* labels'),
    "a partition by class": ({"partition": {"dirichlet": 0.3}}, "goes by classes and this task has none"),
    "a metric of classes": ({"metric": "accuracy"}, "there is no 'accuracy' for this task"),
    "proportional": ({"model": "proportional"}, "it predicts times until an event"),
    "squares": ({"task": {"loss": "mse"}}, "is for numbers, and this task predicts labels"),
}


@pytest.mark.parametrize("case", OF_OTHERS)
def test_what_has_no_meaning_for_labels_is_refused_in_one_line(tmp_path, case):
    changes, words = OF_OTHERS[case]
    plan = labelled(tmp_path, **changes.get("task", {}))
    plan = plan.model_copy(update={key: value for key, value in changes.items() if key != "task"})

    with pytest.raises(PlanError, match=words):
        check_run(plan, build_federation(plan))


def test_a_site_alone_has_the_labels_of_the_simulation(tmp_path):
    plan = labelled(tmp_path).model_copy(update={"partition": {"natural": "file"}, "sites": None})

    raw = load_site(plan, "t", tmp_path / "t.csv")

    assert raw.learns(None).labels == ("edema", "effusion")
    assert raw.train.y.shape[1] == 2


def test_labels_come_in_arrays_with_their_names():
    sites = {name: (RNG.normal(size=(12, 3)), RNG.integers(0, 2, size=(12, 2))) for name in "ab"}
    task = {"name": "mine", "loss": "binary_cross_entropy", "targets": ["edema", "effusion"]}
    plan = Plan(name="t", task=task, method=method("FedAvg"))

    federation = federation_from_arrays(plan, sites, test=sites["a"])

    assert federation.task.labels == ("edema", "effusion")
    assert len(federation.test) == 12
    with pytest.raises(DataError, match=r"labels are 0 or 1, none missing, 2 for each of 12 samples; got \(12, 1\)"):
        federation_from_arrays(plan, {name: (x, y[:, :1]) for name, (x, y) in sites.items()})
    with pytest.raises(DataError, match="labels are 0 or 1, none missing"):
        federation_from_arrays(plan, {name: (x, y * np.nan) for name, (x, y) in sites.items()})
    with pytest.raises(PlanError, match="is for several labels; name them: targets"):
        federation_from_arrays(plan.model_copy(update={"task": {**task, "targets": ["edema"]}}), sites)


def nameless(root, seed):
    """Labels of a source of one's own that does not name them."""
    return Pool({NOWHERE: Part(RNG.normal(size=(20, 3)), np.ones((20, 2)))}, loss="binary_cross_entropy")


def test_a_source_of_ones_own_names_its_labels():
    plan = Plan(name="t", task={"source": f"{__name__}:nameless"}, sites=2, method=method("FedAvg"))

    with pytest.raises(PlanError, match="gives labels without names"):
        build_federation(plan)


def test_check_counts_the_labels_of_a_site(tmp_path):
    plan = labelled(tmp_path).model_copy(update={"partition": {"natural": "file"}, "sites": None})

    found = check_site(plan, "t", tmp_path / "t.csv")

    assert any("Samples with each label: edema: 12, effusion: 8" in finding.text for finding in found.findings)


def test_grades_of_arrays_need_their_order_too():
    sites = {name: (RNG.normal(size=(12, 3)), np.array(["low", "middle", "high"] * 4)) for name in "ab"}
    plan = Plan(name="t", task={"name": "mine", "loss": "ordinal"}, method=method("FedAvg"))

    federation = federation_from_arrays(plan.model_copy(update={"task": {**plan.task, "classes": ORDER}}), sites)

    assert (federation.task.class_names, federation.task.outputs) == (tuple(ORDER), 2)
    with pytest.raises(PlanError, match="needs the order of the classes"):
        federation_from_arrays(plan, sites)


@pytest.mark.parametrize("kind", ["labels", "numbers", "times"])
def test_subgroups_are_refused_where_no_page_would_show_them(tmp_path, kind):
    keys = {"labels": {}, "numbers": {"target": "marker"}, "times": {"time": "marker", "event": "edema"}}[kind]
    plan = labelled(tmp_path, **keys, subgroups=["marker"])
    task = {name: value for name, value in plan.task.items() if name != "targets" or kind == "labels"}
    task = {**task, "categorical": ["effusion"]} if kind != "labels" else task

    with pytest.raises(PlanError, match=f"subgroups divide a page of classes, and this task predicts {kind}. Leave"):
        build_federation(plan.model_copy(update={"task": task}))
