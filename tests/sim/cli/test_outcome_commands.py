"""From a table with a number to predicted numbers, by commands."""

import csv

import pytest

SCENARIO = """
name = "ages"
task = {csv = "patients.csv", target = "age"%s}
model = "linear"
sites = 3
samples_per_site = 8
rounds = 20
%s
[recipe]
lr = 0.2
[[method]]
name = "FedDC"
"""


@pytest.fixture
def folder(tmp_path):
    rows = [f"{k % 9},{k % 4},{20 + 5 * (k % 9) + k % 4}" for k in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["a,b,age", *rows]))
    (tmp_path / "new.csv").write_text("b,a\n0,0\n3,8\n")
    return tmp_path


def written(folder, task="", more=""):
    (folder / "s.toml").write_text(SCENARIO % (task, more))
    return folder / "s.toml"


@pytest.mark.thorough
def test_a_number_goes_from_the_table_to_the_report_and_to_new_rows(fedsmall, folder):
    code, said, complained = fedsmall("run", written(folder), "--out", "out")

    assert (code, complained) == (0, "")
    assert "always the mean" in said
    assert "mean absolute" in said
    assert "true age" in (folder / "out" / "report.html").read_text()
    code, _, _ = fedsmall("predict", "out", "new.csv", "--out", "p.csv")
    with (folder / "p.csv").open() as file:
        ages = [float(row["age"]) for row in csv.DictReader(file)]
    assert code == 0
    assert ages == pytest.approx([20, 63], abs=6)


@pytest.mark.parametrize(
    ("task", "more", "words"),
    [
        (', label = "a"', "", "needs one of label"),
        ("", 'threshold = "youden"', "threshold says who is called positive"),
        ("", 'metric = "auc"', "there is no 'auc' for this task"),
        ("", "partition = {dirichlet = 0.3}", "goes by classes and this task has none"),
        (', loss = "hinge"', "", "is for classes, and this task predicts numbers"),
    ],
)
def test_what_is_for_classes_alone_ends_with_one_line_and_leaves_nothing(fedsmall, folder, task, more, words):
    code, _, complained = fedsmall("run", written(folder, task, more), "--out", "out")

    assert code == 2
    assert words in complained
    assert complained.count("\n") == 1
    assert not (folder / "out").exists()
