import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.parts import Privacy, Recipe, Tree
from fedsmall.plan import Method, Plan
from fedsmall.planning.check import Finding, check_site, few
from fedsmall.planning.validation import check_real_sites


def plan(task, method=None, **settings) -> Plan:
    return Plan(name="t", task=task, method=method or Method(name="FedAvg"), **settings)


def table(tmp_path, text, **options):
    (tmp_path / "ward-9.csv").write_text(text)
    task = {"csv": "x", "label": "ill", "classes": [0, 1], **options}
    return check_site(plan(task), "a", tmp_path / "ward-9.csv")


def texts(check, level):
    return " | ".join(finding.text for finding in check.findings if finding.level == level)


@pytest.mark.parametrize(("count", "shown"), [(0, "0"), (1, "fewer than 5"), (4, "fewer than 5"), (5, "5")])
def test_a_small_count_is_not_written_out(count, shown):
    assert few(count) == shown


def test_good_data_are_called_good(tmp_path):
    check = table(tmp_path, "dose,age,ill\n" + "".join(f"{index / 3},{index % 7},{index % 2}\n" for index in range(40)))

    assert check.good
    assert texts(check, "note") == ""
    assert "40 samples (2 features): 30 to train on, 10 held out" in texts(check, "good")
    assert "0: 20, 1: 20" in texts(check, "good")


def test_what_is_odd_is_noted(tmp_path):
    rows = "a,b,flat,patient_id,ill\n" + "".join(f"{i if i % 4 else ''},{i},3,{i},{i % 2}\n" for i in range(40))
    check = table(tmp_path, rows + "1,1,3,1,0\n1,1,3,1,1\n" * 3)

    assert check.good
    assert "Missing values: a (10 of 46)" in texts(check, "note")
    assert "say nothing here (one value, or none): flat" in texts(check, "note")
    assert "look like identifiers or dates: patient_id" in texts(check, "note")
    assert "occur more than once: 6" in texts(check, "note")
    assert "fewer than 5 of them have different labels" in texts(check, "note")


def test_a_row_that_is_both_trained_on_and_held_out_is_found(tmp_path):
    check = table(tmp_path, "dose,ill\n" + "1,0\n2,1\n" * 20)

    assert "10 held-out samples equal one that is trained on" in texts(check, "note")


def test_a_class_that_is_not_there_is_noted(tmp_path):
    found = table(tmp_path, "x,ill\n" + "1,1\n2,1\n" * 4)

    assert "All samples are of one class (0: 0, 1: 6)" in texts(found, "note")  # two groups of four: none is held out


def test_a_feature_with_too_few_values_is_said_to_be_withheld(tmp_path):
    check = table(tmp_path, "a,b,ill\n" + "".join(f"{i},{i if i < 3 else '?'},{i % 2}\n" for i in range(20)))

    assert "Nothing is sent of b" in texts(check, "note")


def test_data_that_cannot_be_used_are_a_problem_and_not_an_error(tmp_path):
    check = table(tmp_path, "name,ill\nMeier,0\nMuster,1\n")

    assert not check.good
    assert "PROBLEM" in check.lines()[0]
    assert "'name' (2 of 2 rows)" in check.lines()[0]


def test_the_classes_a_scenario_should_name_are_proposed(tmp_path):
    (tmp_path / "a.csv").write_text("x,ill\n" + "1,no\n2,yes\n3,no\n4,yes\n" * 5)

    check = check_site(plan({"csv": "x", "label": "ill"}), "a", tmp_path / "a.csv")

    assert 'classes = ["no", "yes"]' in texts(check, "note")
    assert check.good


def test_a_report_names_no_file_and_no_value(tmp_path):
    check = table(tmp_path, "dose,ill\n" + "".join(f"{index}.777,{index % 2}\n" for index in range(40)))

    report = "\n".join(check.lines())
    assert "ward-9" not in report
    assert str(tmp_path) not in report
    assert ".777" not in report


def test_what_leaves_is_what_the_plan_sends(tmp_path):
    chained = Method(name="FedDC", permute_every=1, privacy=Privacy(clip=1.5))
    still = plan("breast_cancer", sites=3)
    moving = plan("breast_cancer", chained, sites=3, recipe=Recipe(optimizer="adam"))

    few_words = " ".join(check_site(still, "site-001", None).leaves)
    more_words = " ".join(check_site(moving, "site-001", None).leaves)

    assert "1,554 numbers in 6 arrays: 0.weight (32, 30)" in few_words
    assert "sum of squares of at least 5" in few_words
    assert "goes on to another site" not in few_words
    assert "goes on to another site" in more_words
    assert "optimizer's state" in more_words
    assert "clipped to 1.5" in more_words


def test_images_of_one_colour_are_noted_and_the_size_is_said(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (20, 5, 6), dtype=np.uint8)
    x[:6] = 9
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)

    check = check_site(plan({"npz": "x", "classes": [0, 1]}, model="cnn"), "a", tmp_path / "a.npz")

    assert "grey images of 5 x 6" in texts(check, "good")
    assert "6 images are of one colour only" in texts(check, "note")
    assert "sum of squares" not in " ".join(check.leaves)


def test_a_model_that_cannot_take_the_data_is_a_problem(tmp_path):
    (tmp_path / "a.csv").write_text("x,ill\n" + "1,0\n2,1\n" * 5)
    task = {"csv": "x", "label": "ill", "classes": [0, 1]}

    check = check_site(plan(task, model="cnn"), "a", tmp_path / "a.csv")

    assert check.findings == (Finding("problem", check.findings[0].text),)
    assert "takes images" in check.findings[0].text


@pytest.mark.parametrize(("rows", "noted"), [(10, True), (40, False)])
def test_replicas_that_would_be_copies_are_noted(tmp_path, rows, noted):
    file = tmp_path / "ward-9.csv"
    file.write_text("dose,age,ill\n" + "".join(f"{index / 3},{index % 7},{index % 2}\n" for index in range(rows)))
    trees = plan({"csv": "x", "label": "ill", "classes": [0, 1]}, Method(name="RepTreeFL", tree=Tree(drop=0.1)))

    assert ("Replicas would lack no sample here" in texts(check_site(trees, "a", file), "note")) is noted


def test_what_the_server_cannot_see_is_said_of_what_leaves(tmp_path):
    def said(**privacy):
        chain = Method(name="FedDC", permute_every=1, aggregate_every=10, privacy=Privacy(**privacy))
        return " ".join(check_site(plan("digits", method=chain, sites=3), "site-001", None).leaves)

    assert "another site, as it is." in said(blur=0)
    assert "another site, sealed: it alone can open it." in said(sealed=True)
    assert "What is averaged leaves masked" in said(secure=True)
    assert "masked" not in said(sealed=True)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"label": "ill", "classes": ["no", "yes"]}, "names one source"),
        ({"csv": "t.csv", "label": "ill"}, "need the classes in the task"),
        ({"csv": "t.csv", "label": "ill", "classes": ["no", "yes"], "categorical": ["sex"]}, "values of a category"),
        ({"images": "scans", "classes": ["no", "yes"], "test": "apart"}, "take test out of the task"),
    ],
)
def test_real_sites_are_not_asked_for_what_none_of_them_could_read(task, words):
    with pytest.raises(PlanError, match=words):
        check_real_sites(plan(task))
